"""Logs that hold averages of training steps only: the mean reward, and the share of groups without spread.

Most people keep the curves of a run and no rollouts. The mean reward is the mean of the pass rates p. A group of n
responses has no spread with probability p^n + (1-p)^n, so its logged share is a second mean over the same pass rates.
Axes: T steps, K means, J pass rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nemo_ada.core.arrays import FloatArray
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import CONFIDENCE, UNKNOWN, Estimate, student_quantile
from nemo_ada.lab.whatif.mixture import RATE_J, Mixture, no_spread
from nemo_ada.lab.whatif.reading import METRICS, STEPS, metric, numbers, opened, shown

NO_SHARE = "the log has no share of groups without spread, so the bounds follow from the mean reward alone"
OF_SUM = "the share of groups without spread is that of the sum of all rewards, so it says nothing about this one"
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
    """

    mean_T: FloatArray
    zero_T: FloatArray
    tokens_T: FloatArray
    notes: tuple[str, ...] = ()

    def mixture(self, group: int) -> Mixture:
        """Fit the pass rates of a run with this group size."""
        means = [(RATE_J, self.mean_T)]
        if np.isfinite(self.zero_T).any():
            means.append((no_spread(group), self.zero_T))
        confidence = 1.0 - (1.0 - CONFIDENCE) / len(means)  # all intervals together
        ends = [mean_over_steps(value_T, confidence) for _, value_T in means]
        return Mixture.from_moments(np.array([value_J for value_J, _ in means]), ends)


def mean_over_steps(value_T: FloatArray, confidence: float = CONFIDENCE) -> Estimate:
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
    files: Sequence[tuple[int, Path]], columns: Mapping[str, str], values: tuple[float, float] = (0.0, 1.0)
) -> Averages:
    """Read the averages of logs.

    Args:
        files: The number of the log, and the file.
        columns: What is asked of a step (`reading.METRICS`) -> the user's name for it.
        values: The rewards of a wrong and of a right response.

    Raises:
        UserError: A log is damaged, holds two runs, or says too little.
    """
    own = {what: metric(name) for what, name in columns.items()}
    names = {what: (own[what], f"{own[what]}/mean") if what in own else known for what, known in METRICS.items()}
    rows = _rows(files, names["reward"])
    had = {name for row in rows for name in row}
    chosen = {what: next((name for name in known if name in had), "") for what, known in names.items()}
    if not chosen["reward"]:
        raise UserError(
            f"no step has one of the metrics {', '.join(names['reward'])}; name the mean reward with --column "
            f"reward=NAME (the log has {shown(list(had))})"
        )
    for what in METRICS:
        if what in own and not chosen[what]:
            raise UserError(
                f"--column {what}={columns[what]}: no step has this metric (the log has {shown(list(had))})"
            )
    rows = [row for row in rows if chosen["reward"] in row]
    if len(rows) < FEW:
        raise UserError(f"{len(rows)} steps have {chosen['reward']}; averages need at least {FEW} steps")
    column = {what: np.array([row.get(name, math.nan) for row in rows]) for what, name in chosen.items()}
    parts = _parts(rows)
    if len(parts) > 1 and "reward" not in own:
        raise UserError(
            f"the reward is a sum of {', '.join(parts)}; for a forecast, name the one that says right or wrong, such "
            f"as --column reward={parts[0]}"
        )
    notes, zero_T = list[str](), column["zero_signal"]
    mean_T = _pass_rates(chosen["reward"], column["reward"], values)
    if np.any((zero_T < 0.0) | (zero_T > 1.0)):
        raise UserError(f"{chosen['zero_signal']} is no share from 0 to 1; name yours with --column zero_signal=NAME")
    if len(parts) > 1 and "zero_signal" not in own:
        zero_T = np.full(len(rows), np.nan)
        notes.append(OF_SUM)
    if np.isfinite(zero_T).sum() < FEW:
        zero_T = np.full(len(rows), np.nan)
        notes.append(NO_SHARE)
    return Averages(mean_T, zero_T, column["tokens"], tuple(notes))


def _rows(files: Sequence[tuple[int, Path]], reward: Sequence[str]) -> list[Metrics]:
    """Return the metrics of each step. Charts of one run may be in several files, and its events as well.

    Args:
        files: The number of the log, and the file. Two logs may have the same steps.
        reward: The metrics that may have the mean reward.

    Raises:
        UserError: A file, a folder or charts hold two runs. The second would take the place of the first.
    """
    rows: dict[tuple[int, float], Metrics] = {}
    owner: dict[tuple[int, float], str] = {}
    for log, file in files:
        chart, first, last = file.suffix == ".csv", math.nan, math.nan
        for place, record in opened(file)[1]:
            row = numbers(record)
            step = next((row[name] for name in STEPS if name in row), float(place))
            if step <= first < last:
                raise UserError(
                    f"{file} holds two runs: behind step {last:g} follows {step:g} again, where the first one began; "
                    "give the lines of one run as a file of their own"
                )
            first, last = step if math.isnan(first) else first, step
            key = -1 if chart else log, step
            charted = {name.rpartition(" - ")[0] for name in record if chart} - {""}
            run = " and ".join(sorted(charted)) or str(file if chart else file.parent)
            if charted or any(name in row for name in reward):
                known = owner.setdefault((-1, 0.0) if charted else key, run)
                if known != run or len(charted) > 1:
                    raise UserError(f"{file} has another run than {known}: {run} has the same steps; give one of them")
            rows.setdefault(key, {}).update(row)
    return list(rows.values())


def _pass_rates(reward: str, value_T: FloatArray, values: tuple[float, float]) -> FloatArray:
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


def _parts(rows: Sequence[Metrics]) -> list[str]:
    """Return the metrics of TRL's reward functions."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("rewards/"))
    return [
        name for name in names
        if not name.endswith("/std") and (name.endswith("/mean") or f"{name}/mean" not in names)
        and name.count("/") <= 2
    ]  # fmt: skip
