"""Tests of the NeMo-RL back end. Those marked ``nemo_rl`` run the real one and say why where they are skipped.

PYTHONPATH=<NeMo-RL checkout>:. python -m pytest tests/nemo -m nemo_rl
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from nemo_support.compat import why_not_importable


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nemo_rl: runs the real NeMo-RL; skipped where it cannot be imported")


@pytest.fixture
def main() -> Path:
    """The checkout of NeMo-RL's main branch, which NEMO_RL_MAIN_HOME names, else RL-main beside NEMO_RL_HOME."""
    home = os.environ.get("NEMO_RL_HOME")
    found = Path(os.environ.get("NEMO_RL_MAIN_HOME") or (Path(home).parent / "RL-main" if home else "missing"))
    if not (found / "nemo_rl").is_dir():
        pytest.skip("NEMO_RL_MAIN_HOME names no checkout of NeMo-RL's main branch")
    return found


@pytest.fixture(scope="session")
def harness() -> Iterator[ModuleType]:
    """The module ``nemo_support.harness``, with a Ray instance of our own. One import and one Ray per session."""
    reason = why_not_importable()
    if reason is not None:
        pytest.skip(reason)
    from nemo_support.private_ray import private_ray

    with private_ray():
        yield importlib.import_module("nemo_support.harness")


@pytest.fixture(scope="module")
def lab(harness: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny recipe in a folder of its own (nemo_support/lab.py)."""
    from nemo_support.lab import Lab

    return Lab.furnish(tmp_path_factory.mktemp("lab"))
