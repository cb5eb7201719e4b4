"""What the hooks need of NeMo-RL's configuration. The rules that it must obey are in nemo_ada/rules/method.py.

Nothing here imports nemo_rl.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from nemo_ada import rules
from nemo_ada.cluster.nemo_config import Values, rollout_sizes
from nemo_ada.config.ada import AdaSettings, EstimationSampling, SequentialSampling
from nemo_ada.config.presets import SECTION
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.errors import UserError
from nemo_ada.nemo.features import WIDTH
from nemo_ada.nemo.lookup import get, plain
from nemo_ada.rules.method import (
    ASYNC_ENGINE,
    NAME,
    asynchronous_training,
    method_settings,
    placeholder_obstacles,
    reinforce_ada,
    uses_async_engine,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NemoSettings:
    """Values out of NeMo-RL's sections, and ours.

    group: n rows per prompt. prompts: prompts per rollout call. global_batch: rows per optimizer step. longest:
    generated tokens of a response at most, over all of its turns. async_engine: responses are issued one by one.
    token_loss: the loss is a mean over tokens (else over rows). placeholder_rows: rows with zero advantage may leave
    the loss.
    keep_denominator: such rows still count in the loss's denominator. overlong: NeMo-RL masks truncated rows.
    dynamic: NeMo-RL filters groups without signal (grpo.use_dynamic_sampling), so a step may have several draws.
    ahead: groups are drawn ahead of the step, in a collector of their own (grpo.async_grpo.enabled). max_steps: of the
    run.
    """

    ada: AdaSettings
    group: int
    prompts: int
    global_batch: int
    seed: int
    longest: int
    async_engine: bool
    backend: str
    token_loss: bool
    placeholder_rows: bool
    keep_denominator: bool
    overlong: bool
    dynamic: bool
    ahead: bool
    max_steps: int

    @property
    def estimated(self) -> bool:
        """True for the estimation variant, whose groups differ in size."""
        return isinstance(self.ada.sampling, EstimationSampling)

    def sampler(self) -> AdaSampler:
        """The run's sampler."""
        return self.ada.sampler(self.group, self.longest, run_seed=self.seed, features=WIDTH)


def uses_reinforce_ada(master_config: Any) -> bool:
    """Whether the configuration chooses Reinforce-Ada: grpo.adv_estimator.name is ours."""
    return bool(get(master_config, "grpo.adv_estimator.name") == NAME)


def trains_ahead(master_config: Any) -> bool:
    """Whether the configuration chooses NeMo-RL's asynchronous training (async_grpo_train)."""
    return bool(get(master_config, "grpo.async_grpo.enabled", False))


def read(master_config: Any) -> NemoSettings:
    """Apply the rules of the method and take out what the hooks need. Raises UserError."""
    if "single_controller" in type(master_config).__module__:
        raise UserError(
            "examples/run_grpo_single_controller.py draws a fixed number of responses per prompt in a RolloutManager "
            "of its own; train with the trainer of examples/run_grpo.py (nemo-ada train) instead"
        )
    values = Values(plain(master_config))
    said = [*reinforce_ada(values), *asynchronous_training(values)]
    rules.raise_errors(said)
    for finding in said:
        log.warning("%s: %s", finding.key, finding.message)
    ada, sizes = method_settings(values), rollout_sizes(values.get)
    async_engine = uses_async_engine(values)
    if not async_engine and isinstance(ada.sampling, SequentialSampling) and ada.sampling.scheduler == "continuous":
        log.info(
            "%s.sampling.scheduler=continuous runs as rounds: this engine takes whole batches (%s=true lifts that). "
            "The pools are the same.",
            SECTION,
            ASYNC_ENGINE,
        )
    obstacles = placeholder_obstacles(values, ada)
    if obstacles:
        log.info("rows without advantage stay in the update: %s", ", ".join(obstacles))
    return NemoSettings(
        ada=ada,
        group=sizes.group,
        prompts=sizes.prompts,
        global_batch=values.integer("policy.train_global_batch_size", sizes.prompts * sizes.group),
        seed=int(values.get("grpo.seed", 0)),
        longest=sizes.longest,
        async_engine=async_engine,
        backend=str(values.get("policy.generation.backend", "")),
        token_loss=bool(values.get("loss_fn.token_level_loss", True)),
        placeholder_rows=not obstacles,
        keep_denominator=ada.advantage.denominator == "all_rows",
        overlong=bool(values.get("grpo.overlong_filtering", False)),
        dynamic=bool(values.get("grpo.use_dynamic_sampling", False)),
        ahead=bool(values.get("grpo.async_grpo.enabled", False)),
        max_steps=int(values.get("grpo.max_num_steps", 0)),
    )
