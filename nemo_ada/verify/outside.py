"""What a user's reward wants from outside its process: what it declares, and what it asks for and does not get.

A reward runs in a confined worker (`confine`). One that needs more says so beside its definition, where a reader of the
code sees it, and on every back end alike:

    score.needs = {"files": ["/data/table.json"]}     # reads these files and folders at any time
    score.needs = {"network"}                         # sockets, and threads for them
    score.needs = {"processes"}                       # programs, temporary files and all else: no confinement
    score.range = (-1, 1)                             # the least and the most that it returns; 0 and 1 without this
"""

from __future__ import annotations

import errno
import inspect
import os
import sys
import threading
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, cast

from nemo_ada.by_name import LIBRARIES

REFUSES = "the verifier's confinement refuses "
HIDES = "the verifier's processes do not have the variable "
MOST = 3  # calls that a message names
_STEPS = 1000  # of a coroutine that waits for nothing
_NETWORK = ("socket.", "urllib.", "http.", "_thread.start_new_thread")
_PROCESSES = (
    "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.mkdir", "os.remove",
    "os.rename",
    "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "pty.", "tempfile.", "shutil.", "sqlite3.connect",
)  # fmt: skip
_LISTS = ("os.listdir", "os.scandir")
_WATCHED = ("open", *_LISTS, *_NETWORK, *_PROCESSES)
_QUIET = ("/proc/", "/sys/", "/dev/", "/etc/")  # libraries look there, and do without
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Needs(NamedTuple):
    """What a reward declares. The folders or files that it reads, and whether it uses the network or processes."""

    files: tuple[str, ...] = ()
    network: bool = False
    processes: bool = False


class Call(NamedTuple):
    """Something that was asked of the machine: a call with its path or its address, and the name of its need."""

    text: str
    need: str
    path: str | None = None


def read_needs(function: Any) -> Needs:
    """Return what a function declares in `needs`. Raises ValueError for anything that is no need."""
    declared = getattr(function, "needs", ())
    declared = [declared] if isinstance(declared, str) else declared
    files = declared.get("files", ()) if isinstance(declared, Mapping) else ()
    files = [files] if isinstance(files, (str, os.PathLike)) else files
    known = ("files", "network", "processes")
    if not isinstance(declared, Collection) or not set(declared) <= set(known) or ("files" in declared and not files):
        raise ValueError(
            f"needs={declared!r}: it has network, processes, and files with a list of paths: {{'files': ['/data']}}"
        )
    return Needs(tuple(map(os.path.abspath, files)), "network" in declared, "processes" in declared)


def read_score(score: Any, function: Any, needs: Needs) -> Any:
    """Return the number that a function's result stands for: of a coroutine, of {"score": x}, of another range."""
    if inspect.iscoroutine(score):
        score = _run_coroutine(score, needs)
    if isinstance(score, Mapping) and "score" in score:
        score = score["score"]
    span = getattr(function, "range", None)
    if span is None or isinstance(score, (str, bool)) or score is None:
        return score
    try:
        low, high = map(float, span)
        if not low < high:
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(f"range={span!r} is no pair of the least and the most that it returns") from None
    return (score - low) / (high - low)


def _run_coroutine(coroutine: Any, needs: Needs) -> Any:
    """Return what a coroutine returns. One that waits for something needs an event loop, and so the network."""
    if needs.network or needs.processes:
        import asyncio

        return asyncio.run(coroutine)
    try:
        for _ in range(_STEPS):
            if coroutine.send(None) is not None:
                break
    except StopIteration as done:
        return done.value
    except RuntimeError as problem:
        if "event loop" not in str(problem):
            raise
    finally:
        coroutine.close()
    raise RuntimeError(f"it awaits something; {REFUSES}an event loop (it declares no network)")


class _Watch:
    """Notes what is asked for. An audit hook stays until its process ends, so only servers and workers have one."""

    def __init__(self) -> None:
        self.hidden: frozenset[str] = frozenset()
        self.read: dict[str, None] = {}
        self.calls: deque[Call] = deque(maxlen=50)
        self.looking = threading.local()

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event of Python's."""
        if (
            not event.startswith(_WATCHED)
            or event == "sqlite3.connect/handle"
            or sys._getframe(1).f_code.co_filename.startswith("<frozen importlib")
        ):
            return  # the import of a module looks into folders that are not for it, and goes on
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes)) and not getattr(self.looking, "now", False):
                writes = bool((flags or 0) & _WRITING)
                name = os.fsdecode(path)
                self.calls.append(Call(f"open({name!r})", "processes" if writes else "files", None if writes else name))
        elif event in _LISTS:
            name = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], (str, bytes)) else "."
            self.calls.append(Call(f"{event}({name!r})", "files", name))
        elif event.startswith(_NETWORK) and event != "socket.gethostname":
            self.calls.append(Call(f"{event}({_shorten_arguments(arguments)})", "network"))
        elif not event.startswith("sqlite3.") or arguments[:1] not in ((":memory:",), ("",)):
            self.calls.append(Call(f"{event}({_shorten_arguments(arguments)})", "processes"))


_watch = _Watch()


class _Variables(os._Environ):  # type: ignore[type-arg]
    """The environment, which notes what the user's code reads and the trainer has hidden."""

    def __getitem__(self, name: str) -> str:
        _note_variable(name)
        return cast(str, super().__getitem__(name))

    def __contains__(self, name: object) -> bool:
        _note_variable(name)
        return super().__contains__(name)


def _note_variable(name: object) -> None:
    if not isinstance(name, str) or name not in _watch.hidden:
        return
    frame = sys._getframe(2)  # who asked: behind os.environ's own methods, which Python may have frozen
    while frame.f_back is not None and frame.f_code.co_filename.endswith(("os.py", "_collections_abc.py")):
        frame = frame.f_back
    if "<frozen" in frame.f_code.co_filename:
        frame = frame.f_back or frame
    if not frame.f_code.co_filename.startswith(LIBRARIES):
        _watch.read[name] = None


def watch_variables(hidden: Collection[str]) -> None:
    """Note from now on which of these variables the user's code reads. `hidden`: names that only the trainer has."""
    _watch.hidden = frozenset(hidden)
    os.environ.__class__ = _Variables


def watch_calls() -> None:
    """Note from now on what is asked of the machine."""
    sys.addaudithook(_watch.note)


def forget_calls() -> None:
    """Begin a new answer."""
    _watch.calls.clear()


def describe_refusals(needs: Needs, error: BaseException | None = None) -> str:
    """Return in a sentence what was asked for since `forget_calls` and is refused or hidden. Empty where nothing is.

    error: what it ended with. A new thread is known by that, because not every Python tells of one before.
    """
    if "can't start new thread" in str(error) and not (needs.network or needs.processes):
        _watch.calls.append(Call("a new thread", "network"))
    refused = list(dict.fromkeys(call for call in _watch.calls if _is_refused(call, needs)))
    parts = []
    if refused:
        need, calls = refused[-1].need, ", ".join(call.text[:150] for call in refused[-MOST:])
        why = "that is no file which it declares" if need == "files" and needs.files else f"it declares no {need}"
        parts.append(f"{REFUSES}{calls} ({why})")
    if _watch.read:
        parts.append(f"{HIDES}{', '.join(list(_watch.read)[:MOST])} that it reads")
    return "; ".join(parts)


def _is_refused(call: Call, needs: Needs) -> bool:
    if needs.processes:
        return False
    if call.need != "files":
        return not (call.need == "network" and needs.network)
    if call.path is None or call.path.startswith(_QUIET):
        return False
    _watch.looking.now = True
    try:
        os.close(os.open(call.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as problem:
        return problem.errno in (errno.EACCES, errno.EPERM)
    finally:
        _watch.looking.now = False
    return False


def _shorten_arguments(arguments: tuple[Any, ...]) -> str:
    return ", ".join(repr(value) for value in arguments if isinstance(value, (str, bytes, int, tuple, list)))[:100]
