"""Splits on disk, so that a second run does not generate its problems again.

One file per fingerprint of the settings: a header line with the sizes, then one JSON object per prompt or
demonstration. It is written beside its final name and moved there, so a reader never sees a part of it; a damaged
file is built again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nemo_ada.errors import InvariantError
from nemo_ada.run.files import write_atomically
from nemo_ada.tasks.protocol import Demonstration, Prompt, Splits

log = logging.getLogger(__name__)
FORMAT = 1


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Sixteen hex digits of everything that the splits depend on."""
    return hashlib.sha256(json.dumps({"format": FORMAT, **facts}, sort_keys=True).encode()).hexdigest()[:16]


def cached_splits(folder: Path | None, task_name: str, facts: Mapping[str, Any], build: Callable[[], Splits]) -> Splits:
    """The splits of these facts, from `folder` if they are there, else built and stored there (`None` stores nothing).

    Both ways give equal splits: `entry` dicts always pass through JSON.
    """
    if folder is None:
        return _loads(_dumps(build()))
    path = folder / f"{task_name}-{fingerprint(facts)}.jsonl"
    if path.exists():
        try:
            return _loads(path.read_text(encoding="utf-8"))
        except (ValueError, KeyError, TypeError, InvariantError) as problem:
            log.warning("the cached splits %s are damaged (%s); building them again", path, problem)
    text = _dumps(build())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    return _loads(text)


def _dumps(splits: Splits) -> str:
    header = {"train": len(splits.train), "heldout": len(splits.heldout), "supervision": len(splits.supervision)}
    rows: list[Any] = [header]
    rows += [[p.prompt_id, p.text, p.answer, p.entry] for p in splits.train + splits.heldout]
    rows += [[d.prompt_text, d.answer_text] for d in splits.supervision]
    return "".join(json.dumps(row) + "\n" for row in rows)


def _loads(text: str) -> Splits:
    header, *rows = [json.loads(line) for line in text.splitlines()]
    train, heldout, supervision = header["train"], header["heldout"], header["supervision"]
    if len(rows) != train + heldout + supervision:
        raise ValueError(f"{len(rows)} rows where the header promises {train + heldout + supervision}")
    prompts = tuple(Prompt(*row) for row in rows[: train + heldout])
    demonstrations = tuple(Demonstration(*row) for row in rows[train + heldout :])
    return Splits(prompts[:train], prompts[train:], demonstrations)
