"""Helpers to look at the verifier's processes from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest


def group_members(group: int) -> list[int]:
    """Process ids whose process group is `group`, zombies included."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group:
                members.append(int(entry.name))
    return members


def children() -> list[int]:
    """Direct children of this process, zombies included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.append(int(entry.name))
    return found


@pytest.fixture
def gone() -> Callable[[int], bool]:
    """Wait up to 10 s until a process group has no member; false where it still has."""

    def wait(group: int) -> bool:
        end = time.monotonic() + 10
        while group_members(group):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    return wait


@pytest.fixture
def no_new_children() -> Callable[[], bool]:
    """True where this process has no children that it had not when the test began."""
    before = set(children())
    return lambda: set(children()) <= before
