"""Make a config for one GPU from a cluster config: its model's shape, its lengths, and a share of its prompts.

This module works on dictionaries only, and it records each change, as shrink.py does.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.rehearsal.shrink import Layout, Shrinker, lower_batches, shrink_engine, use_small_data, use_small_model
from nemo_ada.rules.facts.memory import estimate_learner_phase
from nemo_ada.rules.facts.models import ModelShape
from nemo_ada.rules.facts.nemo_config import Loop, NemoConfig
from nemo_ada.rules.gym import uses_gym

ONE = "there is one GPU"
ONE_GPU = Layout("megatron", tp=1, pp=1, cp=1, ep=1, dp=1)
FULL = 0.85  # share of the card's memory that the learner may take by the estimate of `check`


def fit_to_one_gpu(config: Mapping[str, Any], *, model: Path | None, data: Path | None, scale: float) -> Shrinker:
    """Make the config of a slice.

    Args:
        config: The user's resolved config, which stays as it is.
        model: Folder of the model that takes the place of the config's. None keeps that.
        data: Folder with train.jsonl and validation.jsonl. None keeps the config's data.
        scale: Share of the config's prompts per step, above 0 and at most 1.

    Returns:
        The shrinker, which holds the new config and the changes.

    Raises:
        UserError: The config cannot run on one GPU.
    """
    values = Values(config)
    if not values.get("policy.megatron_cfg.enabled", False):
        raise UserError(
            "policy.megatron_cfg.enabled=false: --gpu rehearses Megatron's learner; set it to true and the other "
            "learner's to false, or rehearse without --gpu"
        )
    if Loop.of(values).draws_ahead or not values.get("policy.generation.colocated.enabled", True):
        raise UserError(
            "asynchronous training needs a GPU for the learner and one for vLLM, and --gpu has one; rehearse without "
            "--gpu, or take the synchronous config"
        )
    if uses_gym(values):
        raise UserError("--gpu has no servers of NeMo-Gym; rehearse without --gpu")
    if not 0 < scale <= 1:
        raise UserError(f"--scale {scale:g} must be above 0 and at most 1")
    s = Shrinker(copy.deepcopy(dict(config)))
    _use_one_gpu(s)
    share = lower_batches(s, max(1, round(int(s.get("grpo.num_prompts_per_step", 1)) * scale)))
    if reserve := s.get("reinforce_ada.reserve_prompts"):
        s.set("reinforce_ada.reserve_prompts", max(1, round(reserve * share)))
    if model is not None:
        use_small_model(s, model)
    if data is not None:
        use_small_data(s, data)
    s.set("logger.monitor_gpus", False, "it reads Ray's dashboard")
    return s


def _use_one_gpu(s: Shrinker) -> None:
    """Put every part on one GPU."""
    prefix = "policy.megatron_cfg"
    for name in ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor"):
        s.set(f"{prefix}.{name}_parallel_size", 1, ONE)
    s.set(f"{prefix}.sequence_parallel", False, ONE)
    for which in ("first", "last"):
        s.set(f"{prefix}.num_layers_in_{which}_pipeline_stage", None, ONE)
    shrink_engine(s)
    s.set("cluster.num_nodes", 1, ONE)
    s.set("cluster.gpus_per_node", 1, ONE)


def count_fitting_layers(config: NemoConfig, shape: ModelShape) -> int:
    """Return the largest number of layers with which the learner fits on the config's card, by the estimate of `check`.

    Raises:
        UserError: Not even one layer fits.
    """
    room = FULL * config.card.gib
    for layers in range(shape.layers, 0, -1):
        if estimate_learner_phase(config, replace(shape, layers=layers)).gib <= room:
            return layers
    raise UserError(
        f"policy.model_name={config.model_name}: one layer needs more than {room:.0f} GiB of a {config.card.name}; "
        "lower policy.sequence_packing.train_mb_tokens, or rehearse without --gpu"
    )
