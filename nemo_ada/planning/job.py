"""What a plan needs of a config of either back end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_ada import rules
from nemo_ada.cluster.memory import H100_GIB, checkpoint_bytes, vllm_cache
from nemo_ada.cluster.models import ModelShape, find_shape
from nemo_ada.cluster.nemo_config import ClusterConfig, Values, load_config, rollout_sizes
from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.load import backend_of
from nemo_ada.config.presets import ada_settings
from nemo_ada.config.run import RunConfig
from nemo_ada.config.strict import parse
from nemo_ada.errors import UserError
from nemo_ada.planning.roofline import Roofline
from nemo_ada.rules.method import placeholder_obstacles, uses_reinforce_ada
from nemo_ada.tasks.registry import build_task

GIB_PER_SECOND = 2.0  # assumed: writing a checkpoint to a shared file system, all ranks together
COLD_START = {"embedded": 60.0, "nemo_rl": 1800.0}  # NeMo-RL: containers, Ray, weights, CUDA graphs: 20 to 30 minutes


@dataclass(frozen=True, slots=True)
class Job:
    """What a plan needs of a config.

    Attributes:
        prompts: prompts per training step.
        drawn: prompts per rollout call.
        max_batches: rollout calls of a step, above 1 under NeMo-RL's dynamic sampling.
        longest: tokens of the longest response.
        slots: responses that decode at once, on all engines.
        ahead: asynchronous training under NeMo-RL.
        placeholders: whether rows without advantage become placeholder rows, which cost the learner almost nothing.
        roofline: None for the embedded back end.
    """

    backend: str
    ada: AdaSettings
    prompts: int
    group: int
    drawn: int
    max_batches: int
    longest: int
    slots: int
    gpus: int
    ahead: bool
    placeholders: bool
    steps: int
    val_period: int
    val_samples: int
    save_period: int
    save_seconds: float
    data: str
    roofline: Roofline | None

    @classmethod
    def read(cls, path: Path, overrides: Sequence[str]) -> Job:
        """From a YAML. Raises UserError."""
        config = load_config(path, overrides)
        if backend_of(config) == "embedded":
            return _embedded(config)
        return _cluster(config)


def engine_slots(config: ClusterConfig, shape: ModelShape) -> int:
    """Responses that all engines decode at once: as many as the cache holds at mean length, at most max_num_seqs."""
    cache = vllm_cache(config, shape, config.rows, H100_GIB)
    return max(1, int(min(cache.concurrency, config.max_num_seqs)) * config.engines)


def _embedded(config: Mapping[str, Any]) -> Job:
    run = parse(RunConfig, config)
    prompts = run.grpo.num_prompts_per_step
    return Job(
        backend="embedded",
        ada=run.reinforce_ada,
        prompts=prompts,
        group=run.grpo.num_generations_per_prompt,
        drawn=prompts,
        max_batches=1,
        longest=run.policy.generation.max_new_tokens or build_task(run.task, Path(run.base.cache_dir)).max_new_tokens,
        slots=run.policy.generation.max_num_seqs,
        gpus=0,
        ahead=False,
        placeholders=True,
        steps=run.grpo.max_num_steps,
        val_period=run.grpo.val_period,
        val_samples=0,
        save_period=run.checkpointing.save_period,
        save_seconds=2.0,
        data=run.task.name,
        roofline=None,
    )


def _cluster(config: Mapping[str, Any]) -> Job:
    values = Values(config)
    rules.refuse_out_of_bounds(values)
    if not isinstance(config.get("reinforce_ada"), Mapping):
        raise UserError(
            "this config has no section reinforce_ada: it is NeMo-RL's own algorithm, which plan does not know; add "
            "reinforce_ada.preset=grpo (or another preset) and grpo.adv_estimator.name=reinforce_ada"
        )
    cluster, sizes = ClusterConfig.of(config), rollout_sizes(values.get)
    ada = ada_settings(config.get("reinforce_ada", {}))
    known = find_shape(cluster.model_name)
    if known is None:
        raise UserError(
            f"policy.model_name={cluster.model_name}: its config.json is neither in a folder of that name nor in the "
            "hub cache; download the model first (slurm/prepare.sh)"
        )
    dynamic = bool(values.get("grpo.use_dynamic_sampling", False))
    # NeMo-RL lets one batch more through than dynamic_sampling_max_gen_batches
    max_batches = values.integer("grpo.dynamic_sampling_max_gen_batches", 10) + 1 if dynamic else 1
    return Job(
        backend="nemo_rl",
        ada=ada,
        prompts=cluster.prompts,
        group=cluster.group,
        drawn=sizes.prompts,
        max_batches=max_batches,
        longest=sizes.longest,
        slots=engine_slots(cluster, known[0]),
        gpus=cluster.gpus,
        ahead=bool(values.get("grpo.async_grpo.enabled", False)),
        placeholders=uses_reinforce_ada(values) and not placeholder_obstacles(values, ada),
        steps=values.integer("grpo.max_num_steps"),
        val_period=max(int(values.get("grpo.val_period", 0)), 0),
        val_samples=int(values.get("grpo.max_val_samples", 0)),
        save_period=values.integer("checkpointing.save_period", 50),
        save_seconds=checkpoint_bytes(known[0]) / 2**30 / GIB_PER_SECOND,
        data=str(values.get("data.train.data_path", "")),
        roofline=Roofline.of(cluster, known[0]),
    )
