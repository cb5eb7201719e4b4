"""Known faults of NeMo-RL and vLLM that make a run's numbers wrong without a message, and the settings that meet them.

Each is a warning, because it depends on timing or on a version. Whether a NeMo-RL has mended one is read in its source.
"""

from __future__ import annotations

from collections.abc import Callable

from nemo_ada.config.values import Values
from nemo_ada.rules.engine import AHEAD, RAY_PLANS_AHEAD, SPECULATIVE, VLLM, plans_ahead
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.finding import Findings, warning

LEARNER = "policy.megatron_cfg"
SAVES, OFFLOADED = f"{LEARNER}.checkpoint", f"{LEARNER}.optimizer.optimizer_cpu_offload"
IN_FLIGHT = "grpo.async_grpo.in_flight_weight_updates"
NLL = "loss_fn.positive_example_nll_weight"
RELEASE = (
    "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorkerImpl._requires_nvrx_cuda_cache_release"
)
"""It says when a saver must forget where tensors were. The mended one asks whether the optimizer moves (4183)."""
SYNCHRONIZED = "nemo_rl.models.megatron.setup._force_sync_optimizer_fp32_from_model"
"""Gives the optimizer's copies on the CPU the loaded weights. A NeMo-RL without it has the fault of issue 2371."""


def check_stale_optimizer(v: Values) -> Findings:
    """Later checkpoints hold the optimizer of the first one."""
    constant = v.get(f"{SAVES}.ckpt_assume_constant_structure", False) and v.get(f"{SAVES}.async_save", False)
    saves = v.get("checkpointing.enabled", False) and v.get("checkpointing.save_optimizer", True)
    apart = not v.get("policy.generation.colocated.enabled", True)
    stays = v.get(OFFLOADED, False)  # on the CPU all the time, so nothing moves it
    if constant and saves and apart and not stays and "optimizer" not in version.read_source(RELEASE):
        yield warning(
            f"{SAVES}.ckpt_assume_constant_structure",
            "true with async_save=true and an engine on GPUs of its own: the saver remembers where the optimizer's "
            "states were, and a refit moves them, so every checkpoint after the first may hold the first one's states "
            "(NeMo-RL pull request 4183); false would work",
        )


def check_random_optimizer(v: Values) -> Findings:
    """The optimizer on the CPU starts from random weights."""
    if v.get(f"{LEARNER}.enabled", False) and v.get(OFFLOADED, False) and not version.read_source(SYNCHRONIZED):
        yield warning(
            OFFLOADED,
            "true: this NeMo-RL loads the model's weights and leaves the optimizer's copies of them on the CPU random, "
            "so the first update may throw the model away (NeMo-RL issue 2371, mended on main); false would work",
        )


def check_torn_weights(v: Values) -> Findings:
    """A pipeline reads weights while they change."""
    stages = v.integer(f"{VLLM}.pipeline_parallel_size", 1)
    if (
        Loop.of(v) is Loop.ASYNC
        and v.get(IN_FLIGHT, False)
        and stages > 1
        and version.find_version().vllm < RAY_PLANS_AHEAD
    ):
        yield warning(
            IN_FLIGHT,
            f"true with {VLLM}.pipeline_parallel_size={stages}: before vLLM 0.25 an update may run beside a forward "
            "pass, which then has NaN log-probabilities (NeMo-RL issue 2180); false, or a pipeline size of 1, would "
            "work",
        )


def check_guesses_ahead(v: Values) -> Findings:
    """Speculative decoding under a scheduler that plans ahead."""
    if v.get(SPECULATIVE) is not None and plans_ahead(v):
        yield warning(
            SPECULATIVE,
            "vLLM plans steps ahead with it, and responses have come out wrong under load (vLLM issues 40926, 46669); "
            f"compare token_mult_prob_error with a run without it, or set {AHEAD}=false",
        )


def check_dead_weight(v: Values) -> Findings:
    """A term of the loss that GRPO never computes."""
    if v.number(NLL):
        yield warning(
            NLL,
            f"{v.get(NLL)} has no effect: the loss adds this term only where its data have the rewards, and no loop of "
            "GRPO puts them there (NeMo-RL issue 3792); 0.0 says what happens",
        )


KNOWN_FAULTS: tuple[Callable[[Values], Findings], ...] = (
    check_stale_optimizer, check_random_optimizer, check_torn_weights, check_guesses_ahead, check_dead_weight,
)  # fmt: skip
