"""The section `reinforce_ada:`, shared by both back ends. Every field: type, bounds, one sentence with its unit.

The group size n is not here: it is NeMo-RL's `grpo.num_generations_per_prompt`, and what derives from it is computed.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from nemo_ada.config.strict import Section, Size
from nemo_ada.core.learning import objectives
from nemo_ada.core.learning.rows import RowSettings
from nemo_ada.core.prompts.estimators import EmaBeta, PassRateEstimator, ValueRegressor
from nemo_ada.core.sampler import AdaSampler, Allocation
from nemo_ada.core.sampling.budget import Caps
from nemo_ada.core.sampling.exits import AtLeastExit, BalancedExit, ExitRule, FixedExit, PositiveExit
from nemo_ada.core.sampling.pass_rate import PassRateKind
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.errors import UserError

MAX_RESPONSES = 4096  # per prompt; exact path counts take O(its square) of memory
Responses = Annotated[int, Field(gt=0, le=MAX_RESPONSES)]
Cap = Annotated[int, Field(gt=0, le=2**53)]
Share = Annotated[float, Field(ge=0, le=1)]
Quantile = Annotated[float, Field(gt=0, lt=1)]


class PositiveSettings(Section):
    """Stop at enough correct responses (Reinforce-Ada-Seq-pos)."""

    kind: Literal["positive"]
    k_pos: Responses = 1
    """Correct responses wanted."""

    def rule(self, group: int) -> ExitRule:
        return PositiveExit(self.k_pos)


class BalancedSettings(Section):
    """Stop at enough correct and incorrect responses (Reinforce-Ada-Seq-balance)."""

    kind: Literal["balanced"]
    k_pos: Responses | None = None
    """Correct responses wanted; null takes n // 2."""
    k_neg: Responses | None = None
    """Incorrect responses wanted; null takes n - n // 2."""

    def rule(self, group: int) -> ExitRule:
        return BalancedExit(self.k_pos or max(group // 2, 1), self.k_neg or group - group // 2)


class FixedSettings(Section):
    """Stop at a number of responses: GRPO."""

    kind: Literal["fixed"]
    n: Responses | None = None
    """Responses wanted; null takes the group size n."""

    def rule(self, group: int) -> ExitRule:
        return FixedExit(self.n or group)


Exit = Annotated[PositiveSettings | BalancedSettings | FixedSettings, Field(discriminator="kind")]


class WaveStopping(Section):
    """A wave is drained and all of it enters the pool (paper)."""

    kind: Literal["wave"] = "wave"


class IssueOrderStopping(Section):
    """The pool is a prefix in issue order, of n responses at least, ended by the exit condition; later responses are
    aborted and dropped."""

    kind: Literal["issue_order"]
    window: Responses = 4
    """Responses in flight per prompt."""
    max_window: Responses | None = None
    """With it the window follows the shortfall / pass-rate estimate, between `window` and this."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_window is not None and self.max_window < self.window:
            raise ValueError(f"window={self.window} is above max_window={self.max_window}; lower it")
        return self


Stopping = Annotated[WaveStopping | IssueOrderStopping, Field(discriminator="kind")]


class SequentialSampling(Section):
    """Responses in waves until the exit condition holds (algorithm.md section 2)."""

    kind: Literal["sequential"]
    exit: Exit
    """When a prompt has enough responses."""
    wave_size: Responses | Annotated[list[Responses], Field(min_length=1)] | None = None
    """Responses per wave; a list gives the first, second, ... wave and its last entry repeats; null takes n."""
    max_responses: Responses | None = None
    """N_max, responses per prompt at most; null takes n."""
    scheduler: Literal["rounds", "continuous"] = "continuous"
    """`rounds` waits for every prompt between waves (the authors' loop), `continuous` does not."""
    stopping: Stopping = WaveStopping()
    """When responses may be left out of a pool."""

    def waves(self, group: int) -> tuple[int, ...]:
        """The wave plan for groups of n = `group`."""
        if self.wave_size is None:
            return (group,)
        return tuple(self.wave_size) if isinstance(self.wave_size, list) else (self.wave_size,)


class EmaEstimator(Section):
    """Decayed counts with a Beta prior per prompt (algorithm.md section 3)."""

    kind: Literal["ema"] = "ema"
    decay: Quantile = 0.9
    """lambda: weight of a prompt's counts after one more visit."""
    prior_positive: PositiveFloat = 1.0
    """a of the Beta prior, in responses."""
    prior_negative: PositiveFloat = 1.0
    """b of the Beta prior, in responses."""
    adaptive_prior: bool = False
    """Move the prior's mean to the recent pass rate over all prompts, keeping its weight a + b."""


class ValueEstimator(Section):
    """A small regressor of the pass rate on prompt features, trained online."""

    kind: Literal["value"]
    learning_rate: PositiveFloat = 0.5
    """Adagrad step size of the regressor."""
    strength: PositiveFloat = 4.0
    """Responses that a prediction is worth as a prior."""


Estimator = Annotated[EmaEstimator | ValueEstimator, Field(discriminator="kind")]


class PowerRule(Section):
    """N_x proportional to p_hat^-exponent."""

    kind: Literal["power"] = "power"
    exponent: Share = 0.5
    """1/2 is the paper's hybrid, 1 the pure implicit log, 0 uniform (GRPO)."""

    def share(self) -> objectives.SamplingShare:
        return objectives.PowerShare(self.exponent)


class VarianceRule(Section):
    """N_x proportional to sqrt((1 - p) / p) (paper, appendix B)."""

    kind: Literal["variance"]

    def share(self) -> objectives.SamplingShare:
        return objectives.VarianceShare()


AllocationRule = Annotated[PowerRule | VarianceRule, Field(discriminator="kind")]


class EstimationSampling(Section):
    """One draw of N_x responses per prompt, allocated by an estimate; all are trained on (algorithm.md section 3)."""

    kind: Literal["estimation"]
    allocation: AllocationRule = PowerRule()
    """How responses are shared out; their sum is always num_prompts_per_step * num_generations_per_prompt."""
    min_responses: Responses = 4
    """N_min per prompt."""
    max_responses: Responses = 32
    """N_max per prompt."""
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """Added to p_hat before the allocation."""
    scheduler: Literal["rounds", "continuous"] = "continuous"
    """Only a name here: there is one wave."""


Sampling = Annotated[SequentialSampling | EstimationSampling, Field(discriminator="kind")]


class LinearObjective(Section):
    """f(p) = p: standard RL."""

    kind: Literal["linear"] = "linear"

    def function(self) -> objectives.Objective:
        return objectives.Linear()


class LogObjective(Section):
    """f(p) = log p."""

    kind: Literal["log"]

    def function(self) -> objectives.Objective:
        return objectives.Log()


class PowerObjective(Section):
    """f(p) = p^a."""

    kind: Literal["power"]
    a: PositiveFloat = 0.5
    """Exponent a."""

    def function(self) -> objectives.Objective:
        return objectives.Power(self.a)


Objective = Annotated[LinearObjective | LogObjective | PowerObjective, Field(discriminator="kind")]


class AdvantageSettings(Section):
    """From pools to advantages (algorithm.md section 4)."""

    weighting: Literal["reference", "objective"] = "reference"
    """`reference`: what the authors ran; `objective`: rows carry the inverse of the sampling design."""
    objective: Objective = LinearObjective()
    """J_f = E[f(p)], whose weight f'(p) scales the advantage."""
    normalize: Literal["none", "std"] = "none"
    """Division by the pool's standard deviation."""
    baseline: Literal["pool", "shrunk"] = "pool"
    """`pool`: the pool's mean; `shrunk`: the posterior mean from the other responses and the estimator's prior."""
    leave_one_out: bool = False
    """Baseline without the row's own reward (`shrunk` always is)."""
    pass_rate: PassRateKind = "pool"
    """Estimate of p behind the weight."""
    min_pass_rate: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    """Floor of p_hat in weights."""
    max_weight: PositiveFloat = 100.0
    """Ceiling of w_x."""
    denominator: Literal["all_rows", "live_rows"] = "all_rows"
    """Token-mean over all kept rows (leaving out zero-advantage rows changes nothing) or over those with gradient."""


class BudgetSettings(Section):
    """Caps for one batch; null = no cap (algorithm.md section 6)."""

    mode: Literal["capped", "idle"] = "capped"
    """`idle`: waves after the first are drawn only inside the tail of the first ones (GRPO's own step time)."""
    max_samples: Cap | None = None
    """Responses issued."""
    max_tokens: Cap | None = None
    """Generated tokens."""
    max_seconds: PositiveFloat | None = None
    """Seconds of the sampling phase, for waves after the first ones."""
    seconds_quantile: Quantile = 0.5
    """Probability with which all of these must be expected to end within max_seconds (0.9: one step of ten is late)."""
    token_reservation: Literal["expected", "worst_case"] = "expected"
    """Reserve a high quantile of recent lengths per response, or its longest possible length."""
    expected_tokens: Size | None = None
    """Tokens reserved per response before any length was seen; null takes the longest possible length."""
    policy: Literal["uniform", "greedy"] = "uniform"
    """Who is served when not all can be: seeded random order, or posterior exit probability per response."""
    idle_quantile: Quantile = 0.8
    """Probability with which an extra wave of idle mode must be expected to end in time."""


class AdaSettings(Section):
    """The whole section `reinforce_ada:`."""

    preset: str | None = None
    """Name of the preset whose values this section started from."""
    sampling: Sampling
    """How responses are drawn."""
    advantage: AdvantageSettings = AdvantageSettings()
    """How they become advantages."""
    budget: BudgetSettings = BudgetSettings()
    """What a batch may cost."""
    estimator: Estimator = EmaEstimator()
    """What is known of a prompt before its step: for the allocation, `shrunk`, `greedy` and windows that follow the
    shortfall."""
    positive_threshold: float = 0.7
    """A response is correct when its reward is above this."""
    max_failed_share: Share = 0.05
    """Share of responses without a label (engine or verifier failure) above which four or more are an error."""
    reserve_prompts: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """DAPO-style filtering: prompts that may replace groups which ended without signal, per step."""
    candidate_prompts: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Prompts looked at per step; drawn for are those whose groups the estimator expects to mix. 0 = no choice.
    The others are passed over. With data that is seen once, only `estimator.kind: value` knows anything of them. With
    few prompts that come again and again it lost accuracy (recipes/results/presets.md)."""

    def sampler(self, group: int, max_new_tokens: int, *, run_seed: int, features: int | None = None) -> AdaSampler:
        """The run's sampler for groups of n = `group`; features: width of the value estimator's input."""
        plan = self.plan(group, max_new_tokens)
        sampling, advantage = self.sampling, self.advantage
        estimated = isinstance(sampling, EstimationSampling)
        estimator: PassRateEstimator | None = None
        if isinstance(self.estimator, ValueEstimator):
            if features is None:
                raise UserError(
                    "reinforce_ada.estimator.kind=value needs prompt features, which this back end does not offer; "
                    "set reinforce_ada.estimator.kind=ema"
                )
            estimator = ValueRegressor(features, self.estimator.learning_rate, strength=self.estimator.strength)
        elif (
            estimated
            or self.candidate_prompts
            or "shrunk" in (advantage.pass_rate, advantage.baseline)
            or self.budget.policy == "greedy"
            or plan.max_window is not None
        ):
            own = self.estimator
            estimator = EmaBeta(own.decay, own.prior_positive, own.prior_negative, own.adaptive_prior)
        share = sampling.allocation.share() if isinstance(sampling, EstimationSampling) else None
        rows = RowSettings(
            group=group,
            stop=StopRule(plan.exit, plan.wave_sizes if plan.window is None else (1,), plan.max_responses),
            keep_all=estimated,
            weighting=advantage.weighting,
            objective=advantage.objective.function(),
            share=share if advantage.weighting == "reference" else None,
            normalize=advantage.normalize,
            leave_one_out=advantage.leave_one_out,
            shrunk_baseline=advantage.baseline == "shrunk",
            pass_rate=advantage.pass_rate,
            min_pass_rate=advantage.min_pass_rate,
            max_weight=advantage.max_weight,
        )
        allocation = (
            Allocation(sampling.allocation.share(), sampling.min_responses, sampling.max_responses, sampling.epsilon)
            if isinstance(sampling, EstimationSampling)
            else None
        )
        return AdaSampler(plan, rows, run_seed=run_seed, estimator=estimator, allocation=allocation)

    def plan(self, group: int, max_new_tokens: int) -> SamplingPlan:
        """The sampling plan for groups of n = `group`; raises UserError for settings that contradict each other."""
        sampling, budget = self.sampling, self.budget
        window: int | None = None
        max_window: int | None = None
        if isinstance(sampling, SequentialSampling):
            rule, waves, cap = sampling.exit.rule(group), sampling.waves(group), sampling.max_responses or group
            self._check_sequential(sampling, rule, waves, cap, group)
            if isinstance(sampling.stopping, IssueOrderStopping):
                window, max_window = sampling.stopping.window, sampling.stopping.max_window
                rule = rule if rule.smallest_pool >= group else AtLeastExit(rule, group)
        else:
            rule, waves, cap = FixedExit(1), (sampling.max_responses,), sampling.max_responses
            self._check_estimation(sampling, group)
        self._check_advantage(group)
        plan = SamplingPlan(
            exit=rule,
            wave_sizes=waves,
            max_responses=cap,
            group_size=group,
            max_new_tokens=max_new_tokens,
            positive_threshold=self.positive_threshold,
            scheduler=sampling.scheduler,
            window=window,
            max_window=max_window,
            idle=budget.mode == "idle",
            idle_quantile=budget.idle_quantile,
            seconds_quantile=budget.seconds_quantile,
            caps=Caps(budget.max_samples, budget.max_tokens, budget.max_seconds),
            policy=budget.policy,
            token_reservation=budget.token_reservation,
            expected_tokens=budget.expected_tokens,
            max_failed_share=self.max_failed_share,
        )
        if budget.max_seconds is not None and plan.only_first_waves and not self.reserve_prompts:
            raise UserError(
                f"reinforce_ada.budget.max_seconds={budget.max_seconds:g} bounds what is drawn after first waves, and "
                "here nothing is; set it to null, and to shorten the draw lower grpo.num_prompts_per_step, "
                "grpo.num_generations_per_prompt or the longest response"
            )
        return plan

    def _check_estimation(self, sampling: EstimationSampling, group: int) -> None:
        low, high, here = sampling.min_responses, sampling.max_responses, "reinforce_ada.sampling"
        if not low <= group <= high:
            raise UserError(
                f"grpo.num_generations_per_prompt={group} must lie between {here}.min_responses={low} and "
                f"max_responses={high}: it is the mean allocation"
            )
        uniform = isinstance(sampling.allocation, PowerRule) and sampling.allocation.exponent == 0.0
        if group in (low, high) and not uniform:
            raise UserError(
                f"grpo.num_generations_per_prompt={group} is also {here}.{'min' if group == low else 'max'}_responses: "
                f"every prompt would get {group} responses, which is GRPO; set num_generations_per_prompt to 8 (as "
                f"published, with bounds of 4 and 32), or bounds on both sides of {group}"
            )

    def _check_sequential(
        self, sampling: SequentialSampling, rule: ExitRule, waves: tuple[int, ...], cap: int, group: int
    ) -> None:
        here = "reinforce_ada.sampling"
        if rule.smallest_pool > cap:
            raise UserError(
                f"{here}.exit needs {rule.smallest_pool} responses (k_pos + k_neg), but {here}.max_responses={cap} "
                f"caps every pool below that; raise it to at least {rule.smallest_pool} or lower k_pos and k_neg"
            )
        if max(waves) > cap:
            raise UserError(
                f"{here}.wave_size={max(waves)} is above {here}.max_responses={cap}; lower wave_size to {cap} or raise "
                f"max_responses to {max(waves)}"
            )
        if sampling.stopping.kind == "wave" and waves[0] < group and rule.smallest_pool < group:
            raise UserError(
                f"{here}.wave_size={waves[0]} is below grpo.num_generations_per_prompt={group}: a pool that exits "
                f"after its first wave could not fill a group; raise wave_size to at least {group}"
            )
        if cap < group:
            raise UserError(
                f"{here}.max_responses={cap} is below grpo.num_generations_per_prompt={group}; raise it to {group}"
            )
        if sampling.stopping.kind == "issue_order" and sampling.scheduler == "rounds":
            raise UserError(
                f"{here}.stopping.kind=issue_order judges every response on its own, which {here}.scheduler=rounds "
                f"cannot do; set {here}.scheduler=continuous or {here}.stopping.kind=wave"
            )
        if self.budget.mode == "idle" and (sampling.scheduler == "rounds" or sampling.stopping.kind == "issue_order"):
            raise UserError(
                "reinforce_ada.budget.mode=idle fills the tail of the first waves with whole extra waves; it needs "
                f"{here}.scheduler=continuous and {here}.stopping.kind=wave"
            )
        if self.budget.mode == "idle" and waves[0] != group:
            raise UserError(
                f"{here}.wave_size={waves[0]} is not grpo.num_generations_per_prompt={group}, and the first waves of "
                f"reinforce_ada.budget.mode=idle are GRPO's own; set wave_size to {group}, to null or to a list that "
                f"begins with {group}"
            )
        if self.budget.mode == "idle" and self.reserve_prompts:
            raise UserError(
                f"reinforce_ada.reserve_prompts={self.reserve_prompts} would start new prompts after the first waves, "
                "which reinforce_ada.budget.mode=idle rules out; set reserve_prompts to 0 or mode to capped"
            )

    def _check_advantage(self, group: int) -> None:
        here, advantage = "reinforce_ada.advantage", self.advantage
        if isinstance(self.sampling, EstimationSampling):
            if self.budget.mode == "idle" or self.reserve_prompts:
                raise UserError(
                    "reinforce_ada.sampling.kind=estimation draws once and trains on all of it; it goes with "
                    "reinforce_ada.budget.mode=capped and reinforce_ada.reserve_prompts=0"
                )
            if advantage.pass_rate == "haldane":
                raise UserError(
                    f"{here}.pass_rate=haldane corrects for pools that stop by their labels; the estimation variant's "
                    "do not: use pool or shrunk"
                )
        if advantage.baseline == "shrunk" and (advantage.weighting == "objective" or advantage.normalize != "none"):
            raise UserError(
                f"{here}.baseline=shrunk goes with {here}.weighting=reference and {here}.normalize=none; objective "
                "weighting has its own baseline"
            )
        if advantage.weighting == "objective":
            if advantage.normalize != "none":
                raise UserError(
                    f"{here}.normalize=std with {here}.weighting=objective would multiply by 1/sqrt(p (1-p)), which no "
                    "objective declares; set normalize: none"
                )
            if group < 2:
                raise UserError(
                    f"{here}.weighting=objective needs rows of both labels; grpo.num_generations_per_prompt={group} "
                    "must be at least 2"
                )
        if advantage.pass_rate == "haldane" and (self.budget.mode == "idle" or self.budget.policy == "greedy"):
            raise UserError(
                f"{here}.pass_rate=haldane is right for pools that end by the exit, by N_max or by chance; with "
                "reinforce_ada.budget.mode=idle or policy=greedy labels decide, too: use first_wave or shrunk"
            )
        prefix = isinstance(self.sampling, SequentialSampling) and self.sampling.stopping.kind == "issue_order"
        if prefix and advantage.pass_rate == "haldane" and isinstance(self.sampling, SequentialSampling):
            rule = self.sampling.exit.rule(group)
            if rule.smallest_pool >= group and 1 in (getattr(rule, "k_pos", 2), getattr(rule, "k_neg", 2)):
                raise UserError(
                    f"{here}.pass_rate=haldane with stopping.kind=issue_order and k_pos or k_neg of 1 is the first "
                    "response's label, 0 or 1; ask for 2 of each side at least, or use pass_rate: shrunk"
                )
        if prefix and advantage.pass_rate == "first_wave":
            raise UserError(
                f"{here}.pass_rate=first_wave is not defined with stopping.kind=issue_order, which has no waves; "
                "use haldane or shrunk"
            )
