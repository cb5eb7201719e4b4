"""Plant files as a download or a second user would, and run whole commands as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.people import OTHER, needs_two_users

TOKEN = "hf_" + "Planted7" * 4
TOOL = Path(sys.executable).with_name("nemo-ada")
PEOPLE = [pytest.param(0, id="download"), pytest.param(OTHER, id="second user", marks=needs_two_users)]


def run(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the hub's token in its environment, as a user's shell has it."""
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    return subprocess.run(
        [TOOL, *map(str, words)], cwd=cwd, env={**variables, "HF_TOKEN": TOKEN, **environment}, capture_output=True,
        text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def plant(folder: Path, owner: int, **texts: str) -> None:
    """Write files of this owner. `a__b` stands for a.b in a name."""
    for name, text in texts.items():
        path = folder / name.replace("__", ".")
        path.write_text(text)
        if owner:
            os.chown(path, owner, owner)


def ran(folder: Path) -> str:
    """What planted code has left."""
    return (folder / "ran").read_text() if (folder / "ran").exists() else ""
