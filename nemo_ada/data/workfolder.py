"""A folder of work in progress that belongs to one set of settings."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run.files import write_atomically
from nemo_ada.run.folder import flatten

log = logging.getLogger(__name__)


def claim(
    folder: Path,
    settings: Mapping[str, Any],
    marker: str = "settings.json",
    cleared: Callable[[], bool] = lambda: False,
) -> None:
    """Make the folder, or check that it was begun with the same settings; leftovers of killed writes are removed.

    cleared: called where the settings differ; True where nothing had been drawn and it removed the rest, so that a
    command that failed early can be corrected. Raises UserError naming the settings that differ.
    """
    path = folder / marker
    now = json.loads(json.dumps(dict(settings)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(before, dict):
                raise UserError(f"{path} is damaged (it holds no mapping); remove the folder")
            old, new = flatten(before), flatten(now)
            changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
            if changed and cleared():
                log.warning("%s was begun with other settings, and nothing was drawn: it is begun anew", folder)
                path.unlink()
            elif changed:
                shown = ", ".join(f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in changed[:5])
                raise UserError(
                    f"{folder} was begun with other settings ({shown}); undo these changes, name another folder or "
                    "remove this one"
                )
        for leftover in folder.rglob(".*.[0-9]*"):
            leftover.unlink()
        if not path.exists():
            write_atomically(path, json.dumps(now, indent=1, ensure_ascii=False) + "\n")
    except OSError as problem:
        raise UserError(f"{folder} cannot be written: {problem}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise UserError(f"{path} is damaged ({problem}); remove the folder") from None
