"""Where a rehearsal's processes look for modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_dtensor_v2_trains_resumes_and_is_exported_with_our_section(tmp_path: Path) -> None:
    """NeMo-RL's own first example, whose learner is DTensor v2. Ten minutes on two busy cores."""
    try:
        home = installation.find(automodel=True).home
    except UserError as missing:
        pytest.skip(str(missing))
    config = tmp_path / "mine.yaml"
    config.write_text(
        f"""
defaults: {home}/examples/configs/grpo_math_1B.yaml
grpo:
  num_prompts_per_step: 128
  num_generations_per_prompt: 4
  normalize_rewards: false
  use_leave_one_out_baseline: false
loss_fn: {{reference_policy_kl_penalty: 0.0}}
policy: {{generation: {{vllm_cfg: {{async_engine: true}}}}}}
reinforce_ada: {{preset: ada_seq_balance}}
""",
        encoding="utf-8",
    )
    words = ["rehearse", str(config), "--steps", "2", "--keep", str(tmp_path / "kept")]
    done = subprocess.run([sys.executable, "-m", "nemo_ada.cli", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    report = json.loads((tmp_path / "kept" / "report.json").read_text(encoding="utf-8"))
    names = [one["name"] for one in report["numbers"]]
    assert any(name.startswith("resumed step 2: rows") for name in names)
    assert any("exported, in vllm" in name for name in names)
