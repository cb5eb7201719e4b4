"""The broken configs of recipes/benchmarks/config_rules.py.

1. None passes `check` without a finding, and none is refused for another reason.
2. `check` and the launcher agree on each: `train` refuses exactly what the rules call an error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "recipes" / "benchmarks"))
import config_rules  # noqa: E402

from nemo_ada.errors import UserError  # noqa: E402
from nemo_ada.rules import rulebook  # noqa: E402
from nemo_ada.rules.check.command import examine_nemo_rl  # noqa: E402
from nemo_ada.rules.facts.config_file import load_config  # noqa: E402

pytestmark = pytest.mark.skipif(
    "NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set"
)


@pytest.fixture(scope="module")
def config() -> dict:
    return load_config(config_rules.CONFIG)


def test_the_config_that_the_list_breaks_has_no_errors(config: dict) -> None:
    assert [found for found in examine_nemo_rl(config) if found.level == "error"] == []


def test_the_list_has_forty_ways_to_break_it() -> None:
    named = {(broken.key, str(broken.value), str(broken.others)) for broken in config_rules.BROKEN}
    assert len(named) == len(config_rules.BROKEN) >= 40


OF_A_GPU = {"policy.sequence_packing.logprob_mb_tokens=262144"}
"""The launcher does not estimate memory, because it does not know the GPU. So this is an error of `check` alone."""


@pytest.mark.parametrize("broken", config_rules.BROKEN, ids=lambda broken: f"{broken.key}={broken.value}")
def test_a_config_that_cannot_work_is_named_under_its_key_and_the_launcher_agrees(
    config: dict, broken: config_rules.Broken, tmp_path: Path
) -> None:
    config_rules.write_files(tmp_path)
    said = config_rules.found(config, broken, tmp_path)
    assert said is not None, "check says nothing"
    assert said.level == broken.level and len(said.message) > 20
    changed = config_rules.changed(config, broken.changes(tmp_path))
    errors = {finding.key for finding in examine_nemo_rl(changed) if finding.level == "error"}
    if not errors or f"{broken.key}={broken.value}" in OF_A_GPU:
        rulebook.refuse(changed)
        return
    with pytest.raises(UserError) as refusal:
        rulebook.refuse(changed)
    assert refusal.value.key in errors
    for finding in rulebook.apply_rules(changed):
        assert finding.level != "error" or finding.message in str(refusal.value)


def test_the_launcher_takes_the_config_that_the_list_breaks(config: dict) -> None:
    rulebook.refuse(config)
