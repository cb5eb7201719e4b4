"""Bounds of the rules for NeMo-RL's set-up, one value on each side of them."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.config.values import Values
from nemo_ada.rules.facts import version
from nemo_ada.rules.method import check_reward_scale, compute_reward_range
from nemo_ada.rules.setup import OPTIMIZER, SCHEDULER, TAKES_PARTS, check_optimizer, check_packs, check_schedule

PACK, UNIT = "policy.sequence_packing.train_mb_tokens", "policy.make_sequence_length_divisible_by"
WARM, DECAY = f"{SCHEDULER}.lr_warmup_iters", f"{SCHEDULER}.lr_decay_iters"
SCALING = "grpo.reward_scaling"


def values(changes: dict[str, Any]) -> Values:
    config = OmegaConf.create({})
    for dotted, value in changes.items():
        OmegaConf.update(config, dotted, value, force_add=True)
    return Values(OmegaConf.to_container(config))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("unit", "tokens", "fits"), [(1, 1001, True), (1, 1000, False), (8, 1001, False), (8, 1007, False), (8, 1008, True)]
)
def test_a_pack_holds_the_longest_row_with_its_padding(unit: int, tokens: int, fits: bool) -> None:
    changes = {"policy.max_total_sequence_length": 1001, UNIT: unit, "policy.sequence_packing.enabled": True}
    found = list(check_packs(values(changes | {PACK: tokens})))
    assert [finding.key for finding in found] == ([] if fits else [PACK])
    assert fits or f"{1001 if unit == 1 else 1008} would work" in found[0].message


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({WARM: 10, DECAY: 10}, False),
        ({WARM: 9, DECAY: 10}, True),
        ({WARM: 10, "grpo.max_num_steps": 10}, False),
        ({WARM: 9, "grpo.max_num_steps": 10}, True),
        ({WARM: 10, DECAY: 11, "grpo.max_num_steps": 5}, True),
    ],
)
def test_the_warm_up_ends_before_the_decay(changes: dict[str, Any], fits: bool) -> None:
    assert [finding.key for finding in check_schedule(values(changes))] == ([] if fits else [WARM])


@pytest.mark.parametrize(("share", "whole", "parts"), [(1.0, True, True), (0.5, False, True), (0.0, False, False)])
def test_a_share_of_the_optimizer_is_taken_where_nemo_rl_takes_it(
    share: float, whole: bool, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = values({f"{OPTIMIZER}.optimizer_cpu_offload": True, f"{OPTIMIZER}.optimizer_offload_fraction": share})
    for source, fits in (("assert optimizer_offload_fraction == 1.0", whole), (f"if not {TAKES_PARTS}: ...", parts)):
        monkeypatch.setattr(version, "read_source", lambda name, source=source: source)
        assert (list(check_optimizer(config)) == []) == fits


SHAPING, EFFORT = "grpo.reward_shaping", "env.nemo_gym.effort_levels"
LONGEST = {"grpo.num_prompts_per_step": 8, "grpo.num_generations_per_prompt": 1, "grpo.max_rollout_turns": 1,
           "policy.generation.max_new_tokens": 100, "policy.max_total_sequence_length": 1000}  # fmt: skip
DAPO = {f"{SHAPING}.enabled": True, f"{SHAPING}.overlong_buffer_length": 20, f"{SHAPING}.overlong_buffer_penalty": 0.5,
        f"{SHAPING}.max_response_length": 80}  # fmt: skip
SCALED = {f"{SCALING}.enabled": True, f"{SCALING}.target_min": -1.0}
LOW = {
    "env.should_use_nemo_gym": True,
    f"{EFFORT}.low_string": "x",
    f"{EFFORT}.low_weight": 0.5,
    f"{EFFORT}.low_ub": 500,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (0, 1)),
        ({**SCALED, f"{SCALING}.enabled": False}, (0, 1)),
        (SCALED, (-1, 1)),
        ({**SCALED, f"{SCALING}.target_max": "0.5"}, (-1, 0.5)),
        ({**SCALED, f"{SCALING}.target_min": 1.0}, (1, 2)),  # no reward differs from another
        ({**DAPO, f"{SHAPING}.enabled": False}, (0, 1)),
        (DAPO, (-1, 1)),  # 40 tokens beyond 60 are twice the buffer
        ({**DAPO, f"{SHAPING}.max_response_length": 200}, (0, 1)),
        ({**SCALED, **DAPO}, (-2, 1)),
        ({**DAPO, f"{SHAPING}.stop_properly_penalty_coef": 0.1}, (0, 1)),
        ({**SCALED, **DAPO, f"{SHAPING}.stop_properly_penalty_coef": 0.0}, (-1, 1)),
        (LOW, (-0.5, 1.5)),
        ({**LOW, f"{EFFORT}.low_penalty": 2.0}, (-1, 1.5)),
        ({**LOW, f"{EFFORT}.low_string": ""}, (0, 1)),
        ({**LOW, "env.should_use_nemo_gym": False}, (0, 1)),
        ({**LOW, **SCALED}, (-1, 1)),  # the scaling cuts what is beyond its source
        ({**LOW, **SCALED, f"{SCALING}.source_max": 2.0}, (-1, 0.5)),
    ],
)
def test_the_range_of_rewards_follows_scaling_shaping_and_effort_levels(
    changes: dict[str, Any], expected: tuple[float, float]
) -> None:
    assert compute_reward_range(values({**LONGEST, **changes})) == pytest.approx(expected)


def test_an_allocation_by_pass_rates_does_not_go_with_a_shrunk_baseline_of_other_rewards() -> None:
    shrunk = {"advantage": {"baseline": "shrunk", "weighting": "reference"}}
    single, estimation = (
        parse_ada_settings({"preset": "ada_single"}),
        parse_ada_settings({"preset": "ada_est_ema", **shrunk}),
    )
    for changes, refused in (({}, False), (SCALED, True), (DAPO, True)):
        config = values({**LONGEST, **changes})
        assert bool(list(check_reward_scale(config, estimation))) == refused
        assert list(check_reward_scale(config, single)) == []
