"""Watch and end the actors' processes through the operating system.

Ray does not notice a process that hangs in C code or was stopped. So this module looks at the process itself (Linux).
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from nemo_ada.run.files import create_file, remove

STACKS = "NEMO_ADA_STACKS"
"""Environment variable with the folder to which actors write their stacks on request."""

START_SECONDS = 600.0  # in which an actor imports its libraries and builds its model. A quiet machine takes 10 s
DUMP_SECONDS = 2.0
END_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_open_files: list[IO[str]] = []  # faulthandler writes to file descriptors, which must stay open


def prepare_actor(name: str) -> None:
    """Make this process end with its parent, and answer `dump_stacks` even from inside a C call.

    An actor calls this once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    folder = os.environ.get(STACKS)
    if folder:
        path = Path(folder) / f"{name}.txt"
        remove(path)  # an earlier process of this name
        file = create_file(path)
        _open_files.append(file)
        faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)


def dump_stacks(pids: Mapping[str, int]) -> list[str]:
    """Have the named actors write the stacks of all their threads. Returns one line about each actor."""
    folder = os.environ.get(STACKS)
    if not folder:
        return []
    paths: dict[str, Path] = {}
    lines = []
    for name, pid in pids.items():
        path = Path(folder) / f"{name}.txt"
        if not path.exists() or not is_alive(pid):  # without a handler the signal would end the process
            lines.append(f"{name} (pid {pid}): {'not prepared' if is_alive(pid) else 'gone'}")
            continue
        paths[name] = path
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + DUMP_SECONDS
    while any(path.stat().st_size == 0 for path in paths.values()) and time.monotonic() < deadline:
        time.sleep(0.02)
    for name, path in paths.items():
        answer = path.name if path.stat().st_size else "no answer, the process is stopped or in the kernel"
        lines.append(f"{name} (pid {pids[name]}, state {read_state(pids[name])}): {answer}")
    return lines


def read_state(pid: int) -> str:
    """Return the kernel's letter for a process: R running, S sleeping, D disk, T stopped, Z zombie.

    X when it is gone.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_alive(pid: int) -> bool:
    """Return whether the process still runs. A zombie, which its parent has not collected, does not."""
    return read_state(pid) not in "XZ"


def find_naming(folder: Path) -> list[int]:
    """Ids of other processes whose command line contains a path below `folder`, as Ray's own processes do."""
    pids = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"{folder}/".encode() in (entry / "cmdline").read_bytes():
                pids.append(int(entry.name))
    return [pid for pid in pids if pid != os.getpid()]


def end_processes(pids: Sequence[int], grace: float) -> list[int]:
    """Wait until these processes are gone, and kill those that remain after `grace` seconds.

    Args:
        pids: Their ids.
        grace: Below END_SECONDS, because the wait ends there and nothing is killed after it.

    Returns:
        The processes that remain after END_SECONDS.
    """
    start, killed = time.monotonic(), False
    while remaining := [pid for pid in pids if is_alive(pid)]:
        waited = time.monotonic() - start
        if waited > grace and not killed:  # a stopped process cannot follow Ray's request
            killed = True
            for pid in remaining:
                with suppress(ProcessLookupError):  # it ended just now
                    os.kill(pid, signal.SIGKILL)
        if waited > END_SECONDS:
            break
        time.sleep(0.02)
    return remaining
