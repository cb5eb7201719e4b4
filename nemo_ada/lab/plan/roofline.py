"""Seconds of the phases of a step, from what they compute, read and send: a roofline with fitted efficiencies.

Update and log-probabilities take FLOPs / (peak * model-FLOPs utilisation, MFU), and more for the pipeline's bubble. An
engine step of generation reads the weights once for all responses, and costs a constant beside that. Each of its tokens
reads its keys and values and computes. It takes an engine no less than a constant, because the process of the engine's
core needs that long for a token (ENGINE_TOKEN_SECONDS). A refit costs the bytes of the weights that a GPU of vLLM
receives, and before it the optimizer's way to the CPU, where learner and engine share GPUs. Dense models and mixtures
of experts have an MFU and a constant each. The refit and the rest of a step are the same for both.

`recipes/benchmarks/fit_forecast.py` fits the six numbers to `published.yaml` and writes recipes/results/forecast.md
with their errors. It also fits `H200_STEP`, which the leaderboard reads, and its spread to the steps of
recipes/results/gpu.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from nemo_ada.rules.facts.cards import Card
from nemo_ada.rules.facts.memory import (
    compute_cache_bytes_per_token,
    compute_vllm_weight_bytes,
    estimate_optimizer_bytes,
    estimate_vllm_cache,
)
from nemo_ada.rules.facts.models import ModelShape
from nemo_ada.rules.facts.nemo_config import CAPTURED_BY_DEFAULT, OFFLOADS, NemoConfig

FP8_SPEED = 0.8  # seconds in FP8 over BF16: NeMo-RL's documentation gives 15 to 25 % less
BANDWIDTH_SHARE = 0.8  # of the peak that a decoding kernel reaches (usual; the published points cannot tell)
ENGINE_TOKEN_SECONDS = {"sync": 27e-6, "async": 40e-6, "few": 25e-6}
"""Kind of engine -> seconds that it takes at least for a token with its log-probability, however fast the GPU.

Seen with vLLM 0.20.2 and a 1.5B model on an H200, where the roofline of the GPU is 13e-6. The engine's core, a process
of Python, was busy all the time (recipes/results/gpu.md).
"""
LEVERS = ("few messages", "CUDA graphs", "pinned optimizer")
"""What makes any NeMo-RL job faster, without adaptive sampling too, in the order in which `plan` adds them."""
UNCAPTURED_SECONDS = 28e-6
"""More seconds for a token where more responses run than vLLM has CUDA graphs for (same measurement, 1,024 of 512)."""
OPTIMIZER_MOVE = {"pinned": 0.04, "pageable": 0.35}
"""Seconds per GB of the optimizer on a GPU, for its way to the CPU before a refit and back.

The published points cannot tell the second from the weights' way. With it the fit gives the weights .28 s per GB. A
1.5B on an H200 took .2 to .27 for them, and .3 to .7 for its 18.5 GB of optimizer. The first is that of the copies
alone, 55 GB/s each way: no step of a 1.5B has shown it (recipes/results/gpu.md).
"""
PROMPT_TOKENS = 150.0  # assumed mean of a prompt with its template


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """The fitted numbers.

    Attributes:
        mfu: model-FLOPs utilisation of training, of log-probabilities and of the computing part of generation.
        layer_step: seconds per layer of an engine step, without reading weights.
        refit: seconds per GB that a GPU of vLLM receives.
        rest: seconds of a step outside all phases.
    """

    mfu: float
    layer_step: float
    refit: float
    rest: float


# Fitted (recipes/results/forecast.md).
DENSE = Efficiencies(mfu=0.357, layer_step=0.000107, refit=0.281, rest=2.85)
EXPERTS = Efficiencies(mfu=0.101, layer_step=0.000266, refit=0.281, rest=2.85)
RANGE = (0.68, 1.36)  # published seconds over forecast, of left-out points: the fastest and the slowest


@dataclass(frozen=True, slots=True)
class Spread:
    """What sampling and the refit of a step took, over their means.

    Attributes:
        sampling: factor of the seconds per token that is drawn.
        refit: factor of the refit's seconds.
    """

    sampling: float = 1.0
    refit: float = 1.0


MEAN, NEAR, FAR = Spread(), Spread(0.84, 1.58), Spread(1.13, 0.62)
"""The mean of the steps that ran on an H200, and the ends at which more responses cost least and most beside GRPO."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step, from the tokens that are drawn and those that are trained on.

    Attributes:
        fixed: seconds that every step takes, without its refit.
        refit: mean seconds of a refit.
        drawn: seconds per token of a response that is drawn.
        trained: seconds per token of a response that is trained on.
    """

    fixed: float
    refit: float
    drawn: float
    trained: float

    def seconds(self, steps: Any, drawn: Any, trained: Any, spread: Spread = MEAN) -> Any:
        """Return the seconds of `steps` steps with `drawn` and `trained` tokens in all, numbers or arrays."""
        once = self.fixed + spread.refit * self.refit
        return once * steps + spread.sampling * self.drawn * drawn + self.trained * trained


# Fitted to the steps of a 1.5B on one H200 (recipes/results/gpu.md), with NEAR and FAR.
H200_STEP = StepCost(fixed=6.33, refit=8.98, drawn=78.3e-6, trained=33.9e-6)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The seconds of one job's phases.

    Attributes:
        config: the job's config.
        shape: the shape of its model.
        efficiencies: the fitted numbers.
    """

    config: NemoConfig
    shape: ModelShape
    efficiencies: Efficiencies

    def pull_levers(self, count: int) -> Roofline:
        """Return the same job with the first `count` of LEVERS, and for the rest as NeMo-RL is by itself.

        With none it has NeMo-RL's default engine, vLLM's own number of CUDA graphs, and NeMo-RL's way of moving the
        optimizer. An engine without graphs (`enforce_eager`) stays without.
        """
        engine = self.config.engine
        graphs = max(engine.captured, engine.max_num_seqs) if count > 1 else CAPTURED_BY_DEFAULT
        changed = replace(engine, kind="few" if count else "sync", captured=graphs if engine.captured else 0)
        offload = OFFLOADS[0] if count > 2 else OFFLOADS[1]
        return replace(self, config=replace(self.config, engine=changed, optimizer_offload=offload))

    @property
    def gpu(self) -> Card:
        """The GPUs of the job."""
        return self.config.card

    @classmethod
    def of(cls, config: NemoConfig, shape: ModelShape) -> Roofline:
        """Return the roofline with the fitted numbers of dense models, or of mixtures of experts."""
        return cls(config, shape, EXPERTS if shape.experts else DENSE)

    def clock(self, response: float) -> tuple[float, float]:
        """Return the seconds of an engine step, and more of it per running response.

        `response`: mean tokens of a response.
        """
        engine = self.config.engine
        e = self.efficiencies
        bytes_per_second = self.gpu.bandwidth * BANDWIDTH_SHARE
        context = PROMPT_TOKENS + response / 2
        weights = compute_vllm_weight_bytes(self.config, self.shape) / bytes_per_second
        read = compute_cache_bytes_per_token(self.config, self.shape) * context / bytes_per_second
        compute = self._count_flops(context) / (engine.tp * engine.pp * self.gpu.flops * e.mfu)
        compute *= FP8_SPEED if engine.fp8 else 1.0
        floor = ENGINE_TOKEN_SECONDS[engine.kind] + (UNCAPTURED_SECONDS if self._outgrows_graphs else 0.0)
        return weights + e.layer_step * self.shape.layers, max(read + compute, floor) / engine.replicas

    @property
    def _outgrows_graphs(self) -> bool:
        """Whether an engine runs more responses at once than it has CUDA graphs for."""
        engine = self.config.engine
        cache = estimate_vllm_cache(self.config, self.shape, self.config.rollout.rows, self.gpu.gib)
        return min(cache.responses, cache.concurrency, engine.max_num_seqs) > engine.captured > 0

    def update_seconds(self, rows: float, response: float) -> float:
        """Return the seconds of the forward and backward passes of a step's rows.

        Full recomputation adds a forward pass. Under LoRA the backward pass of a frozen weight costs one forward pass
        and not two, because its weight has no gradient.
        """
        learner, batch = self.config.learner, self.config.batch
        tokens = batch.rows * (PROMPT_TOKENS + response) / learner.replicas  # of an optimizer step on a replica
        return (
            (2 + (learner.lora is None) + learner.recompute)
            * self._forward_seconds(rows, response)
            * self._compute_bubble_factor(tokens / self.config.pack_tokens)
        )

    def logprob_seconds(self, rows: float, response: float) -> float:
        """Return the seconds of the forward passes of the policy and, with a KL penalty, of the reference."""
        learner, batch = self.config.learner, self.config.batch
        tokens = rows * (PROMPT_TOKENS + response) / learner.replicas
        return (
            learner.logprob_passes
            * self._forward_seconds(rows, response)
            * self._compute_bubble_factor(tokens / (batch.logprob_rows * batch.length))
        )

    @property
    def refit(self) -> float:
        """Seconds for making room on the GPUs, and giving vLLM its weights."""
        weights = self.efficiencies.refit * compute_vllm_weight_bytes(self.config, self.shape) / 1e9
        if not self.config.colocated:
            return weights
        move = OPTIMIZER_MOVE[self.config.optimizer_offload]
        return weights + move * estimate_optimizer_bytes(self.config, self.shape) / 1e9

    def _forward_seconds(self, rows: float, response: float) -> float:
        learner = self.config.learner
        length = PROMPT_TOKENS + response
        flops = learner.gpus * self.gpu.flops * self.efficiencies.mfu
        seconds = rows * length * self._count_flops(length / 2) / flops
        return seconds * (FP8_SPEED if learner.fp8 else 1.0)

    def _count_flops(self, context: float) -> float:
        """FLOPs of a forward pass, per token after `context` tokens: 2 per weight, and 4 per query width and token."""
        return 2.0 * self.shape.active_parameters + 4.0 * self.shape.layers * self.shape.query_width * context

    def _compute_bubble_factor(self, micro_batches: float) -> float:
        """Return the factor by which idle pipeline stages lengthen a pass."""
        learner = self.config.learner
        return 1.0 + (learner.pp - 1) / max(micro_batches, 1.0)
