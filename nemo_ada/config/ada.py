"""The section `reinforce_ada:`, shared by both back ends. Every field has a type, bounds and one sentence.

The group size n is not here. It is NeMo-RL's `grpo.num_generations_per_prompt`, and what depends on it is computed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field, PositiveFloat, Tag

from nemo_ada.by_name import check_part, make_object
from nemo_ada.config.conflicts import Facts, find_conflicts, refuse_all
from nemo_ada.config.parsing import Section
from nemo_ada.core.learning.factor import RANGE, compute_factors
from nemo_ada.core.learning.settings import AdvantageSettings, RowSettings
from nemo_ada.core.prompts.allocation import Allocation, PowerRule
from nemo_ada.core.prompts.estimators import (
    EmaSettings,
    EstimatorSettings,
    PassRateEstimator,
)
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.core.sampling.exits import (
    BalancedExit,
    ExitRule,
    FixedExit,
    PoolView,
    PositiveExit,
    SpreadExit,
)
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import MAX_RESPONSES, SamplingPlan
from nemo_ada.core.schema import Share
from nemo_ada.errors import UserError

Responses = Annotated[int, Field(gt=0, le=MAX_RESPONSES)]


class ByGroup(Section):
    """A number of responses that depends on the group size n. So a preset keeps its meaning in large groups."""

    small: Responses
    """The number for groups of up to `until`."""
    until: Responses
    """The largest n that gets `small`."""
    times: PositiveFloat
    """A larger group gets `times` * n, rounded down."""

    def at(self, group: int) -> int:
        """Return the number for groups of n = `group`."""
        return self.small if group <= self.until else min(max(int(self.times * group), 1), MAX_RESPONSES)


def _name_form(value: Any) -> str:
    """Name the form of a number of responses. So pydantic reports a wrong value once, and not once per form."""
    if isinstance(value, dict | ByGroup):
        return "@by_group"
    return "@list" if isinstance(value, list | tuple) else "@number"


_Number = Annotated[Responses, Tag("@number")]
_Scaled = Annotated[ByGroup, Tag("@by_group")]
_Waves = Annotated[Annotated[list[Responses], Field(min_length=1)], Tag("@list")]
Number = Annotated[_Number | _Scaled, Discriminator(_name_form)]
Waves = Annotated[_Number | _Waves | _Scaled, Discriminator(_name_form)]


def _scale_number(number: int | ByGroup, group: int) -> int:
    return number.at(group) if isinstance(number, ByGroup) else number


class PositiveSettings(Section):
    """Stop at enough correct responses (Reinforce-Ada-Seq-pos)."""

    kind: Literal["positive"]
    k_pos: Number = PositiveExit.k_pos
    """Number of correct responses at which a prompt stops."""

    def make_rule(self, group: int) -> ExitRule:
        """Return the rule for groups of n = `group`."""
        return PositiveExit(_scale_number(self.k_pos, group))


class BalancedSettings(Section):
    """Stop at enough correct and incorrect responses (Reinforce-Ada-Seq-balance)."""

    kind: Literal["balanced"]
    k_pos: Responses | None = None
    """Number of correct responses that a prompt needs (default: n // 2)."""
    k_neg: Responses | None = None
    """Number of incorrect responses that it needs, too (default: n - n // 2)."""

    def make_rule(self, group: int) -> ExitRule:
        """Return the rule for groups of n = `group`."""
        return BalancedExit(self.k_pos or max(group // 2, 1), self.k_neg or group - group // 2)


class FixedSettings(Section):
    """Stop at a number of responses, as GRPO does."""

    kind: Literal["fixed"]
    n: Responses | None = None
    """Number of responses at which a prompt stops (default: the group size n)."""

    def make_rule(self, group: int) -> ExitRule:
        """Return the rule for groups of n = `group`."""
        return FixedExit(self.n or group)


class SpreadSettings(Section):
    """Stop when the rewards of a prompt differ enough, for rewards between 0 and 1."""

    kind: Literal["spread"]
    difference: Annotated[float, Field(ge=1e-4, le=1)] = 0.5
    """A prompt stops when two of its rewards differ by this, or when many smaller differences amount to the same."""

    def make_rule(self, group: int) -> ExitRule:
        """Return the rule for groups of n = `group`."""
        return SpreadExit(self.difference)


class OwnExitSettings(Section):
    """Stop by a rule of your own (recipes/extend/exit.py)."""

    kind: Literal["own"]
    name: str
    """The class, as `package.module:Class`. It is called with the group size n and the arguments."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the class."""

    def make_rule(self, group: int) -> ExitRule:
        """Return the rule for groups of n = `group`. Raises UserError where it is none or does not work."""
        key = "reinforce_ada.sampling.exit.name"
        rule = make_object(key, self.name, group, **self.arguments)
        if not isinstance(rule, ExitRule):
            raise UserError(
                f"{key}={self.name!r} is no exit rule; derive the class from {ExitRule.__module__}.ExitRule, as "
                "recipes/extend/exit.py does"
            )
        # Three small pools, with what the rule says that it reads. One that reads more fails here, and not in a run.
        offered: dict[str, Any] = {"squares": lambda: np.zeros(3), "tokens": lambda: np.array([9, 9, 18 * group])}
        offered["waves"] = lambda: np.zeros(3, np.int64)
        readings = {"rewards": "squares", "tokens": "tokens", "waves": "waves"}
        if unknown := set(rule.reads) - set(readings):
            raise UserError(f"{key}={self.name!r}: reads={sorted(unknown)} is not there; {sorted(readings)} are")
        reads = {name: offered[name] for name in map(readings.__getitem__, rule.reads)}
        pools = PoolView(np.array([0, 1, group]), np.array([1, 0, group]), **reads)
        check_part(key, self.name, lambda: int(rule.smallest_pool), int)
        check_part(key, self.name, lambda: rule.met(pools), bool, 3)
        check_part(key, self.name, lambda: rule.lacking(pools)[0], bool, 3)
        check_part(key, self.name, lambda: rule.lacking(pools)[1], bool, 3)
        return rule


Exit = Annotated[
    PositiveSettings | BalancedSettings | FixedSettings | SpreadSettings | OwnExitSettings,
    Field(discriminator="kind"),
]


class SequentialSampling(Section):
    """Responses are drawn in waves until the exit rule is met (algorithm.md section 2)."""

    kind: Literal["sequential"]
    exit: Exit
    """The rule that says when a prompt has enough responses."""
    wave_size: Waves | None = None
    """Responses per wave (default: n). A list gives the first, second, ... wave, and its last entry repeats."""
    max_responses: Number | None = None
    """N_max, the largest number of responses per prompt (default: n)."""
    scheduler: Literal["rounds", "continuous"] = SamplingPlan.scheduler
    """`rounds` waits for every prompt between waves (the authors' loop), `continuous` does not."""

    def waves(self, group: int) -> tuple[int, ...]:
        """Return the sizes of the waves for groups of n = `group`. The last size repeats."""
        if self.wave_size is None:
            return (group,)
        return tuple(self.wave_size) if isinstance(self.wave_size, list) else (_scale_number(self.wave_size, group),)

    def cap(self, group: int) -> int:
        """Return N_max for groups of n = `group`."""
        return group if self.max_responses is None else _scale_number(self.max_responses, group)

    def stop(self, group: int) -> StopRule:
        """Return when a pool ends for groups of n = `group`, if no cap of the batch ends it."""
        return StopRule(self.exit.make_rule(group), self.waves(group), self.cap(group))

    def fixed_pool(self, group: int) -> int | None:
        """Return the number of responses of every pool for groups of n = `group`. None when the labels decide it."""
        if not isinstance(self.exit, FixedSettings):
            return None
        stop = self.stop(group)
        return next(
            (int(size) for size in stop.mark_judged().nonzero()[0] if size >= stop.exit.smallest_pool), stop.cap
        )


class EstimationSampling(Section):
    """Each prompt gets N_x responses in one draw. An estimate allocates them, and all are trained on.

    See algorithm.md section 3.
    """

    kind: Literal["estimation"]
    allocation: PowerRule = PowerRule()
    """The rule that allocates responses. Their sum is num_prompts_per_step * num_generations_per_prompt."""
    min_responses: Number = 4
    """N_min, the smallest number of responses per prompt."""
    max_responses: Number = 32
    """N_max, the largest number of responses per prompt."""
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """A small number that is added before the exponent is taken."""

    def bounds(self, group: int) -> tuple[int, int]:
        """Return N_min and N_max for groups of n = `group`."""
        return _scale_number(self.min_responses, group), _scale_number(self.max_responses, group)

    def stop(self, group: int) -> StopRule:
        """Return when a pool ends: after its one draw, of at most N_max responses for groups of n = `group`."""
        cap = self.bounds(group)[1]
        return StopRule(FixedExit(1), (cap,), cap)


Sampling = Annotated[SequentialSampling | EstimationSampling, Field(discriminator="kind")]


class AdaSettings(Section):
    """The whole section `reinforce_ada:`."""

    preset: str | None = None
    """Name of the preset whose values this section started from."""
    sampling: Sampling
    """The settings of how responses are drawn."""
    advantage: AdvantageSettings = AdvantageSettings()
    """The settings of how rewards become advantages."""
    budget: Budget = Budget()
    """The caps on what a batch may cost."""
    estimator: EstimatorSettings = EmaSettings()
    """The estimator of pass rates before a step. The allocation and `shrunk` use it."""
    positive_threshold: float = SamplingPlan.positive_threshold
    """A response is correct when its reward is above this."""
    max_failed_share: Share = SamplingPlan.max_failed_share
    """Largest allowed share of responses without a label (engine or verifier failure). Up to three are never an error.
    Those that NeMo-Gym's environment masks do not count."""
    stop_after_dead_steps: Annotated[int, Field(ge=1)] | None = None
    """Steps in a row without any row that has an advantage, after which the run ends. null: a warning only."""
    reserve_prompts: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Prompts per step that may replace zero-signal groups, as DAPO's filtering does."""

    def sampler(
        self,
        group: int,
        max_new_tokens: int,
        *,
        run_seed: int,
        features: int | None = None,
        reward_range: tuple[float, float] = RowSettings.reward_range,
    ) -> AdaSampler:
        """Build the sampler of a run.

        Args:
            group: the group size n.
            max_new_tokens: tokens of the longest response.
            run_seed: seed of responses, row selection and choices.
            features: width of the value estimator's input. None when the back end has no features.
            reward_range: smallest and largest reward of an update.

        Raises:
            UserError: settings contradict each other, or the estimator needs features and there are none.
        """
        plan, sampling = self.plan(group, max_new_tokens), self.sampling
        allocation: Allocation | None = None
        exponent: float | None = None
        if isinstance(sampling, EstimationSampling):
            allocation = Allocation(sampling.allocation, *sampling.bounds(group), sampling.epsilon)
            if self.advantage.weighting != "objective":  # the allocation realises the weight p^-exponent
                exponent = sampling.allocation.exponent
        rows = RowSettings(
            group=group,
            stop=plan.stop,
            advantage=self.advantage,
            keep_all=allocation is not None,
            exponent=exponent,
            reward_range=reward_range,
        )
        estimator = self._make_estimator(features)
        return AdaSampler(
            plan,
            rows,
            run_seed=run_seed,
            estimator=estimator,
            allocation=allocation,
            stop_after=self.stop_after_dead_steps,
        )

    def _make_estimator(self, features: int | None) -> PassRateEstimator | None:
        settings = self.estimator
        asked = isinstance(self.sampling, EstimationSampling) or self.advantage.baseline == "shrunk"
        if not settings.needs_features:
            return settings.make(0) if asked else None
        if features is None:
            raise UserError(
                f"reinforce_ada.estimator.kind={settings.kind} needs prompt features, which this back end does not "
                "offer; set reinforce_ada.estimator.kind=ema"
            )
        return settings.make(features)

    def check_rows(self, group: int) -> None:
        """Raise UserError when settings contradict each other, or when labels would decide which responses become rows.

        This happens with a group of 1 out of several responses, because selection prefers incorrect ones. It also
        happens with some settings of the shrunk baseline. `nemo-ada simulate` does not make this check.
        """
        refuse_all(find_conflicts(self, group, rows=True))

    def plan(self, group: int, max_new_tokens: int) -> SamplingPlan:
        """Build the sampling plan.

        Args:
            group: the group size n.
            max_new_tokens: tokens of the longest response.

        Raises:
            UserError: settings contradict each other.
        """
        refuse_all(find_conflicts(self, group))
        sampling = self.sampling
        return SamplingPlan(
            stop=sampling.stop(group),
            group_size=group,
            max_new_tokens=max_new_tokens,
            positive_threshold=self.positive_threshold,
            scheduler=sampling.scheduler if isinstance(sampling, SequentialSampling) else SamplingPlan.scheduler,
            budget=self.budget,
            max_failed_share=self.max_failed_share,
        )

    def describe_objective(self, group: int) -> str:
        """Say in a line which objective the mean update follows, for groups of n = `group`.

        Raises:
            UserError: settings contradict each other.
        """
        shown = "`nemo-ada simulate --objective` shows what it follows"
        kind, low, high, facts = self.advantage.objective.kind, *RANGE, Facts(self, group)
        self.check_rows(group)
        declared = (
            f"follows the {kind} objective of the share of rewards above {self.positive_threshold} within "
            f"{facts.missed:.0%} for pass rates of {low} to {high}{self._describe_caps(group)}"
        )
        if isinstance(self.sampling, EstimationSampling):
            undeclared = f"no objective is declared, and an estimate decides what is drawn; {shown}"
            return declared if facts.declared else undeclared
        rows = RowSettings(group, self.sampling.stop(group), self.advantage)
        if rows.shrunk_baseline:
            return f"follows the {kind} objective"
        if facts.chosen_by_rewards:
            return "no objective is declared: rewards choose the rows"
        if facts.beyond_labels:
            return f"no objective is declared: {facts.beyond_labels} decide when a prompt has enough; {shown}"
        if facts.declared:
            return declared
        factor_P = compute_factors(rows, np.array([low, 0.5, high]))
        few, many = factor_P[[0, 2]] / factor_P[1]
        return (
            f"no objective is declared: gradient weight by pass rate: {few:.1f}x at {low}, 1x at 0.5, {many:.1f}x at "
            f"{high}; {shown}"
        )

    def _describe_caps(self, group: int) -> str:
        """Say what a cap that ends a pool early does to a declared objective, and which cap would not. Else empty."""
        sampling = self.sampling
        if isinstance(sampling, EstimationSampling) or sampling.fixed_pool(group) or not self.budget.caps():
            return ""
        return (
            "; where a cap of the budget ends a pool early, its weight is too small for hard prompts (metric "
            f"`ada/prompts_cut`), and max_samples of num_prompts_per_step * {sampling.cap(group)} ends none; `nemo-ada "
            "simulate --objective --max-samples M --prompts P` shows how much"
        )
