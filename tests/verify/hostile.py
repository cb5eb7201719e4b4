"""A process that confines itself and then attacks, with Python's functions and with bare system calls.

    python hostile.py FILE PARENT LAYER...

leaves out the layers, and prints a JSON object: attack -> what it got, null where it was refused.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import platform
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NEW = {"x86_64": 0, "aarch64": 1}[platform.machine()]  # column of the numbers below
LIBC = ctypes.CDLL(None, use_errno=True)


def call(numbers: tuple[int, int] | int, *arguments: Any) -> int:
    """A system call by number. Raises OSError where the kernel refuses it."""
    number = numbers if isinstance(numbers, int) else numbers[NEW]
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def shell() -> int:
    code = os.system("true")
    if code != 0:
        raise OSError(f"exit code {code}")
    return code


def memory_of(pid: int) -> int:
    """A byte of another process, by process_vm_readv. Where that process may be read, its address is just wrong."""
    byte = ctypes.create_string_buffer(1)
    ours = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1)
    theirs = (ctypes.c_size_t * 2)(1, 1)
    try:
        return call((310, 270), pid, ours, 1, theirs, 1, 0)
    except OSError as refusal:
        if refusal.errno == 14:  # EFAULT
            return 1
        raise


def imported(folder: Path) -> Any:
    """A module beside the file, by the import system."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return importlib.import_module("planted").__name__
    except ImportError as refusal:
        raise OSError(str(refusal)) from None


def attacks(file: Path, parent: int) -> dict[str, Callable[[], Any]]:
    path = str(file).encode()
    relative = b"../" * 30 + path[1:]
    how = (ctypes.c_uint64 * 3)(os.O_RDONLY, 0, 0)
    here = -100  # AT_FDCWD
    reading = {
        "read": lambda: file.read_text(),
        "read by number": lambda: os.read(call((257, 56), here, path, os.O_RDONLY, 0), 9).decode(),
        "open by the loader": lambda: importlib.import_module("io").FileIO(str(file)).read().decode(),
        "list": lambda: os.listdir(file.parent),
        "system file": lambda: Path("/etc/passwd").read_text()[:9],
        "temporary folder": lambda: os.listdir("/tmp")[:9],  # the pipe of our output holds 64 KiB
        "import": lambda: imported(file.parent),
        "relative": lambda: os.read(call((257, 56), os.open(sys.prefix, 0), relative, 0), 9).decode(),
    }
    processes = {
        "environment of the parent": lambda: Path(f"/proc/{parent}/environ").read_bytes()[:99].decode(errors="replace"),
        "memory of the parent": lambda: len(os.pread(os.open(f"/proc/{parent}/mem", os.O_RDONLY), 1, 0)),
        "process_vm_readv": lambda: memory_of(parent),
        "ptrace": lambda: call((101, 117), 0x4206, parent, 0, 0),  # PTRACE_SEIZE does not stop it
        "pidfd": lambda: call(434, parent, 0),
    }
    acting = {
        "write": lambda: file.write_text("x"),
        "write by number": lambda: call((257, 56), here, path, os.O_WRONLY, 0),
        "create": lambda: call((257, 56), here, path + b".new", os.O_CREAT | os.O_WRONLY, 0o600),
        "openat2": lambda: call(437, here, path, how, 24),
        "unlink": lambda: call((263, 35), here, path, 0),
        "rename": lambda: call((264, 38), here, path, here, path + b".moved"),
        "symlink": lambda: call((266, 36), b"/etc", here, path + b".link"),
        "mkdir": lambda: os.mkdir(f"{file}.d"),
        "chmod": lambda: os.chmod(file, 0o777),
        "truncate": lambda: os.truncate(file, 0),
        "memfd": lambda: call((319, 279), b"x", 0),
        "socket": lambda: socket.socket(2, 1, 0).fileno(),
        "socket by number": lambda: call((41, 198), 2, 1, 0),
        "socketpair": lambda: call((53, 199), 1, 1, 0, (ctypes.c_int * 2)()),
        "shell": shell,
        "fork": lambda: os.fork() or os._exit(0),
        "clone by number": lambda: call((56, 220), 17, 0, 0, 0, 0) or os._exit(0),
        "exec": lambda: os.execv("/bin/true", ["true"]),
        "thread": lambda: importlib.import_module("_thread").start_new_thread(print, ()),
        "kill the parent": lambda: os.kill(parent, 0),
        "kill by number": lambda: call((62, 129), parent, 0),
        "thread of the parent": lambda: call((234, 131), parent, parent, 0),
        "limits": lambda: importlib.import_module("resource").setrlimit(1, (9, 9)),
        "limits of the parent": lambda: call((302, 261), parent, 4, (ctypes.c_uint64 * 2)(0, 0), 0),
        "unshare": lambda: call((272, 97), 0x10000000),
        "bpf": lambda: call((321, 280), 0, 0, 0),
        "io_uring": lambda: call(425, 1, (ctypes.c_uint64 * 32)()),
        "userfaultfd": lambda: call((323, 282), 0),
        "keyctl": lambda: call((250, 219), 0, -3, 0),
        "signal on input": lambda: call((72, 25), 0, 8, parent),  # fcntl F_SETOWN
        "type on the terminal": lambda: call((16, 29), 0, 0x5412, b"x"),  # TIOCSTI
        "dumpable again": lambda: call((157, 167), 4, 1, 0, 0, 0),
        "another filter": lambda: call((317, 277), 2, 0, (ctypes.c_uint32 * 1)(0x7FFF0000)),
    }
    return reading | processes | acting


def main() -> None:
    file, parent, without = Path(sys.argv[1]), int(sys.argv[2]), frozenset(sys.argv[3:])
    sys.path.append(str(ROOT))
    from nemo_ada.verify.confine import confine

    layers = confine(1 << 30, without)
    got: dict[str, Any] = {}
    for name, attack in attacks(file, parent).items():
        if name == "exec" and "seccomp" not in layers.held:
            continue  # it would work, and end this list
        try:
            got[name] = attack()
            got[name] = "it worked" if got[name] is None else got[name]
        except (OSError, RuntimeError, ValueError):
            got[name] = None
    os.write(1, json.dumps({"layers": layers.held, "missing": dict(layers.missing), "got": got}).encode())


if __name__ == "__main__":
    main()
