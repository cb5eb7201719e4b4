"""What the hooks need of NeMo-RL's configuration. The rules that it must obey are in nemo_ada/rules/method.py.

Nothing here imports nemo_rl.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from nemo_ada.config.ada import AdaSettings, EstimationSampling, SequentialSampling
from nemo_ada.config.presets import SECTION, parse_ada_settings
from nemo_ada.config.values import Values, as_dicts
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.nemo.features import WIDTH
from nemo_ada.rules import rulebook
from nemo_ada.rules.facts.nemo_config import Loop, NemoConfig
from nemo_ada.rules.gym import uses_gym
from nemo_ada.rules.method import (
    ASYNC_ENGINE,
    check_asynchronous_training,
    check_estimator,
    check_reinforce_ada,
    compute_reward_range,
    find_placeholder_obstacles,
    uses_async_engine,
)
from nemo_ada.rules.single_controller import check_controller_needs, check_controller_sizes, check_ignored_settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NemoSettings:
    """What the hooks read of NeMo-RL's configuration and of the section `reinforce_ada:`.

    Attributes:
        config: what is derived from NeMo-RL's sections.
        ada: the section `reinforce_ada:`.
        seed: seed of the run.
        max_steps: steps of the run.
        async_engine: whether responses are issued one by one.
        backend: NeMo-RL's name of the engine.
        token_loss: whether the loss is a mean over tokens. Otherwise it is a mean over rows.
        placeholder_rows: whether rows with zero advantage may leave the loss.
        keep_denominator: whether such rows still count in the loss's denominator.
        overlong: whether NeMo-RL masks truncated rows.
        dynamic: whether NeMo-RL filters groups without signal, so that a step may have several rollout calls.
        gym: whether NeMo-Gym's servers run the rollouts.
        reward_range: smallest and largest reward of an update, after NeMo-RL's scaling and shaping.
    """

    config: NemoConfig
    ada: AdaSettings
    seed: int
    max_steps: int
    async_engine: bool
    backend: str
    token_loss: bool
    placeholder_rows: bool
    keep_denominator: bool
    overlong: bool
    dynamic: bool
    gym: bool
    reward_range: tuple[float, float]

    @property
    def loop(self) -> Loop:
        """NeMo-RL's training loop."""
        return self.config.loop

    @property
    def group(self) -> int:
        """Rows that are kept per prompt."""
        return self.config.rollout.group

    @property
    def prompts(self) -> int:
        """Prompts of one rollout call."""
        return self.config.rollout.prompts

    @property
    def longest(self) -> int:
        """Tokens of the longest response over all of its turns."""
        return self.config.rollout.longest

    @property
    def global_batch(self) -> int:
        """Rows of one optimizer step."""
        return self.config.batch.rows

    @property
    def estimated(self) -> bool:
        """Whether the estimation variant draws, whose groups differ in size."""
        return isinstance(self.ada.sampling, EstimationSampling)

    def sampler(self) -> AdaSampler:
        """The run's sampler."""
        return self.ada.sampler(
            self.group, self.longest, run_seed=self.seed, features=WIDTH, reward_range=self.reward_range
        )


def read(master_config: Any) -> NemoSettings:
    """Apply the rules of the method and take out what the hooks need. Raises UserError."""
    values = Values(as_dicts(master_config))
    findings = [*check_estimator(values), *check_reinforce_ada(values), *check_asynchronous_training(values)]
    findings += [*check_controller_needs(values), *check_controller_sizes(values), *check_ignored_settings(values)]
    rulebook.raise_errors(findings)
    for finding in findings:
        log.warning("%s: %s", finding.key, finding.message)
    ada = parse_ada_settings(values.get(SECTION))
    async_engine = uses_async_engine(values)
    if not async_engine and isinstance(ada.sampling, SequentialSampling) and ada.sampling.scheduler == "continuous":
        log.info(
            "%s.sampling.scheduler=continuous runs as rounds: this engine takes whole batches (%s=true lifts that). "
            "The pools are the same.",
            SECTION,
            ASYNC_ENGINE,
        )
    obstacles = find_placeholder_obstacles(values, ada)
    if obstacles:
        log.info("rows without advantage stay in the update: %s", ", ".join(obstacles))
    return NemoSettings(
        config=NemoConfig.of(values.config),
        ada=ada,
        seed=int(values.get("grpo.seed", 0)),
        max_steps=int(values.get("grpo.max_num_steps", 0)),
        async_engine=async_engine,
        backend=str(values.get("policy.generation.backend", "")),
        token_loss=bool(values.get("loss_fn.token_level_loss", True)),
        placeholder_rows=not obstacles,
        keep_denominator=ada.advantage.denominator == "all_rows",
        overlong=bool(values.get("grpo.overlong_filtering", False)),
        dynamic=bool(values.get("grpo.use_dynamic_sampling", False)),
        gym=uses_gym(values),
        reward_range=compute_reward_range(values),
    )
