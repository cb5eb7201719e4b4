"""Bounds of the rules for NeMo-RL's set-up, one value on each side of them."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_ada.config.presets import ada_settings
from nemo_ada.config.values import Values
from nemo_ada.rules.facts import version
from nemo_ada.rules.method import reward_scale
from nemo_ada.rules.setup import OPTIMIZER, SCHEDULER, TAKES_PARTS, optimizer, packs, schedule

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
    found = list(packs(values(changes | {PACK: tokens})))
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
    assert [finding.key for finding in schedule(values(changes))] == ([] if fits else [WARM])


@pytest.mark.parametrize(("share", "whole", "parts"), [(1.0, True, True), (0.5, False, True), (0.0, False, False)])
def test_a_share_of_the_optimizer_is_taken_where_nemo_rl_takes_it(
    share: float, whole: bool, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = values({f"{OPTIMIZER}.optimizer_cpu_offload": True, f"{OPTIMIZER}.optimizer_offload_fraction": share})
    for source, fits in (("assert optimizer_offload_fraction == 1.0", whole), (f"if not {TAKES_PARTS}: ...", parts)):
        monkeypatch.setattr(version, "source", lambda name, source=source: source)
        assert (list(optimizer(config)) == []) == fits


@pytest.mark.parametrize(
    ("target", "moved"),
    [({}, False), ({"target_min": 0.0, "target_max": 1.0}, False), ({"target_min": -1.0}, True),
     ({"target_max": 2.0}, True), ({"target_min": 0.0, "target_max": 0.5}, True)],
)  # fmt: skip
def test_a_shrunk_baseline_takes_a_scale_that_leaves_rewards_where_they_are(
    target: dict[str, float], moved: bool
) -> None:
    ada = ada_settings({"preset": "ada_single"})
    config = values({f"{SCALING}.enabled": True, **{f"{SCALING}.{name}": end for name, end in target.items()}})
    assert [finding.key for finding in reward_scale(config, ada)] == ([f"{SCALING}.enabled"] if moved else [])
    pool = ada_settings({"preset": "ada_seq_balance"})
    assert list(reward_scale(config, pool)) == []
