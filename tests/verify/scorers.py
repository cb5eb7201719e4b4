"""Scorers that misbehave on command: the answer says how. Loaded by the verifier's workers by name."""

from __future__ import annotations

import ctypes
import hashlib
import os
import time


def misbehave(answer: str, reference: str) -> float:
    """Do what the answer says; any other answer is compared as a string."""
    match answer.split():
        case ["exit", code]:
            os._exit(int(code))
        case ["segfault"]:
            ctypes.string_at(0)
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
        case ["pid"]:
            return 1 / os.getpid()
    return float(answer == reference)


def die_at_once(answer: str, reference: str) -> float:
    """A scorer whose module is fine and whose every call ends the worker."""
    os._exit(9)
