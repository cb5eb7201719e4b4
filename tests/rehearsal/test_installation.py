"""Where a rehearsal's processes look for modules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nemo_ada.rehearsal.installation import Installation


@pytest.mark.parametrize("own", ["", "/home/me/rewards:/home/me/more"])
def test_the_callers_own_modules_are_found_after_everything_else(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", own)
    installed = Installation(*(Path("/upstream") / name for name in ("RL", "bridge", "megatron", "policy", "engine")))
    path = installed.environment(name="x", gpus=1, events=Path("e"), conversions=Path("c"))["PYTHONPATH"]
    parts = path.split(os.pathsep)
    assert parts[2] == "/upstream/RL" and parts[5:] == [part for part in own.split(os.pathsep) if part]
