"""Bytes per GPU in the learner's phase and in vLLM's phase, each term with its arithmetic.

Learner: Megatron's distributed optimizer in BF16 has, per parameter, the weight (2 bytes), its gradient (2 bytes, or 4
with grad_reduce_in_fp32), and the FP32 weight and Adam's two moments (12 bytes), which the data-parallel replicas
divide. Where the gradients are BF16, a plain optimizer copies its shard of them to FP32 (4 bytes). The backward pass
needs these activations per layer and token, in bytes, with flash attention, which keeps no score matrix (widths: h
hidden, q query, k keys, f feed-forward):

    inputs of both norms, of query-key-value and of the feed-forward layer   8 h   (/ TP with sequence parallel)
    queries, keys, values, attention output                                  2 (2 q + 2 k)   / TP
    gate and up, their product                                               6 f             / TP

Experts: every token is there top_k times (2 h in, 6 f, 2 h out each), if the router spreads them evenly.
Full recomputation keeps each layer's input (2 h) and the activations of one layer. The first of PP stages keeps up to
PP micro-batches. The last stage has the logits: BF16, an FP32 copy and an FP32 gradient (10 bytes per entry, or 4 with
defer_fp32_logits).

LoRA: the weights are frozen, so only the adapters have gradients and an optimizer, with the same bytes per parameter.
Activations stay, because an adapter's gradient needs the same inputs, and each adapter keeps its inner vector (2 dim).

vLLM: the key-value cache is vLLM's share of the GPU without the weights and without a reserve for activations and CUDA
graphs. tests/rules/facts/test_memory.py compares these figures with Megatron's own published formula.
GiB = 2**30 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from nemo_ada.rules.facts.lora import OUTPUT
from nemo_ada.rules.facts.models import ModelShape
from nemo_ada.rules.facts.nemo_config import NemoConfig

GIB = float(1 << 30)
CONTEXT_GIB = 3.0  # assumed: CUDA context, NCCL buffers, slack of the allocator, and what a sleeping vLLM keeps
VLLM_RESERVE_GIB = 4.0  # assumed: vLLM's activations, sampler and CUDA graphs, inside its share
REFIT_BUFFER_GIB = 1.0  # assumed: a bucket of gathered weights on its way to vLLM


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a sum.

    Attributes:
        name: what takes the memory.
        bytes: how much it takes.
        arithmetic: how this number comes about.
    """

    name: str
    bytes: float
    arithmetic: str

    @property
    def gib(self) -> float:
        """The bytes in GiB."""
        return self.bytes / GIB


@dataclass(frozen=True, slots=True)
class MemoryPhase:
    """The memory of one phase on the fullest GPU.

    Attributes:
        name: the phase.
        terms: what takes the memory.
    """

    name: str
    terms: tuple[Term, ...]

    @property
    def gib(self) -> float:
        """The sum of the terms in GiB."""
        return sum(term.gib for term in self.terms)

    def describe(self) -> str:
        """Return the terms with their arithmetic, as one line."""
        return " + ".join(
            f"{t.name} {t.gib:.1f} ({t.arithmetic})" if t.arithmetic else f"{t.name} {t.gib:.1f}" for t in self.terms
        )


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Parameters on one GPU of a pipeline stage.

    Attributes:
        dense: parameters of everything but the experts.
        experts: parameters of the experts.
    """

    dense: float
    experts: float

    @property
    def total(self) -> float:
        """All parameters."""
        return self.dense + self.experts


def count_stage_parameters(config: NemoConfig, shape: ModelShape, layers: int, embeddings: int) -> StageParameters:
    """Return the parameters per GPU of a stage with `layers` layers and `embeddings` of the two embedding matrices."""
    learner = config.learner
    table = shape.padded_vocab(learner.tp) * shape.hidden / learner.tp * embeddings
    split = shape.attention_parameters + (0 if shape.experts else shape.ffn_parameters)
    dense = layers * (split / learner.tp + shape.replicated_parameters) + table
    experts = layers * shape.ffn_parameters / (learner.ep * learner.etp) if shape.experts else 0.0
    return StageParameters(dense, experts)


def list_stages(config: NemoConfig, shape: ModelShape) -> tuple[tuple[StageParameters, int, int], ...]:
    """(parameters, layers, position) of the first and the last stage. There is one stage without a pipeline."""
    learner = config.learner
    first, last = learner.stage_layers(shape.layers)
    if learner.pp == 1:
        return ((count_stage_parameters(config, shape, shape.layers, 1 if shape.tied else 2), shape.layers, 0),)
    return (
        (count_stage_parameters(config, shape, first, 1), first, 0),
        (count_stage_parameters(config, shape, last, 1), last, learner.pp - 1),
    )


def count_trained_parameters(
    config: NemoConfig, shape: ModelShape, stage: StageParameters, layers: int, outputs: int
) -> StageParameters:
    """Return the parameters per GPU of a stage that train: all of them, or the adapters of LoRA.

    Args:
        config: the config.
        shape: the shape of its model.
        stage: all parameters of the stage.
        layers: layers of the stage.
        outputs: 1 where the stage has the output layer, else 0.
    """
    learner = config.learner
    if learner.lora is None:
        return stage
    adapters = learner.lora.parameters(shape, layers) / learner.tp
    if outputs and learner.lora.adapts(OUTPUT):
        adapters += learner.lora.dim * (shape.hidden + shape.padded_vocab(learner.tp)) / learner.tp
    return StageParameters(adapters, 0.0)


def compute_layer_bytes_per_token(config: NemoConfig, shape: ModelShape) -> float:
    """Return the bytes of activations of one layer on one GPU, per token of its context-parallel share."""
    learner = config.learner
    tp, norm_ranks = learner.tp, learner.tp if learner.sequence_parallel else 1
    attention = 2.0 * (2 * shape.query_width + 2 * shape.kv_width) / tp
    if learner.lora is not None:
        attention += 2.0 * learner.lora.dim * learner.lora.layers
    if not shape.experts:
        return 8.0 * shape.hidden / norm_ranks + attention + 6.0 * shape.ffn / tp
    routed = shape.top_k * (4.0 * shape.hidden + 6.0 * shape.ffn / learner.etp) / norm_ranks
    return 8.0 * shape.hidden / norm_ranks + attention + routed


def estimate_learner_phase(config: NemoConfig, shape: ModelShape) -> MemoryPhase:
    """Memory of the fullest GPU while it trains."""
    return max(
        (_estimate_stage(config, shape, *stage) for stage in list_stages(config, shape)), key=lambda phase: phase.gib
    )


def estimate_optimizer_bytes(config: NemoConfig, shape: ModelShape) -> float:
    """Return the bytes of the optimizer on the fullest GPU. 0 where it stays on the CPU."""
    return next(term.bytes for term in estimate_learner_phase(config, shape).terms if term.name == "optimizer")


def _estimate_stage(
    config: NemoConfig, shape: ModelShape, params: StageParameters, layers: int, position: int
) -> MemoryPhase:
    learner, batch = config.learner, config.batch
    v, here = config.values, "policy.megatron_cfg"
    distributed = bool(v.get(f"{here}.optimizer.use_distributed_optimizer", True))
    dense_dp, expert_dp = (learner.replicas * learner.cp, learner.expert_replicas) if distributed else (1, 1)
    wide = bool(v.get(f"{here}.distributed_data_parallel_config.grad_reduce_in_fp32", False))
    aware = bool(v.get(f"{here}.optimizer.use_precision_aware_optimizer", False))
    state = 12 if wide or aware else 16
    offloaded = bool(v.get(f"{here}.optimizer.optimizer_cpu_offload", False))
    trained = count_trained_parameters(config, shape, params, layers, int(position == learner.pp - 1))
    sharded = trained.dense / dense_dp + trained.experts / expert_dp
    count = f"{params.total / 1e9:.2f} B parameters"
    terms = [
        Term("weights", 2 * params.total, f"{count} x 2"),
        Term(
            "gradients",
            (4 if wide else 2) * trained.total,
            f"x {4 if wide else 2}"
            if learner.lora is None
            else f"{trained.total / 1e6:.0f} M of adapters x {4 if wide else 2}",
        ),
    ]
    shards = f"x {state} / {dense_dp} replicas" + (f", experts / {expert_dp}" if shape.experts else "")
    terms.append(Term("optimizer", 0.0 if offloaded else state * sharded, "on the CPU" if offloaded else shards))
    tokens = config.pack_tokens / learner.cp
    each = compute_layer_bytes_per_token(config, shape)
    per_replica = -(-batch.rows // learner.replicas)
    flights = min(learner.pp, per_replica) - position if position == 0 else 1
    if learner.recompute:
        inputs = 2.0 * shape.hidden / (learner.tp if learner.sequence_parallel else 1)
        activations = tokens * (inputs * layers * flights + each)
        how = f"{tokens:.0f} tokens x ({inputs:.0f} x {layers} layers x {flights} in flight + {each:.0f} recomputed)"
    else:
        activations = tokens * each * layers * flights
        how = f"{tokens:.0f} tokens x {each:.0f} x {layers} layers x {flights} in flight"
    terms.append(Term("activations", activations, how))
    if position == learner.pp - 1:
        width = shape.padded_vocab(learner.tp) / learner.tp
        each_logit = 4 if v.get(f"{here}.defer_fp32_logits", False) else 10
        terms.append(Term("logits", tokens * width * each_logit, f"{tokens:.0f} x {width:.0f} x {each_logit}"))
    terms.append(Term("context", CONTEXT_GIB * GIB, "assumed"))
    name = "learner" if learner.pp == 1 else f"learner, stage {position + 1} of {learner.pp}"
    return MemoryPhase(name, tuple(terms))


def estimate_logprob_phase(config: NemoConfig, shape: ModelShape) -> MemoryPhase:
    """Memory of the fullest GPU in the pass for log-probabilities.

    There are no gradients, and the optimizer is on the CPU. But the logits of a whole micro-batch are there: BF16, an
    FP32 copy and its softmax (10 bytes per entry). With policy.logprob_chunk_size only a chunk has the FP32 copies.
    """
    learner, batch = config.learner, config.batch
    v = config.values
    params, _, _ = list_stages(config, shape)[-1]
    tokens = config.logprob_tokens / learner.cp
    width = shape.padded_vocab(learner.tp) / learner.tp
    chunk = v.number("policy.logprob_chunk_size")
    wide = tokens if not chunk else min(tokens, chunk * batch.logprob_rows)
    logits = width * (2 * tokens + 8 * wide)
    each = compute_layer_bytes_per_token(config, shape)
    return MemoryPhase(
        "log-probs",
        (
            Term("weights", 2 * params.total, f"{params.total / 1e9:.2f} B parameters x 2"),
            Term("activations", tokens * each, f"{tokens:.0f} tokens x {each:.0f}"),
            Term("logits", logits, f"{width:.0f} x (2 x {tokens:.0f} + 8 x {wide:.0f})"),
            Term("context", CONTEXT_GIB * GIB, "assumed"),
        ),
    )


def compute_vllm_weight_bytes(config: NemoConfig, shape: ModelShape) -> float:
    """Return the bytes of vLLM's weights on one GPU.

    With FP8 a parameter takes one byte, but two bytes in the embeddings.
    """
    engine = config.engine
    table = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    body = shape.parameters - table
    return (body * (1 if engine.fp8 else 2) / engine.pp + 2.0 * table) / engine.tp


def compute_cache_bytes_per_token(config: NemoConfig, shape: ModelShape) -> float:
    """Return the bytes of the keys and values of one token on one GPU.

    Where TP exceeds their heads, the heads are duplicated.
    """
    engine = config.engine
    heads = max(shape.kv / engine.tp, 1.0)
    width = 1 if engine.fp8_cache else 2
    return 2.0 * (shape.layers / engine.pp) * heads * shape.head_dim * width


@dataclass(frozen=True, slots=True)
class Cache:
    """The key-value cache of one replica of vLLM.

    Attributes:
        tokens: tokens that fit.
        responses: responses of the first wave.
        tokens_each: mean tokens of such a response.
        arithmetic: how `tokens` comes about.
    """

    tokens: float
    responses: float
    tokens_each: float
    arithmetic: str

    @property
    def concurrency(self) -> float:
        """Responses of mean length that fit."""
        return max(self.tokens, 0.0) / self.tokens_each


def estimate_vllm_cache(config: NemoConfig, shape: ModelShape, first_wave: int, gpu_gib: float) -> Cache:
    """The cache for a first wave of `first_wave` responses over all replicas, each half as long as it may become."""
    engine, rollout = config.engine, config.rollout
    share = engine.memory_share
    weights = compute_vllm_weight_bytes(config, shape) / GIB
    room = share * gpu_gib - weights - VLLM_RESERVE_GIB
    each = compute_cache_bytes_per_token(config, shape)
    tokens = room * GIB / each
    text = (
        f"{share:g} x {gpu_gib:.1f} - weights {weights:.1f} - {VLLM_RESERVE_GIB:g} reserve = {room:.1f} GiB / "
        f"{each / 1024:.0f} KiB per token, room for {max(tokens, 0) / 1e3:.0f} k"
    )
    return Cache(tokens, first_wave / engine.replicas, rollout.max_prompt / 2 + rollout.max_new / 2, text)


def estimate_refit_phase(config: NemoConfig, shape: ModelShape) -> MemoryPhase:
    """Memory while the learner gives vLLM its weights. Gradients and optimizer are not there.

    Where both share their GPUs, both copies of the weights are there.
    """
    engine = config.engine
    params = max((stage[0].total for stage in list_stages(config, shape)), default=0.0)
    return MemoryPhase(
        "refit",
        (
            Term("learner's weights", 2 * params, f"{params / 1e9:.2f} B x 2"),
            *(
                [Term("vLLM's weights", compute_vllm_weight_bytes(config, shape), "FP8" if engine.fp8 else "BF16")]
                if config.colocated
                else []
            ),
            Term("buffers", (REFIT_BUFFER_GIB + CONTEXT_GIB) * GIB, "assumed"),
        ),
    )


def count_saved_parameters(config: NemoConfig, shape: ModelShape) -> int:
    """Return the parameters that a checkpoint holds: all of them, or the adapters of LoRA."""
    lora = config.learner.lora
    if lora is None:
        return shape.parameters
    outputs = lora.dim * (shape.hidden + shape.vocab) if lora.adapts(OUTPUT) else 0
    return lora.parameters(shape, shape.layers) + outputs


def compute_checkpoint_bytes(config: NemoConfig, shape: ModelShape) -> float:
    """Return the bytes of a checkpoint with optimizer: BF16 weights, FP32 weights and two moments."""
    return 14.0 * count_saved_parameters(config, shape)
