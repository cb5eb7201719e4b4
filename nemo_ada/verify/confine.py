"""Confine a worker process: it may compute, read code, and answer on its pipe.

Answers are model output, and the scorer is a large parser. An answer that manages to run code there must not reach a
network, write a file, start a process or read a secret. There are these layers, and none needs root:

* Landlock: the kernel lets the process read below Python's own folders, and nothing else (`kernel.only_read_below`).
* seccomp: the kernel refuses all system calls but those that compute, wait and read (`kernel.only_compute`).
* No capability of root. Where Landlock is missing, a user namespace in addition: the process cannot read the memory or
  the environment of any process outside.
* The kernel's limits (`limits_of`): memory, no core dump, no growing file, few descriptors, no new process or thread
  (root is exempt from the last one).
* The interpreter's audit hook. It refuses the same things and more, with a message that names them. Python code in the
  process can get around it; code cannot get around the kernel.
* An environment without secrets (see `process`), and a server that reads no foreign object from a worker (see
  `messages`).

`confine` says which layers hold. `MathVerifier` logs it. SECURITY.md describes what is left without a layer.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

from nemo_ada.verify import kernel
from nemo_ada.verify.messages import Layers

DESCRIPTORS = 64
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")

# Refused audit events (docs.python.org/3/library/audit_events.html), by module.
_EVENTS: dict[str, tuple[str, ...]] = {
    "os": ("chflags", "chmod", "chown", "exec", "fork", "forkpty", "kill", "killpg", "link", "lockf", "mkdir",
           "posix_spawn", "remove", "removexattr", "rename", "rmdir", "setxattr", "spawn", "startfile", "symlink",
           "system", "truncate", "utime"),
    "ctypes": ("call_function", "cdata", "cdata/buffer", "dlopen", "dlsym", "dlsym/handle", "string_at", "wstring_at"),
    "gc": ("get_objects", "get_referents", "get_referrers"),
    "pty": ("spawn",),
    "resource": ("prlimit",),
    "signal": ("pthread_kill",),
    "sqlite3": ("connect", "enable_load_extension", "load_extension"),
    "subprocess": ("Popen",),
    "sys": ("setprofile", "settrace"),
    "tempfile": ("mkdtemp", "mkstemp"),
    "webbrowser": ("open",),
}  # fmt: skip
_FAMILIES = ("socket.", "shutil.", "ftplib.", "http.client.", "imaplib.", "poplib.", "smtplib.", "syslog.",
             "urllib.")  # fmt: skip
_LISTING = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "glob.glob", "glob.glob/2", "pathlib.Path.glob")


def limits_of(memory_bytes: int) -> dict[int, int]:
    """The kernel's soft and hard limits of a worker, by resource."""
    return {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: DESCRIPTORS,
        resource.RLIMIT_NPROC: 0,
    }


def confine(memory_bytes: int, without: frozenset[str] = frozenset()) -> Layers:
    """Confine this process, and say which layers hold. This cannot be undone.

    without: layers to leave out, by name. Only tests use it, to see what the others hold alone.
    """
    sys.dont_write_bytecode = True
    for kind, value in limits_of(memory_bytes).items():
        resource.setrlimit(kind, (value, value))
    roots = code_folders()
    held, missing = ["limits"], {}
    for name, apply in _kernel_layers(roots, "Landlock" not in without):
        try:
            if name in without:
                raise kernel.Missing("left out")
            apply()
            held.append(name)
        except kernel.Missing as reason:
            missing[name] = str(reason)
    if "audit hook" not in without:
        sys.addaudithook(_hook(roots))
        held.append("audit hook")
    return Layers(tuple(held), missing)


def _kernel_layers(roots: tuple[str, ...], landlock: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """The layers in their order. A later one refuses the calls that an earlier one needs."""
    libraries = (*_LIBRARIES, *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    yield "no new privileges", kernel.no_new_privileges
    if not (landlock and kernel.landlock_version()):
        yield "user namespace", kernel.separate_user
    yield "no capabilities", kernel.drop_capabilities
    yield "Landlock", lambda: kernel.only_read_below((*roots, *libraries))
    yield "seccomp", kernel.only_compute


def code_folders() -> tuple[str, ...]:
    """Where code of this process comes from: Python's folders, and every loaded package or module outside of them.

    Not the import path itself: a folder there may hold more than code, such as slurm/site.env beside this package.
    """
    packages = [path for path in sys.path if "site-packages" in path or "dist-packages" in path]
    folders = {_real(path) for path in (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__))}
    folders |= {_real(path) for path in packages}
    for name, module in list(sys.modules.items()):
        if "." not in name:  # a package has folders, a module has a file
            folders |= {
                _real(path) for path in getattr(module, "__path__", [getattr(module, "__file__", None)]) if path
            }
    return tuple(sorted(folder for folder in folders if not folder.startswith(tuple(folders - {folder}))))


def _real(folder: str) -> str:
    return os.path.join(os.path.realpath(folder), "")


def _hook(roots: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    """The audit hook. All it uses is bound here, so a changed name in this or another module does not change it."""
    refused = frozenset(f"{module}.{name}" for module, names in _EVENTS.items() for name in names)
    families, listing, writing = _FAMILIES, _LISTING, kernel.WRITING
    processor_time, not_permitted = resource.RLIMIT_CPU, errno.EPERM
    path_only = os.O_PATH | os.O_CLOEXEC
    open_, close, readlink, fspath = os.open, os.close, os.readlink, os.fspath  # in C: they look up no name
    whole, text, error, any_, is_a = int, str, PermissionError, any, isinstance
    looking = False  # this hook opens a path itself, to see where the path leads

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal looking
        if event == "open":
            if looking or is_a(args[0], whole):
                return  # an open descriptor; RLIMIT_FSIZE keeps its file from growing
            path, mode, flags = args
            if (is_a(mode, text) and any_(letter in mode for letter in "wax+")) or (
                is_a(flags, whole) and flags & writing
            ):
                raise error(not_permitted, f"a verifier's worker may not open {path!r} for writing")
        elif event in refused or event.startswith(families):
            raise error(not_permitted, f"a verifier's worker may not {event}")
        elif event in listing:
            path = args[0] if args else None
            if is_a(path, whole):
                return
        elif event == "resource.setrlimit" and args[0] != processor_time:  # `judge` changes this one
            raise error(not_permitted, f"a verifier's worker may not {event}")
        else:
            return
        name = fspath(path) if path is not None else ""
        if name[:1] not in ("/", b"/"):  # relative to a folder that the event does not name
            raise error(not_permitted, f"a verifier's worker may not {event} {name[:200]!r}")
        looking = True
        try:
            descriptor = open_(name, path_only)
        finally:
            looking = False
        try:
            place = readlink(f"/proc/self/fd/{descriptor}")
        finally:
            close(descriptor)
        if not f"{place}/".startswith(roots):
            raise error(not_permitted, f"a verifier's worker may not {event} {name[:200]!r}")

    return hook
