"""Math-verify's processes for those who may never need them."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_ada.verify.pool import MathVerifier
from nemo_ada.verify.verdict import Verdict


class MathOnDemand:
    """A MathVerifier that starts with the first answer, and again with the first one after `close`."""

    def __init__(self) -> None:
        self._verifier: MathVerifier | None = None

    def verify_many(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Verdicts of (answer, reference) pairs in their order; without any, nothing starts."""
        if not pairs:
            return []
        self._verifier = self._verifier or MathVerifier()
        return self._verifier.verify_many(pairs)

    def close(self) -> None:
        """End the processes, if there are any."""
        if self._verifier is not None:
            self._verifier.close()
            self._verifier = None
