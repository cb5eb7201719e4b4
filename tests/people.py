"""A second user of the machine, for tests that ask what another user can do. Only root can become one."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE

OTHER = 65534
"""The id of `nobody`."""

needs_two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


def as_other(script: str, *arguments: object, cwd: str | Path = "/") -> subprocess.CompletedProcess[str]:
    """Run a shell script as the second user. The arguments are $1, $2 and so on."""
    command = ["sh", "-c", script, "sh", *map(str, arguments)]
    return subprocess.run(
        command, user=OTHER, group=OTHER, extra_groups=[], cwd=cwd, capture_output=True, text=True, check=False
    )


@dataclass(frozen=True, slots=True)
class Person:
    """An account of this machine: its name and id, the group that it shares with others, its home."""

    name: str
    uid: int
    group: str
    home: Path

    def rights(self) -> dict[str, Any]:
        """Arguments of `subprocess.run` for a process of this person."""
        return {"user": self.name, "group": self.name, "extra_groups": [self.group], "umask": 0o022}


@contextmanager
def accounts(folder: Path, *names: str) -> Iterator[list[Person]]:
    """Make accounts for the duration of the block, each with a group of its own and one that all share.

    Args:
        folder: where their homes are made; it must be open to all.
        *names: their names, to which the id of this process is added.
    """
    if os.geteuid() != 0 or shutil.which("useradd", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("only root makes accounts, by useradd")
    group, made = f"ml{os.getpid()}", [f"{name}{os.getpid()}" for name in names]
    try:
        _change("groupadd", group)
        for name in made:
            _change("useradd", "--create-home", "--home-dir", str(folder / name), "--groups", group, name)
        people = [pwd.getpwnam(name) for name in made]
        yield [Person(person.pw_name, person.pw_uid, group, Path(person.pw_dir)) for person in people]
    finally:
        for name in made:
            _change("userdel", name, check=False)
        _change("groupdel", group, check=False)


def _change(*command: str, check: bool = True) -> None:
    """Change the machine's accounts. Another process may hold their files for a moment."""
    deadline = time.monotonic() + PATIENCE
    path = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    while True:
        done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
        if "try again" not in done.stderr or time.monotonic() > deadline:
            assert not check or done.returncode == 0, done.stderr
            return
        time.sleep(0.2)
