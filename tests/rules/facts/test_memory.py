"""The memory estimate against Megatron-core's own accounting.

The oracle is Megatron-LM's `megatron/training/theoretical_memory_usage.py` (August 2026), written out again here from
its formulas: weights and optimizer 6 + 12 / DP bytes per parameter of the fullest stage; activations
s b h (18 + 4 f / h) per layer with sequence parallelism (Korthikanti et al., 2022, table 2) on the first pipeline
stage, and 4 bytes per logit without a pipeline. It knows FP32 gradients only, so those are set; it takes query width =
hidden for activations, so Llama and Qwen2.5 are compared; logits are compared at its 4 bytes (ours: 10, or 4 deferred).
"""

import math
import sys
from pathlib import Path

import pytest

from nemo_ada.rules.check.command import write_report
from nemo_ada.rules.facts.memory import (
    GIB,
    compute_cache_bytes_per_token,
    compute_checkpoint_bytes,
    compute_vllm_weight_bytes,
    estimate_learner_phase,
    estimate_refit_phase,
    estimate_vllm_cache,
)
from nemo_ada.rules.finding import error, ok, skipped, warning

sys.path.insert(0, str(Path(__file__).parents[2] / "rules" / "check"))
from recipes import EXPERTS, FP8_ROLLOUT, LAYOUTS, read

LEARNER = "policy.megatron_cfg"
ETP = f"{LEARNER}.expert_tensor_parallel_size"
WIDE = {
    f"{LEARNER}.distributed_data_parallel_config.grad_reduce_in_fp32": True,
    f"{LEARNER}.activation_checkpointing": False,
    f"{LEARNER}.defer_fp32_logits": True,  # the 4 bytes per logit of the oracle
}
CASES = ["7B TP4", "8B TP1 PP2", "32B TP4 PP4", "70B TP4 PP4", "72B TP4 PP8"]


def megatron_static(config, shape):
    """Weights, gradients, optimizer of the fullest stage."""
    h, tp, pp = shape.hidden, config.learner.tp, config.learner.pp
    attention = 2 * h * h * (1 + shape.kv / shape.heads)
    mlp = 3 * h * shape.ffn
    embedding = h * math.ceil(shape.vocab / (128 * tp)) * 128 * tp
    split = (shape.layers / pp * (attention + mlp) + embedding * (2 if pp == 1 and not shape.tied else 1)) / tp
    replicated = (shape.layers * 2 * h + h) / pp
    return (split + replicated) * (6 + 12 / config.learner.replicas)


def megatron_activations(config, shape):
    """First stage, sequence parallelism, no recompute, packs as one sequence of a micro-batch."""
    tokens, h = config.pack_tokens, shape.hidden
    total = tokens * h * (18 + 4 * shape.ffn / h) * shape.layers
    total += 8 * tokens * config.learner.pp + tokens * h * config.learner.pp
    if config.learner.pp == 1:
        total += tokens * h * 4 * (1 + shape.padded_vocab(config.learner.tp) / h)
    return total / config.learner.tp


@pytest.mark.parametrize("case", CASES)
def test_the_learner_is_within_15_percent_of_megatrons_own_formula(case):
    config, shape = read(WIDE | LAYOUTS[case])
    phase = estimate_learner_phase(config, shape)
    ours = {term.name: term.bytes for term in phase.terms}
    static = ours["weights"] + ours["gradients"] + ours["optimizer"]
    activations = ours["activations"] + ours.get("logits", 0.0)
    assert static == pytest.approx(megatron_static(config, shape), rel=0.05)
    assert activations == pytest.approx(megatron_activations(config, shape), rel=0.15)
    assert static + activations == pytest.approx(
        megatron_static(config, shape) + megatron_activations(config, shape), rel=0.15
    )


@pytest.mark.parametrize(
    ("changes", "fullest"),
    [
        ({}, 2),
        ({f"{LEARNER}.activation_checkpointing": False}, 1),
        ({f"{LEARNER}.activation_checkpointing": False, "policy.train_global_batch_size": 4}, 2),
    ],
    ids=["the last stage has the logits", "the first one the micro-batches in flight", "unless there is but one"],
)
def test_the_fullest_of_two_stages(changes, fullest):
    two = {f"{LEARNER}.pipeline_model_parallel_size": 2, f"{LEARNER}.tensor_model_parallel_size": 1}
    assert estimate_learner_phase(*read(two | changes)).name == f"learner, stage {fullest} of 2"


def terms(changes):
    return {term.name: term.bytes for term in estimate_learner_phase(*read(changes)).terms}


def test_recompute_and_offload_lower_their_terms_alone():
    base, kept = terms({}), terms({f"{LEARNER}.activation_checkpointing": False})
    assert kept["activations"] > 5 * base["activations"]
    assert kept | {"activations": base["activations"]} == base
    offloaded = terms({f"{LEARNER}.optimizer.optimizer_cpu_offload": True})
    assert offloaded["optimizer"] == 0.0
    assert offloaded["weights"] == base["weights"]


def test_experts_are_split_over_their_own_group_and_its_tensor_parallelism():
    alone = EXPERTS | {f"{LEARNER}.tensor_model_parallel_size": 1, f"{LEARNER}.sequence_parallel": False}
    experts = 48 * 3 * 2048 * 768 * 128
    others = read(alone)[1].parameters - experts
    assert terms(alone)["weights"] == pytest.approx(2 * (experts / 8 + others), rel=0.01)
    whole, halves = terms(EXPERTS | {ETP: 1}), terms(EXPERTS | {ETP: 2})
    assert whole["weights"] - halves["weights"] == pytest.approx(2 * experts / 16, rel=1e-6)
    assert halves["activations"] < whole["activations"]


def test_the_cache_is_what_vllm_reports_per_token_and_the_share_leaves():
    config, shape = read({})
    assert compute_cache_bytes_per_token(config, shape) == 2 * 28 * 4 * 128 * 2  # 56 KiB, Qwen2.5-7B's published figure
    cache = estimate_vllm_cache(config, shape, 4096, gpu_gib=80.0)
    assert cache.tokens == pytest.approx((0.6 * 80 - 14.19 - 4) * GIB / 57344, rel=0.01)
    assert cache.responses == 512
    fp8, _ = read(FP8_ROLLOUT)
    assert compute_vllm_weight_bytes(fp8, shape) < 0.6 * compute_vllm_weight_bytes(config, shape)


def test_an_fp8_cache_takes_half_and_heads_are_duplicated_beyond_their_number():
    def per_token(**vllm):
        return compute_cache_bytes_per_token(
            *read({f"policy.generation.vllm_cfg.{key}": value for key, value in vllm.items()})
        )

    assert 2 * per_token(kv_cache_dtype="fp8") == per_token()
    assert per_token(tensor_parallel_size=4) == per_token(tensor_parallel_size=8)


def test_refit_holds_both_copies_of_the_weights_and_a_checkpoint_master_weights_and_moments():
    config, shape = read({})
    assert estimate_refit_phase(config, shape).gib > (2 * shape.parameters / 4 + 2 * shape.parameters) / GIB
    apart = read({"policy.generation.colocated": {"enabled": False, "resources": {"gpus_per_node": 4}}})
    assert estimate_refit_phase(*apart).gib < estimate_refit_phase(config, shape).gib - 2 * shape.parameters / 4 / GIB
    assert compute_checkpoint_bytes(config, shape) / 1e9 == pytest.approx(106.6, rel=0.01)


def test_the_report_begins_with_what_matters_and_the_exit_code_is_the_worst_level():
    said = [ok("a.b", "fine"), warning("c.d", "hm"), skipped("gpu", "none"), error("e.f", "no"), ok("g", "fine")]
    errors, warnings, rest, count = write_report(said).splitlines()
    assert errors.startswith("ERROR") and warnings.startswith("WARNING")
    assert rest == "right: 2; not checked here: gpu; --verbose shows them"
    assert count == "1 error, 1 warning" and write_report([]).splitlines()[-1] == "0 errors, 0 warnings"
    assert [line.split()[0] for line in write_report(said, verbose=True).splitlines()[2:5]] == ["skipped", "ok", "ok"]
    assert '"exit_code": 3' in write_report([ok("a.b", "fine"), warning("c.d", "hm")], as_json=True)


@pytest.mark.parametrize(
    ("first", "last", "stages"), [(None, None, (12, 12)), (12, 10, (12, 10)), (10, None, (10, 12))]
)
def test_outer_stages_have_their_own_number_of_layers(first, last, stages):
    outer = {f"{LEARNER}.num_layers_in_{end}_pipeline_stage": n for end, n in (("first", first), ("last", last))}
    config, _ = read({f"{LEARNER}.pipeline_model_parallel_size": 8} | outer)
    assert config.learner.stage_layers(94) == stages
