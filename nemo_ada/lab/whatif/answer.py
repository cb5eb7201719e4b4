"""The answer of `nemo-ada whatif`: a log, its pass rates, and what other ways of sampling would have changed.

Axes: N responses, G groups, U prompts, J pass rates of the mixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from nemo_ada.config.presets import ada_settings, presets
from nemo_ada.core.arrays import BoolArray, FloatArray
from nemo_ada.core.sampling.budget import SECONDS, Budget
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import Estimate, PairedTest, estimate, paired_test
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.lab.simulate.variants import preset_variant
from nemo_ada.lab.whatif.averages import Averages, expected_spread, no_spread
from nemo_ada.lab.whatif.forecast import MOST_PROMPTS, EngineLoad, Row, Setup, figures_by_rate, rows, settings_vary
from nemo_ada.lab.whatif.logs import Rollouts, silent
from nemo_ada.lab.whatif.mixture import RATE_J, Labels, Mixture, Quantity, binomial, labels, positions

LENGTHS = 400  # quantiles of the logged lengths that the simulation uses
PRIOR_RESPONSES = 20.0  # responses with the mean length that join those of each pass rate
NAMED = 100  # prompts that a list names
DOUBTFUL = 1.0  # bounds that had to grow by their own width come from a wrong reading of the log
RARE = 0.01  # pass rates below this count as never correct in practice


@dataclass(frozen=True, slots=True)
class Options:
    """What a user asks for.

    Attributes:
        group: The group size n. None takes the depth of the log.
        presets: Presets. Without any, all that fit.
        max_responses: Further largest numbers of responses per prompt.
        threshold: A response is correct when its reward is above this.
        prompts: Prompts per step. None takes the median of the log.
        slots: Responses that the engine runs at once. None means that all run.
        caps: Caps of a step.
        sampling_seconds: Seconds of the sampling phase of the logged run's steps, in the mean.
        other_seconds: Seconds of the rest of a step.
        gpus: Number of GPUs.
        price: Price of a GPU hour.
        steps: Training steps. None takes those of the log.
        seeds: Repetitions of the simulation.
        times: Whether to simulate. Without it there are no times, and no rows of presets that look at a whole step.
    """

    group: int | None = None
    presets: tuple[str, ...] = ()
    max_responses: tuple[int, ...] = ()
    threshold: float = 0.7
    prompts: int | None = None
    slots: int | None = None
    caps: Budget = field(default_factory=Budget)
    sampling_seconds: float | None = None
    other_seconds: float = 0.0
    gpus: int | None = None
    price: float | None = None
    steps: int | None = None
    seeds: int = 3
    times: bool = False


@dataclass(frozen=True, slots=True)
class LogReport:
    """What the logs hold.

    Attributes:
        forms: Forms of the records.
        responses: Responses. None for a log of averages.
        without_label: Responses without a reward.
        groups: Groups. None for a log of averages.
        prompts: Prompts. None for a log of averages.
        steps: Steps.
        depth: A number of responses that nearly all groups have.
        pass_rate: Mean pass rate of the groups.
        zero_signal: Share of groups whose logged rewards are all equal, whatever the threshold. NaN where the log does
            not say.
        equal_labels: The share whose labels, right or wrong, are all equal. The forecasts are about these.
        tokens: Mean tokens of a response. NaN where nobody knows.
    """

    forms: tuple[str, ...]
    responses: int | None
    without_label: int
    groups: int | None
    prompts: int | None
    steps: int
    depth: int
    pass_rate: Estimate
    zero_signal: Estimate
    equal_labels: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Drift:
    """How pass rates move over the log.

    Attributes:
        first: Mean pass rate in the first third of the steps.
        last: Mean pass rate in the last third.
        same: The last visit of a prompt against its first, for prompts with several. None where there are too few.
    """

    first: Estimate
    last: Estimate
    same: PairedTest | None


@dataclass(frozen=True, slots=True)
class Silent:
    """Prompts that never taught: all labels of all their groups are equal.

    Attributes:
        never_correct: Share of prompts without a correct response in the log. NaN for a log of averages.
        always_correct: Share of prompts without an incorrect one.
        below: Share of groups with a pass rate below RARE.
        above: Share of groups with a pass rate above 1 - RARE.
        rescued: Of the groups without a correct response, the share in which `pool` responses would have one.
        pool: The number of responses that `rescued` is about.
        never: Names of prompts without a correct response, at most NAMED.
        always: Names of prompts without an incorrect one.
    """

    never_correct: float
    always_correct: float
    below: Quantity
    above: Quantity
    rescued: Quantity
    pool: int
    never: tuple[str, ...]
    always: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SamplingCost:
    """Time and money of a row.

    Attributes:
        sampling_seconds: Seconds of a step's sampling phase.
        gpu_hours: GPU hours of all steps.
        money: Their price.
    """

    sampling_seconds: Quantity
    gpu_hours: Quantity | None
    money: Quantity | None


@dataclass(frozen=True, slots=True)
class WhatifReport:
    """Everything that `nemo-ada whatif` says.

    Attributes:
        log: The log.
        drift: Movement of the pass rates. None with one step.
        silent: Prompts that never taught.
        group: The group size n of the rows.
        prompts: Prompts per step.
        rows: The ways of sampling.
        costs: The cost of each row. None where no seconds are known.
        steps: Training steps that the costs are for.
        notes: What a reader must know.
        timed: Whether times were simulated.
        widened: By how much the bounds had to grow until some distribution fits. Above DOUBTFUL the figures say little.
    """

    log: LogReport
    drift: Drift | None
    silent: Silent
    group: int
    prompts: int
    rows: tuple[Row, ...]
    costs: tuple[SamplingCost, ...] | None
    steps: int
    notes: tuple[str, ...]
    timed: bool = False
    widened: float = 0.0


def answer(log: Rollouts | Averages, options: Options, say: Callable[[str], None] = silent) -> WhatifReport:
    """Answer from the rollouts of a log, or from the averages of its steps.

    Args:
        log: The log.
        options: What a user asks for.
        say: Is told what is computed.

    Raises:
        UserError: The log says too little, or an option does not fit it.
    """
    if isinstance(log, Averages):
        return _of_averages(log, options, say)
    logged = _labels(log, options.threshold)
    notes = [*log.notes, *_notes(log, logged, options.threshold)]
    say("fitting the pass rates")
    mixture = Mixture.fit(logged)
    if mixture.widened > 0.0:
        notes.append(
            "no distribution of pass rates explains these groups, as if their responses were not independent (greedy "
            f"decoding, or a filtered or selected log); the bounds were made {mixture.widened:.0%} wider"
        )
    group = options.group or logged.depth
    per_step = np.bincount(logged.step_G)
    prompts = options.prompts or int(np.median(per_step[per_step > 0]))
    lengths, token_error = _lengths(log, options.threshold)
    tokens_J = None if lengths is None else _tokens_by_rate(log, logged, mixture, options.threshold)
    setup = Setup(
        group, prompts, lengths or LengthModel(), tokens_J, token_error, options.slots, seeds=options.seeds,
    )  # fmt: skip
    if lengths is None and options.times:
        notes.append("the log has no tokens: times come from assumed lengths (median 20 tokens, log-normal)")
    speed = partial(_seconds_per_engine_step, log)
    steps = options.steps or log.steps
    found, costs = _rows(mixture, setup, options, speed, steps, notes, say)
    return WhatifReport(
        _log(log, logged), _drift(logged), _silent(log, logged, mixture, group), group, prompts, found, costs, steps,
        tuple(notes), options.times, mixture.widened,
    )  # fmt: skip


def _of_averages(log: Averages, options: Options, say: Callable[[str], None]) -> WhatifReport:
    """Answer from the averages of steps."""
    group = _group(options)
    log = log.with_groups(group)
    mixture, notes = log.mixture(group), list(log.notes)
    if mixture.widened > 0.0:
        notes.append(
            "no distribution of pass rates has this mean and this share of groups without spread, with groups of "
            f"{group}, as if the reward had more values than two, or the group another size; the bounds were made "
            f"{mixture.widened:.0%} wider"
        )
    tokens = float(np.nanmean(log.tokens_T)) if np.isfinite(log.tokens_T).any() else math.nan
    known = math.isfinite(tokens)
    lengths = LengthModel(tokens, 0.0, 1.0, math.ceil(tokens)) if known else LengthModel()
    prompts = options.prompts or MOST_PROMPTS
    if options.prompts is None:
        notes.append(f"the log does not say how many prompts a step has; {prompts} are assumed, --prompts changes this")
    setup = Setup(
        group, prompts, lengths, np.full((2, len(RATE_J)), tokens) if known else None, 0.0, options.slots,
        seeds=options.seeds,
    )  # fmt: skip
    if known:
        notes.append(f"every response is taken to have the mean length, {tokens:,.0f} tokens")
    seconds = float(np.nanmean(log.sampling_T)) if np.isfinite(log.sampling_T).any() else None
    if seconds is not None and options.sampling_seconds is None:
        rest = float(np.nanmean(log.whole_T - log.sampling_T)) if np.isfinite(log.whole_T).any() else 0.0
        options = replace(options, sampling_seconds=seconds, other_seconds=options.other_seconds or max(rest, 0.0))
    steps = options.steps or len(log.mean_T)
    found, costs = _rows(mixture, setup, options, _given_speed, steps, notes, say)
    report = LogReport(
        log.forms,
        None,
        0,
        None,
        None,
        len(log.mean_T),
        group,
        log.pass_rate(),
        log.zero_signal(),
        log.zero_signal().mean,
        tokens,
    )
    return WhatifReport(
        report, None, _below(mixture, group, group), group, prompts, found, costs, steps, tuple(notes), options.times,
        mixture.widened,
    )  # fmt: skip


def _group(options: Options) -> int:
    """Return the group size of a log of averages, which only the user knows."""
    if options.group is None:
        raise UserError(
            "the log has averages of steps, which do not say how many responses a prompt got; give --group (TRL's "
            "num_generations, 8 where it was not set; verl's rollout.n; NeMo-RL's num_generations_per_prompt)"
        )
    return options.group


def _given_speed(grpo_steps: float, options: Options) -> tuple[float | None, str | None]:
    return (None if options.sampling_seconds is None else options.sampling_seconds / grpo_steps), None


def _rows(
    mixture: Mixture, setup: Setup, options: Options,
    speed: Callable[[float, Options], tuple[float | None, str | None]], steps: int, notes: list[str],
    say: Callable[[str], None],
) -> tuple[tuple[Row, ...], tuple[SamplingCost, ...] | None]:  # fmt: skip
    """Return the rows and their costs, and add to the notes. `speed` gives the seconds of an engine step."""
    per_engine_step, grpo_steps = None, 1.0
    if options.times:
        say("simulating a step of grpo")
        grpo_steps = EngineLoad(mixture, setup).grpo_steps()
        per_engine_step, origin = speed(grpo_steps, options)
        notes += [] if origin is None else [origin]
    setup = replace(setup, caps=_caps(options, per_engine_step), times=options.times)
    found, left_out = rows(mixture, setup, options.presets, options.max_responses, say)
    notes += [f"left out: {text}" for text in left_out]
    if per_engine_step is None:
        return tuple(found), None
    return tuple(found), tuple(_cost(row, per_engine_step * grpo_steps, options, steps) for row in found)


def _labels(rollouts: Rollouts, threshold: float, first: int | None = None) -> Labels:
    return labels(rollouts.group_N, rollouts.reward_N, rollouts.prompt_G, rollouts.step_G, threshold, first)


def _notes(rollouts: Rollouts, logged: Labels, threshold: float) -> list[str]:
    """Return what a reader must know about rewards, groups and tokens."""
    notes = []
    there = rollouts.reward_N[np.isfinite(rollouts.reward_N)]
    values = np.unique(there)
    if len(values) > 2:
        some = ", ".join(f"{value:g}" for value in values[:5])
        notes.append(
            f"rewards have {len(values):,} values ({some}{', ...' if len(values) > 5 else ''}); a response counts as "
            f"correct above {threshold:g} ({np.mean(there > threshold):.1%} of them); --threshold changes this"
        )
    if len(there) and (np.all(there > threshold) or not np.any(there > threshold)):
        side = "above" if there[0] > threshold else "at or below"
        notes.append(f"every reward is {side} the threshold {threshold:g}: is it the right one? see --threshold")
    without = len(rollouts.reward_N) - len(there)
    if without:
        notes.append(
            f"{without:,} of {len(rollouts.reward_N):,} responses have no label: their reward is null or NaN. They are "
            "failures, or placeholder rows of an adaptive run, whose rows are a selection. Use a log of all responses"
        )
    sizes, counts = np.unique(logged.total_G, return_counts=True)
    if counts.max() < 0.9 * counts.sum():
        notes.append(
            f"groups have {sizes[0]} to {sizes[-1]} responses. The bounds use the first {logged.depth} of each, in the "
            "order of the log. They are wrong where labels decided which responses were kept"
        )
    if not rollouts.counted:
        notes.append("tokens are estimated from the text, four letters each")
    return notes


def _lengths(rollouts: Rollouts, threshold: float) -> tuple[LengthModel | None, float]:
    """Return the logged lengths by label, and the relative standard error of their mean over prompts."""
    known_N = np.isfinite(rollouts.tokens_N) & np.isfinite(rollouts.reward_N) & (rollouts.tokens_N > 0)
    if not known_N.any():
        return None, 0.0
    tokens_N, correct_N = rollouts.tokens_N[known_N], rollouts.reward_N[known_N] > threshold
    places = (np.arange(LENGTHS) + 0.5) / LENGTHS

    def quantiles(chosen_N: FloatArray) -> tuple[int, ...]:
        return tuple(np.maximum(1, np.quantile(chosen_N, places, method="nearest")).astype(int).tolist())

    every = quantiles(tokens_N)
    right, wrong = (
        quantiles(tokens_N[side_N]) if side_N.sum() >= PRIOR_RESPONSES else every for side_N in (correct_N, ~correct_N)
    )
    mean = float(tokens_N.mean())
    prompt_N = rollouts.prompt_G[rollouts.group_N[known_N]]
    sums_U = np.bincount(prompt_N, tokens_N - mean)
    error = math.sqrt(float((sums_U**2).sum())) / len(tokens_N) / mean
    lengths = LengthModel(max(mean, 1.0), 0.0, 1.0, int(max(tokens_N.max(), 1)), right, wrong)
    return lengths, error


def _tokens_by_rate(rollouts: Rollouts, logged: Labels, mixture: Mixture, threshold: float) -> FloatArray:
    """Mean tokens of correct and of incorrect responses by pass rate, [2, J]. Hard prompts may have longer ones."""
    groups = len(rollouts.prompt_G)
    known_N = np.isfinite(rollouts.tokens_N) & np.isfinite(rollouts.reward_N)
    group_N, tokens_N = rollouts.group_N[known_N], rollouts.tokens_N[known_N]
    correct_N = rollouts.reward_N[known_N] > threshold
    pos_G, total_G = (
        np.bincount(chosen_N, minlength=groups)
        for chosen_N in (group_N[correct_N], group_N)
    )  # fmt: skip
    size = int(total_G.max()) + 1
    code_G = total_G * size + pos_G
    code_K, place_G = np.unique(code_G, return_inverse=True)
    share_KJ = binomial(code_K % size, code_K // size) * np.maximum(mixture.weight_J, 1e-12)
    share_KJ /= share_KJ.sum(axis=1, keepdims=True)
    means = []
    for side_N in (correct_N, ~correct_N):
        overall = float(tokens_N[side_N].mean()) if side_N.any() else float(tokens_N.mean())
        place_N = place_G[group_N[side_N]]
        sum_K = np.bincount(place_N, tokens_N[side_N], len(code_K))
        count_K = np.bincount(place_N, minlength=len(code_K))
        means.append((sum_K @ share_KJ + PRIOR_RESPONSES * overall) / (count_K @ share_KJ + PRIOR_RESPONSES))
    return np.array(means)


def _seconds_per_engine_step(
    rollouts: Rollouts, grpo_steps: float, options: Options
) -> tuple[float | None, str | None]:
    """Return the seconds of an engine step, and what was assumed for them. None where neither log nor user says."""
    if options.sampling_seconds is not None:
        return options.sampling_seconds / grpo_steps, None
    known_N = np.isfinite(rollouts.seconds_N) & (rollouts.tokens_N > 0)
    if known_N.sum() < PRIOR_RESPONSES:
        return None, None
    seconds = float(rollouts.seconds_N[known_N].sum() / rollouts.tokens_N[known_N].sum())
    return seconds, f"seconds come from the log: {1.0 / seconds:,.1f} tokens per second and response"


def _caps(options: Options, per_engine_step: float | None) -> Budget:
    """Return the caps of a step, with seconds in engine steps."""
    caps = options.caps.caps()
    if SECONDS in caps:
        if per_engine_step is None:
            raise UserError(
                f"--max-seconds={caps[SECONDS]:g} needs the speed of the engine, which the log does not have; give "
                "--sampling-seconds, the mean time of the logged run's sampling phase"
            )
        caps[SECONDS] = max(1.0, caps[SECONDS] / per_engine_step)
    return options.caps.capped_by(caps)


def _cost(row: Row, grpo_seconds: float, options: Options, steps: int) -> SamplingCost:
    """Return seconds, GPU hours and money of a row."""
    sampling = row.time.times(grpo_seconds)
    if options.gpus is None:
        return SamplingCost(sampling, None, None)
    hours = steps * options.gpus / 3600.0
    whole = Quantity(*(value + options.other_seconds for value in (sampling.value, sampling.low, sampling.high)))
    gpu_hours = whole.times(hours)
    return SamplingCost(sampling, gpu_hours, None if options.price is None else gpu_hours.times(options.price))


def _log(rollouts: Rollouts, logged: Labels) -> LogReport:
    rate_G = logged.pos_G / logged.total_G
    equal_G = ((logged.pos_G == 0) | (logged.pos_G == logged.total_G)).astype(np.float64)
    return LogReport(
        rollouts.forms, len(rollouts.group_N), int((~np.isfinite(rollouts.reward_N)).sum()), len(logged.pos_G),
        len(rollouts.names_U), rollouts.steps, logged.depth, estimate(rate_G), estimate(_without_spread(rollouts)),
        float(equal_G.mean()),
        float(np.nanmean(rollouts.tokens_N)) if np.isfinite(rollouts.tokens_N).any() else math.nan,
    )  # fmt: skip


def _without_spread(rollouts: Rollouts) -> FloatArray:
    """Return for each group with at least two rewards whether they are all equal, as they were logged."""
    keep_N = np.isfinite(rollouts.reward_N)
    group_N, reward_N = rollouts.group_N[keep_N], rollouts.reward_N[keep_N]
    groups = len(rollouts.prompt_G)
    low_G, high_G = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low_G, group_N, reward_N)
    np.maximum.at(high_G, group_N, reward_N)
    several_G = np.bincount(group_N, minlength=groups) > 1
    return (low_G == high_G)[several_G].astype(np.float64)


def _drift(logged: Labels) -> Drift | None:
    """Compare the ends of the log, and the ends of each prompt's visits."""
    steps = int(logged.step_G.max()) + 1
    if steps < 2:
        return None
    third = max(1, steps // 3)
    rate_G = logged.pos_G / logged.total_G
    first, last = (estimate(rate_G[chosen_G]) for chosen_G in (logged.step_G < third, logged.step_G >= steps - third))
    order_G = np.lexsort((logged.step_G, logged.prompt_G))
    prompt_G = logged.prompt_G[order_G]
    starts_U = np.flatnonzero(np.r_[True, prompt_G[1:] != prompt_G[:-1]])
    ends_U = np.r_[starts_U[1:], len(prompt_G)] - 1
    several_U = ends_U > starts_U
    same = None
    if several_U.sum() >= 2:
        same = paired_test(rate_G[order_G][starts_U[several_U]], rate_G[order_G][ends_U[several_U]])
    return Drift(first, last, same)


def _silent(rollouts: Rollouts, logged: Labels, mixture: Mixture, group: int) -> Silent:
    """Find prompts whose labels are all equal, and say what deeper pools would find."""
    count = len(rollouts.names_U)
    pos_U = np.bincount(logged.prompt_G, logged.pos_G, count)
    total_U = np.bincount(logged.prompt_G, logged.total_G, count)
    never_U, always_U = (total_U > 0) & (pos_U == 0), (total_U > 0) & (pos_U == total_U)
    tested = int((total_U > 0).sum())
    return replace(
        _below(mixture, logged.depth, group),
        never_correct=float(never_U.sum() / tested), always_correct=float(always_U.sum() / tested),
        never=_names(rollouts, never_U), always=_names(rollouts, always_U),
    )  # fmt: skip


def _below(mixture: Mixture, depth: int, group: int) -> Silent:
    """Say how many groups have extreme pass rates, and what deeper pools would find. Shares of prompts are NaN."""
    pool = ada_settings({"preset": "ada_seq_balance"}).plan(max(group, 2), 1).max_responses
    silent_J = (1.0 - RATE_J) ** depth
    rescued_J = silent_J * (1.0 - (1.0 - RATE_J) ** max(pool - depth, 0))
    below, above = ((side_J < RARE).astype(np.float64) for side_J in (RATE_J, 1.0 - RATE_J))
    return Silent(
        math.nan, math.nan, mixture.share(below), mixture.share(above), mixture.share(rescued_J, silent_J), pool, (), ()
    )


def _names(rollouts: Rollouts, chosen_U: BoolArray) -> tuple[str, ...]:
    return tuple(rollouts.names_U[u] for u in np.flatnonzero(chosen_U)[:NAMED])


@dataclass(frozen=True, slots=True)
class Checked:
    """A prediction beside what the log shows.

    Attributes:
        what: The quantity.
        predicted: The prediction from the first responses of each group.
        seen: What the whole groups show.
        covered: Whether the bounds hold it.
    """

    what: str
    predicted: Quantity
    seen: float
    covered: bool


def backtest(rollouts: Rollouts | Averages, options: Options) -> list[Checked]:
    """Predict whole groups from the first half of each, and compare. Of averages one is predicted from the others.

    Raises:
        UserError: The groups are too small, or the log has too few averages.
    """
    if isinstance(rollouts, Averages):
        return _left_out(rollouts.with_groups(_group(options)), _group(options))
    logged = _labels(rollouts, options.threshold)
    half, depth = logged.depth // 2, logged.depth
    if half < 2:
        raise UserError(f"--backtest needs groups of at least 4 responses, and these have {depth}")
    mixture = Mixture.fit(_labels(rollouts, options.threshold, half))
    label_GI = _label_table(rollouts, options.threshold, depth)
    pos_G = label_GI.sum(axis=1)
    zero_J = RATE_J**depth + (1.0 - RATE_J) ** depth
    wrong_J, seen_zero = (1.0 - RATE_J) ** depth, float(((pos_G == 0) | (pos_G == depth)).mean())
    checks = [
        (f"groups of {depth} without signal", mixture.mean(zero_J), seen_zero),
        (f"groups of {depth} without a correct response", mixture.mean(wrong_J), float((pos_G == 0).mean())),
    ]
    rules = dict[StopRule, None]()
    for name in options.presets or presets():
        for group in (half, depth):
            checks += _replayed(name, group, label_GI, mixture, rules)
    return [Checked(what, figure, seen, figure.low <= seen <= figure.high) for what, figure, seen in checks]


def _left_out(log: Averages, group: int) -> list[Checked]:
    """Predict the share of groups without spread and the groups' spread from each other and the mean reward."""
    if not (np.isfinite(log.zero_T).any() and np.isfinite(log.spread_T).any()) or log.others:
        raise UserError(
            "--backtest of averages needs the mean reward, the share of groups without spread (frac_reward_zero_std) "
            "and the spread of a group (reward_std), all of one reward"
        )
    alone, with_spread, with_zero = Mixture.from_moments(
        RATE_J[None], *(np.array([value]) for value in _ends(log.pass_rate()))
    ), log.mixture(group, leave_out="zero"), log.mixture(group)  # fmt: skip
    zero, spread = float(np.nanmean(log.zero_T)), float(np.nanmean(log.spread_T))
    what = f"groups of {group} without spread"
    checks = [
        (f"{what}, from the mean", alone.share(no_spread(group)), zero),
        (f"{what}, from mean and spread", with_spread.share(no_spread(group)), zero),
        ("spread of a group, from mean and share without spread", with_zero.mean(expected_spread(group)), spread),
    ]
    return [Checked(what, figure, seen, figure.low <= seen <= figure.high) for what, figure, seen in checks]


def _ends(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.mean, estimate.low, estimate.high


def _replayed(
    name: str, group: int, label_GI: BoolArray, mixture: Mixture, rules: dict[StopRule, None]
) -> list[tuple[str, Quantity, float]]:
    """Predictions of a preset with at most as many responses as were logged, beside the replay of the logged ones.

    Args:
        name: The preset.
        group: The group size n.
        label_GI: Labels of each group.
        mixture: The pass rates.
        rules: Rules that were compared before, which are left out. It gets the rule of this preset.
    """
    depth = label_GI.shape[1]
    settings = ada_settings({"preset": name})
    if not settings_vary(settings, group):
        return []
    try:
        capped = ada_settings({"preset": name, "sampling": {"max_responses": depth}})
        rule = preset_variant(name, capped, group, LengthModel()).plan.stop_rule
    except UserError:
        return []
    if rule.cap > depth or rule in rules or rule.judged().sum() < 2:
        return []
    rules[rule] = None
    by_rate = figures_by_rate(rule, group)
    size_G, mixed_G = replay(rule, label_GI)
    what = f"{name}, n={group}, at most {depth}"
    return [
        (f"{what}: responses", mixture.mean(by_rate.responses_J), float(size_G.mean())),
        (f"{what}: groups without signal", mixture.mean(by_rate.zero_J), float((~mixed_G).mean())),
    ]


def replay(rule: StopRule, label_GI: BoolArray) -> tuple[FloatArray, BoolArray]:
    """Stop each group's logged responses where a rule would have stopped.

    Args:
        rule: The rule, whose cap is at most the number of logged responses.
        label_GI: Labels in the order of the log.

    Returns:
        Responses of each pool, and whether it has both labels.
    """
    pos_GN = np.c_[np.zeros(len(label_GI), np.int64), label_GI[:, : rule.cap].cumsum(axis=1)]
    total_N = np.arange(rule.cap + 1)
    ends_GN = rule.ends()[total_N[None], pos_GN]
    size_G = ends_GN.argmax(axis=1)
    pos_G = pos_GN[np.arange(len(pos_GN)), size_G]
    return size_G.astype(np.float64), (pos_G > 0) & (pos_G < size_G)


def _label_table(rollouts: Rollouts, threshold: float, depth: int) -> BoolArray:
    """Labels of the first `depth` responses of every group that has as many, [G, I]."""
    keep_N = np.isfinite(rollouts.reward_N)
    group_N, correct_N = rollouts.group_N[keep_N], rollouts.reward_N[keep_N] > threshold
    index_N = positions(group_N)
    table_GI = np.zeros((len(rollouts.prompt_G), depth), np.bool_)
    early_N = index_N < depth
    table_GI[group_N[early_N], index_N[early_N]] = correct_N[early_N]
    return table_GI[np.bincount(group_N, minlength=len(table_GI)) >= depth]
