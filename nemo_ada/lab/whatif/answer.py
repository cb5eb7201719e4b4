"""The answer of `nemo-ada whatif`: a log, its pass rates, and what other ways of sampling would have changed.

Axes: N responses, G groups, U prompts, J pass rates of the mixture, K different pairs of correct and all responses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from nemo_ada.config.presets import ada_settings
from nemo_ada.core.arrays import BoolArray, FloatArray
from nemo_ada.core.schema import STRICT, Bounds
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import Estimate, PairedTest, estimate, paired_test
from nemo_ada.lab.whatif.averages import Averages
from nemo_ada.lab.whatif.forecast import Forecast, Row, rows
from nemo_ada.lab.whatif.logs import Rollouts
from nemo_ada.lab.whatif.mixture import RATE_J, Labels, Mixture, binomial, labels, no_spread

PRIOR_RESPONSES = 20.0  # responses with the mean length that join those of each pass rate
NAMED = 100  # prompts that a list names
DOUBTFUL = 1.0  # bounds that had to grow by their own width come from a wrong reading of the log
RARE = 0.01  # pass rates below this count as never correct in practice
USUAL_PROMPTS = 64  # per step, where a log does not say


@dataclass(frozen=True, slots=True)
class Options:
    """What a user asks for. Outside the bounds there is no answer, or it takes hours."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    group: Annotated[int, Bounds(ge=2, le=64)] | None = None
    """n, rows per prompt (default: responses per prompt of the log)."""
    presets: tuple[str, ...] = ()
    """Presets to compare, or dapo (default: all that fit)."""
    max_responses: tuple[Annotated[int, Bounds(ge=2, le=1024)], ...] = ()
    """Another largest number of responses per prompt; may be repeated."""
    threshold: Annotated[float, Bounds(ge=-1e12, le=1e12)] = 0.7
    """A response is correct when its reward is above this."""
    prompts: Annotated[int, Bounds(ge=1, le=100_000)] | None = None
    """Prompts per step, for dapo (default: those of the log)."""


@dataclass(frozen=True, slots=True)
class LogReport:
    """What the logs hold.

    Attributes:
        forms: Forms of the records.
        steps: Steps.
        depth: A number of responses that nearly all groups have.
        pass_rate: Mean pass rate of the groups.
        zero_signal: Share of groups whose logged rewards are all equal, whatever the threshold. NaN where the log does
            not say.
        equal_labels: The share whose labels, right or wrong, are all equal. The forecasts are about these.
        tokens: Mean tokens of a response. NaN where nobody knows.
        responses: Responses. None for a log of averages.
        groups: Groups. None for a log of averages.
        prompts: Prompts. None for a log of averages.
    """

    forms: tuple[str, ...]
    steps: int
    depth: int
    pass_rate: Estimate
    zero_signal: Estimate
    equal_labels: float
    tokens: float
    responses: int | None = None
    groups: int | None = None
    prompts: int | None = None


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
        below: Share of groups with a pass rate below RARE.
        above: Share of groups with a pass rate above 1 - RARE.
        rescued: Of the groups without a correct response, the share in which `pool` responses would have one.
        pool: The number of responses that `rescued` is about.
        never_correct: Share of prompts without a correct response in the log. NaN for a log of averages.
        always_correct: Share of prompts without an incorrect one.
        never: Names of prompts without a correct response, at most NAMED.
        always: Names of prompts without an incorrect one.
    """

    below: Estimate
    above: Estimate
    rescued: Estimate
    pool: int
    never_correct: float = math.nan
    always_correct: float = math.nan
    never: tuple[str, ...] = ()
    always: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """A forecast of whole groups from the first half of each, beside what the log shows.

    Attributes:
        half: Responses of each group that the forecast used.
        predicted: Share of whole groups whose labels are all equal.
        seen: What the log shows.
    """

    half: int
    predicted: Estimate
    seen: float


@dataclass(frozen=True, slots=True)
class WhatifReport:
    """Everything that `nemo-ada whatif` says.

    Attributes:
        log: The log.
        drift: Movement of the pass rates. None with one step, and for a log of averages.
        silent: Prompts that never taught.
        group: The group size n of the rows.
        prompts: Prompts per step.
        rows: The ways of sampling.
        notes: What a reader must know.
        check: A forecast that the log itself answers. None for groups below 4, and for a log of averages.
        widened: By how much the bounds had to grow until some distribution fits. Above DOUBTFUL the figures say little.
    """

    log: LogReport
    drift: Drift | None
    silent: Silent
    group: int
    prompts: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    check: Check | None
    widened: float


def answer(log: Rollouts | Averages, options: Options) -> WhatifReport:
    """Answer from the rollouts of a log, or from the averages of its steps.

    Raises:
        UserError: The log says too little, or an option does not fit it.
    """
    return _of_averages(log, options) if isinstance(log, Averages) else _of_rollouts(log, options)


def _of_rollouts(log: Rollouts, options: Options) -> WhatifReport:
    logged = labels(log, options.threshold)
    mixture = Mixture.fit(logged)
    notes = [*log.notes, *_notes(log, logged, options.threshold)]
    if mixture.widened > 0.0:
        notes.append(
            "no distribution of pass rates explains these groups, as if their responses were not independent (greedy "
            f"decoding, or a filtered or selected log); the bounds were made {mixture.widened:.0%} wider"
        )
    group, per_step = options.group or logged.depth, np.bincount(logged.step_G)
    prompts = options.prompts or int(np.median(per_step[per_step > 0]))
    forecast = Forecast(mixture, group, prompts, *_tokens_by_rate(log, logged, mixture, options.threshold))
    found, left_out = rows(forecast, options.presets, options.max_responses)
    return WhatifReport(
        _log(log, logged), _drift(logged), _silent(log, logged, mixture, group), group, prompts, tuple(found),
        (*notes, *left_out), _check(log, logged, options.threshold), mixture.widened,
    )  # fmt: skip


def _of_averages(log: Averages, options: Options) -> WhatifReport:
    group = options.group
    if group is None:
        raise UserError(
            "the log has averages of steps, which do not say how many responses a prompt got; give --group (TRL's "
            "num_generations, 8 where it was not set; verl's rollout.n; NeMo-RL's num_generations_per_prompt)"
        )
    log = log.with_groups(group)
    mixture, notes = log.mixture(group), list(log.notes)
    if mixture.widened > 0.0:
        notes.append(
            "no distribution of pass rates has this mean and this share of groups without spread, with groups of "
            f"{group}, as if the reward had more values than two, or the group another size; the bounds were made "
            f"{mixture.widened:.0%} wider"
        )
    tokens = float(np.nanmean(log.tokens_T)) if np.isfinite(log.tokens_T).any() else math.nan
    prompts = options.prompts or USUAL_PROMPTS
    if options.prompts is None:
        notes.append(f"the log does not say how many prompts a step has; {prompts} are assumed, --prompts changes this")
    if math.isfinite(tokens):
        notes.append(f"every response is taken to have the mean length, {tokens:,.0f} tokens")
    forecast = Forecast(mixture, group, prompts, np.full((2, len(RATE_J)), tokens))
    found, left_out = rows(forecast, options.presets, options.max_responses)
    zero = log.zero_signal()
    report = LogReport(log.forms, len(log.mean_T), group, log.pass_rate(), zero, zero.value, tokens)
    return WhatifReport(
        report, None, _below(mixture, group, group), group, prompts, tuple(found), (*notes, *left_out), None,
        mixture.widened,
    )  # fmt: skip


def _notes(rollouts: Rollouts, logged: Labels, threshold: float) -> list[str]:
    """Return what a reader must know about rewards, groups and tokens."""
    notes = []
    keep_N = np.isfinite(rollouts.reward_N)
    there, correct = rollouts.reward_N[keep_N], rollouts.correct_N(threshold)[keep_N]
    values, told = np.unique(there), np.isfinite(rollouts.right_N[keep_N])
    if told.any():
        notes.append(f"{told.mean():.0%} of the responses say themselves if they are right: {correct.mean():.1%} are")
    elif len(values) > 2:
        some = ", ".join(f"{value:g}" for value in values[:5])
        notes.append(
            f"rewards have {len(values):,} values ({some}{', ...' if len(values) > 5 else ''}); a response counts as "
            f"correct above {threshold:g} ({correct.mean():.1%} of them); --threshold changes this"
        )
    if not told.any() and len(there) and (correct.all() or not correct.any()):
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


def _tokens_by_rate(rollouts: Rollouts, logged: Labels, mixture: Mixture, threshold: float) -> tuple[FloatArray, float]:
    """Return the mean tokens of correct and of incorrect responses by pass rate [2, J]: hard prompts have longer ones.

    Also the relative standard error of the mean tokens over prompts. Without tokens the means are NaN.
    """
    groups = len(rollouts.prompt_G)
    known_N = np.isfinite(rollouts.tokens_N) & np.isfinite(rollouts.reward_N)
    group_N, tokens_N = rollouts.group_N[known_N], rollouts.tokens_N[known_N]
    if not tokens_N.any():
        return np.full((2, len(RATE_J)), math.nan), 0.0
    correct_N = rollouts.correct_N(threshold)[known_N]
    pos_G, total_G = (np.bincount(one_N, minlength=groups) for one_N in (group_N[correct_N], group_N))
    pair_KI, place_G = np.unique(np.stack([pos_G, total_G], axis=1), axis=0, return_inverse=True)
    share_KJ = binomial(*pair_KI.T) * np.maximum(mixture.weight_J, 1e-12)
    share_KJ /= share_KJ.sum(axis=1, keepdims=True)
    means, mean = [], float(tokens_N.mean())
    for side_N in (correct_N, ~correct_N):
        overall = float(tokens_N[side_N].mean()) if side_N.any() else mean
        place_N = place_G.ravel()[group_N[side_N]]
        sum_K, count_K = np.bincount(place_N, tokens_N[side_N], len(pair_KI)), np.bincount(place_N, None, len(pair_KI))
        means.append((sum_K @ share_KJ + PRIOR_RESPONSES * overall) / (count_K @ share_KJ + PRIOR_RESPONSES))
    excess_U = np.bincount(rollouts.prompt_G[group_N], tokens_N - mean)
    return np.array(means), math.sqrt(float((excess_U**2).sum())) / len(tokens_N) / mean


def _log(rollouts: Rollouts, logged: Labels) -> LogReport:
    tokens_N = rollouts.tokens_N
    return LogReport(
        rollouts.forms, rollouts.steps, logged.depth, estimate(logged.pos_G / logged.total_G),
        estimate(_without_spread(rollouts)), float(logged.equal_G.mean()),
        float(np.nanmean(tokens_N)) if np.isfinite(tokens_N).any() else math.nan,
        len(rollouts.group_N), len(logged.pos_G), len(rollouts.names_U),
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
    pos_U, total_U = (np.bincount(logged.prompt_G, one_G, count) for one_G in (logged.pos_G, logged.total_G))
    never_U, always_U = (total_U > 0) & (pos_U == 0), (total_U > 0) & (pos_U == total_U)

    def names(chosen_U: BoolArray) -> tuple[str, ...]:
        return tuple(rollouts.names_U[u] for u in np.flatnonzero(chosen_U)[:NAMED])

    tested = int((total_U > 0).sum())
    return replace(
        _below(mixture, logged.depth, group),
        never_correct=float(never_U.sum() / tested), always_correct=float(always_U.sum() / tested),
        never=names(never_U), always=names(always_U),
    )  # fmt: skip


def _below(mixture: Mixture, depth: int, group: int) -> Silent:
    """Say how many groups have extreme pass rates, and what deeper pools would find."""
    pool = ada_settings({"preset": "ada_seq_balance"}).plan(max(group, 2), 1).max_responses
    silent_J = (1.0 - RATE_J) ** depth
    rescued_J = silent_J * (1.0 - (1.0 - RATE_J) ** max(pool - depth, 0))
    below, above = ((side_J < RARE).astype(np.float64) for side_J in (RATE_J, 1.0 - RATE_J))
    return Silent(mixture.share(below), mixture.share(above), mixture.share(rescued_J, silent_J), pool)


def _check(rollouts: Rollouts, logged: Labels, threshold: float) -> Check | None:
    """Forecast the whole groups from the first half of each. None where a half has no two responses."""
    half, depth = logged.depth // 2, logged.depth
    if half < 2:
        return None
    pos_G = logged.first_pos_G[logged.total_G >= depth]
    predicted = Mixture.fit(labels(rollouts, threshold, half)).share(no_spread(depth))
    return Check(half, predicted, float(((pos_G == 0) | (pos_G == depth)).mean()))
