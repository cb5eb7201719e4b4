"""What each way of sampling would have cost and given, from the pass rates of a log.

Rules that look at one prompt at a time, and the single stream, are computed exactly (`simulate.exact`), for every pass
rate. The estimation variant and caps of a step depend on the whole step. These figures, and all times, come
from the simulated engine (`simulate.steps`) with the logged lengths.
Axes: J pass rates of the mixture, E endings of a pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nemo_ada.config.ada import AdaSettings, SequentialSampling
from nemo_ada.config.presets import ada_settings, presets
from nemo_ada.core.arrays import FloatArray
from nemo_ada.core.learning.factor import factors
from nemo_ada.core.learning.settings import RowSettings
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.errors import UserError
from nemo_ada.lab.simulate import exact
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.lab.simulate.steps import MeanAndError, MeasuredRates, Setting, SimulatedVariant, Variant, compare
from nemo_ada.lab.simulate.variants import preset_variant
from nemo_ada.lab.whatif.logs import silent
from nemo_ada.lab.whatif.mixture import RATE_J, Mixture, Quantity

GRPO, REFILL = "grpo", "dapo"
MOST_PROMPTS = 64  # of a simulated step; engine and caps shrink in proportion
DRAWN_RATES = 1000  # pass rates that stand for the mixture in the simulation
ERRORS = 2.0  # standard errors of the simulation that a bound adds
MAX_BATCHES = 10  # of NeMo-RL's dynamic sampling, its default
REFILL_ROW = f"DAPO's refill, at most {MAX_BATCHES} batches"
UNKNOWN = Quantity(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Setup:
    """The training whose steps are asked for.

    Attributes:
        group: The group size n.
        prompts: Prompts per step.
        lengths: Lengths of the responses.
        tokens_J: Mean tokens of a correct and of an incorrect response by pass rate, [2, J]. None where nobody knows.
        token_error: Relative standard error of the mean tokens.
        slots: Largest number of responses that the engine runs at once. None means that all run.
        caps: The caps of a step, with seconds in engine steps.
        seeds: Repetitions of the simulation.
        times: Whether to simulate times, and the presets that look at a whole step.
    """

    group: int
    prompts: int
    lengths: LengthModel
    tokens_J: FloatArray | None
    token_error: float
    slots: int | None = None
    caps: Budget = field(default_factory=Budget)
    seeds: int = 3
    times: bool = False

    @property
    def capped(self) -> bool:
        """Whether a step has caps."""
        return bool(self.caps.caps())


@dataclass(frozen=True, slots=True)
class Row:
    """One way of sampling. Figures are per prompt of a step.

    Attributes:
        name: The preset, or the method of others.
        max_responses: Largest number of responses per prompt. None where there is none.
        responses: Responses.
        tokens: Generated tokens.
        zero_signal: Share of groups whose labels are all equal. NaN where equal labels teach.
        signal: Expected update along the gradient of the pass rate, relative to GRPO with n responses. NaN where the
            rows have other weights.
        signal_per_response: The same per response.
        time: Duration of the sampling phase, relative to GRPO with n responses.
        simulated: Whether the responses come from the simulated engine. Otherwise they are computed.
    """

    name: str
    max_responses: int | None
    responses: Quantity
    tokens: Quantity
    zero_signal: Quantity
    signal: Quantity
    signal_per_response: Quantity
    time: Quantity
    simulated: bool = False


def rows(
    mixture: Mixture, setup: Setup, names: Sequence[str] = (), max_responses: Sequence[int] = (),
    say: Callable[[str], None] = silent,
) -> tuple[list[Row], list[str]]:  # fmt: skip
    """Compute the rows of presets and of DAPO's refill.

    Args:
        mixture: The pass rates.
        setup: The training.
        names: Presets, and `dapo` for its refill. Without any, all that fit the group size.
        max_responses: Further largest numbers of responses per prompt, for presets that draw in waves until labels
            decide.
        say: Is told which row is computed.

    Returns:
        The rows, and the presets that were left out, each with its reason.

    Raises:
        UserError: A preset that was named does not fit.
    """
    engine = EngineLoad(mixture, setup)
    found, left_out = [], list[str]()
    waiting = list[str]()
    for name in names or presets():
        if name == REFILL:  # below, because no preset's simulation covers it
            continue
        try:
            settings = ada_settings({"preset": name})
            variant = preset_variant(name, settings, setup.group, setup.lengths)
        except UserError as unfit:
            if names:
                raise
            left_out.append(f"{name}: {unfit}")
            continue
        variant = replace(variant, name=variant.name.removesuffix(f" (n={setup.group})"))
        if not names and not setup.times and (setup.capped or not (_alone(settings, variant) or variant.own_baseline)):
            waiting.append(name)
            continue
        say(f"computing {name}")
        found.append(_row(engine, settings, variant))
        for cap in sorted(set(max_responses)) if settings_vary(settings, setup.group) else []:
            if cap != variant.plan.max_responses:
                found += _with_cap(engine, name, cap, left_out)
    if waiting:
        left_out.append(f"{', '.join(waiting)} and all times, which are simulated: --times")
    if not names or REFILL in names:
        found.append(_refill(engine))
    return found, left_out


def settings_vary(settings: AdaSettings, group: int) -> bool:
    """Return whether labels decide how many responses a prompt gets, between n and a largest number."""
    sampling = settings.sampling
    return isinstance(sampling, SequentialSampling) and sampling.max_responses is not None


def _with_cap(engine: EngineLoad, name: str, cap: int, left_out: list[str]) -> Iterator[Row]:
    """Yield the row of a preset with another largest number of responses. None where it does not fit."""
    setup = engine.setup
    try:
        settings = ada_settings({"preset": name, "sampling": {"max_responses": cap}})
        variant = preset_variant(name, settings, setup.group, setup.lengths)
    except UserError as unfit:
        left_out.append(f"{name} with at most {cap} responses: {unfit}")
        return
    yield _row(engine, settings, replace(variant, name=name))


def _alone(settings: AdaSettings, variant: Variant) -> bool:
    """Return whether a preset looks at one prompt at a time, so that its figures are computed."""
    return isinstance(settings.sampling, SequentialSampling) and not variant.own_baseline


def _row(engine: EngineLoad, settings: AdaSettings, variant: Variant) -> Row:
    """Return the row of a preset."""
    plan, setup = variant.plan, engine.setup
    if variant.own_baseline and not setup.capped:
        return _single(engine, variant)
    if not _alone(settings, variant) or setup.capped:
        return engine.simulated(variant)
    by_rate = figures_by_rate(plan.stop_rule, setup.group)
    reference = settings.advantage.weighting == "reference"
    tokens_J = None if setup.tokens_J is None else (by_rate.answers_J * setup.tokens_J).sum(axis=0)
    row = engine.exact(variant.name, plan.max_responses, by_rate.responses_J, tokens_J, by_rate.zero_J)
    signal, per_response = engine.signal(by_rate.signal_J, by_rate.responses_J) if reference else (UNKNOWN, UNKNOWN)
    time = engine.time(variant, by_rate.responses_J)
    return replace(row, signal=signal, signal_per_response=per_response, time=time)


def _single(engine: EngineLoad, variant: Variant) -> Row:
    """Return the row of a single stream: as many responses as GRPO's, each of a prompt of its own.

    A baseline that does not know the response's own label leaves the whole gradient, where the mean of a group leaves
    (n-1)/n of it. How much noise the baseline adds, no log of GRPO says.
    """
    responses_J = np.full(len(RATE_J), float(engine.setup.group))
    row = engine.exact(variant.name, 1, responses_J, _grpo_tokens(engine), engine.zero_J)
    signal, per_response = engine.signal(responses_J * RATE_J * (1.0 - RATE_J), responses_J)
    time = engine.time(variant, responses_J)
    return replace(row, zero_signal=UNKNOWN, signal=signal, signal_per_response=per_response, time=time)


@dataclass(frozen=True, slots=True)
class ByRate:
    """Expectations for each pass rate of the mixture.

    Attributes:
        responses_J: Responses of a pool.
        answers_J: Correct and incorrect responses, [2, J].
        zero_J: Probability that all labels are equal.
        signal_J: Expected update of a group of n rows along the gradient of the pass rate.
    """

    responses_J: FloatArray
    answers_J: FloatArray
    zero_J: FloatArray
    signal_J: FloatArray


def figures_by_rate(rule: StopRule, group: int) -> ByRate:
    """Compute the expectations of a rule."""
    found = []
    for p in RATE_J.tolist():
        summary, end = exact.summary(rule, p), exact.endings(rule)
        inside = 0.0 < p < 1.0
        factor = float(factors(RowSettings(group, rule), np.array([p]))[0]) if inside else 0.0
        pos = end.mean(end.pos_E, p)
        signal = group * p * (1.0 - p) * factor
        found.append((summary.expected_samples, pos, summary.expected_samples - pos, summary.p_zero_signal, signal))
    responses_J, pos_J, neg_J, zero_J, signal_J = np.array(found).T
    return ByRate(responses_J, np.stack([pos_J, neg_J]), zero_J, signal_J)


class EngineLoad:
    """Figures under the mixture, and the simulated engine with its reference: GRPO with n responses."""

    def __init__(self, mixture: Mixture, setup: Setup) -> None:
        self.mixture, self.setup = mixture, setup
        self._grpo = preset_variant(GRPO, ada_settings({"preset": GRPO}), setup.group, setup.lengths)
        self._scale = max(1.0, setup.prompts / MOST_PROMPTS)
        self._references: dict[bytes, SimulatedVariant] = {}
        n = setup.group
        self.zero_J = RATE_J**n + (1.0 - RATE_J) ** n
        self.zero = mixture.share(self.zero_J)
        self._grpo_signal_J = (n - 1) * RATE_J * (1.0 - RATE_J)

    def exact(
        self, name: str, cap: int | None, responses_J: FloatArray, tokens_J: FloatArray | None, zero_J: FloatArray
    ) -> Row:
        """Return a row of computed figures, without signal and time."""
        mean = self.mixture.mean
        tokens = UNKNOWN if tokens_J is None else self._with_token_error(mean(tokens_J))
        return Row(name, cap, mean(responses_J), tokens, self.mixture.share(zero_J), UNKNOWN, UNKNOWN, UNKNOWN)

    def signal(self, signal_J: FloatArray, responses_J: FloatArray) -> tuple[Quantity, Quantity]:
        """Return the signal of a group relative to GRPO's, and the same per response."""
        signal = self.mixture.mean(signal_J, self._grpo_signal_J)
        per_response = self.mixture.per_cost(signal_J, self._grpo_signal_J, responses_J)
        return signal, per_response.times(self.setup.group)

    def _with_token_error(self, tokens: Quantity) -> Quantity:
        wider = ERRORS * self.setup.token_error
        return Quantity(tokens.value, tokens.low * max(0.0, 1.0 - wider), tokens.high * (1.0 + wider))

    def grpo_steps(self) -> float:
        """Engine steps of GRPO's sampling phase with n responses."""
        return self._reference(self.mixture.weight_J).engine_steps.mean

    def time(self, variant: Variant, responses_J: FloatArray) -> Quantity:
        """The duration of the sampling phase, at the likely pass rates and at the two extreme ones for responses."""
        if variant.plan == self._grpo.plan:
            return Quantity(1.0, 1.0, 1.0)
        if not self.setup.times:
            return UNKNOWN
        ratios = []
        for weight_J in (self.mixture.weight_J, *self.mixture.extremes(responses_J)):
            there, reference = self._run(variant, weight_J), self._reference(weight_J)
            ratios.append(_ratio(there.engine_steps, reference.engine_steps))
        return _hull(ratios)

    def simulated(self, variant: Variant) -> Row:
        """Return a row whose figures all come from the simulated engine."""
        found, n = list[tuple[MeanAndError, ...]](), self.setup.group
        for weight_J in (self.mixture.weight_J, *self.mixture.extremes(self.zero_J)):
            there, reference = self._run(variant, weight_J), self._reference(weight_J)
            per_prompt = [_per(figure, self._prompts) for figure in (there.responses, there.tokens)]
            found.append((*per_prompt, there.zero_signal, _ratio(there.engine_steps, reference.engine_steps)))
        responses, tokens, zero, time = (_hull(column) for column in zip(*found, strict=True))
        known = self.setup.tokens_J is not None
        cap = n if variant.own_baseline else variant.plan.max_responses
        tokens = self._with_token_error(tokens) if known else UNKNOWN
        return Row(variant.name, cap, responses, tokens, zero.clipped(), UNKNOWN, UNKNOWN, time, simulated=True)

    @property
    def _prompts(self) -> int:
        return min(self.setup.prompts, MOST_PROMPTS)

    def _reference(self, weight_J: FloatArray) -> SimulatedVariant:
        """GRPO with n responses."""
        key = weight_J.tobytes()
        if key not in self._references:
            self._references[key] = self._run(self._grpo, weight_J, capped=False)
        return self._references[key]

    def _run(self, variant: Variant, weight_J: FloatArray, *, capped: bool = True) -> SimulatedVariant:
        """Simulate a variant over pass rates with these weights."""
        place_R = (np.arange(DRAWN_RATES) + 0.5) / DRAWN_RATES
        chosen_R = np.searchsorted(np.cumsum(weight_J) / weight_J.sum(), place_R)
        rates = MeasuredRates(tuple(RATE_J[np.minimum(chosen_R, len(RATE_J) - 1)].tolist()))
        slots = self.setup.slots
        if capped and self.setup.capped:
            shrunk = variant.plan.budget.capped_by(self.setup.caps.shrunk(self._scale).caps())
            variant = replace(variant, plan=replace(variant.plan, budget=shrunk))
        slots = None if slots is None else max(1, round(slots / self._scale))
        setting = Setting(rates, self._prompts, self.setup.lengths, self.setup.seeds, slots=slots)
        return compare([variant], setting)[0]


def _refill(engine: EngineLoad) -> Row:
    """DAPO's refill: NeMo-RL draws whole batches until as many groups have both labels as a step has prompts.

    What is missing after the last batch counts as groups without signal.
    """
    from scipy.special import bdtr

    n, prompts = engine.setup.group, engine.setup.prompts
    zero = engine.zero
    share_S = np.r_[zero.value, np.linspace(zero.low, zero.high, 50)]  # of groups without signal
    drawn = np.arange(1, MAX_BATCHES)  # another batch follows while fewer than `prompts` groups are mixed
    batches_S = 1.0 + np.array([bdtr(prompts - 1.0, drawn * prompts, 1.0 - share).sum() for share in share_S])
    short_S = np.array(
        [bdtr(np.arange(prompts), MAX_BATCHES * prompts, 1.0 - share).sum() / prompts for share in share_S]
    )  # the mean of what is missing is the sum of P(at most k found) over k below `prompts`
    some_S = share_S < 1.0 - 1e-9
    most_S = np.full(len(share_S), float(MAX_BATCHES))  # where one group in many has both labels, all batches are drawn
    signal_S = np.divide(1.0 - short_S, 1.0 - share_S, out=most_S, where=some_S)
    tokens = UNKNOWN
    grpo_J = _grpo_tokens(engine)
    if grpo_J is not None:
        per_batch, count = engine.exact("", n, grpo_J, grpo_J, engine.zero_J).tokens, _over(batches_S)
        tokens = Quantity(per_batch.value * count.value, per_batch.low * count.low, per_batch.high * count.high)
    return Row(
        REFILL_ROW, None, _over(n * batches_S), tokens, _over(short_S).clipped(),
        _over(signal_S), _over(signal_S / batches_S), _over(batches_S),
    )  # fmt: skip


def _over(value_S: FloatArray) -> Quantity:
    """Return the first value, with bounds around all of them."""
    return Quantity(float(value_S[0]), float(value_S.min()), float(value_S.max()))


def _grpo_tokens(engine: EngineLoad) -> FloatArray | None:
    """Return the tokens of n responses by pass rate."""
    tokens_J = engine.setup.tokens_J
    return None if tokens_J is None else engine.setup.group * (RATE_J * tokens_J[0] + (1.0 - RATE_J) * tokens_J[1])


def _per(figure: MeanAndError, count: int) -> MeanAndError:
    return MeanAndError(figure.mean / count, figure.error / count)


def _ratio(above: MeanAndError, below: MeanAndError) -> MeanAndError:
    """Return the ratio of two simulated figures. Its error takes them as independent, which is too large here."""
    ratio = above.mean / below.mean
    parts = [figure.error / figure.mean for figure in (above, below) if figure.mean and math.isfinite(figure.error)]
    return MeanAndError(ratio, ratio * math.hypot(*parts))


def _hull(figures: Sequence[MeanAndError]) -> Quantity:
    """Return the first figure, with bounds around all of them. No figure here can be below 0."""
    errors = [figure.error if math.isfinite(figure.error) else 0.0 for figure in figures]
    low = min(figure.mean - ERRORS * error for figure, error in zip(figures, errors, strict=True))
    high = max(figure.mean + ERRORS * error for figure, error in zip(figures, errors, strict=True))
    return Quantity(figures[0].mean, max(low, 0.0), high)
