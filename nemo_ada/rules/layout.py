"""Rules for the layout: GPUs, heads, layers, experts, batches and lengths, as Megatron-core and NeMo-RL want them."""

from __future__ import annotations

import os

from nemo_ada.config.parsing import find_divisors, join_numbers, suggest_name
from nemo_ada.config.values import Values
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.models import ModelShape
from nemo_ada.rules.facts.nemo_config import NemoConfig
from nemo_ada.rules.finding import Findings, error, warning

LEARNER = "policy.megatron_cfg"
VLLM = "policy.generation.vllm_cfg"
IGNORE_TP = "NRL_IGNORE_TP_ACCURACY_CHECK"
PACKERS = "nemo_rl.data.packing.algorithms.PackingAlgorithm"


def check_gpus(config: NemoConfig, shape: ModelShape) -> Findings:
    """The GPUs divide by TP * PP * CP, and with experts by EP * ETP * PP."""
    learner, engine = config.learner, config.engine
    if learner.gpus != config.gpus and learner.gpus % learner.model_parallel:
        yield error(
            "policy.generation.colocated.resources.gpus_per_node",
            f"{engine.gpus} of {config.gpus} GPUs for vLLM leave {learner.gpus} for the learner, which do not divide "
            f"by TP {learner.tp} * PP {learner.pp} * CP {learner.cp} = {learner.model_parallel}",
        )
    elif learner.gpus % learner.model_parallel:
        nodes = [n for n in range(1, 65) if n * config.gpus_per_node % learner.model_parallel == 0][:3]
        yield error(
            "cluster.num_nodes",
            f"{config.nodes} nodes x {config.gpus_per_node} GPUs = {config.gpus} do not divide by TP "
            f"{learner.tp} * PP {learner.pp} * CP {learner.cp} = {learner.model_parallel}; "
            f"cluster.num_nodes={join_numbers(nodes)} would work, or a smaller layout",
        )
    if shape.experts:
        expert = learner.ep * learner.etp * learner.pp
        if learner.gpus % expert:
            others = learner.etp * learner.pp
            works = [size for size in find_divisors(learner.gpus, shape.experts) if learner.gpus % (size * others) == 0]
            yield error(
                f"{LEARNER}.expert_model_parallel_size",
                f"{learner.gpus} GPUs do not divide by EP {learner.ep} * expert TP {learner.etp} * PP {learner.pp} = "
                f"{expert}; EP of {join_numbers(works)} would work",
            )
        if shape.experts % learner.ep:
            yield error(
                f"{LEARNER}.expert_model_parallel_size",
                f"{shape.experts} experts do not divide by EP {learner.ep}; "
                f"{join_numbers(find_divisors(shape.experts))} would work",
            )
    elif learner.ep > 1:
        yield error(
            f"{LEARNER}.expert_model_parallel_size", f"EP {learner.ep} for a model without experts; set it to 1"
        )


def check_heads(config: NemoConfig, shape: ModelShape) -> Findings:
    """Attention heads, key-value heads and feed-forward columns divide by TP."""
    learner = config.learner
    key = f"{LEARNER}.tensor_model_parallel_size"
    works = join_numbers(find_divisors(shape.heads, shape.kv, shape.ffn))
    for what, size in (("attention heads", shape.heads), ("feed-forward columns", shape.ffn)):
        if size % learner.tp:
            yield error(key, f"{size} {what} do not divide by TP {learner.tp}; {works} would work")
    if shape.kv % learner.tp:
        yield error(
            key,
            f"{shape.kv} key-value heads do not divide by TP {learner.tp}, as Megatron wants; {works} would work",
        )


def check_layers(config: NemoConfig, shape: ModelShape) -> Findings:
    """The layers divide by PP, unless the first or the last stage has a size of its own."""
    learner = config.learner
    given = [n for n in (learner.first_stage, learner.last_stage) if n is not None]
    key = f"{LEARNER}.pipeline_model_parallel_size"
    works = join_numbers([d for d in find_divisors(shape.layers) if d <= 16])
    if not given:
        if shape.layers % learner.pp:
            yield error(
                key,
                f"{shape.layers} layers do not divide by PP {learner.pp}; {works} would work, or set "
                f"{LEARNER}.num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage",
            )
        return
    rest, stages = shape.layers - sum(given), learner.pp - len(given)
    if stages < 0 or rest < 0 or (stages == 0 and rest) or (stages > 0 and (rest % stages or rest == 0)):
        yield error(
            f"{LEARNER}.num_layers_in_first_pipeline_stage",
            f"{shape.layers} layers less {given} for the outer stages leave {rest} for {stages} stages of PP "
            f"{learner.pp}, which must divide; PP {works} without them would work",
        )


def check_vllm(config: NemoConfig, shape: ModelShape) -> Findings:
    """The replicas of vLLM use all of its GPUs and split the heads."""
    engine = config.engine
    key = f"{VLLM}.tensor_parallel_size"
    if engine.gpus % (engine.tp * engine.pp):
        works = [d for d in find_divisors(shape.heads, engine.gpus) if engine.gpus % (d * engine.pp) == 0]
        yield error(
            key,
            f"{engine.gpus} GPUs do not divide by vLLM's TP {engine.tp} * PP {engine.pp}; TP {join_numbers(works)} "
            "would work",
        )
    if shape.heads % engine.tp or (shape.kv % engine.tp and engine.tp % shape.kv):
        yield error(
            key,
            f"{shape.heads} heads and {shape.kv} key-value heads do not split over vLLM's TP {engine.tp}; "
            f"{join_numbers(find_divisors(shape.heads, shape.kv))} would work",
        )
    shared = config.values.get("policy.generation.colocated.enabled", True)
    if not shared and engine.gpus >= config.gpus:
        yield error(
            "policy.generation.colocated.resources.gpus_per_node",
            "colocated.enabled=false, and none of the GPUs are vLLM's own, or none are left for the learner; give vLLM "
            "some of them, or set enabled to true",
        )


def check_batches(config: NemoConfig, shape: ModelShape) -> Findings:
    """The rows of a step divide into optimizer steps, and the rows of an optimizer step over the replicas."""
    learner, batch, rollout = config.learner, config.batch, config.rollout
    key = "policy.train_global_batch_size"
    works = join_numbers([d for d in find_divisors(rollout.rows) if d % learner.replicas == 0][-4:])
    if rollout.rows % batch.rows:
        yield error(
            key,
            f"train_global_batch_size={batch.rows} does not divide num_prompts_per_step * num_generations_per_prompt "
            f"= {rollout.prompts_per_step} * {rollout.group} = {rollout.rows}; {works} would work",
        )
    if batch.rows % learner.replicas:
        yield error(
            key,
            f"train_global_batch_size={batch.rows} does not divide over {learner.replicas} data-parallel replicas; "
            f"{works} would work",
        )
    elif not (batch.packing or batch.dynamic) and (batch.rows // learner.replicas) % batch.micro_rows:
        yield error(
            "policy.train_micro_batch_size",
            f"{batch.rows // learner.replicas} rows per replica do not divide by train_micro_batch_size="
            f"{batch.micro_rows}; {join_numbers(find_divisors(batch.rows // learner.replicas)[:5])} would work",
        )


def check_tp_accuracy(config: NemoConfig, shape: ModelShape) -> Findings:
    """From TP 4 on, log-probabilities depend on the batch.

    So the micro-batches of both passes must be equal, or the ratio is forced, or the user waives the check.
    """
    learner, batch, rollout = config.learner, config.batch, config.rollout
    forced = bool(config.values.get("loss_fn.force_on_policy_ratio", False))
    if forced and rollout.rows != batch.rows:
        yield error(
            "loss_fn.force_on_policy_ratio",
            f"force_on_policy_ratio needs one update per step: train_global_batch_size={batch.rows}, rows per step "
            f"{rollout.rows}; set policy.train_global_batch_size={rollout.rows} or force_on_policy_ratio=false",
        )
    if learner.tp < 4 or batch.micro_rows == batch.logprob_rows or forced or os.environ.get(IGNORE_TP):
        return
    yield error(
        "policy.logprob_batch_size",
        f"TP {learner.tp}: train_micro_batch_size={batch.micro_rows} and logprob_batch_size={batch.logprob_rows} give "
        f"different log-probabilities; set logprob_batch_size={batch.micro_rows}, or "
        f"loss_fn.force_on_policy_ratio=true (one update per step), or {IGNORE_TP}=1 if you accept it",
    )


def check_packing(config: NemoConfig, shape: ModelShape) -> Findings:
    """Packing, and pipeline and context parallelism fit together."""
    learner, batch = config.learner, config.batch
    if learner.cp > 1 and not batch.packing:
        yield error("policy.sequence_packing.enabled", f"CP {learner.cp} needs sequence packing; set it to true")
    packer, packers = config.values.get("policy.sequence_packing.algorithm"), version.list_names(PACKERS)
    if batch.packing and packers and packer is not None and str(packer).lower() not in packers:
        choices = suggest_name(str(packer).lower(), sorted(packers), "choices")
        yield error("policy.sequence_packing.algorithm", f"{packer}: no such algorithm in NeMo-RL; {choices}")
    hybrid = config.values.get(f"{LEARNER}.moe_flex_dispatcher_backend") == "hybridep"
    padded = [
        why
        for why, holds in ((f"PP {learner.pp}", learner.pp > 1), ("FP8", learner.fp8), ("HybridEP", hybrid))
        if holds
    ]
    fused = bool(config.values.get("policy.sequence_packing.fuse_loss", False))
    if batch.packing and padded and fused and not version.find_version().fuses_padded_packs:
        yield error(
            "policy.sequence_packing.fuse_loss",
            f"{' and '.join(padded)} pads each pack, and this NeMo-RL's fused loss ends on that padding (its pull "
            "request 3182 mends it, and main has it); set it to false",
        )


def check_length_multiple(config: NemoConfig, shape: ModelShape) -> Findings:
    """Rows are padded to a multiple of TP with sequence parallelism, and of 2 * CP with context parallelism."""
    learner = config.learner
    key = "policy.make_sequence_length_divisible_by"
    multiple, unit = config.values.integer(key, 1), learner.length_unit
    if multiple % unit:
        yield error(
            key,
            f"{key.rpartition('.')[2]}={multiple} must be a multiple of {unit}"
            + (f" (TP {learner.tp} with sequence parallel" if learner.sequence_parallel else " (")
            + (f"{', ' if learner.sequence_parallel else ''}2 * CP {learner.cp}" if learner.cp > 1 else "")
            + f"); {unit} would work",
        )


def count_positions(v: Values, shape: ModelShape) -> int:
    """Return the positions of the model with the config's overrides. YaRN and its kin stretch those of the training."""
    own = v.integer("policy.hf_config_overrides.max_position_embeddings", shape.positions)
    for name in ("rope_scaling", "rope_parameters"):
        here = f"policy.hf_config_overrides.{name}"
        factor = v.number(f"{here}.factor")
        if factor is not None and factor > 1:
            own = max(own, int(factor * v.integer(f"{here}.original_max_position_embeddings", shape.positions)))
    return own


def check_lengths(config: NemoConfig, shape: ModelShape) -> Findings:
    """Prompt + response <= policy.max_total_sequence_length <= positions, and vLLM has room for as many tokens."""
    batch, rollout = config.batch, config.rollout
    v = config.values
    positions = count_positions(v, shape)
    if batch.length > positions:
        yield error(
            "policy.max_total_sequence_length",
            f"{batch.length} tokens, the model has {positions} positions; {positions} would work, or set "
            "policy.hf_config_overrides.max_position_embeddings and megatron_cfg.force_reconvert_from_hf=true",
        )
    if rollout.max_prompt + rollout.max_new > batch.length:
        room = batch.length - rollout.max_prompt
        works = (
            f"max_new_tokens={room} would work" if room > 0 else f"data.max_input_seq_length={batch.length // 2} would"
        )
        yield warning(
            "policy.generation.max_new_tokens",
            f"prompts of data.max_input_seq_length={rollout.max_prompt} and responses of {rollout.max_new} tokens do "
            f"not fit policy.max_total_sequence_length={batch.length}: behind long prompts responses are cut earlier; "
            f"{works}",
        )
    vllm_room = v.integer(f"{VLLM}.max_model_len", batch.length)
    wanted = min(rollout.max_prompt + rollout.max_new, batch.length)
    if vllm_room > positions:
        yield error(
            f"{VLLM}.max_model_len",
            f"{vllm_room} tokens, the model has {positions} positions, and vLLM refuses more; {positions} would work",
        )
    if vllm_room < wanted:
        yield error(
            f"{VLLM}.max_model_len",
            f"{vllm_room} tokens do not hold prompt {rollout.max_prompt} + response {rollout.max_new}; {wanted} would "
            "work",
        )


def check_experts(config: NemoConfig, shape: ModelShape) -> Findings:
    """The router is frozen and exact, and has no balancing loss. Otherwise training and rollout disagree."""
    if not shape.experts:
        return
    wanted = {"freeze_moe_router": True, "moe_router_dtype": "fp64", "moe_router_load_balancing_type": "none"}
    for name, value in wanted.items():
        setting = config.values.get(f"{LEARNER}.{name}")
        if setting != value:
            yield error(
                f"{LEARNER}.{name}",
                f"{name}={setting!r} makes the log-probabilities of experts drift; set it to {value!r}",
            )


def check_chunked_logprobs(config: NemoConfig, shape: ModelShape) -> Findings:
    """logprob_chunk_size needs defer_fp32_logits."""
    chunk = config.values.get("policy.logprob_chunk_size")
    if chunk and not config.values.get(f"{LEARNER}.defer_fp32_logits", False):
        yield error(
            "policy.logprob_chunk_size",
            f"logprob_chunk_size={chunk} needs {LEARNER}.defer_fp32_logits=true; set it, or null",
        )


LAYOUT = (
    check_gpus, check_heads, check_layers, check_vllm, check_batches, check_tp_accuracy, check_packing,
    check_length_multiple, check_lengths, check_experts, check_chunked_logprobs,
)  # fmt: skip
