"""Layout: GPUs, heads, layers, experts, batches, sequence lengths, as Megatron-core and NeMo-RL v0.7.0 want them."""

from __future__ import annotations

import os

from nemo_ada.cluster.models import ModelShape
from nemo_ada.cluster.nemo_config import ClusterConfig
from nemo_ada.config.strict import suggestion
from nemo_ada.rules.finding import Findings, divisors, error, listed, warning

LEARNER = "policy.megatron_cfg"
VLLM = "policy.generation.vllm_cfg"
IGNORE_TP = "NRL_IGNORE_TP_ACCURACY_CHECK"
PACKERS = ("concatenative", "first_fit_decreasing", "first_fit_shuffle", "modified_first_fit_decreasing")


def gpus_divide(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """GPUs % (TP * PP * CP) == 0, and for experts % (EP * ETP * PP)."""
    r = recipe
    if r.learner_gpus != r.gpus and r.learner_gpus % r.model_parallel:
        yield error(
            "policy.generation.colocated.resources.gpus_per_node",
            f"{r.engine_gpus} of {r.gpus} GPUs for vLLM leave {r.learner_gpus} for the learner, which do not divide by "
            f"TP {r.tp} * PP {r.pp} * CP {r.cp} = {r.model_parallel}",
        )
    elif r.learner_gpus % r.model_parallel:
        nodes = [n for n in range(1, 65) if n * r.gpus_per_node % r.model_parallel == 0][:3]
        yield error(
            "cluster.num_nodes",
            f"{r.nodes} nodes x {r.gpus_per_node} GPUs = {r.gpus} do not divide by TP {r.tp} * PP {r.pp} * CP {r.cp} = "
            f"{r.model_parallel}; cluster.num_nodes={listed(nodes)} would work, or a smaller layout",
        )
    if shape.experts:
        expert = r.ep * r.etp * r.pp
        if r.learner_gpus % expert:
            yield error(
                f"{LEARNER}.expert_model_parallel_size",
                f"{r.learner_gpus} GPUs do not divide by EP {r.ep} * expert TP {r.etp} * PP {r.pp} = {expert}; EP of "
                f"{listed(_fitting(r.learner_gpus, shape.experts, r.etp * r.pp))} would work",
            )
        if shape.experts % r.ep:
            yield error(
                f"{LEARNER}.expert_model_parallel_size",
                f"{shape.experts} experts do not divide by EP {r.ep}; {listed(divisors(shape.experts))} would work",
            )
    elif r.ep > 1:
        yield error(f"{LEARNER}.expert_model_parallel_size", f"EP {r.ep} for a model without experts; set it to 1")


def _fitting(gpus: int, experts: int, others: int) -> list[int]:
    return [size for size in divisors(gpus, experts) if gpus % (size * others) == 0]


def heads_divide(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """Heads % TP, kv heads % TP and ffn % TP must be 0."""
    key = f"{LEARNER}.tensor_model_parallel_size"
    works = listed(divisors(shape.heads, shape.kv, shape.ffn))
    for what, size in (("attention heads", shape.heads), ("feed-forward columns", shape.ffn)):
        if size % recipe.tp:
            yield error(key, f"{size} {what} do not divide by TP {recipe.tp}; {works} would work")
    if shape.kv % recipe.tp:
        yield error(
            key, f"{shape.kv} key-value heads do not divide by TP {recipe.tp}, as Megatron wants; {works} would work"
        )


def layers_divide(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """Layers % PP == 0, unless the first or last stage has its own size."""
    given = [n for n in (recipe.first_stage, recipe.last_stage) if n is not None]
    key = f"{LEARNER}.pipeline_model_parallel_size"
    works = listed([d for d in divisors(shape.layers) if d <= 16])
    if not given:
        if shape.layers % recipe.pp:
            yield error(
                key,
                f"{shape.layers} layers do not divide by PP {recipe.pp}; {works} would work, or set "
                f"{LEARNER}.num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage",
            )
        return
    rest, stages = shape.layers - sum(given), recipe.pp - len(given)
    if stages < 0 or rest < 0 or (stages == 0 and rest) or (stages > 0 and (rest % stages or rest == 0)):
        fitting = [
            n for n in range(1, shape.layers) if stages > 0 and (shape.layers - n * len(given)) % stages == 0
            and shape.layers - n * len(given) > 0 and abs(n - (shape.layers - n * len(given)) // stages) <= 3
        ]  # fmt: skip
        yield error(
            f"{LEARNER}.num_layers_in_first_pipeline_stage",
            f"{shape.layers} layers less {given} for the outer stages leave {rest} for {stages} stages of PP "
            f"{recipe.pp}; "
            + (
                f"outer stages of {listed(fitting)} layers would work"
                if fitting
                else f"PP {works} without them would work"
            ),
        )


def vllm_divides(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """VLLM's replicas must fill the cluster and split the heads."""
    r, key = recipe, f"{VLLM}.tensor_parallel_size"
    if r.engine_gpus % (r.vllm_tp * r.vllm_pp):
        works = [d for d in divisors(shape.heads, r.engine_gpus) if r.engine_gpus % (d * r.vllm_pp) == 0]
        yield error(
            key,
            f"{r.engine_gpus} GPUs do not divide by vLLM's TP {r.vllm_tp} * PP {r.vllm_pp}; TP {listed(works)} would "
            "work",
        )
    if shape.heads % r.vllm_tp or (shape.kv % r.vllm_tp and r.vllm_tp % shape.kv):
        yield error(
            key,
            f"{shape.heads} heads and {shape.kv} key-value heads do not split over vLLM's TP {r.vllm_tp}; "
            f"{listed(divisors(shape.heads, shape.kv))} would work",
        )
    shared = r.values.get("policy.generation.colocated.enabled", True)
    if not shared and r.engine_gpus >= r.gpus:
        yield error(
            "policy.generation.colocated.resources.gpus_per_node",
            "colocated.enabled=false, and none of the GPUs are vLLM's own, or none are left for the learner; give vLLM "
            "some of them, or set enabled to true",
        )
    ep, asynchronous = int(r.values.get(f"{VLLM}.expert_parallel_size", 1)), r.values.get(f"{VLLM}.async_engine", False)
    if ep > 1 and (ep % r.vllm_tp or (ep != r.vllm_tp and asynchronous)):
        yield error(
            f"{VLLM}.expert_parallel_size",
            f"expert_parallel_size={ep} with TP {r.vllm_tp}: NeMo-RL wants a multiple of TP, and with async_engine TP "
            f"itself; {r.vllm_tp} would work",
        )
    if r.vllm_pp > 1 and not asynchronous:
        yield error(f"{VLLM}.async_engine", f"vLLM with PP {r.vllm_pp} needs async_engine: true")


def batches_divide(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """Rows of a step into optimizer steps, optimizer steps over replicas."""
    r, key = recipe, "policy.train_global_batch_size"
    works = listed([d for d in divisors(r.rows) if d % r.replicas == 0][-4:])
    if r.rows % r.train_rows:
        yield error(
            key,
            f"train_global_batch_size={r.train_rows} does not divide num_prompts_per_step * num_generations_per_prompt "
            f"= {r.prompts} * {r.group} = {r.rows}; {works} would work",
        )
    if r.train_rows % r.replicas:
        yield error(
            key,
            f"train_global_batch_size={r.train_rows} does not divide over {r.replicas} data-parallel replicas; "
            f"{works} would work",
        )
    elif not (r.packing or r.dynamic) and (r.train_rows // r.replicas) % r.micro_rows:
        yield error(
            "policy.train_micro_batch_size",
            f"{r.train_rows // r.replicas} rows per replica do not divide by train_micro_batch_size={r.micro_rows}; "
            f"{listed(divisors(r.train_rows // r.replicas)[:5])} would work",
        )


def tp_accuracy(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """From TP 4 on, log-probabilities depend on the batch: equal micro-batches, a forced ratio, or a knowing waiver."""
    r = recipe
    forced = bool(r.values.get("loss_fn.force_on_policy_ratio", False))
    if forced and r.rows != r.train_rows:
        yield error(
            "loss_fn.force_on_policy_ratio",
            f"force_on_policy_ratio needs one update per step: train_global_batch_size={r.train_rows}, rows per step "
            f"{r.rows}; set policy.train_global_batch_size={r.rows} or force_on_policy_ratio=false",
        )
    if r.tp < 4 or r.micro_rows == r.logprob_rows or forced:
        return
    if os.environ.get(IGNORE_TP):
        yield warning("policy.logprob_batch_size", f"TP {r.tp} with unequal micro-batches, waived by {IGNORE_TP}")
        return
    yield error(
        "policy.logprob_batch_size",
        f"TP {r.tp}: train_micro_batch_size={r.micro_rows} and logprob_batch_size={r.logprob_rows} give different "
        f"log-probabilities; set logprob_batch_size={r.micro_rows}, or loss_fn.force_on_policy_ratio=true (one "
        f"update per step), or {IGNORE_TP}=1 if you accept it",
    )


def packing(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """Packing, dynamic batching, pipeline and context parallelism exclude or need each other."""
    r = recipe
    if r.packing and r.dynamic:
        yield error(
            "policy.dynamic_batching.enabled", "dynamic batching excludes sequence packing; set it to false (Megatron)"
        )
    if r.dynamic and r.pp > 1:
        yield error(
            "policy.dynamic_batching.enabled",
            f"dynamic batching works with PP 1 only, PP is {r.pp}; set it to false and "
            "policy.sequence_packing.enabled=true",
        )
    if r.cp > 1 and not r.packing:
        yield error("policy.sequence_packing.enabled", f"CP {r.cp} needs sequence packing; set it to true")
    packer = str(r.values.get("policy.sequence_packing.algorithm", PACKERS[-1]))
    if r.packing and packer.lower() not in PACKERS:
        choices = suggestion(packer.lower(), PACKERS, "choices")
        yield error("policy.sequence_packing.algorithm", f"{packer}: no such algorithm in NeMo-RL v0.7.0; {choices}")
    hybrid = r.values.get(f"{LEARNER}.moe_flex_dispatcher_backend") == "hybridep"
    padded = [why for why, holds in ((f"PP {r.pp}", r.pp > 1), ("FP8", r.fp8_train), ("HybridEP", hybrid)) if holds]
    if r.packing and padded and r.values.get("policy.sequence_packing.fuse_loss", False):
        yield error(
            "policy.sequence_packing.fuse_loss",
            f"{' and '.join(padded)} pads each pack, and NeMo-RL v0.7.0's fused loss ends on that padding (its pull "
            "request 3182 mends it); set it to false",
        )


def length_multiple(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """make_sequence_length_divisible_by: of TP with sequence parallel, of 2 * CP with CP, of both with both."""
    r, key = recipe, "policy.make_sequence_length_divisible_by"
    found = int(r.values.get(key, 1))
    unit = (r.tp if r.sequence_parallel else 1) * (2 * r.cp if r.cp > 1 else 1)
    if found % unit:
        yield error(
            key,
            f"{key.rpartition('.')[2]}={found} must be a multiple of {unit}"
            + (f" (TP {r.tp} with sequence parallel" if r.sequence_parallel else " (")
            + (f"{', ' if r.sequence_parallel else ''}2 * CP {r.cp}" if r.cp > 1 else "")
            + f"); {unit} would work",
        )


def lengths(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """Prompt + response <= policy.max_total_sequence_length <= positions; vLLM must hold as much."""
    r, v = recipe, recipe.values
    positions = int(v.get("policy.hf_config_overrides.max_position_embeddings", shape.positions))
    if r.max_length > positions:
        yield error(
            "policy.max_total_sequence_length",
            f"{r.max_length} tokens, the model has {positions} positions; {positions} would work, or set "
            "policy.hf_config_overrides.max_position_embeddings and megatron_cfg.force_reconvert_from_hf=true",
        )
    if r.max_prompt + r.max_new > r.max_length:
        room = r.max_length - r.max_prompt
        works = (
            f"max_new_tokens={room} would work" if room > 0 else f"data.max_input_seq_length={r.max_length // 2} would"
        )
        yield warning(
            "policy.generation.max_new_tokens",
            f"prompts of data.max_input_seq_length={r.max_prompt} and responses of {r.max_new} tokens do not fit "
            f"policy.max_total_sequence_length={r.max_length}: behind long prompts responses are cut earlier; {works}",
        )
    held = int(v.get(f"{VLLM}.max_model_len", r.max_length))
    wanted = min(r.max_prompt + r.max_new, r.max_length)
    if held > positions:
        yield error(
            f"{VLLM}.max_model_len",
            f"{held} tokens, the model has {positions} positions, and vLLM refuses more; {positions} would work",
        )
    if held < wanted:
        yield error(
            f"{VLLM}.max_model_len",
            f"{held} tokens do not hold prompt {r.max_prompt} + response {r.max_new}; {wanted} would work",
        )


def experts(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """A trained or low-precision router, or a balancing loss, makes training and rollout disagree."""
    if not shape.experts:
        return
    wanted = {"freeze_moe_router": True, "moe_router_dtype": "fp64", "moe_router_load_balancing_type": "none"}
    for name, value in wanted.items():
        found = recipe.values.get(f"{LEARNER}.{name}")
        if found != value:
            yield error(
                f"{LEARNER}.{name}",
                f"{name}={found!r} makes the log-probabilities of experts drift; set it to {value!r}",
            )


def chunked_logprobs(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """logprob_chunk_size needs defer_fp32_logits."""
    chunk = recipe.values.get("policy.logprob_chunk_size")
    if chunk and not recipe.values.get(f"{LEARNER}.defer_fp32_logits", False):
        yield error(
            "policy.logprob_chunk_size",
            f"logprob_chunk_size={chunk} needs {LEARNER}.defer_fp32_logits=true; set it, or null",
        )


def reference_pass(recipe: ClusterConfig, shape: ModelShape) -> Findings:
    """With a KL penalty the reference pass must not be skipped; without one NeMo-RL v0.7.0 skips it by itself."""
    penalty = float(recipe.values.get("loss_fn.reference_policy_kl_penalty", 0.0))
    skip = bool(recipe.values.get("grpo.skip_reference_policy_logprobs_calculation", False))
    key = "grpo.skip_reference_policy_logprobs_calculation"
    if penalty != 0.0 and skip:
        yield error(key, f"loss_fn.reference_policy_kl_penalty={penalty} needs the reference pass; set it to false")


LAYOUT = (
    gpus_divide, heads_divide, layers_divide, vllm_divides, batches_divide, tp_accuracy, packing, length_multiple,
    lengths, experts, chunked_logprobs, reference_pass,
)  # fmt: skip
