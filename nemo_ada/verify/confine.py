"""Confine a worker process: it may compute, read code, and answer on its pipe.

Answers are model output, and the scorer is a large parser. An answer that manages to run code there must not reach a
network, write a file, start a process or read a secret. There are three layers, and none needs root:

* the kernel's limits (`limits_of`): memory, no core dump, no growing file, few descriptors, no new process or thread
  (root is exempt from the last one);
* the interpreter's audit hook, which cannot be removed: no socket, no file opened for writing, no file opened for
  reading outside the folders that Python imports from, no process, no foreign library, no signal;
* an environment without secrets (see `process`).

This is defence in depth, not a sandbox. Native code in a loaded library can pass the interpreter; then only the
kernel's limits hold. SECURITY.md describes the consequences.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from typing import Any, NoReturn

DESCRIPTORS = 64
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Refused audit events (docs.python.org/3/library/audit_events.html), by module.
_EVENTS: dict[str, tuple[str, ...]] = {
    "os": ("chflags", "chmod", "chown", "exec", "fork", "forkpty", "kill", "killpg", "link", "lockf", "mkdir",
           "posix_spawn", "remove", "removexattr", "rename", "rmdir", "setxattr", "spawn", "startfile", "symlink",
           "system", "truncate", "utime"),
    "ctypes": ("call_function", "cdata", "cdata/buffer", "dlopen", "dlsym", "dlsym/handle", "string_at", "wstring_at"),
    "pty": ("spawn",),
    "resource": ("prlimit",),
    "signal": ("pthread_kill",),
    "sqlite3": ("connect", "enable_load_extension", "load_extension"),
    "subprocess": ("Popen",),
    "tempfile": ("mkdtemp", "mkstemp"),
    "webbrowser": ("open",),
}  # fmt: skip
_REFUSED = frozenset(f"{module}.{name}" for module, names in _EVENTS.items() for name in names)
_REFUSED_FAMILIES = ("socket.", "shutil.", "ftplib.", "http.client.", "imaplib.", "poplib.", "smtplib.", "syslog.",
                     "urllib.")  # fmt: skip
_READING = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "glob.glob", "glob.glob/2", "pathlib.Path.glob")


def limits_of(memory_bytes: int) -> dict[int, int]:
    """The kernel's limits of a worker, soft and hard: resource -> value."""
    return {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: DESCRIPTORS,
        resource.RLIMIT_NPROC: 0,
    }


def confine(memory_bytes: int) -> None:
    """Confine this process. This cannot be undone."""
    for kind, value in limits_of(memory_bytes).items():
        resource.setrlimit(kind, (value, value))
    sys.dont_write_bytecode = True
    roots = tuple(sorted({_folder(path) for path in (*sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix)}))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            _check_open(args, roots)
        elif event in _REFUSED or event.startswith(_REFUSED_FAMILIES):
            _refuse(event)
        elif event in _READING:
            _check_inside(args[0] if args else ".", roots, event)
        elif event == "resource.setrlimit" and args[0] != resource.RLIMIT_CPU:  # `judge` changes this one
            _refuse(event)

    sys.addaudithook(hook)


def _folder(path: str) -> str:
    return os.path.join(os.path.realpath(path or "."), "")


def _check_open(args: tuple[Any, ...], roots: tuple[str, ...]) -> None:
    path, mode, flags = args
    if isinstance(path, int):
        return  # an open descriptor; RLIMIT_FSIZE keeps its file from growing
    writing = any(letter in mode for letter in "wax+") if isinstance(mode, str) else False
    if writing or (isinstance(flags, int) and flags & _WRITING):
        _refuse(f"open {path!r} for writing")
    _check_inside(path, roots, "open")


def _check_inside(path: Any, roots: tuple[str, ...], event: str) -> None:
    if isinstance(path, int):
        return
    place = os.path.realpath(os.fspath(path) if path is not None else ".")
    if not os.path.join(os.fsdecode(place), "").startswith(roots):
        _refuse(f"{event} {os.fsdecode(place)!r}")


def _refuse(what: str) -> NoReturn:
    raise PermissionError(errno.EPERM, f"a verifier's worker may not {what[:200]}")
