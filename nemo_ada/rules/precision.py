"""Rules for FP8 in learner and rollout, for the precision of the optimizer, and for what a card cannot do."""

from __future__ import annotations

from nemo_ada.config.parsing import join_numbers
from nemo_ada.rules.facts.models import ModelShape
from nemo_ada.rules.facts.nemo_config import NemoConfig
from nemo_ada.rules.finding import Findings, error, warning
from nemo_ada.rules.layout import LEARNER, VLLM
from nemo_ada.run import policy_gap

BLOCK = 128  # FP8 scales are per 128 x 128 block of a weight
FP8_CFG = {"fp8": "e4m3", "fp8_recipe": "blockwise", "fp8_param": False}
FP32_SCALES = "NVTE_FP8_BLOCK_SCALING_FP32_SCALES"


def list_rollout_parallel_sizes(shape: ModelShape, limit: int = 16) -> list[int]:
    """Tensor-parallel sizes of vLLM at which the feed-forward and key-value widths per GPU are multiples of a block."""
    sizes = [tp for tp in (1, 2, 4, 8, 16) if tp <= limit and shape.kv % tp == 0 and shape.heads % tp == 0]
    return [tp for tp in sizes if shape.ffn % (BLOCK * tp) == 0 and shape.kv_width % (BLOCK * tp) == 0]


def check_fp8_rollout(config: NemoConfig, shape: ModelShape) -> Findings:
    """FP8 in vLLM needs block shapes that fit, and the importance-sampling correction."""
    learner, engine = config.learner, config.engine
    if not engine.fp8:
        return
    works = list_rollout_parallel_sizes(shape)
    if engine.tp not in works:
        yield error(
            f"{VLLM}.precision",
            f"FP8 blocks of 128 need feed-forward and key-value widths per GPU in multiples of 128; {shape.ffn} and "
            f"{shape.kv_width} over TP {engine.tp} are not; {VLLM}.tensor_parallel_size={join_numbers(works)} would "
            "work, or precision=bfloat16",
        )
    if not config.values.get("loss_fn.use_importance_sampling_correction", False):
        yield error(
            "loss_fn.use_importance_sampling_correction",
            "an FP8 rollout samples from another distribution than the one that is trained; set it to true",
        )
    if not learner.fp8:
        yield warning(
            f"{LEARNER}.fp8_cfg.enabled",
            f"FP8 rollout with BF16 training: watch {policy_gap.METRIC}, above {policy_gap.HIGHEST} go back to BF16",
        )


def check_fp8_training(config: NemoConfig, shape: ModelShape) -> Findings:
    """FP8 in Megatron uses Transformer Engine's block scaling as NeMo-RL ran it."""
    learner = config.learner
    if not learner.fp8:
        return
    v, here = config.values, f"{LEARNER}.fp8_cfg"
    for name, wanted in FP8_CFG.items():
        setting = v.get(f"{here}.{name}")
        if setting != wanted:
            why = "true gave NaN above TP 2" if name == "fp8_param" else "the combination that was run on Hopper"
            yield error(f"{here}.{name}", f"{name}={setting!r}; set it to {wanted!r}: {why}")
    if str(v.get(f"{LEARNER}.env_vars.{FP32_SCALES}", "")) != "1":
        yield error(f"{LEARNER}.env_vars.{FP32_SCALES}", 'block scaling on Hopper needs it; set it to "1"')
    if not v.get("loss_fn.use_importance_sampling_correction", False):
        yield error(
            "loss_fn.use_importance_sampling_correction", "FP8 training drifts from the rollout's model; set it to true"
        )


def check_optimizer(config: NemoConfig, shape: ModelShape) -> Findings:
    """The precisions of model and optimizer agree. Sharded states need the distributed optimizer."""
    v, here = config.values, f"{LEARNER}.optimizer"
    precision = v.get("policy.precision")
    if (precision == "bfloat16") != bool(v.get(f"{here}.bf16", False)):
        yield error(f"{here}.bf16", f"bf16={v.get(f'{here}.bf16')} with policy.precision={precision}; make them agree")
    if v.get(f"{here}.use_precision_aware_optimizer", False) and not v.get(f"{here}.use_distributed_optimizer", False):
        yield error(
            f"{here}.use_precision_aware_optimizer", "needs use_distributed_optimizer=true; set that, or this to false"
        )


def check_card(config: NemoConfig, shape: ModelShape) -> Findings:
    """What the config's GPUs cannot do. nemo_ada/rules/facts/cards.py has their figures and sources."""
    card = config.card
    learner, engine = f"{LEARNER}.fp8_cfg.enabled", f"{VLLM}.precision"
    if not card.fp8:
        no = f"the tensor cores of {card.name} (compute capability {card.architecture}) have no FP8"
        if config.learner.fp8:
            yield error(learner, f"{no}; set it to false")
        if config.engine.fp8:
            yield error(engine, f"{no}; bfloat16 would work")
        if config.engine.fp8_cache:
            yield error(f"{VLLM}.kv_cache_dtype", f"{no}; auto would work")
    if card.blackwell and config.learner.fp8:
        yield error(
            learner,
            f"{card.name} is a Blackwell card: NeMo-RL's documentation has no FP8 training with FP32 scales there, and "
            "recommends FP8 rollouts with BF16 training; set this to false",
        )
    if config.gpus_per_node > card.gpus_per_node:
        yield error(
            "cluster.gpus_per_node",
            f"{config.gpus_per_node}, and a node of {card.name} has {card.gpus_per_node}; set this to "
            f"{card.gpus_per_node} and cluster.num_nodes to {-(-config.gpus // card.gpus_per_node)}",
        )


PRECISION = (check_fp8_rollout, check_fp8_training, check_optimizer, check_card)
