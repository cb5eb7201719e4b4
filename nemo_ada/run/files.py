"""Files that are either old or new, never half-written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError

MANIFEST = "manifest.json"
SHOWN = 5  # names in a message


def read_bounded(path: Path, most: int) -> bytes:
    """What a file holds that a person named.

    Raises OSError, also for a device, for more than `most` bytes and for a name that no file can have.
    """
    try:
        mode = path.stat().st_mode
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a file that may be damaged. Raises UserError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a JSON {type(content).__name__}, not an object")
    return content


def write_atomically(path: Path, text: str) -> None:
    """Replace a text file in one step; on a full disk the old one stays. A device or a pipe is written to."""
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Create `folder` with what `fill` writes and a manifest of checksums; it appears complete or not at all."""
    temporary = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        fill(temporary)
        sums = {str(path.relative_to(temporary)): _checksum(path) for path in _files(temporary)}
        (temporary / MANIFEST).write_text(json.dumps(sums, indent=1), encoding="utf-8")
        for path in _files(temporary):
            _sync(path)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def verify_folder(folder: Path, needs: Collection[str] = ()) -> None:
    """Raise UserError when a folder that `write_folder` made is incomplete or changed, or lacks a file of `needs`.

    A link inside the folder counts as a change: what it points at may be another file a moment later.
    """
    try:
        if links := sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink()):
            raise ValueError(f"{_some(links)}: links, which were not written with it")
        if not (folder / MANIFEST).is_file():
            raise ValueError(f"it has no {MANIFEST}")
        sums = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(sums, dict):
            raise ValueError(f"{MANIFEST} holds no mapping of files to checksums")
        found = {str(path.relative_to(folder)): _checksum(path) for path in _files(folder) if path.name != MANIFEST}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder} is not a complete folder ({error})") from None
    wrong = sorted(name for name in {*sums, *found, *needs} if name not in found or sums.get(name) != found[name])
    if wrong:
        raise UserError(f"{folder}: {_some(wrong)} differ from their checksums (truncated or changed)")


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(name[:80] for name in names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
