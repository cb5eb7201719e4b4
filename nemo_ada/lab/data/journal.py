"""A work folder that belongs to one set of settings, and append-only JSONL files in it that survive a kill.

A commit appends records, syncs them, then replaces the state file `<name>.state.json` {bytes, items, complete}.
Opening a journal cuts the file to the bytes of the last commit. So a torn tail disappears, and so does a commit whose
state was not written. Work continues after `items` inputs.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.files import TEMPORARY, append, json_of, lock_file, strangers, touch, write_atomically
from nemo_ada.run.folder import changed_keys, flatten
from nemo_ada.run.json_lines import DamagedLine, records

log = logging.getLogger(__name__)
SETTINGS = "settings.json"
VERSION = "nemo_ada"  # the key of SETTINGS that every folder of ours has
LOCK = ".nemo-ada.lock"
PINS = "sources.json"  # commits of hub data sets
OWN = re.compile(
    r"(settings|results|card|sources)\.json|README\.md|(dataset|rejected|pass_rates|problems|responses)\.jsonl"
    r"|(measure|responses)\.jsonl(\.state\.json)?"
)
"""Files that preparations and evaluations write."""


def dump(record: Mapping[str, Any]) -> str:
    """Return a record as one line of JSONL."""
    return json.dumps(dict(record), ensure_ascii=False) + "\n"


class Journal:
    """An append-only JSONL file with its state.

    Attributes:
        path: The file.
        items: The number of inputs that the committed records cover.
        complete: Whether more records will not come.
    """

    def __init__(self, path: Path) -> None:
        """Open a journal, and cut off what was not committed. Raises UserError where the file is damaged."""
        self.path = path
        self._state_path = path.with_name(path.name + ".state.json")
        self._bytes, self.items, self.complete = 0, 0, False
        if self._state_path.exists():
            try:
                state = json_of(self._state_path)
                self._bytes, self.items = int(state["bytes"]), int(state["items"])
                self.complete = bool(state["complete"])
            except (ValueError, KeyError, TypeError, OverflowError) as problem:
                raise _damaged(self._state_path, problem) from None
        size = path.stat().st_size if path.exists() else 0
        if size < self._bytes:
            raise _damaged(path, f"{size} bytes; its state file says {self._bytes}")
        if size > self._bytes:
            os.truncate(path, self._bytes)

    def commit(self, new_records: Iterable[Mapping[str, Any]], items: int) -> None:
        """Append the records of `items` further inputs."""
        if self.complete:
            raise InvariantError(f"{self.path} is complete")
        data = "".join(map(dump, new_records)).encode()
        append(self.path, data)
        self._bytes += len(data)
        self.items += items
        self._save()

    def finish(self) -> None:
        """Mark the journal as complete."""
        touch(self.path)
        self.complete = True
        self._save()

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the committed records."""
        if self.path.exists():
            try:
                yield from (record for _, record in records(self.path))
            except DamagedLine as problem:
                raise _damaged(self.path, problem) from None

    def _save(self) -> None:
        state = {"bytes": self._bytes, "items": self.items, "complete": self.complete}
        write_atomically(self._state_path, json.dumps(state))


@contextmanager
def claimed(
    folder: Path,
    settings: Mapping[str, Any],
    *,
    inner: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _settings: (),
    results: Sequence[str] = (),
) -> Iterator[None]:
    """Use a folder alone, for one set of settings. The folder must be new, empty, or of the same command.

    Other settings are accepted while no file of `results` has content. So a command that failed early can be corrected.
    The files of the inner folders are then removed. Leftovers of killed writes are removed too. Other files stay.

    Args:
        folder: The folder.
        settings: What the work depends on.
        inner: Returns the names of the folders in it that some settings ask for.
        results: Glob patterns of files with results.

    Raises:
        UserError: The folder is somebody else's, another process uses it, or it has results of other settings.
    """
    now = json.loads(json.dumps(dict(settings)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _before(folder, now)
        lock = lock_file(folder / LOCK, f"--out={folder}")
    except OSError as problem:
        raise _unwritable(folder, problem) from None
    try:
        try:
            _settle(folder, now, inner, results)
        except OSError as problem:
            raise _unwritable(folder, problem) from None
        yield
    finally:
        with suppress(OSError):
            lock.truncate(0)
        lock.close()


def clear(folder: Path, names: re.Pattern[str]) -> None:
    """Remove the files of a folder whose whole name matches, and leftovers of killed writes of them.

    Then remove the folder if it is empty. Folders in it are not touched.
    """
    if folder.is_dir() and not folder.is_symlink():
        for path in folder.iterdir():
            leftover = TEMPORARY.fullmatch(path.name)
            if path.is_file() and names.fullmatch(leftover["name"] if leftover else path.name):
                path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()


def _settle(
    folder: Path,
    now: dict[str, Any],
    inner: Callable[[Mapping[str, Any]], Iterable[str]],
    results: Sequence[str],
) -> None:
    """Compare the settings, forget a start without results, remove leftovers, and write the settings.

    The folder is locked.
    """
    path, before = folder / SETTINGS, _before(folder, now)
    old, new = flatten(before or now), flatten(now)
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
        (folder / PINS).unlink(missing_ok=True)
        for name in inner(before or {}):
            clear(folder / name, OWN)
    for place in (folder, *(folder / name for name in inner(now))):
        for leftover in place.glob(".*.tmp") if place.is_dir() else ():
            match = TEMPORARY.fullmatch(leftover.name)
            if match and OWN.fullmatch(match["name"]):
                leftover.unlink()
    if not path.exists():
        write_atomically(path, json.dumps(now, indent=1, ensure_ascii=False) + "\n")


def _before(folder: Path, now: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings of the folder, None where it is new. Raises UserError for a folder of another command."""
    path = folder / SETTINGS
    choose = "choose a new or an empty folder"
    if not path.exists():
        names = strangers(folder, (LOCK,))
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise UserError(f"--out={folder} is not empty ({shown}) and is not a folder of this command; {choose}")
        return None
    try:
        before = json_of(path)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{path} is damaged ({problem}); {choose}") from None
    if not isinstance(before, dict):
        raise UserError(f"{path} is damaged (not a JSON object); {choose}")
    if VERSION not in before or ("benchmarks" in before) != ("benchmarks" in now):
        raise UserError(f"--out={folder} belongs to another command or program (its {SETTINGS} shows it); {choose}")
    return before


def _unwritable(folder: Path, problem: OSError) -> UserError:
    return UserError(f"{folder} cannot be written: {problem}")


def _damaged(path: Path, problem: object) -> UserError:
    return UserError(f"{path} is damaged ({problem}); remove the folder and start again")
