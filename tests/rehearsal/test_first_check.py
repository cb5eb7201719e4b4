"""A rehearsal's first check refuses what the run's set-up would refuse minutes later, in a customer's own YAML, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nemo_ada.rehearsal.command import check_full_config
from nemo_ada.rules.facts.config_file import load_config

pytestmark = pytest.mark.skipif(not os.environ.get("NEMO_RL_HOME"), reason="NEMO_RL_HOME names no checkout of NeMo-RL")
RECIPE = """
defaults: ${oc.env:NEMO_RL_HOME}/examples/configs/grpo_math_8B_megatron.yaml
run_dir: runs/llama
"""
SECTION = "reinforce_ada: {preset: ada_seq_lean}\n"
OFF = ["grpo.normalize_rewards=false", "grpo.use_leave_one_out_baseline=false"]


@pytest.mark.parametrize(("section", "words", "refused"), [(SECTION, [], True), (SECTION, OFF, False), ("", [], False)])
def test_a_yaml_with_our_section_is_judged_whole(section: str, words: list[str], refused: bool, tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(RECIPE + section)
    found = check_full_config(path, words, load_config(path, words))
    errors = {one.key for one in found if one.level == "error"}
    assert errors == ({"grpo.normalize_rewards", "grpo.use_leave_one_out_baseline"} if refused else set())
