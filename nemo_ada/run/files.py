"""Every file and folder that we make, read, replace, lock or delete. The rest of the package goes through here.

Other users can write into /tmp and into shared folders. So a new file has a name that nobody guesses, and it is an
error if something has that name already. Links are not followed where we write. A folder that a user names belongs to
one command, which its marker says, and nothing else of the user's is replaced or deleted. What is read has a bound.
yaml_file.py and json_lines.py beside this module read the other formats. A lock ends with its process.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import logging
import os
import platform
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from nemo_ada import trust
from nemo_ada.errors import UserError
from nemo_ada.standing import get_users_temporary

log = logging.getLogger(__name__)
LEASE_SECONDS = 120.0
MANIFEST = "manifest.json"
SHOWN = 5  # how many items a message lists
PRIVATE = "nemo-ada-"  # short, because sockets lie below a private folder
MARKER = ".nemo-ada"  # the file that says who made a folder
MAX_TEXT = 256 << 20  # bytes of a text or a JSON file
MAX_DIGITS = 300  # of a whole number in a JSON file
LOOKS = 10  # at a lock that `is_in_use` may hold for a moment
TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{32}\.(tmp|partial|old)")
"""Names of files and folders that are written, or deleted, right now. A kill leaves them."""
MADE_BY = re.compile(
    rb"\A(?:\x89PNG\r\n.*tEXtSoftware\0nemo-ada"
    rb"|\s*<!doctype html>\s*<html[^>]*><head><meta name=\"generator\" content=\"nemo-ada"
    rb"|\{\s*\"made_by\": \"nemo-ada)",
    re.DOTALL,
)
"""The mark at the start of each kind of file that we write under a user's name."""
PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # for private folders, where TMPDIR is too long


@contextmanager
def private_folder(longest: int = 4096) -> Iterator[Path]:
    """Make a folder that no other user can enter, and remove it at the end of the block.

    A program that opens its own folder to all users, as Ray does, must get a folder below this one. That of a process
    that was killed stays, as other temporary files do.

    Args:
        longest: Most bytes of the folder's path. Sockets have short paths. Another place than the process's TMPDIR is
            taken if its path is too long: first the user's.

    Raises:
        UserError: All places are too long or cannot be written.
    """
    first, users, refusal = Path(os.environ.get("TMPDIR") or "/tmp"), get_users_temporary(), ""
    for place in dict.fromkeys([first, users, *map(Path, PLACES)]):
        prefix = "" if any(part.startswith(PRIVATE) for part in place.parts) else PRIVATE
        if len(os.fsencode(place)) + len(f"/{prefix}") + 8 > longest:
            refusal = refusal or f"the path is longer than {longest - len(prefix) - 9} characters"
            continue
        try:
            _refuse_unsafe(place)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        except OSError as error:
            refusal = refusal or str(error)
            continue
        if place not in (first, users):
            log.warning("temporary files are in %s, not in TMPDIR=%s: %s", place, users, refusal)
        break
    else:
        raise UserError(f"TMPDIR={users} cannot be used: {refusal}; set TMPDIR to a short folder, such as /tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _refuse_unsafe(place: Path) -> None:
    """Raise OSError for a folder in which another user may rename a folder of ours and take its name."""
    status = place.stat()
    open_to_all = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
    if open_to_all or status.st_uid not in (0, os.getuid()):
        raise PermissionError(errno.EPERM, "another user may rename what is in it", str(place))


def make_folder(prefix: str) -> Path:
    """Make a folder below the user's TMPDIR that no other user can enter, and that stays."""
    place = get_users_temporary()
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    except OSError as error:
        raise UserError(f"TMPDIR={place} cannot be used: {error.strerror}; make it, or set TMPDIR to another") from None


def open_to_read(path: Path) -> io.BufferedReader:
    """Open a file that other people may have written. A planted pipe would make a command wait for ever.

    Raises:
        OSError: The file cannot be read, is a pipe, a device or a folder, or has an impossible name.
    """
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    return file


def read_bounded(path: Path, most: int) -> bytes:
    """Read a file. Raises OSError as `open_to_read` does, and for more than `most` bytes."""
    with open_to_read(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def text_of(path: Path, most: int = MAX_TEXT, errors: str = "strict") -> str:
    """Read a text file.

    Raises:
        OSError: the file cannot be read or has more than `most` bytes.
        ValueError: it is not UTF-8.
    """
    return read_bounded(path, most).decode("utf-8", errors)


def json_of(path: Path, most: int = MAX_TEXT) -> Any:
    """Read a JSON file. Raises OSError as `text_of` does, and ValueError where the content is no JSON."""
    try:
        return json.loads(text_of(path, most), parse_int=parse_whole_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_whole_number(text: str) -> int:
    """Return a whole number of JSON. Python takes long for many digits, and no float has as many."""
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of more than {MAX_DIGITS} digits")
    return int(text)


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object of a file. Raises UserError where the file is damaged."""
    try:
        content = json_of(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a JSON {type(content).__name__}, not an object")
    return content


def create_file(path: Path, mode: str = "w") -> IO[Any]:
    """Create a file and open it with one of the modes w, w+, wb.

    Raises:
        FileExistsError: something has the name already, such as a link of another user.
    """
    return _open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)


def append(path: Path, data: str | bytes, *, durable: bool = True) -> None:
    """Add to the end of a file in one piece. It is created if it is missing. `durable` waits until the disk has it."""
    with _open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab") as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _open_file(path: Path, flags: int, mode: str) -> IO[Any]:
    """Open a file with these flags. A name that is a link is an error."""

    def opener(name: str, _flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)  # a planted pipe would block

    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=opener)


def touch(path: Path) -> None:
    """Create an empty file, or renew the time of a file."""
    _open_file(path, os.O_WRONLY | os.O_CREAT, "wb").close()
    os.utime(path, follow_symlinks=False)


def remove(path: Path) -> Path:
    """Delete a file, a link or a folder with all that is in it, if it is there. No link is followed.

    Returns:
        The path, which is free now.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def duplicate(source: Path | str, target: Path | str, *, links: bool = False) -> None:
    """Copy a file to a name that is not taken, or the content of a folder into another one.

    Args:
        source: the file or the folder.
        target: the copy.
        links: give files a second name instead, where the file system can.
    """
    if Path(source).is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=partial(duplicate, links=links))
        return
    if links:
        with suppress(OSError):
            os.link(source, target)
            return
    with Path(source).open("rb") as old, create_file(Path(target), "wb") as new:
        shutil.copyfileobj(old, new)
        os.fchmod(new.fileno(), stat.S_IMODE(os.fstat(old.fileno()).st_mode))


def remove_slowly(folder: Path) -> None:
    """Delete a folder that looks complete. It is renamed first, because a kill must not leave half of it."""
    remove(folder.rename(_make_temporary_name(folder, "old")))


def remove_leftovers(folder: Path) -> None:
    """Delete what killed writes and deletions have left in a folder that is ours alone."""
    for path in folder.glob(".*"):
        if TEMPORARY.fullmatch(path.name):
            remove(path)


def _make_temporary_name(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.{kind}")


@contextmanager
def replace_file(path: Path) -> Iterator[IO[str]]:
    """Write a text file that takes the place of another in one step, at the end of the block. Else the old one stays.

    The new file has the mode of the old one.
    """
    temporary = _make_temporary_name(path, "tmp")
    try:
        with create_file(temporary) as file:
            yield file
            file.flush()
            if path.is_file():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: str | bytes) -> None:
    """Replace a file in one step. On a full disk the old one stays. Devices and pipes are written directly."""
    content = data.encode("utf-8") if isinstance(data, str) else data
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "wb") as pipe:
            pipe.write(content)
        return
    with replace_file(path) as file:
        file.buffer.write(content)  # type: ignore[attr-defined]


def write_result(path: Path, data: str | bytes, option: str) -> None:
    """Write a file that a user named. Only one that begins as our files of its kind do is replaced.

    Raises:
        UserError: the name is taken by a file that no command of ours wrote, or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = read_bounded(path, MAX_TEXT) if path.is_file() else b""
        if before and not MADE_BY.search(before[:2048].partition(b"IDAT")[0]):
            raise UserError(
                f"{option}={path} is there, and nemo-ada did not make it; name another file or move it away"
            )
        write_atomically(path, data)
    except OSError as error:
        raise UserError(f"{option}={str(path)[:200]} cannot be written: {str(error)[:200]}") from None


def write_folder(folder: Path, fill: Callable[[Path], None], *, replace: bool = True) -> None:
    """Create a folder with a manifest of checksums. The folder appears complete or not at all.

    Several processes may write the same folder at once, because each fills a temporary folder of its own.

    Args:
        folder: The folder to create.
        fill: Writes the files into the temporary folder that it is given.
        replace: Whether a folder that exists is replaced. Otherwise the existing folder stays, and the new files go.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = _make_temporary_name(folder, "partial")
    temporary.mkdir()
    try:
        fill(temporary)
        sums = _compute_checksums(temporary)
        with create_file(temporary / MANIFEST) as file:
            file.write(json.dumps(sums, indent=1))
        mode = 0o666 & ~_read_umask()
        for path in _list_files(temporary):
            path.chmod(path.stat().st_mode | mode)  # safetensors writes for the user alone
            _sync(path)
        if replace:
            remove(folder)
        try:
            temporary.replace(folder)
        except OSError as error:
            if replace or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        _sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def verify_folder(folder: Path, needs: Collection[str] = ()) -> None:
    """Raise UserError where a folder of `write_folder` is incomplete or changed, or lacks a file of `needs`.

    A link inside the folder counts as a change, because its target may change later.
    """
    try:
        if links := sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink()):
            raise ValueError(f"links were added: {join_some(links)}")
        if folder.is_symlink():
            raise ValueError("it is a link")
        if not (folder / MANIFEST).is_file():
            raise ValueError(f"it has no {MANIFEST}")
        sums = json_of(folder / MANIFEST)
        if not isinstance(sums, dict):
            raise ValueError(f"{MANIFEST} holds no mapping of files to checksums")
        now = _compute_checksums(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is not a complete folder ({error})") from None
    wrong = sorted(name for name in {*sums, *now, *needs} if name not in now or sums.get(name) != now[name])
    if wrong:
        raise UserError(f"{folder}: {join_some(wrong)} differ from their checksums (truncated or changed)")


def claim_folder(folder: Path, maker: str, option: str, beside: Collection[str] = ()) -> IO[str]:
    """Take a folder that a user named, for one command, until the returned file is closed.

    The command may then write and delete what it likes there. So the folder must be new, empty, or of this command.

    Args:
        folder: the folder, which is created if it is missing.
        maker: the command, as the folder's marker names it.
        option: the option that named the folder, for messages.
        beside: names that may be there before the folder is ours.

    Raises:
        UserError: the folder holds files of something else, or another process uses it.
    """
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        marker = folder / MARKER
        ours = _is_ours(marker) and text_of(marker, 4096).startswith(f"{maker}, ")
        if ours:
            trust.check_folder(folder, f"name another folder for {option}")
        names = [] if ours else list_strangers(folder, (*beside, MARKER))
        if names:
            raise UserError(
                f"{option}={folder} holds {join_some(names)}, and `nemo-ada {maker}` did not make it; name a folder "
                "that is empty or does not exist yet"
            )
        return lock_file(marker, f"{option}={folder}", maker)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option}={folder} cannot be used: {error}") from None


def _is_ours(path: Path) -> bool:
    """Return whether this is a file of this user's, no link."""
    status = path.lstat() if os.path.lexists(path) else None
    return status is not None and stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()


def list_strangers(folder: Path, known: Collection[str]) -> list[str]:
    """Return the names in a folder that are neither known nor left by a killed write, sorted."""
    names = {path.name for path in folder.iterdir()} - {*known}
    return sorted(name for name in names if not TEMPORARY.fullmatch(name))


def lock_file(path: Path, what: str, maker: str = "") -> IO[str]:
    """Lock `path` until the returned file is closed. `what` names the thing in the error.

    A shared file system releases the locks of a lost node only after a while, so a holder on another node gets
    LEASE_SECONDS. A file system without locks gives a warning.

    Raises:
        UserError: another process holds the lock, or the name is that of a link.
    """
    try:
        file = _open_file(path, os.O_RDWR | os.O_CREAT, "r+")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path} is a link, and a lock must be a file; remove it") from None
        raise
    deadline, looks = time.monotonic() + LEASE_SECONDS, 0
    try:
        while not try_lock(file):
            file.seek(0)
            holder = file.read(4096).strip()
            if looks < LOOKS:
                looks += 1
                time.sleep(0.02)
                continue
            if holder.endswith(f" {platform.node()}") or time.monotonic() > deadline:
                file.close()
                raise UserError(
                    f"{what} is in use by {holder or 'another process'}, and two runs must not share it; end that run "
                    "or choose another folder"
                )
            time.sleep(1.0)
    except OSError as error:
        log.warning("%s cannot be locked (%s): do not start a second run there", what, error)
    file.seek(0)
    file.truncate()
    file.write(f"{maker}{', ' if maker else ''}process {os.getpid()} on {platform.node()}\n")
    file.flush()
    return file


def is_in_use(path: Path) -> bool | None:
    """Return whether a process of this machine holds the lock of `lock_file`. None where that cannot be told."""
    try:
        with open_to_read(path) as file:
            if not file.read(4096).strip().endswith(f" {platform.node()}".encode()):
                return None
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def try_lock(file: IO[str]) -> bool:
    """Lock an open file. False where another process has the lock. Raises OSError where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def join_some(items: Sequence[object], between: str = ", ") -> str:
    """Return the first items for a message, and how many more there are."""
    more = len(items) - SHOWN
    return between.join(map(str, items[:SHOWN])) + (f" and {more} more" if more > 0 else "")


def _read_umask() -> int:
    """Return the bits that this process takes from the mode of a new file."""
    value = os.umask(0o077)
    os.umask(value)
    return value


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _compute_checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder but manifests, by its path within the folder."""
    sums = {}
    for path in (path for path in _list_files(folder) if path.name != MANIFEST):
        with path.open("rb") as file:
            sums[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
