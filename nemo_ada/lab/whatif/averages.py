"""Logs that hold averages of training steps only: the mean reward, and the share of groups without spread.

Most people keep the curves of a run and no rollouts. The mean reward is the mean of the pass rates p. A group of n
responses has no spread with probability p^n + (1-p)^n, so its logged share is a second mean over the same pass rates.
NeMo-RL logs the share of responses whose baseline is neither 0 nor 1. Where the baseline leaves the response out (its
recipes do), these are groups of the n - 1 others.
Axes: T steps, K means, J pass rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nemo_ada.core.arrays import FloatArray
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import CONFIDENCE, UNKNOWN, Estimate
from nemo_ada.lab.whatif.curves import METRICS, MIXED, Metrics, read_curves
from nemo_ada.lab.whatif.mixture import RATE_J, Mixture, no_spread

NO_SHARE = "the log has no share of groups without spread, so the bounds follow from the mean reward alone"
OF_SUM = "the share of groups without spread is that of the sum of all rewards, so it says nothing about this one"
OF_OTHERS = "NeMo-RL's share counts responses whose baseline is 0 or 1, so it bounds the share of groups without spread"
ONE_GROUP = 20  # steps after which means over several groups would have shown
MOST_TOKENS = 1e9  # of a response
FEW = 4  # steps below which the spread between them says nothing
ADVICE = (
    "rollouts would narrow the bounds (TRL: log_completions=True; verl: trainer.rollout_data_dir; NeMo-RL writes them)"
)


@dataclass(frozen=True, slots=True)
class Averages:
    """The averages of the steps of some logs. A step without one has NaN.

    Attributes:
        forms: Forms of the logs.
        mean_T: Mean pass rate.
        zero_T: Share of groups without spread.
        others: Whether `zero_T` counts responses whose n - 1 others are equal, or whose group is.
        tokens_T: Mean tokens of a response.
        notes: What a reader must know.
    """

    forms: tuple[str, ...]
    mean_T: FloatArray
    zero_T: FloatArray
    others: bool
    tokens_T: FloatArray
    notes: tuple[str, ...]

    def pass_rate(self) -> Estimate:
        """Return the mean pass rate with its interval."""
        return _estimate(self.mean_T, CONFIDENCE)

    def zero_signal(self) -> Estimate:
        """Return the share of groups without spread, NaN where no step has just that."""
        return UNKNOWN if self.others else _estimate(self.zero_T, CONFIDENCE)

    def with_groups(self, group: int) -> Averages:
        """Return the log with the spread of its groups where each step had one prompt, as with TRL on one GPU.

        Then each mean is a multiple of 1/n, which means over several groups are not for long. A logged share that says
        something else stays.
        """
        pos_T = self.mean_T * group
        if len(pos_T) < ONE_GROUP or np.abs(pos_T - pos_T.round()).max() > 0.01:
            return self
        zero_T = ((pos_T.round() == 0) | (pos_T.round() == group)).astype(np.float64)
        if not self.others and np.any(np.abs(self.zero_T - zero_T)[np.isfinite(self.zero_T)] > 0.01):
            return self
        notes = [note for note in self.notes if note not in (NO_SHARE, OF_SUM, OF_OTHERS)]
        notes.append(f"each mean is a multiple of 1/{group}, so each step is taken for one group of {group}")
        return replace(self, zero_T=zero_T, others=False, notes=tuple(notes))

    def mixture(self, group: int) -> Mixture:
        """Fit the pass rates of a run with this group size."""
        means = [(RATE_J, self.mean_T)]
        if np.isfinite(self.zero_T).any():
            means.append((no_spread(group - 1 if self.others else group), self.zero_T))
        confidence = 1.0 - (1.0 - CONFIDENCE) / len(means)  # all intervals together
        found = [_estimate(value_T, confidence) for _, value_T in means]
        rows = [(value_J, one.value, one.low, one.high) for (value_J, _), one in zip(means, found, strict=True)]
        if self.others and len(rows) == 2:  # of the n - 1 others at least that, of the whole group at most
            value_J, mean, low, high = rows.pop()
            rows += [(value_J, mean, low, 1.0), (no_spread(group), math.nan, 0.0, high)]
        value_KJ, *ends = (np.array(column) for column in zip(*rows, strict=True))
        return Mixture.from_moments(value_KJ, *ends)


def _estimate(value_T: FloatArray, confidence: float) -> Estimate:
    """Return the mean over steps with Student's interval. What the steps differ by makes it wider, not narrower."""
    from scipy.special import stdtrit

    there_T = value_T[np.isfinite(value_T)]
    count = len(there_T)
    if count < FEW:
        return UNKNOWN
    mean, error = float(there_T.mean()), float(there_T.std(ddof=1)) / math.sqrt(count)
    error = max(error, 0.5 / count**1.5)  # equal values of few steps are not exact
    half = float(stdtrit(count - 1, (1.0 + confidence) / 2.0)) * error
    return Estimate(mean, max(mean - half, 0.0), min(mean + half, 1.0))


def read_averages(
    paths: Sequence[Path], columns: Mapping[str, str] | None = None, values: tuple[float, float] | None = None
) -> Averages | None:
    """Read the averages of logs. Returns None where the paths hold rollouts.

    Args:
        paths: Files and folders.
        columns: What is asked of a step -> the user's name for it.
        values: The rewards of a wrong and of a right response. None takes 0 and 1, or what verl's log says.

    Raises:
        UserError: A log is damaged, or says too little.
    """
    columns = columns or {}
    curves = read_curves(paths, [name for what, name in columns.items() if what in ("prompt", "text")])
    if curves is None:
        return None
    rows, own = list(curves.rows.values()), {what: name.removeprefix("train/") for what, name in columns.items()}
    names = {what: (own[what],) if what in own else known for what, known in METRICS.items()}
    if "reward" in own:
        names["reward"] = (own["reward"], f"{own['reward']}/mean")
    reward = _first(rows, names["reward"])
    if not reward:
        raise UserError(
            f"no step has one of the metrics {', '.join(names['reward'])}; name the mean reward with --column "
            f"reward=NAME (the log has {_named(rows)})"
        )
    for what in METRICS:
        if what in own and what != "reward" and not _first(rows, names[what]):
            raise UserError(f"--column {what}={columns[what]}: no step has this metric (the log has {_named(rows)})")
    rows = [row for row in rows if reward in row]
    if len(rows) < FEW:
        raise UserError(f"{len(rows)} steps have {reward}; averages need at least {FEW} steps")
    column = {what: _column(rows, known) for what, known in names.items()}
    used = _first(rows, names["zero_signal"])
    if used == MIXED:
        column["zero_signal"] = 1.0 - column["zero_signal"] / 100.0
    _check_range(column["zero_signal"], "share of groups without spread", 1.0)
    _check_range(column["tokens"], "mean tokens of a response", MOST_TOKENS)
    parts = _parts(rows)
    if "reward" not in own and len(parts) > 1:
        _refuse_sum(rows, parts, column["zero_signal"])
    notes = list[str]()
    mean_T = _pass_rates(reward, column, values, notes)
    moving = [name for name in parts if len({row.get(name) for row in rows}) > 1]
    zero_T = column["zero_signal"]
    if "reward" in own and "zero_signal" not in own and any(name != reward for name in moving):
        zero_T = np.full(len(rows), np.nan)
        notes.append(OF_SUM)
    elif used == MIXED:
        notes.append(OF_OTHERS)
    if np.isfinite(zero_T).sum() < FEW:
        zero_T = np.full(len(rows), np.nan)
        notes.append(NO_SHARE)
    notes.append(f"the log has averages of steps and no rollouts: {ADVICE}")
    return Averages(tuple(curves.forms), mean_T, zero_T, used == MIXED, column["tokens"], tuple(notes))


def _pass_rates(
    reward: str, column: Mapping[str, FloatArray], values: tuple[float, float] | None, notes: list[str]
) -> FloatArray:
    """Bring mean rewards [T] to the scale from 0 to 1. The range that verl logs becomes a note."""
    value_T = column["reward"]
    if values is None and np.isfinite(column["lowest"]).any() and np.isfinite(column["highest"]).any():
        values = float(np.nanmedian(column["lowest"])), float(np.nanmedian(column["highest"]))  # not one odd step
        notes.append(f"rewards lie between {values[0]:g} and {values[1]:g}; --values says otherwise")
    low, high = values or (0.0, 1.0)
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


def _refuse_sum(rows: list[Metrics], parts: Sequence[str], zero_T: FloatArray) -> None:
    """Raise UserError: a sum of rewards says of no one when it is right."""
    means = ", ".join(f"{name} (mean {np.mean([row[name] for row in rows if name in row]):.3g})" for name in parts)
    fact = f"{np.nanmean(zero_T):.0%} of the groups had no spread. " if np.isfinite(zero_T).any() else ""
    raise UserError(
        f"{fact}The reward is a sum of {len(parts)} functions: {means}; for a forecast, name the one that says "
        f"right or wrong, such as --column reward={parts[0]}"
    )


def _check_range(value_T: FloatArray, what: str, most: float) -> None:
    """Raise UserError where a logged average cannot be."""
    outside = np.flatnonzero((value_T < 0.0) | (value_T > most))
    if len(outside):
        raise UserError(
            f"row {outside[0] + 1} has {value_T[outside[0]]:g} as {what}, which is not between 0 and {most:g}; is it "
            "another metric? --column names yours"
        )


def _named(rows: list[Metrics]) -> str:
    """Return the names of some metrics of a log, for messages."""
    return ", ".join(sorted({name for row in rows for name in row})[:20]) or "no metrics"


def _parts(rows: list[Metrics]) -> list[str]:
    """Return the metrics of TRL's reward functions."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("rewards/"))
    return [
        name for name in names
        if not name.endswith("/std") and (name.endswith("/mean") or f"{name}/mean" not in names)
        and name.count("/") <= 2
    ]  # fmt: skip


def _first(rows: list[Metrics], names: Sequence[str]) -> str:
    """Return the first of some metrics that any step has. It is empty without one."""
    return next((name for name in names if any(name in row for row in rows)), "")


def _column(rows: list[Metrics], names: Sequence[str]) -> FloatArray:
    """Return the first of some metrics [T] that any step has, or NaN."""
    name = _first(rows, names)
    return np.array([row.get(name, math.nan) for row in rows], np.float64)
