"""What a plan needs of a configuration of either back end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.check.bounds import refuse_out_of_bounds
from nemo_ada.cluster.config import ClusterConfig, Values, load_config, usable_values
from nemo_ada.cluster.memory import H100_GIB, checkpoint_bytes, vllm_cache
from nemo_ada.cluster.shapes import ModelShape, find_shape
from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.presets import ada_settings
from nemo_ada.config.run import RunConfig
from nemo_ada.config.strict import parse
from nemo_ada.errors import UserError
from nemo_ada.simulate.steps import BetaRates, MeasuredRates, RateDistribution
from nemo_ada.tasks.registry import build_task

GIB_PER_SECOND = 2.0  # assumed: writing a checkpoint to a shared file system, all ranks together
MAX_AT_ONCE = 1024  # responses that one vLLM engine decodes at once, however large its cache
MAX_MULTIPLIER = 1000
COLD_START = {"embedded": 60.0, "nemo_rl": 1800.0}  # NeMo-RL: containers, Ray, weights, CUDA graphs: 20 to 30 minutes


EASY = MeasuredRates(tuple(k / 16 for k in range(1, 6)))
EASY_SAID = "published: easy set, 1 to 5 of 16 correct"


@dataclass(frozen=True, slots=True)
class Dynamic:
    """NeMo-RL's dynamic sampling: batches of `prompts` prompts until enough groups have signal; after `most` batches
    that did not suffice it ends the run with an error."""

    prompts: int
    most: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Prompts and rows per prompt, longest response in tokens, responses that decode at once (slots), run length.

    recipe: what the slots of a NeMo-RL recipe follow from.
    """

    backend: str
    ada: AdaSettings
    prompts: int
    group: int
    longest: int
    slots: int
    gpus: int
    steps: int
    val_period: int
    save_period: int
    save_seconds: float
    data: str
    model: str
    shape: ModelShape | None
    train_rows: int
    recipe: ClusterConfig | None = None
    dynamic: Dynamic | None = None

    @property
    def drawn(self) -> int:
        """Prompts of one sampling phase."""
        return self.prompts if self.dynamic is None else self.dynamic.prompts

    @property
    def fp8_rollout(self) -> bool:
        """Whether responses are generated in FP8."""
        return self.recipe is not None and self.recipe.fp8_rollout

    @property
    def fp8_train(self) -> bool:
        """Whether the learner computes in FP8."""
        return self.recipe is not None and self.recipe.fp8_train

    def slots_for(self, longest: int) -> int:
        """Responses of at most `longest` tokens that would decode at once in BF16."""
        if self.recipe is None or self.shape is None:
            return self.slots
        return _slots(replace(self.recipe, max_new=longest, fp8_rollout=False), self.shape)


def read(path: Path, overrides: Sequence[str]) -> Facts:
    """From a YAML. Raises UserError."""
    config = load_config(path, overrides)
    if config.get("backend", "embedded") == "embedded":
        return _embedded(config)
    with usable_values():
        return _recipe(config)


def _embedded(config: Mapping[str, Any]) -> Facts:
    run = parse(RunConfig, config)
    longest = run.policy.generation.max_new_tokens or build_task(run.task, Path(run.base.cache_dir)).max_new_tokens
    rows = run.grpo.num_prompts_per_step * run.grpo.num_generations_per_prompt
    return Facts(
        backend="embedded",
        ada=run.reinforce_ada,
        prompts=run.grpo.num_prompts_per_step,
        group=run.grpo.num_generations_per_prompt,
        longest=longest,
        slots=run.policy.generation.max_num_seqs,
        gpus=0,
        steps=run.grpo.max_num_steps,
        val_period=run.grpo.val_period,
        save_period=run.checkpointing.save_period,
        save_seconds=2.0,
        data=run.task.name,
        model=run.policy.model_name or "",
        shape=None,
        train_rows=run.policy.train_global_batch_size or rows,
    )


def _recipe(config: Mapping[str, Any]) -> Facts:
    refuse_out_of_bounds(Values(config))
    facts = ClusterConfig.of(config)
    values = facts.values
    known = find_shape(facts.model_name)
    if known is None:
        raise UserError(
            f"policy.model_name={facts.model_name}: no local config.json and not in the table; name a folder with one"
        )
    shape = known[0]
    return Facts(
        backend="nemo_rl",
        ada=ada_settings(config.get("reinforce_ada", {})),
        prompts=facts.prompts,
        group=facts.group,
        longest=facts.max_new,
        slots=_slots(facts, shape),
        gpus=facts.gpus,
        steps=values.integer("grpo.max_num_steps"),
        val_period=int(values.get("grpo.val_period", 0)),
        save_period=values.integer("checkpointing.save_period", 50),
        save_seconds=checkpoint_bytes(shape) / 2**30 / GIB_PER_SECOND,
        data=str(values.get("data.train.data_path", "")),
        model=facts.model_name,
        shape=shape,
        train_rows=facts.train_rows,
        recipe=facts,
        dynamic=_dynamic(values, facts.prompts),
    )


def _slots(recipe: ClusterConfig, shape: ModelShape) -> int:
    cache = vllm_cache(recipe, shape, recipe.rows, H100_GIB)
    return max(1, int(min(cache.concurrency, MAX_AT_ONCE)) * recipe.engines)


def _dynamic(values: Values, prompts: int) -> Dynamic | None:
    if not values.get("grpo.use_dynamic_sampling", False):
        return None
    multiplier = float(values.get("grpo.batch_multiplier", 1))
    if not 0 < multiplier < MAX_MULTIPLIER:
        raise UserError(f"grpo.batch_multiplier={multiplier:g} must lie above 0; 2 draws twice the prompts of a step")
    most = values.integer("grpo.dynamic_sampling_max_gen_batches", 10)
    return Dynamic(max(1, int(prompts * multiplier)), most + 1)  # NeMo-RL lets one more through


def rates_of(
    facts: Facts, measured: Path | None, beta: tuple[float, float] | None
) -> tuple[RateDistribution, float, str]:
    """Pass rates, their mean, and where they come from."""
    if measured is not None:
        read_rates = MeasuredRates.read(measured)
        return read_rates, float(np.mean(read_rates.rates)), f"measured: {measured}"
    if beta is not None:
        rates = BetaRates(*beta)
        return rates, beta[0] / (beta[0] + beta[1]), f"Beta({beta[0]:.2f}, {beta[1]:.2f}) fitted to the run"
    if "hard" in facts.data:
        return MeasuredRates((1 / 16, 2 / 16)), 1.5 / 16, "published: hard set, 1 or 2 of 16 correct"
    if "reinforce_ada" in facts.data:
        return EASY, 3 / 16, EASY_SAID
    return BetaRates(0.6, 1.5), 0.6 / 2.1, "assumed: Beta(0.6, 1.5); give --pass-rates"
