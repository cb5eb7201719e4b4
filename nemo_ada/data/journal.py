"""An append-only JSONL file that survives a kill at any point.

Records are appended in commits. A commit is: append, sync, then replace the small state file `<name>.state.json`
{bytes, items, passed, complete}. Opening truncates the file to the bytes of the last commit, so a torn tail and a
commit whose state was not written both vanish, and the work continues after `items` inputs as if nothing had happened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.files import write_atomically


def dump(record: Mapping[str, Any]) -> str:
    """One line of JSONL."""
    return json.dumps(dict(record), ensure_ascii=False) + "\n"


class Journal:
    """items: inputs that the committed records stand for. passed: how many of them go on. complete: nothing more will
    come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state_path = path.with_name(path.name + ".state.json")
        self._bytes, self.items, self.passed, self.complete = 0, 0, 0, False
        if self._state_path.exists():
            try:
                state = json.loads(self._state_path.read_text(encoding="utf-8"))
                self._bytes, self.items = int(state["bytes"]), int(state["items"])
                self.passed, self.complete = int(state["passed"]), bool(state["complete"])
            except (ValueError, KeyError, TypeError, OverflowError) as problem:
                raise UserError(
                    f"{self._state_path} is damaged ({problem}); remove the folder and begin anew"
                ) from None
        found = path.stat().st_size if path.exists() else 0
        if found < self._bytes:
            raise UserError(
                f"{path} has {found} bytes, its state says {self._bytes}: it was changed; remove the folder and begin "
                "anew"
            )
        if found > self._bytes:
            os.truncate(path, self._bytes)

    def commit(self, records: Iterable[Mapping[str, Any]], items: int, passed: int = 0) -> None:
        """Append the records that `items` further inputs gave; `passed` of the inputs go on."""
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
        """Nothing more will come."""
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
                raise UserError(f"{self.path} is damaged ({problem}); remove the folder and begin anew") from None

    def _save(self) -> None:
        state = {"bytes": self._bytes, "items": self.items, "passed": self.passed, "complete": self.complete}
        write_atomically(self._state_path, json.dumps(state))
