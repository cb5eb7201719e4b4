"""The configs for the single controller, which only NeMo-RL main has.

1. `check` finds no error in them, and each of them asks for one update per step.
2. A checkout without the single controller is refused, and so is a section that it would ignore.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nemo_ada.config.values import Values
from nemo_ada.lab.plan.command import PlanOptions, make_plan
from nemo_ada.rules import rulebook
from nemo_ada.rules.check.command import examine
from nemo_ada.rules.check.site import checkout
from nemo_ada.rules.facts.nemo_config import NemoConfig, load_config
from nemo_ada.rules.single_controller import lookahead

CONFIGS = Path(__file__).parents[2] / "configs"
OVERLAY = str(CONFIGS / "methods/single-controller.yaml")
WORDS = [
    (CONFIGS / "qwen2.5-math-1.5b.yaml", [OVERLAY]),
    (CONFIGS / "qwen2.5-math-7b.yaml", [OVERLAY, str(CONFIGS / "methods/ada-lean.yaml")]),
    (CONFIGS / "qwen3-30b-a3b-single-controller.yaml", []),
]
OF_A_SITE = {"policy.megatron_cfg.gradient_accumulation_fusion"}  # apex has to be installed
HOME = Path(os.environ.get("NEMO_RL_HOME", ".missing"))
on_main = pytest.mark.skipif(
    not (HOME / "nemo_rl/algorithms/single_controller.py").is_file(), reason="NEMO_RL_HOME (main) is not set"
)
on_a_checkout = pytest.mark.skipif(not (HOME / "nemo_rl").is_dir(), reason="NEMO_RL_HOME is not set")
every_config = pytest.mark.parametrize(("path", "more"), WORDS, ids=lambda value: getattr(value, "stem", ""))


@on_main
@every_config
def test_check_finds_no_error_and_a_step_is_one_update(path, more):
    found = examine(path, more, verifier=False, site=False)
    assert [one for one in found if one.level == "error" and one.key not in OF_A_SITE] == []
    config = NemoConfig.of_megatron(load_config(path, more))
    assert config.batch.rows == config.rollout.rows and config.loop.draws_ahead
    ahead = config.values.integer("async_rl.max_buffered_rollouts")
    assert ahead == config.rollout.prompts_per_step * (lookahead(config.values) + 1)


@on_main
def test_plan_forecasts_a_step():
    path, more = WORDS[0]
    plan = make_plan(path, more, PlanOptions("04:00:00", steps=6, compare=False))
    assert plan.forecast.step.p50 > 0


@on_main
def test_a_key_of_the_older_loop_and_a_setting_without_effect_are_errors():
    path, more = WORDS[0]
    for override, key in (
        ("grpo.async_grpo.enabled=true", "grpo.async_grpo"),
        ("grpo.reward_scaling.enabled=true", "grpo.reward_scaling.enabled"),
        ("async_rl.sampler.max_lookahead_versions=5", "async_rl.max_buffered_rollouts"),
        ("data_plane.backend=redis", "data_plane.backend"),
        ("data_plane.storage_capacity=null", "data_plane.storage_capacity"),
        ("+async_rl.max_inflight_promts=640", "async_rl.max_inflight_promts"),
    ):
        found = examine(path, [*more, override], verifier=False, site=False)
        assert key in {one.key for one in found if one.level == "error"}, override


@pytest.fixture
def over_gym(tmp_path):
    """A config over NeMo-Gym with the overlay, and a data set of requests."""
    row = {
        "responses_create_params": {"input": [{"role": "user", "content": "1 + 1?"}]},
        "agent_ref": {"type": "responses_api_agents", "name": "some_agent"},
        "expected_answer": "2",
    }
    (tmp_path / "rows.jsonl").write_text((json.dumps(row) + "\n") * 200)
    data = [f"data.{split}.data_path={tmp_path / 'rows.jsonl'}" for split in ("train", "validation")]
    return CONFIGS / "qwen3-4b-instruct-2507-gym-math.yaml", [OVERLAY, *data]


@on_main
def test_check_finds_no_error_over_nemo_gym(over_gym):
    path, more = over_gym
    found = examine(path, more, verifier=False, site=False)
    assert [one for one in found if one.level == "error" and one.key not in OF_A_SITE] == []
    config = Values(load_config(path, more))
    assert config.get("async_rl.sampler.max_lookahead_versions") == 4 and config.get("env.should_use_nemo_gym") is True
    assert [one for one in checkout(config) if one.level == "error"] == []


@on_main
@pytest.mark.parametrize(
    ("override", "key", "message"),
    [
        ("grpo.max_rollout_turns=2", "grpo.max_rollout_turns", "set it to 1"),
        (
            "+async_rl.rollout_failure={native: {env_timeout_s: 5.0}}",
            "async_rl.rollout_failure.native.env_timeout_s",
            "no effect with env.should_use_nemo_gym=true",
        ),
        (
            "+async_rl.rollout_failure={nemo_gym: {rollout_timeout_s: 60.0}}",
            "async_rl.rollout_failure.nemo_gym.rollout_timeout_s",
            "max_group_seconds",
        ),
        (
            "+async_rl.rollout_failure={nemo_gym: {max_row_attempts: 2}}",
            "async_rl.rollout_failure.nemo_gym.max_row_attempts",
            "another response",
        ),
        (
            "+env.nemo_gym.effort_levels={low_string: x, low_weight: 1.0, low_ub: 9}",
            "env.nemo_gym.effort_levels",
            "shapes no rewards",
        ),
        (
            "+reward_penalties.penalize_empty_final_answer=true",
            "reward_penalties.penalize_empty_final_answer",
            "shapes no rewards",
        ),
    ],
)
def test_what_has_no_effect_over_nemo_gym_is_an_error(over_gym, override, key, message):
    path, more = over_gym
    found = rulebook.findings(load_config(path, [*more, override]))
    assert any(message in one.message for one in found if one.level == "error" and one.key == key)


@on_main
def test_a_deadline_of_nemo_gym_has_no_effect_without_it():
    path, more = WORDS[0]
    key = "async_rl.rollout_failure.nemo_gym.rollout_timeout_s"
    config = load_config(path, [*more, "+async_rl.rollout_failure={nemo_gym: {rollout_timeout_s: 60.0}}"])
    assert key in {one.key for one in rulebook.findings(config) if one.level == "error"}


@on_a_checkout
def test_a_checkout_without_the_single_controller_is_refused():
    path, more = WORDS[0]
    found = checkout(Values(load_config(path, more)))
    refused = any(one.level == "error" and one.key == "NEMO_RL_HOME" for one in found)
    missing = not (HOME / "nemo_rl/algorithms/single_controller.py").is_file()
    assert refused == missing


@on_main
def test_an_overlay_for_the_older_loop_in_front_of_it_is_said_to_have_no_effect():
    path, more = WORDS[0]
    older = str(CONFIGS / "methods/async.yaml")
    for words, expected in (([older, *more], True), (more, False)):
        found = examine(path, words, verifier=False, site=False)
        assert not [one for one in found if one.level == "error" and one.key not in OF_A_SITE]
        assert any(one.level == "warning" and "async.yaml" in one.message for one in found) == expected


@on_a_checkout
def test_the_section_is_no_unknown_key_in_a_checkout_without_it():
    path, more = WORDS[0]
    found = examine(path, more, verifier=False, site=False)
    assert not any(one.level == "error" and one.key == "async_rl" for one in found)
