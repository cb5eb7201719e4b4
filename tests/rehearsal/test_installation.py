"""Where a rehearsal's processes look for modules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.rehearsal import installation
from nemo_ada.rehearsal.installation import Installation


@pytest.mark.parametrize("own", ["", "/home/me/rewards:/home/me/more"])
def test_the_callers_own_modules_are_found_after_everything_else(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", own)
    installed = Installation(*(Path("/upstream") / name for name in ("RL", "bridge", "megatron", "policy", "engine")))
    path = installed.environment(name="x", gpus=1, events=Path("e"), conversions=Path("c"))["PYTHONPATH"]
    parts = path.split(os.pathsep)
    assert parts[2] == "/upstream/RL" and parts[5:] == [part for part in own.split(os.pathsep) if part]


def test_dtensor_v2_needs_a_checkout_of_automodel_which_its_processes_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (installation.HOME, installation.BRIDGE, installation.MEGATRON, installation.AUTOMODEL):
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    with pytest.raises(UserError, match=installation.AUTOMODEL):
        installation.find(automodel=True)
    with pytest.raises(UserError) as without:
        installation.find()
    assert installation.AUTOMODEL not in str(without.value)
    upstream = [Path("/upstream") / name for name in ("RL", "bridge", "megatron", "policy", "engine")]
    installed = Installation(*upstream, automodel=Path("/upstream/Automodel"))
    path = installed.environment(name="x", gpus=1, events=Path("e"), conversions=Path("c"))["PYTHONPATH"]
    assert "/upstream/Automodel" in path.split(os.pathsep)
