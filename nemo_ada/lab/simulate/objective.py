"""What presets teach: how much the mean update of a prompt weighs, for every pass rate.

For pools that end by their labels it is exact (`core/learning/factor.py`). What an estimate decides (Est), and what a
cap of a step changes, is simulated with the sampler that trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nemo_ada.config.ada import AdaSettings, EstimationSampling
from nemo_ada.core.arrays import FloatArray
from nemo_ada.core.learning.factor import RANGE, SHOWN_P, compute_factors, measure_deviation
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.lab.simulate.engine import DiscreteEventSource, LengthModel, Workload, draw_beta_rates
from nemo_ada.lab.simulate.steps import KnownRates

if TYPE_CHECKING:
    from rich.table import Table

OTHERS, PROBES = 64, 4  # prompts of a simulated step: others, and those of each pass rate that is looked at
MOST_GROUP = 64  # of a simulated setting; larger ones take minutes, and the largest ones hours
WARM_UP, STEPS = 40, 200  # simulated steps: those in which the estimator learns, and those that count


@dataclass(frozen=True, slots=True)
class Taught:
    """What a setting teaches. P pass rates, those of SHOWN_P.

    Attributes:
        name: Name of the setting.
        declared: The objective that it declares, in words. None where it declares none.
        relative_P: F per row over the declared f', or without one over F at pass rate .5.
        error_P: Standard error of it. 0 where it is exact.
        missed: Largest relative distance from the declared objective within RANGE, up to a common scale.
    """

    name: str
    declared: str | None
    relative_P: tuple[float, ...]
    error_P: tuple[float, ...]
    missed: float | None


def compute_taught(name: str, ada: AdaSettings, group: int, per_prompt: float | None = None) -> Taught:
    """Compute what a setting teaches.

    Args:
        name: Name of the setting.
        ada: The settings.
        group: The group size n.
        per_prompt: `max_samples` of a step over its prompts, among prompts with pass rates from Beta(.6, 1.5). None is
            no cap: what a cap does to a prompt depends on the others of its step.

    Raises:
        UserError: The settings do not fit the group size.
    """
    ada.check_rows(group)
    objective = ada.advantage.objective
    decided = isinstance(ada.sampling, EstimationSampling)
    ends_by_labels = not isinstance(ada.sampling, EstimationSampling) and not ada.sampling.fixed_pool(group)
    capped = per_prompt is not None and ends_by_labels
    if (decided or capped) and group > MOST_GROUP:
        raise UserError(f"--group={group}: what {name} teaches is simulated, for groups of at most {MOST_GROUP}")
    if decided or capped:
        factor_P, error_P = _simulate_factors(ada, group, per_prompt)
    else:
        sampler = ada.sampler(group, 1, run_seed=0, features=1)
        factor_P, error_P = compute_factors(sampler.rows, SHOWN_P), np.zeros(len(SHOWN_P))
    declares = ada.advantage.weighting == "objective" or ada.advantage.baseline == "shrunk"
    if not declares:
        half = float(factor_P[SHOWN_P == 0.5][0])
        return Taught(name, None, tuple((factor_P / half).tolist()), tuple((error_P / half).tolist()), None)
    declared_P = objective.weight(SHOWN_P)
    inside_P = (RANGE[0] <= SHOWN_P) & (RANGE[1] >= SHOWN_P)
    missed = measure_deviation(factor_P[inside_P], declared_P[inside_P])
    kind = objective.kind if objective.kind != "power" else f"power {objective.a:g}"
    relative_P, spread_P = (factor_P / declared_P).tolist(), (error_P / declared_P).tolist()
    return Taught(name, kind, tuple(relative_P), tuple(spread_P), missed)


def _simulate_factors(ada: AdaSettings, group: int, per_prompt: float | None) -> tuple[FloatArray, FloatArray]:
    """Simulate F per row of each pass rate of SHOWN_P, with its standard error over steps."""
    lengths = LengthModel()
    sampler = ada.sampler(group, lengths.max_new_tokens, run_seed=0, features=1)
    # Simulated prompts have no features, so an estimator that needs them is replaced by one that knows the rates.
    known = KnownRates() if ada.estimator.needs_features and sampler.estimator is not None else None
    if known is not None:
        sampler = AdaSampler(sampler.plan, sampler.rows, run_seed=0, estimator=known, allocation=sampler.allocation)
    rate_P = np.concatenate([draw_beta_rates(OTHERS, 0.6, 1.5, 0), np.repeat(SHOWN_P, PROBES)])
    prompts, moved = len(rate_P), []
    if per_prompt is not None:
        sampler.plan = replace(sampler.plan, budget=Budget(max_samples=round(per_prompt * prompts)))
    for step in range(WARM_UP + STEPS):
        if known is not None:
            known.rate_P = rate_P
        source = DiscreteEventSource(Workload(rate_P, lengths, seed=0, step=step).draw)
        sampled = sampler.run_step(step, [str(p) for p in range(prompts)], source)
        if sampled is None:
            raise InvariantError("a simulated step was dropped")
        rows, result = sampled.rows, sampled.result
        live_R = rows.weight_R > 0
        prompt_R, advantage_R = rows.prompt_R[live_R], rows.advantage_R[live_R]
        correct_R = result.positive_N[rows.pool_R[live_R]]
        pull_P = np.bincount(prompt_R, np.where(correct_R, advantage_R, 0.0), prompts)
        push_P = -np.bincount(prompt_R, np.where(correct_R, 0.0, advantage_R), prompts)
        if step >= WARM_UP:
            factor_P = (pull_P / rate_P + push_P / (1.0 - rate_P)) / group
            moved.append(factor_P[OTHERS:].reshape(len(SHOWN_P), PROBES).mean(axis=1))
    moved_SP = np.array(moved)
    return moved_SP.mean(axis=0), moved_SP.std(axis=0, ddof=1) / math.sqrt(STEPS)


def render_taught(rows: Sequence[Taught]) -> Table:
    """Return a table with one line per setting."""
    from rich.table import Table

    table = Table(
        title="how much a prompt of this pass rate weighs in the mean update: over the declared objective's weight, or "
        "without one over its own at pass rate .5"
    )
    table.add_column("setting", no_wrap=True)
    table.add_column("declares")
    table.add_column(f"misses it, {RANGE[0]:g} to {RANGE[1]:g}", justify="right")
    for rate in SHOWN_P:
        table.add_column(f"{rate:g}", justify="right")
    for row in rows:
        cells = (
            f"{value:.2f}" + (f" ± {error:.2f}" if error else "")
            for value, error in zip(row.relative_P, row.error_P, strict=True)
        )
        missed = "" if row.missed is None else f"{row.missed:.1%}"
        table.add_row(row.name, row.declared or "none", missed, *cells)
    return table
