"""A scorer whose workers end before their first answer."""

from __future__ import annotations

import os

from nemo_ada.verify import worker

worker.confine = lambda _memory_bytes: os._exit(3)  # type: ignore[assignment]


def score(_answer: str, _reference: str) -> float:
    """Nobody comes here."""
    return 1.0
