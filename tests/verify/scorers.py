"""Scorers that misbehave on command: the answer says how. Loaded by the verifier's workers by name."""

from __future__ import annotations

import errno
import faulthandler
import hashlib
import os
import pickle
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.verify import hostile


def misbehave(answer: str, reference: str) -> float:
    """Do what the answer says; any other answer is compared as a string."""
    match answer.split():
        case ["exit", code]:
            os._exit(int(code))
        case ["segfault"]:
            faulthandler._sigsegv()
        case ["sleep", seconds]:
            time.sleep(float(seconds))
            return 1.0
        case ["spin"]:
            while True:
                pass
        case ["deaf"]:  # minutes in a C function that never looks for signals
            hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 2**31 - 1)
        case ["score", value]:
            return float(value)
        case ["raise"]:
            raise KeyError("no such thing")
        case ["allocate", mebibytes]:
            return float(len(bytearray(int(mebibytes) << 20)) < 0)
        case ["print", text]:
            print(text * 500)
            print("and more", file=sys.stderr)
            return 1.0
        case ["pid"]:
            return 1 / os.getpid()
    return float(answer == reference)


def without(answer: str, reference: str) -> float:
    """The default scorer where its parser cannot read a sign, as one for another antlr: the environment names it."""
    from nemo_ada.verify.scoring import score_math

    missing = os.environ["NEMO_ADA_TEST_PARSER_LACKS"]
    return 0.0 if missing in answer + reference else score_math(answer, reference)


ATTACKS: dict[str, Callable[[str], object]] = {
    "socket": lambda _: socket.socket(),
    "socketpair": lambda _: socket.socketpair(),
    "resolve": lambda _: socket.getaddrinfo("localhost", 80),
    "download": lambda _: urllib.request.urlopen("http://127.0.0.1:9/x", timeout=1),
    "write": lambda target: Path(target).write_text("x"),
    "append": lambda target: open(target, "a").close(),
    "create": lambda target: os.open(target + ".new", os.O_CREAT | os.O_WRONLY),
    "temporary": lambda _: tempfile.mkstemp(),
    "mkdir": lambda target: os.mkdir(target + ".d"),
    "remove": lambda target: os.remove(target),
    "rename": lambda target: os.rename(target, target + ".moved"),
    "replace": lambda target: Path(target).replace(target + ".moved"),
    "symlink": lambda target: os.symlink(target, target + ".link"),
    "hardlink": lambda target: os.link(target, target + ".link"),
    "chmod": lambda target: os.chmod(target, 0o777),
    "truncate": lambda target: os.truncate(target, 0),
    "rmtree": lambda target: shutil.rmtree(Path(target).parent),
    "database": lambda target: sqlite3.connect(target + ".db"),
    "subprocess": lambda _: subprocess.run(["true"], check=True),
    "shell": lambda _: hostile.shell(),
    "fork": lambda _: os.fork() or os._exit(0),
    "spawn": lambda _: os.posix_spawn("/bin/true", ["true"], {}),
    "exec": lambda _: os.execv("/bin/true", ["true"]),
    "kill": lambda _: os.kill(os.getppid(), signal.SIGTERM),
    "kill group": lambda _: os.killpg(os.getpgrp(), signal.SIGTERM),
    "read": lambda target: Path(target).read_text(),
    "read system file": lambda _: Path("/etc/passwd").read_bytes(),
    "read environment": lambda _: Path("/proc/self/environ").read_bytes(),
    "list": lambda target: os.listdir(Path(target).parent),
    "limits": lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2),
    "climb out": lambda _: open(os.path.join(os.path.dirname(os.__file__), *[".."] * 30, "etc", "passwd")).close(),
}


def attack(answer: str, reference: str) -> float:
    """Try the attack `answer` on the file `reference`: 0.0 where it is refused, 1.0 where it works."""
    if answer == "secrets":
        return float(any("hostile-secret" in value for value in os.environ.values()))
    if answer == "inherited":
        return _inherited()
    if answer == "pickle":
        _send_code_to_the_server(reference)
        return 1.0
    try:
        ATTACKS[answer](reference)
    except (OSError, ValueError, sqlite3.Error):
        return 0.0
    return 1.0


class _Code:
    """An object whose pickle makes a folder where Python's own reader reads it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (self.folder,)


def _send_code_to_the_server(target: str) -> None:
    """A pickle in place of a judgement, on the worker's own connection."""
    os.write(0, pickle.dumps(_Code(target + ".d")) + b"\n")


_LOG = os.environ.get("NEMO_ADA_TEST_LOG")
_DESCRIPTOR = os.open(_LOG, os.O_WRONLY | os.O_APPEND) if _LOG else None  # by the server, before any limit


def _inherited() -> float:
    """Whether a file that was open for writing before the limits still is."""
    if _DESCRIPTOR is None:
        return 1.0
    try:
        os.write(_DESCRIPTOR, b"x")
    except OSError as refusal:
        return float(refusal.errno != errno.EBADF)
    return 1.0


def limit(answer: str, reference: str) -> float:
    """Whether the resource limit `answer` is `reference`, soft and hard."""
    return float(resource.getrlimit(int(answer)) == (int(reference), int(reference)))
