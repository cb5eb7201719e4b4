"""LoRA, keys of the learner that is off, and cards: what is refused, what it takes, and what it costs."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.lab.plan.roofline import Roofline
from nemo_ada.rules import rulebook
from nemo_ada.rules.facts.cards import A100, B200, CARDS, GB200, H100, H200, choose_card, find_card
from nemo_ada.rules.facts.lora import Lora
from nemo_ada.rules.facts.memory import compute_checkpoint_bytes, estimate_learner_phase
from nemo_ada.rules.learners import (
    check_dtensor_adapters,
    check_idle_keys,
    check_megatron_adapters,
    check_other_adapters,
)

sys.path.insert(0, str(Path(__file__).parent))
from recipes import FP8_ROLLOUT, FP8_TRAINING, changed, read

PEFT, LEARNER = "policy.megatron_cfg.peft", "policy.megatron_cfg"
FOUR = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
LORA = {f"{PEFT}.{key}": value for key, value in
        {"enabled": True, "dim": 32, "alpha": 32, "dropout": 0.0, "target_modules": FOUR, "exclude_modules": [],
         "lora_A_init_method": "xavier", "lora_B_init_method": "zero"}.items()}  # fmt: skip
TIED = {"policy.model_name": "Qwen/Qwen2.5-Math-1.5B"}
DTENSOR = {f"{LEARNER}.enabled": False, "policy.dtensor_cfg.enabled": True, "policy.dtensor_cfg.lora_cfg.enabled": True}


def refused(changes):
    values = Values(changed(changes))
    found = [
        finding
        for rule in (check_other_adapters, check_megatron_adapters, check_dtensor_adapters)
        for finding in rule(values)
    ]
    assert all(finding.level == "error" for finding in found)
    return [finding.key for finding in found]


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, []),
        (TIED, []),
        ({f"{PEFT}.target_modules": []}, []),
        ({f"{PEFT}.target_modules": ["*.layers.0.*.linear_qkv", "*_proj"]}, []),
        ({f"{PEFT}.dim": 30}, ["dim"]),
        ({f"{PEFT}.dim": None}, ["dim"]),
        ({f"{PEFT}.alpha": 0}, ["alpha"]),
        ({f"{PEFT}.target_modules": ["q_proj", "linear_fc1"]}, ["target_modules"]),
        ({f"{PEFT}.dropout": 0.1}, ["dropout"]),
        ({f"{PEFT}.lora_B_init_method": "xavier"}, ["lora_B_init_method"]),
        ({f"{PEFT}.target_modules": [], **TIED}, ["target_modules"]),
        ({f"{PEFT}.target_modules": [], f"{PEFT}.exclude_modules": ["output_layer"], **TIED}, []),
        ({f"{PEFT}.enabled": False, f"{PEFT}.dim": 0}, []),
    ],
    ids=str,
)
def test_adapters_on_megatron(changes, keys):
    assert refused(LORA | changes) == [f"{PEFT}.{key}" for key in keys]


def test_adapters_of_the_other_learner():
    assert refused({"policy.dtensor_cfg.lora_cfg.enabled": True}) == ["policy.dtensor_cfg.lora_cfg.enabled"]
    assert refused(LORA | {"policy.dtensor_cfg.lora_cfg.enabled": True}) == []
    assert refused(DTENSOR) == []
    assert refused(DTENSOR | LORA | {"policy.dtensor_cfg.lora_cfg.enabled": False}) == [f"{PEFT}.enabled"]


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"match_all_linear": True}, "match_all_linear"),
        ({"match_all_linear": True, **{"target_modules": [], "exclude_modules": []}}, "match_all_linear"),
        ({"match_all_linear": False, "exclude_modules": ["*.up_proj"]}, "match_all_linear"),
        ({"match_all_linear": False, "target_modules": ["*_proj", "lm_head"]}, "match_all_linear"),
        ({"match_all_linear": False, "target_modules": ["*_proj"]}, None),
        ({"match_all_linear": False, "exclude_modules": ["lm_head"]}, None),
        ({"match_all_linear": False, "target_modules": ["*_proj"], "use_dora": True}, "use_dora"),
    ],
    ids=str,
)
def test_adapters_of_an_output_layer_that_is_the_embedding_would_never_reach_vllm(section, key):
    """A rehearsal of 27 November 2026: token_mult_prob_error 1.02 after one update with NeMo-RL's own default."""
    here = "policy.dtensor_cfg.lora_cfg"
    changes = DTENSOR | {"policy.dtensor_cfg._v2": True} | {f"{here}.{name}": value for name, value in section.items()}
    assert refused(changes | TIED) == ([f"{here}.{key}"] if key else [])
    assert refused(changes) == ([f"{here}.use_dora"] if key == "use_dora" else [])


def test_a_key_of_the_learner_that_is_off_is_named_where_the_user_changed_it():
    theirs = {"policy": {"optimizer": {"kwargs": {"lr": 5e-6}}, "dtensor_cfg": {"tensor_parallel_size": 1}}}
    changes = {"policy.optimizer.kwargs.lr": 1e-5, "policy.dtensor_cfg.tensor_parallel_size": 1}
    found = list(check_idle_keys(Values(changed(changes)), theirs))
    assert [(finding.level, finding.key) for finding in found] == [("warning", "policy.optimizer.kwargs.lr")]
    assert list(check_idle_keys(Values(changed({"policy.optimizer.kwargs.lr": 5e-6})), theirs)) == []
    assert list(check_idle_keys(Values(changed(changes)), {})) == [], "a whole copy of NeMo-RL's file is nobody's wish"
    other = {**changes, f"{LEARNER}.enabled": False, "policy.dtensor_cfg.enabled": True}
    assert list(check_idle_keys(Values(changed(other)), theirs)) == []


def terms(changes):
    return {term.name: term.bytes for term in estimate_learner_phase(*read(changes)).terms}


def test_frozen_weights_have_no_gradient_and_no_optimizer():
    full, lora = terms({}), terms(LORA)
    assert lora["weights"] == full["weights"]
    config, shape = read(LORA)
    adapters = config.learner.lora.parameters(shape, shape.layers)
    assert adapters == 32 * 28 * (3584 + 3584 + 1024 + 3584 + 3584 + 3584 + 2 * 18944 + 18944 + 3584)
    assert lora["gradients"] == 2 * adapters / 4
    assert lora["optimizer"] == 16 * adapters / 4 / 2
    assert lora["activations"] > full["activations"]
    assert compute_checkpoint_bytes(config, shape) == 14 * adapters


def test_parameters_are_those_that_megatron_bridge_counted():
    """Of the small model of the rehearsal of 25 November 2026, on one of two ranks: 40,960 trainable parameters."""
    shape = replace(read({})[1], hidden=128, ffn=128, heads=4, kv=2, head_dim=32, layers=2)
    assert Lora(32, tuple(FOUR)).parameters(shape, 2) / 2 == 40_960


def test_an_output_layer_counts_where_it_is_adapted():
    shape = read({})[1]
    everywhere, four = LORA | {f"{PEFT}.target_modules": []}, LORA
    more = compute_checkpoint_bytes(*read(everywhere)) - compute_checkpoint_bytes(*read(four))
    assert more == 14 * 32 * (shape.hidden + shape.vocab)
    assert terms(everywhere)["gradients"] > terms(four)["gradients"]


def test_the_backward_pass_of_a_frozen_weight_costs_half():
    whole, frozen = Roofline.of(*read({})), Roofline.of(*read(LORA))
    # With recomputation the forward pass runs twice: 3 of 4 parts are left.
    assert frozen.update_seconds(2048, 800) == pytest.approx(3 / 4 * whole.update_seconds(2048, 800))
    once = {f"{LEARNER}.activation_checkpointing": False}
    whole, frozen = Roofline.of(*read(once)), Roofline.of(*read(LORA | once))
    assert frozen.update_seconds(2048, 800) == pytest.approx(2 / 3 * whole.update_seconds(2048, 800))
    pageable = once | {"optimizer_offload": "pageable"}
    slow, slow_frozen = Roofline.of(*read(pageable)), Roofline.of(*read(LORA | pageable))
    assert slow_frozen.refit < 0.5 * slow.refit, "the optimizer that moves is the adapters'"
    assert whole.refit < 0.6 * slow.refit, "pinned memory"
    assert slow.pull_levers(0).refit == whole.pull_levers(0).refit == slow.refit
    stays = once | {f"{LEARNER}.optimizer.optimizer_cpu_offload": True}
    whole, frozen = Roofline.of(*read(stays)), Roofline.of(*read(LORA | stays))
    assert frozen.refit == whole.refit, "the merged weights are sent"


# -- cards -------------------------------------------------------------------------------------------------------------


def test_a_card_is_found_by_its_name_in_any_case():
    assert [find_card(name) for name in ("a100", "H100-80gb", "h200", "B200", "gb200")] == list(CARDS.values())
    assert choose_card({}) is H100 and choose_card({"card": "H200"}) is H200
    with pytest.raises(UserError) as problem:
        find_card("V100")
    assert problem.value.key == "card"


def test_a_larger_and_faster_card_has_more_room_and_takes_less_time():
    seconds = [Roofline.of(*read({"card": card.name})).update_seconds(2048, 800) for card in (A100, H100, B200)]
    assert seconds == sorted(seconds, reverse=True)
    clocks = [Roofline.of(*read({"card": card.name})).clock(800)[0] for card in (A100, H100, H200, B200)]
    assert clocks == sorted(clocks, reverse=True)
    gib = [card.gib for card in (A100, H100, H200, B200, GB200)]
    assert gib == sorted(gib)


@pytest.mark.parametrize(
    ("card", "changes", "keys"),
    [
        ("H100-80GB", FP8_ROLLOUT, []),
        ("H200", FP8_ROLLOUT, []),
        ("A100-80GB", {}, []),
        ("A100-80GB", FP8_TRAINING, [f"{LEARNER}.fp8_cfg.enabled"]),
        ("A100-80GB", FP8_ROLLOUT, [f"{LEARNER}.fp8_cfg.enabled", "policy.generation.vllm_cfg.precision"]),
        ("B200", FP8_TRAINING, [f"{LEARNER}.fp8_cfg.enabled"]),
        ("B200", {"policy.generation.vllm_cfg.precision": "fp8"}, []),
        ("GB200", {}, ["cluster.gpus_per_node"]),
        ("GB200", {"cluster.gpus_per_node": 4}, []),
        ("V100", {}, ["card"]),
    ],
    ids=str,
)
def test_what_a_card_cannot_do_is_refused(card, changes, keys):
    found = rulebook.apply_rules(changed({"card": card} | changes))
    assert [finding.key for finding in found if finding.level == "error"] == keys
