"""What a command keeps in its folder, so that a killed one can go on: its settings, and every response.

Responses cost hours of a GPU. All else is made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run.files import append, open_to_read, read_json, remove_leftovers, write_atomically
from nemo_ada.run.folder import find_changed_keys, flatten
from nemo_ada.run.json_lines import DamagedLine, Record, read_records

SETTINGS, RESPONSES = "settings.json", "responses.jsonl"


def dump(rows: Iterable[Record]) -> str:
    """Return records as lines of JSONL."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in rows)


def begin_or_continue(folder: Path, settings: Mapping[str, Any], result: str) -> dict[str, Any] | None:
    """Return the result of a command that is complete in its folder, None where it starts or goes on.

    Args:
        folder: The folder, which belongs to the command.
        settings: What the result depends on.
        result: The name of the file that the command writes last.

    Raises:
        UserError: The folder has responses or a result of other settings, or the result is damaged.
    """
    now, path = json.loads(json.dumps(dict(settings))), folder / SETTINGS
    worked = (folder / result).exists() or any(folder.rglob(RESPONSES))
    before = read_json(path) if path.exists() and worked else now
    if before != now:
        old, new = flatten(before), flatten(now)
        changes = (f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in find_changed_keys(old, new)[:5])
        raise UserError(
            f"{folder} was started with other settings ({', '.join(changes)}); undo these changes, choose another "
            "folder, or remove this one"
        )
    remove_leftovers(folder)
    write_atomically(path, json.dumps(now, indent=1, ensure_ascii=False) + "\n")
    return read_json(folder / result) if (folder / result).exists() else None


class Responses:
    """Judged responses, a line each, in a file that only grows.

    Attributes:
        path: The file.
        done: (problem, index) of those that it has.
    """

    def __init__(self, path: Path, *, texts: bool = True) -> None:
        """Open the file, and cut off a line that a kill has left without its end. `texts`: keep the texts, too."""
        self.path, self._texts = path, texts
        if path.exists():
            with open_to_read(path) as file:
                whole = sum(len(line) for line in file if line.endswith(b"\n"))
            os.truncate(path, whole)
        self.done: set[tuple[str, int]] = set()
        self.done = {(record["id"], record["index"]) for record in self.read()}

    def read(self) -> Iterator[Record]:
        """Yield the records, of a response that stands there twice the first. Raises UserError for a damaged line."""
        seen: set[tuple[str, int]] = set()
        try:
            for _, record in read_records(self.path) if self.path.exists() else ():
                key = record["id"], record["index"]
                if key not in seen:
                    yield record
                seen.add(key)
        except (DamagedLine, KeyError) as problem:
            raise UserError(f"{self.path} is damaged ({problem}); remove it and repeat the command") from None

    def add(self, new: Sequence[Record]) -> None:
        """Append records, and wait until the disk has them."""
        kept = [record if self._texts else {k: v for k, v in record.items() if k != "text"} for record in new]
        append(self.path, dump(kept))
        self.done |= {(record["id"], record["index"]) for record in new}
