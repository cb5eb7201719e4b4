"""Logs that hold averages of training steps only: the mean reward, and the share of groups without spread.

Most people keep the curves of a run and no rollouts. The mean reward is the mean of the pass rates p. A group of n
responses has no spread with probability p^n + (1-p)^n, so its logged share is a second mean over the same pass rates.
Axes: T steps, K means, J pass rates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from nemo_ada.core.arrays import FloatArray
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import CONFIDENCE, UNKNOWN, Estimate, student_quantile
from nemo_ada.lab.whatif.mixture import RATE_J, Mixture, compute_no_spread
from nemo_ada.lab.whatif.names import (
    FILTERED,
    FILTERED_SHARE,
    GROUP_SIZE,
    HIGHEST,
    LOWEST,
    MIXED_OTHERS,
    NEVER_RIGHT,
    QUANTITIES,
    SOURCES,
    STEPS,
    Source,
    clean_metric,
    find_holders,
    list_names,
    propose_column,
    read_numbers,
)
from nemo_ada.lab.whatif.reading import open_log

NO_SHARE = "the log has no share of groups without spread, so the bounds follow from the mean reward alone"
OF_SUM = "the share of groups without spread is that of the sum of all rewards, so it says nothing about this one"
OF_OTHERS = (
    "NeMo-RL counts baselines, with leave-one-out those of the other responses of a group, and no metric says which; "
    "so the share of groups without spread has bounds only"
)
OF_NEVER = "the log says how many groups had no right response, and not how many had no wrong one"
OF_BINARY = "NeMo-RL counts baselines of 0 and 1, so with other --values its shares say nothing"
IS_FILTERED = (
    "{} says that the run dropped groups without spread before it logged the mean reward, so every figure is about the "
    "groups that it kept"
)
SHARE_IS_FILTERED = "{} says that the run dropped groups without spread, so its share of the others says nothing"
FEW = 4  # steps below which the spread between them says nothing

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Averages:
    """The averages of the steps of some logs. A step without one has NaN.

    Attributes:
        mean_T: Mean pass rate.
        zero_T: Share of groups without spread.
        tokens_T: Mean tokens of a response.
        notes: What a reader must know.
        others_T: Share without spread of groups of n or of n - 1 (`names.MIXED_OTHERS`), where the log has only this.
        never_T: Share of groups without a right response, where the log has only this.
        group: The group size, where the log says it.
    """

    mean_T: FloatArray
    zero_T: FloatArray
    tokens_T: FloatArray
    notes: tuple[str, ...] = ()
    others_T: FloatArray | None = None
    never_T: FloatArray | None = None
    group: int | None = None

    def fit_mixture(self, group: int) -> Mixture:
        """Fit the pass rates of a run with this group size."""
        second = [(compute_no_spread(group), self.zero_T)] if np.isfinite(self.zero_T).any() else []
        if not second and self.never_T is not None:
            second = [((1.0 - RATE_J) ** group, self.never_T)]
        if not second and self.others_T is not None:
            second = [(compute_no_spread(group - 1), self.others_T)]
        means = [(RATE_J, self.mean_T), *second]
        confidence = 1.0 - (1.0 - CONFIDENCE) / len(means)  # all intervals together
        ends = [average_steps(value_T, confidence) for _, value_T in means]
        values = [value_J for value_J, _ in means]
        if second and second[0][1] is self.others_T:
            # Of n - 1 responses at least that share is without spread, and of all n at most: one end for each.
            share = ends.pop()
            ends += [Estimate(share.value, share.low, 1.0), Estimate(math.nan, 0.0, share.high)]
            values.append(compute_no_spread(group))
        return Mixture.from_moments(np.array(values), ends)


def average_steps(value_T: FloatArray, confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean over steps with Student's interval. What the steps differ by makes it wider, not narrower."""
    there_T = value_T[np.isfinite(value_T)]
    count = len(there_T)
    if count < FEW:
        return UNKNOWN
    mean, error = float(there_T.mean()), float(there_T.std(ddof=1)) / math.sqrt(count)
    error = max(error, 0.5 / count**1.5)  # equal values of few steps are not exact
    half = student_quantile(count - 1, confidence) * error
    return Estimate(mean, max(mean - half, 0.0), min(mean + half, 1.0))


def read_averages(
    files: Sequence[tuple[int, Path]], columns: Mapping[str, str], values: tuple[float, float] | None = None
) -> Averages:
    """Read the averages of logs.

    Args:
        files: The number of the log, and the file.
        columns: What is asked of a step (`names.QUANTITIES`) -> the user's name for it.
        values: The rewards of a wrong and of a right response. None takes what the log says, else 0 and 1.

    Raises:
        UserError: A log is damaged, holds two runs, or says too little.
    """
    sources = _list_sources(columns)
    rows = _join_rows(files, [name for source in sources if source.quantity == "reward" for name in source.names])
    had = sorted({name for row in rows for name in row})
    held: dict[str, _Held] = {}
    for source in sources:
        if source.quantity not in held and (metrics := _find_metrics(source, had)):
            held[source.quantity] = _Held(source, metrics)
    if "reward" not in held:
        raise UserError(
            f"no metric of the log is known as the mean reward; name it with {propose_column('reward', had)} (the log "
            f"has {list_names(had)})"
        )
    for what in QUANTITIES:
        if what in columns and what not in held:
            raise UserError(f"--column {what}={columns[what]}: no step has this metric (the log has {list_names(had)})")
    reward = held["reward"].metrics[0]
    rows = [row for row in rows if reward in row]
    if len(rows) < FEW:
        raise UserError(f"{len(rows)} steps have {reward}; averages need at least {FEW} steps")
    parts = _find_parts(rows)
    if len(parts) > 1 and "reward" not in columns:
        raise UserError(
            f"the reward is a sum of {', '.join(parts)}; for a forecast, name the one that says right or wrong, such "
            f"as --column reward={parts[0]}"
        )
    value = {what: one.values(rows) for what, one in held.items()}
    notes = list[str]()
    scale = values or _scale(value, reward, notes)
    mean_T = _scale_rewards(reward, value["reward"], scale)
    return _add_shares(mean_T, held, value, scale, notes, sums="zero_signal" not in columns and len(parts) > 1)


@dataclass(frozen=True, slots=True)
class _Held:
    """Where a log has a quantity: the source that fits, and the metrics that its names mean."""

    source: Source
    metrics: tuple[str, ...]

    def values(self, rows: Sequence[Metrics]) -> FloatArray:
        """Return the quantity [T]. NaN where a step lacks one of the metrics."""
        sum_T = np.array([math.fsum(row.get(name, math.nan) for name in self.metrics) for row in rows])
        return 1.0 - self.source.scale * sum_T if self.source.complement else self.source.scale * sum_T


def _list_sources(columns: Mapping[str, str]) -> list[Source]:
    """Return the sources of a log. What the user names comes in the place of what is known."""
    own = [
        Source(what, (re.escape(clean_metric(name)) + end,))
        for what, name in columns.items() if what in QUANTITIES for end in ("", "/mean")
    ]  # fmt: skip
    return own + [source for source in SOURCES if source.quantity not in columns]


def _find_metrics(source: Source, had: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics of a log that a source means, one for each of its names. Empty where one is missing.

    Raises:
        UserError: Two metrics fit equally well, such as those of two agents.
    """
    chosen = list[str]()
    for name in source.names:
        found = find_holders(name, had)
        alike = [one for one in found if one.count("/") == found[0].count("/")]
        if not found:
            return ()
        if len(alike) > 1:
            what = source.quantity if source.quantity in QUANTITIES else "reward"
            raise UserError(
                f"the log has {', '.join(alike[:6])}; name the one that you mean, as --column {what}={alike[0]}"
            )
        chosen.append(found[0])
    return tuple(chosen)


def _scale(value: Mapping[str, FloatArray], reward: str, notes: list[str]) -> tuple[float, float]:
    """Return the rewards of a wrong and of a right response, as a log says them by its smallest and largest reward."""
    if LOWEST not in value or HIGHEST not in value or not reward.endswith("score/mean"):
        return 0.0, 1.0
    if not np.isfinite(value[LOWEST]).any() or not np.isfinite(value[HIGHEST]).any():
        return 0.0, 1.0
    low, high = float(np.nanmedian(value[LOWEST])), float(np.nanmedian(value[HIGHEST]))  # one odd step changes nothing
    if not low < high or (low, high) == (0.0, 1.0):
        return 0.0, 1.0
    notes.append(
        f"rewards lie between {low:g} and {high:g}, which are taken for wrong and right; --values says otherwise"
    )
    return low, high


def _add_shares(
    mean_T: FloatArray, held: Mapping[str, _Held], value: Mapping[str, FloatArray], scale: tuple[float, float],
    notes: list[str], *, sums: bool,
) -> Averages:  # fmt: skip
    """Add what the log says about groups without spread, and about tokens.

    Args:
        mean_T: The mean pass rates.
        held: Where each quantity stands.
        value: Its values [T].
        scale: The rewards of a wrong and of a right response.
        notes: The notes so far.
        sums: Whether the log's share is about a sum of rewards of which the user has named one.
    """
    nothing_T = np.full(len(mean_T), np.nan)
    zero_T, others_T, never_T = (value.get(what, nothing_T) for what in ("zero_signal", MIXED_OTHERS, NEVER_RIGHT))
    if (
        len(names := held["zero_signal"].metrics if "zero_signal" in held else ()) > 1
        and np.nanmax(zero_T) > 1.0 + 1e-6
    ):
        zero_T = nothing_T
        notes.append(f"{' + '.join(names)} counts groups, and no metric says how many a step has, so it says nothing")
    for what, share_T in (("zero_signal", zero_T), (MIXED_OTHERS, others_T), (NEVER_RIGHT, never_T)):
        if np.any((share_T < -1e-6) | (share_T > 1.0 + 1e-6)):
            names = held[what].metrics
            raise UserError(f"{' + '.join(names)} is no share from 0 to 1; name yours with --column zero_signal=NAME")
    for what, text in ((FILTERED, IS_FILTERED), (FILTERED_SHARE, SHARE_IS_FILTERED)):
        if what in value and np.nanmax(np.abs(np.nan_to_num(value[what]))) > 1e-6:
            notes.append(text.format(held[what].metrics[0]))
            others_T = nothing_T if what == FILTERED_SHARE else others_T
    if np.isfinite(others_T).any() and scale != (0.0, 1.0):
        others_T = nothing_T
        notes.append(OF_BINARY)
    if sums:
        zero_T = others_T = never_T = nothing_T
        notes.append(OF_SUM)
    several = [share_T if np.isfinite(share_T).sum() >= FEW else nothing_T for share_T in (zero_T, never_T, others_T)]
    zero_T, never_T, others_T = (np.clip(share_T, 0.0, 1.0) for share_T in several)
    exact, never, others = (bool(np.isfinite(share_T).any()) for share_T in (zero_T, never_T, others_T))
    if not exact:
        notes.append(OF_NEVER if never else OF_OTHERS if others else NO_SHARE)
    size = GROUP_SIZE.search(held[NEVER_RIGHT].metrics[0]) if NEVER_RIGHT in held else None
    return Averages(
        mean_T, zero_T, value.get("tokens", nothing_T), tuple(notes),
        others_T if others and not exact and not never else None, never_T if never and not exact else None,
        int(size[1]) if size else None,
    )  # fmt: skip


def _join_rows(files: Sequence[tuple[int, Path]], reward: Sequence[str]) -> list[Metrics]:
    """Return the metrics of each step. Charts of one run may be in several files, and its events as well.

    Args:
        files: The number of the log, and the file. Two logs may have the same steps.
        reward: Patterns of the metrics that may have the mean reward.

    Raises:
        UserError: A file, a folder or charts hold two runs. The second would take the place of the first.
    """
    rows: dict[tuple[int, float], Metrics] = {}
    owner: dict[tuple[int, float], str] = {}
    is_reward = cache(lambda name: any(find_holders(pattern, [name]) for pattern in reward))
    for log, file in files:
        chart, first, last = file.suffix == ".csv", math.nan, math.nan
        for place, record in open_log(file)[1]:
            row = read_numbers(record)
            step = next((row[name] for name in STEPS if name in row), float(place))
            has_reward = any(map(is_reward, row))
            if has_reward and step <= first < last:
                raise UserError(
                    f"{file} holds two runs: behind step {last:g} follows {step:g} again, where the first one began; "
                    "give the lines of one run as a file of their own"
                )
            if has_reward:
                first, last = step if math.isnan(first) else first, step
            key = -1 if chart else log, step
            charted = {name.rpartition(" - ")[0] for name in record if chart} - {""}
            run = " and ".join(sorted(charted)) or str(file if chart else file.parent)
            if charted or has_reward:
                known = owner.setdefault((-1, 0.0) if charted else key, run)
                if known != run or len(charted) > 1:
                    raise UserError(f"{file} has another run than {known}: {run} has the same steps; give one of them")
            rows.setdefault(key, {}).update(row)
    return list(rows.values())


def _scale_rewards(reward: str, value_T: FloatArray, values: tuple[float, float]) -> FloatArray:
    """Bring mean rewards [T] to the scale from 0 to 1."""
    low, high = values
    if not low < high or not math.isfinite(high - low):
        raise UserError(f"--values {low:g} {high:g}: the reward of a right response must be the larger one, and finite")
    mean_T = (value_T - low) / (high - low)
    outside = np.flatnonzero((mean_T < -1e-9) | (mean_T > 1.0 + 1e-9))
    if len(outside):
        raise UserError(
            f"{reward} has a mean of {value_T[outside[0]]:.4g} in row {outside[0] + 1}, which is not between {low:g} "
            f"and {high:g}; give the rewards of a wrong and of a right response, such as --values -1 1"
        )
    return np.clip(mean_T, 0.0, 1.0)


def _find_parts(rows: Sequence[Metrics]) -> list[str]:
    """Return the metrics of TRL's reward functions."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("rewards/"))
    return [
        name for name in names
        if not name.endswith("/std") and (name.endswith("/mean") or f"{name}/mean" not in names)
        and name.count("/") <= 2
    ]  # fmt: skip
