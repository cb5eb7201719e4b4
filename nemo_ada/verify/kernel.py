"""What the Linux kernel can refuse this process: Landlock (files), seccomp (system calls), capabilities.

None of these needs root, and no code in the process can take one back. The process calls the kernel by number through
ctypes, because Python has no function for them. Only x86_64 and aarch64 have a table of numbers here; elsewhere every
function says that the layer is missing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_CAPABILITIES = 0x20080522  # version 3 of the capability calls

_MACHINES = {"x86_64": 0, "aarch64": 1}  # column of _CALLS
_ARCHITECTURE = (0xC000003E, 0xC00000B7)  # AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64
# Numbers of the system calls, by machine; None where the machine does not have the call.
# A worker may use these with any arguments. They compute, wait, look at files, and use open descriptors.
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "futex": (202, 98), "read": (0, 63), "write": (1, 64), "poll": (7, None), "ppoll": (271, 73), "mmap": (9, 222),
    "munmap": (11, 215), "brk": (12, 214), "madvise": (28, 233), "mprotect": (10, 226), "mremap": (25, 216),
    "clock_gettime": (228, 113), "getrusage": (98, 165), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "newfstatat": (262, 79), "statx": (332, 291), "lseek": (8, 62), "pread64": (17, 67), "readv": (19, 65),
    "writev": (20, 66), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "select": (23, None),
    "pselect6": (270, 72), "sched_yield": (24, 124), "dup": (32, 23), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None),
    "times": (100, 153), "setitimer": (38, 103), "getitimer": (36, 102), "alarm": (37, None), "getpid": (39, 172),
    "getppid": (110, 173), "gettid": (186, 178), "getpgid": (121, 155), "getpgrp": (111, None), "getsid": (124, 156),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getcwd": (79, 17),
    "readlink": (89, None), "readlinkat": (267, 78), "getdents64": (217, 61), "getdents": (78, None),
    "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278), "getrlimit": (97, 163), "getcpu": (309, 168),
    "sched_getaffinity": (204, 123), "sigaltstack": (131, 132), "rseq": (334, 293), "set_robust_list": (273, 99),
    "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
# And these where a reward declares that it needs the network.
_SOCKETS: dict[str, tuple[int | None, int | None]] = {
    "connect": (42, 203), "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211),
    "recvmsg": (47, 212), "shutdown": (48, 210), "bind": (49, 200), "getsockname": (51, 204), "getpeername": (52, 205),
    "socketpair": (53, 199), "setsockopt": (54, 208), "getsockopt": (55, 209), "sendmmsg": (307, 269),
    "recvmmsg": (299, 243), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None),
    "epoll_pwait": (281, 22), "eventfd2": (290, 19), "pipe2": (293, 59), "arch_prctl": (158, None),
    "sched_setaffinity": (203, 122), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "membarrier": (324, 283), "dup3": (292, 24),
}  # fmt: skip
_SOCKET, _CLONE, _CLONE3, _CLONE_THREAD, _F_SETFL = (41, 198), (56, 220), (435, 435), 0x10000, 4
_SOCKET_IOCTLS = (0x5421, 0x541B)  # FIONBIO, FIONREAD
# A worker may use these with some arguments only (`_write_filter`).
_OPEN, _OPENAT, _IOCTL, _FCNTL = (2, None), (257, 56), (16, 29), (72, 25)
_TGKILL, _PRLIMIT, _SETRLIMIT = (234, 131), (302, 261), (160, 164)
_SECCOMP, _CAPSET = (317, 277), (126, 91)
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every machine

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | (os.O_TMPFILE & ~os.O_DIRECTORY)
_IOCTLS = (0x5401, 0x5451, 0x5450)  # TCGETS (is this a terminal?), FIOCLEX, FIONCLEX
_FCNTLS = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # of the kernel's filter language (classic BPF)
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_UNKNOWN_CALL = 0x00050000 | errno.ENOSYS
_TSYNC = 1  # the filter holds for all threads of the process

_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
# Rights that a version of Landlock can take away: files (13 rights, then REFER, TRUNCATE, IOCTL_DEV), TCP, signals.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}


class Missing(Exception):
    """The kernel does not have a layer, or refuses it. The message says why."""


def read_landlock_version() -> int:
    """Return Landlock's version in this kernel, 0 where the kernel has none or does not use it."""
    return max(0, _make_call(_LANDLOCK_CREATE, None, 0, 1))


def end_with(parent: int) -> None:
    """The kernel kills this process when its parent ends, whoever ends that one. It ends now where the parent has.

    Raises:
        Missing: the kernel refuses.
    """
    _check_result(_call_prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "pdeathsig")
    if os.getppid() != parent:
        os._exit(1)


def forbid_new_privileges() -> None:
    """Make sure that no set-user-id program gives this process rights again. The other layers need this first.

    Raises:
        Missing: the kernel refuses.
    """
    _check_result(_call_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def drop_capabilities() -> None:
    """Give up root's special rights, so that this process cannot read other processes, whoever runs it.

    Raises:
        Missing: the kernel refuses.
    """
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES, 0))
    none = ctypes.create_string_buffer(struct.pack("=6I", 0, 0, 0, 0, 0, 0))
    _check_result(_make_call(_find_number(_CAPSET), header, none), "capset")


def allow_only_reading(places: Iterable[str], network: bool = False) -> None:
    """Landlock: this process reads files below these folders, and nothing else. Raises Missing.

    It writes no file, starts no program from a file, binds and connects no TCP port, and sends no signal to a process
    outside, as far as this version of Landlock can refuse it. Descriptors that are open stay open. `network`: it may
    use TCP.
    """
    version = read_landlock_version()
    if version < 1:
        raise Missing("this kernel has no Landlock (Linux 5.13 has it where the site turned it on)")
    files = (1 << _FILE_RIGHTS.get(version, max(_FILE_RIGHTS.values()))) - 1
    # The kernel's struct landlock_ruleset_attr: rights of files, of TCP (bind and connect), and what leaves the process
    # (abstract sockets and signals). An older kernel knows only the first of them.
    rules = struct.pack("=QQQ", files, 0b11 if version >= 4 and not network else 0, 0b11 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _make_call(_LANDLOCK_CREATE, ctypes.c_char_p(rules), size, 0)
    _check_result(ruleset, "landlock_create_ruleset")
    try:
        for place in places:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # it cannot read that one anyhow
                _allow_reading(ruleset, place)
        _check_result(_make_call(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def allow_only_computing(may_open: bool, network: bool = False) -> None:
    """seccomp: the system calls of a worker, and no others. Raises Missing.

    may_open: whether files may be opened for reading. Without Landlock they may not, because no other layer of the
    kernel would say which.

    network: whether it may have sockets, and threads.

    No other socket, no new process or thread, no program, no signal to another process, no access to another process's
    memory, no file opened for writing, created, renamed or removed. A refused call fails with EPERM.
    """
    instructions = b"".join(_write_filter(_find_machine(), os.getpid(), may_open, network))
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(instructions) // 8, ctypes.addressof(code)))
    if _make_call(_find_number(_SECCOMP), 1, _TSYNC, program) == 0:
        return
    _check_result(_call_prctl(_PR_SET_SECCOMP, 2, program, 0, 0), "seccomp")  # kernels before 3.17


def _make_call(number: int, *arguments: Any) -> int:
    """Make a system call. Every integer fills a whole register, because the C library could leave its upper half."""
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *map(_fill_register, arguments)))


def _call_prctl(*arguments: Any) -> int:
    return int(ctypes.CDLL(None, use_errno=True).prctl(*map(_fill_register, arguments)))


def _fill_register(argument: Any) -> Any:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _find_machine() -> int:
    machine = platform.machine()
    if machine not in _MACHINES or struct.calcsize("P") != 8:
        raise Missing(f"no table of system calls for {machine!r}; x86_64 and aarch64 have one")
    return _MACHINES[machine]


def _find_number(numbers: tuple[int | None, int | None]) -> int:
    number = numbers[_find_machine()]
    if number is None:
        raise Missing("this machine does not have the call")
    return number


def _check_result(result: int, what: str) -> None:
    if result < 0:
        raise Missing(f"{what}: {os.strerror(ctypes.get_errno())}")


def _allow_reading(ruleset: int, place: str) -> None:
    descriptor = os.open(place.rstrip("/") or "/", os.O_PATH | os.O_CLOEXEC)
    try:
        rights = _READ_FILE | (_READ_FOLDER if os.path.isdir(place) else 0)
        rule = struct.pack("=Qi", rights, descriptor)
        _check_result(_make_call(_LANDLOCK_ADD, ruleset, 1, ctypes.c_char_p(rule), 0), f"landlock_add_rule, {place}")
    finally:
        os.close(descriptor)


def _write_filter(machine: int, own_pid: int, may_open: bool, network: bool = False) -> list[bytes]:
    """Return the seccomp program: which calls are allowed, with which arguments.

    `own_pid`: the only target of a signal.
    """
    # The number of a call means something only on its architecture (place 4), so that is looked at first, then the
    # number (place 0). Afterwards each call has a part of its own, and the first part that is for it ends with a
    # return.
    program = [_load(4), _jump(_EQUAL, _ARCHITECTURE[machine], 1, 0), _return(_KILL), _load(0)]
    for numbers in (*_ALLOWED.values(), *(_SOCKETS.values() if network else ())):
        program += _run_for(numbers[machine], [_return(_ALLOW)])
    if network:  # a thread, and no process: glibc asks clone3 first, whose flags no filter can read
        program += _run_for(_CLONE3[machine], [_return(_UNKNOWN_CALL)])
        program += _run_for(
            _SOCKET[machine], _allow_one_of(0, (socket.AF_INET, socket.AF_INET6))
        )  # no agent's, no Docker's
        thread = [_load(_argument(0)), _jump(_ANY_BIT, _CLONE_THREAD, 0, 1), _return(_ALLOW), _return(_REFUSE)]
        program += _run_for(_CLONE[machine], thread)
        program += _run_for(_FCNTL[machine], _allow_one_of(1, (*_FCNTLS, _F_SETFL)))
        program += _run_for(_IOCTL[machine], _allow_one_of(1, (*_IOCTLS, *_SOCKET_IOCTLS)))
    without_writing = [_jump(_ANY_BIT, WRITING, 0, 1), _return(_REFUSE), _return(_ALLOW)]
    if may_open:
        program += _run_for(_OPEN[machine], [_load(_argument(1)), *without_writing])
        program += _run_for(_OPENAT[machine], [_load(_argument(2)), *without_writing])
    program += _run_for(_IOCTL[machine], _allow_one_of(1, _IOCTLS))
    program += _run_for(_FCNTL[machine], _allow_one_of(1, _FCNTLS))
    program += _run_for(_TGKILL[machine], _allow_one_of(0, (own_pid,)))
    program += _run_for(_SETRLIMIT[machine], _allow_one_of(0, (resource.RLIMIT_CPU,)))
    program += _run_for(_PRLIMIT[machine], _allow_own_limits())
    return [*program, _return(_REFUSE)]


def _allow_own_limits() -> list[bytes]:
    """Allow prlimit64(0, RLIMIT_CPU, ...), and a call that only reads, whose third argument is not an address."""
    reads = [_load(_argument(2)), _jump(_EQUAL, 0, 0, 2), _load(_argument(2) + 4), _jump(_EQUAL, 0, 1, 0)]
    return [
        _load(_argument(0)), _jump(_EQUAL, 0, 1, 0), _return(_REFUSE),
        _load(_argument(1)), _jump(_EQUAL, resource.RLIMIT_CPU, 5, 0),  # past what follows, to the last return
        *reads, _return(_REFUSE), _return(_ALLOW),
    ]  # fmt: skip


def _allow_one_of(argument: int, values: Sequence[int]) -> list[bytes]:
    """Allow the call where the lower half of an argument, counted from 0, is one of the values."""
    tests = [_jump(_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)]
    return [_load(_argument(argument)), *tests, _return(_REFUSE), _return(_ALLOW)]


def _run_for(number: int | None, instructions: list[bytes]) -> list[bytes]:
    """Run these instructions, which end with a return, for the call of this number."""
    return [] if number is None else [_jump(_EQUAL, number, 0, len(instructions)), *instructions]


def _argument(index: int) -> int:
    """Return where the lower half of an argument is in struct seccomp_data. Both machines are little-endian."""
    return 16 + 8 * index


def _load(place: int) -> bytes:
    """Return the instruction that loads the 32 bits at this place, which `_jump` then looks at."""
    return struct.pack("=HBBI", _LOAD, 0, 0, place)


def _jump(test: int, value: int, where_true: int, where_false: int) -> bytes:
    """Return the instruction that skips `where_true` or `where_false` of the next ones, as the test says."""
    return struct.pack("=HBBI", test, where_true, where_false, value)


def _return(action: int) -> bytes:
    return struct.pack("=HBBI", _RETURN, 0, 0, action)
