"""Helpers to look at the verifier's processes from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def named_folder() -> Iterator[None]:
    """Name the checkout in PYTHONPATH, as a user names the folder of a reward. A worker finds no other module of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep if os.environ.get("PYTHONPATH") else None)
        yield


def group_members(group: int) -> list[int]:
    """Process ids whose process group is `group`, zombies included."""
    members = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == group:
                members.append(pid)
    return members


@pytest.fixture
def gone() -> Callable[[int], bool]:
    """Wait until a process group has no member; false where it still has."""

    def wait(group: int) -> bool:
        end = time.monotonic() + PATIENCE
        while group_members(group) and time.monotonic() < end:
            time.sleep(0.02)
        return not group_members(group)

    return wait


@pytest.fixture
def no_new_children() -> Callable[[], bool]:
    """True where this process has no children that it had not when the test began."""
    before = set(psutil.Process().children())
    return lambda: set(psutil.Process().children()) <= before
