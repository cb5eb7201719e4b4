"""A second user of the machine, for tests that ask what another user can do. Only root can become one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

OTHER = 65534
"""The id of `nobody`."""

needs_two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


def as_other(script: str, *arguments: object, cwd: str | Path = "/") -> subprocess.CompletedProcess[str]:
    """Run a shell script as the second user. The arguments are $1, $2 and so on."""
    command = ["sh", "-c", script, "sh", *map(str, arguments)]
    return subprocess.run(
        command, user=OTHER, group=OTHER, extra_groups=[], cwd=cwd, capture_output=True, text=True, check=False
    )
