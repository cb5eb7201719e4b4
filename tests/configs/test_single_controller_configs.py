"""The overlay for NeMo-RL's single controller.

1. The rules find no error in it, and it asks for one update per step.
2. An older controller, a setting that it would ignore and what the plug-in cannot bring back are refused.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nemo_ada.lab.plan.command import PlanOptions, make_plan
from nemo_ada.rules import rulebook
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.facts.nemo_config import NemoConfig
from nemo_ada.rules.single_controller import CONTROLLER, read_lookahead

CONFIGS = Path(__file__).parents[2] / "configs"
OVERLAY = str(CONFIGS / "methods/single-controller.yaml")
SMALL, SEVEN = CONFIGS / "qwen2.5-math-1.5b.yaml", CONFIGS / "qwen2.5-math-7b.yaml"
WORDS = [(SMALL, [OVERLAY]), (SEVEN, [OVERLAY, str(CONFIGS / "methods/ada-lean.yaml")])]
HOME = Path(os.environ.get("NEMO_RL_HOME", ".missing"))
pytestmark = pytest.mark.skipif(not (HOME / "nemo_rl").is_dir(), reason="NEMO_RL_HOME is not set")


@pytest.fixture
def newer(monkeypatch):
    """The checkout is v0.8.0."""
    monkeypatch.setattr(version, "find_version", lambda: version.V0_8_0)


def errors(path, words):
    return {one.key: one.message for one in rulebook.apply_rules(load_config(path, words)) if one.level == "error"}


@pytest.mark.parametrize(("path", "words"), WORDS, ids=["1.5B", "7B"])
def test_no_rule_objects_and_a_step_is_one_update(newer, path, words):
    assert errors(path, words) == {}
    config = NemoConfig.of_megatron(load_config(path, words))
    assert config.batch.rows == config.rollout.rows and config.loop.draws_ahead
    ahead = config.values.integer("async_rl.max_buffered_rollouts")
    assert ahead == config.rollout.prompts_per_step * (read_lookahead(config.values) + 1)


def test_plan_forecasts_a_step(newer):
    plan = make_plan(SMALL, [OVERLAY], PlanOptions("04:00:00", steps=6, compare=False))
    assert plan.forecast.step.p50 > 0


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("async_rl.sampler.max_lookahead_versions=5", "async_rl.max_buffered_rollouts"),
        ("+async_rl.num_advantage_workers=2", "async_rl.num_advantage_workers"),
        ("reinforce_ada.preset=ada_single", "reinforce_ada.advantage.baseline"),
        ("env.should_use_nemo_gym=true", "env.should_use_nemo_gym"),
    ],
)
def test_what_does_not_work_is_an_error(newer, override, key):
    assert key in errors(SMALL, [OVERLAY, override])


def test_an_older_controller_is_refused_with_what_would_work():
    if version.find_version().masks_rows:
        pytest.skip("NEMO_RL_HOME is v0.8.0")
    assert "async.yaml" in errors(SMALL, [OVERLAY])[CONTROLLER]
