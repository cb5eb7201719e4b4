"""What a plan needs of a config of either back end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.load import backend_of
from nemo_ada.config.parsing import parse
from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.lab.plan.roofline import Roofline
from nemo_ada.rules import rulebook
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.facts.memory import compute_checkpoint_bytes, estimate_vllm_cache
from nemo_ada.rules.facts.models import ModelShape, find_shape
from nemo_ada.rules.facts.nemo_config import NemoConfig, RolloutFacts
from nemo_ada.rules.gym import uses_gym
from nemo_ada.rules.method import find_placeholder_obstacles
from nemo_ada.tasks.registry import build_task

GIB_PER_SECOND = 2.0  # assumed: writing a checkpoint to a shared file system, all ranks together
COLD_START = {"embedded": 60.0, "nemo_rl": 1800.0}  # NeMo-RL: containers, Ray, weights, CUDA graphs: 20 to 30 minutes


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a run does beside its steps.

    Attributes:
        steps: steps of the run.
        val_period: steps between two validations. 0 means that the run never validates.
        val_samples: responses of one validation.
        save_period: steps between two saves.
        save_seconds: seconds of one save.
    """

    steps: int
    val_period: int
    val_samples: int
    save_period: int
    save_seconds: float


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """What a plan needs of a config.

    Attributes:
        backend: embedded or nemo_rl.
        ada: the section `reinforce_ada:`.
        rollout: what a step samples.
        max_concurrent: responses that decode at once, on all engines.
        gpus: GPUs of the job.
        draws_ahead: whether NeMo-RL trains asynchronously.
        placeholders: whether rows without advantage become placeholder rows, which cost the learner almost nothing.
        schedule: what the run does beside its steps.
        data: name of the training set.
        roofline: seconds of the phases where no run was measured. None for the CPU back end.
        gym: whether NeMo-Gym's agents draw the responses.
        dtensor: whether the learner is DTensor.
    """

    backend: str
    ada: AdaSettings
    rollout: RolloutFacts
    max_concurrent: int
    gpus: int
    draws_ahead: bool
    placeholders: bool
    schedule: Schedule
    data: str
    roofline: Roofline | None
    gym: bool = False
    dtensor: bool = False

    @classmethod
    def read(cls, path: Path, overrides: Sequence[str]) -> PlannedRun:
        """Read it from a YAML. Raises UserError."""
        config = load_config(path, overrides)
        return _read_embedded(config) if backend_of(config) == "embedded" else _read_nemo_rl(config)


def count_concurrent(config: NemoConfig, shape: ModelShape) -> int:
    """Return the responses that all engines decode at once: as many as the cache has room for, at most max_num_seqs."""
    cache = estimate_vllm_cache(config, shape, config.rollout.rows, config.card.gib)
    return max(1, int(min(cache.concurrency, config.engine.max_num_seqs)) * config.engine.replicas)


def _read_embedded(config: Mapping[str, Any]) -> PlannedRun:
    from nemo_ada.cpu.settings import RunConfig

    run = parse(RunConfig, config)
    prompts = run.grpo.num_prompts_per_step
    longest = run.policy.generation.max_new_tokens or build_task(run.task, Path(run.base.cache_dir)).max_new_tokens
    return PlannedRun(
        backend="embedded",
        ada=run.reinforce_ada,
        rollout=RolloutFacts(
            prompts_per_step=prompts,
            prompts=prompts,
            max_calls=1,
            group=run.grpo.num_generations_per_prompt,
            max_prompt=0,
            max_new=longest,
            longest=longest,
        ),
        max_concurrent=run.policy.generation.max_num_seqs,
        gpus=0,
        draws_ahead=False,
        placeholders=True,
        schedule=Schedule(run.grpo.max_num_steps, run.grpo.val_period, 0, run.checkpointing.save_period, 2.0),
        data=run.task.name,
        roofline=None,
    )


def _read_nemo_rl(config: Mapping[str, Any]) -> PlannedRun:
    values = Values(config)
    rulebook.refuse_out_of_bounds(values)
    section = config.get("reinforce_ada")
    stock = section is None  # NeMo-RL's own loop, whose learner computes all rows
    if stock and (values.get("grpo.adv_estimator.name", "grpo") != "grpo" or values.get("grpo.use_dynamic_sampling")):
        raise UserError(
            "this config has no section reinforce_ada, and of NeMo-RL's own algorithms plan knows GRPO without dynamic "
            "sampling only; add reinforce_ada.preset=grpo (or another preset)",
            key="reinforce_ada",
        )
    nemo_config = NemoConfig.of(config)
    known = find_shape(nemo_config.model_name)
    if known is None:
        raise UserError(
            f"policy.model_name={nemo_config.model_name}: its config.json is neither in a folder of that name nor in "
            "the hub cache; download the model first (slurm/prepare.sh)",
            key="policy.model_name",
        )
    shape, ada = known[0], parse_ada_settings({"preset": "nemo_rl_grpo"} if section is None else section)
    return PlannedRun(
        backend="nemo_rl",
        ada=ada,
        rollout=nemo_config.rollout,
        max_concurrent=count_concurrent(nemo_config, shape),
        gpus=nemo_config.gpus,
        draws_ahead=nemo_config.loop.draws_ahead,
        gym=uses_gym(values),
        dtensor=nemo_config.dtensor,
        placeholders=not stock and not find_placeholder_obstacles(values, ada),
        schedule=Schedule(
            steps=values.integer("grpo.max_num_steps"),
            val_period=max(int(values.number("grpo.val_period") or 0), 0),
            val_samples=int(values.number("grpo.max_val_samples") or 0),
            save_period=values.integer("checkpointing.save_period", 50),
            save_seconds=compute_checkpoint_bytes(nemo_config, shape) / 2**30 / GIB_PER_SECOND,
        ),
        data=str(values.get("data.train.data_path", "")),
        roofline=Roofline.of(nemo_config, shape),
    )
