"""A work folder that belongs to one set of settings, and append-only JSONL files in it that survive a kill.

A commit appends records, syncs them, then replaces the state file `<name>.state.json` {bytes, items, passed, complete}.
Opening a journal cuts the file to the bytes of the last commit. So a torn tail disappears, and so does a commit whose
state was not written. Work continues after `items` inputs.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.files import write_atomically
from nemo_ada.run.folder import changed_keys, flatten

log = logging.getLogger(__name__)
SETTINGS = "settings.json"


def dump(record: Mapping[str, Any]) -> str:
    """One line of JSONL."""
    return json.dumps(dict(record), ensure_ascii=False) + "\n"


class Journal:
    """items: inputs that the committed records cover. passed: inputs that continue. complete: no more will come."""

    def __init__(self, path: Path) -> None:
        """Raises UserError for a damaged file."""
        self.path = path
        self._state_path = path.with_name(path.name + ".state.json")
        self._bytes, self.items, self.passed, self.complete = 0, 0, 0, False
        if self._state_path.exists():
            try:
                state = json.loads(self._state_path.read_text(encoding="utf-8"))
                self._bytes, self.items = int(state["bytes"]), int(state["items"])
                self.passed, self.complete = int(state["passed"]), bool(state["complete"])
            except (ValueError, KeyError, TypeError, OverflowError) as problem:
                raise _damaged(self._state_path, problem) from None
        size = path.stat().st_size if path.exists() else 0
        if size < self._bytes:
            raise _damaged(path, f"{size} bytes; its state file says {self._bytes}")
        if size > self._bytes:
            os.truncate(path, self._bytes)

    def commit(self, records: Iterable[Mapping[str, Any]], items: int, passed: int = 0) -> None:
        """Append the records of `items` further inputs, of which `passed` continue."""
        if self.complete:
            raise InvariantError(f"{self.path} is complete")
        data = "".join(map(dump, records)).encode()
        with self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._bytes += len(data)
        self.items += items
        self.passed += passed
        self._save()

    def finish(self) -> None:
        """Mark the journal as complete."""
        self.path.touch()
        self.complete = True
        self._save()

    def read(self) -> Iterator[dict[str, Any]]:
        """The committed records."""
        if self.path.exists():
            try:
                with self.path.open(encoding="utf-8", newline="\n") as file:
                    yield from map(json.loads, file)
            except ValueError as problem:
                raise _damaged(self.path, problem) from None

    def _save(self) -> None:
        state = {"bytes": self._bytes, "items": self.items, "passed": self.passed, "complete": self.complete}
        write_atomically(self._state_path, json.dumps(state))


def claim(
    folder: Path, settings: Mapping[str, Any], *, results: Sequence[str] = (), drafts: Sequence[str] = ()
) -> None:
    """Make the folder, or check that it was started with the same settings. Remove leftovers of killed writes.

    results, drafts: glob patterns. Other settings are accepted while no file of `results` has content: then the files
    of `drafts` are removed. So a command that failed early can be corrected. Raises UserError with the settings that
    differ.
    """
    path = folder / SETTINGS
    now = json.loads(json.dumps(dict(settings)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(before, dict):
                raise UserError(f"{path} is damaged (not a JSON object); remove the folder")
            old, new = flatten(before), flatten(now)
            changed = changed_keys(old, new)
            if changed and any(file.stat().st_size for pattern in results or ("*",) for file in folder.glob(pattern)):
                shown = ", ".join(f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in changed[:5])
                raise UserError(
                    f"{folder} was started with other settings ({shown}); undo these changes, choose another folder, "
                    "or remove this one"
                )
            if changed:
                log.warning("%s was started with other settings but has no results: starting again", folder)
                path.unlink()
                for draft in [draft for pattern in drafts for draft in folder.glob(pattern)]:
                    shutil.rmtree(draft) if draft.is_dir() else draft.unlink()
                for inner in [inner for inner in folder.iterdir() if inner.is_dir() and not any(inner.iterdir())]:
                    inner.rmdir()
        for leftover in folder.rglob(".*.[0-9]*"):
            leftover.unlink()
        if not path.exists():
            write_atomically(path, json.dumps(now, indent=1, ensure_ascii=False) + "\n")
    except OSError as problem:
        raise UserError(f"{folder} cannot be written: {problem}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise UserError(f"{path} is damaged ({problem}); remove the folder") from None


def _damaged(path: Path, problem: object) -> UserError:
    return UserError(f"{path} is damaged ({problem}); remove the folder and start again")
