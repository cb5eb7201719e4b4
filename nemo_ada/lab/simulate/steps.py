"""Simulate whole training steps on the discrete-event engine, to see what a sampling plan costs and yields.

Use it to choose exit condition, wave size, cap and budget before spending GPU hours. It runs the sampler that trains
over simulated responses, so waves, windows and budgets behave as in training. All variants see the same responses. For
one pass rate without scheduling, `nemo_ada.lab.simulate.exact` gives the exact numbers. A step has P prompts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.learning.settings import RowSettings
from nemo_ada.core.prompts.allocation import Allocation
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.budget import CAPS
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.lab.evaluation.statistics import UNKNOWN, Estimate, student_quantile
from nemo_ada.lab.simulate.engine import DiscreteEventSource, LengthModel, Workload, draw_beta_rates
from nemo_ada.run.files import read_bounded
from nemo_ada.run.json_lines import number_lines

if TYPE_CHECKING:
    from rich.table import Table

MAX_BYTES = 100_000_000  # largest file of pass rates that is read


@dataclass(frozen=True, slots=True)
class BetaRates:
    """Pass rates from Beta(a, b). With a < b most prompts are hard. With both below 1 most are near 0 or near 1."""

    a: float
    b: float

    def draw(self, prompts: int, seed: int) -> FloatArray:
        """Pass rates [P] of `prompts` prompts."""
        return draw_beta_rates(prompts, self.a, self.b, seed)


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """Pass rates from a list of measured ones, with replacement."""

    rates: tuple[float, ...]

    def draw(self, prompts: int, seed: int) -> FloatArray:
        """Pass rates [P] of `prompts` prompts."""
        return np.random.default_rng(seed).choice(np.array(self.rates), prompts)

    @classmethod
    def read(cls, path: Path) -> MeasuredRates:
        """Read a file with one pass rate per line, as a number or in a JSON object with the key `pass_rate`.

        Raises:
            UserError: The file cannot be read, or a line has no pass rate in [0, 1]. The message names the line.
        """
        rates: list[float] = []
        try:
            content = read_bounded(path, MAX_BYTES)
        except OSError as problem:
            raise UserError(f"the pass rates {str(path)!r} cannot be read: {problem}") from None
        for number, line in number_lines(content.split(b"\n")):
            rates.append(_read_rate(line.decode("utf-8", errors="replace"), f"{path}:{number}"))
        if not rates:
            raise UserError(f"{path} holds no pass rates; write one number in [0, 1] per line")
        return cls(tuple(rates))


RateDistribution = BetaRates | MeasuredRates


def _read_rate(line: str, where: str) -> float:
    """Return the pass rate of a line. Raises UserError that begins with `where`."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        value = value.get("pass_rate")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise UserError(
            f"{where}: {line.strip()[:60]!r} is no pass rate; write a number in [0, 1], or a JSON object with it under "
            f"'pass_rate'"
        )
    return float(value)


class KnownRates:
    """A pass-rate estimator that knows the true rates, which is the limit of a good estimator.

    The id of a prompt is its position in the step.

    Attributes:
        rate_P: True pass rates of the step.
    """

    def __init__(self) -> None:
        self.rate_P = np.zeros(0)

    def predict_beta(
        self, prompt_ids: Sequence[str], features_PF: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """(a, b) of each prompt's Beta prior [P]: its true rate with the weight of one response."""
        rate_P = self.rate_P[[int(prompt_id) for prompt_id in prompt_ids]]
        return rate_P, 1.0 - rate_P

    def update(
        self,
        prompt_ids: Sequence[str],
        pos_P: IntArray | FloatArray,
        total_P: IntArray,
        features_PF: FloatArray | None = None,
    ) -> None:
        """Do nothing, because the rates are known."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which is empty."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing, because there is no state."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A sampling plan under a name.

    Attributes:
        name: Name in tables.
        plan: How responses are drawn.
        allocation: Allocation of the estimation variant, which gets the true pass rates. None for other variants.
        prompts_each: Factor on the setting's prompts. With it, groups of 1 draw as many responses as groups of n.
        own_baseline: Whether every row has a baseline of its own. Zero-signal groups have no meaning then.
    """

    name: str
    plan: SamplingPlan
    allocation: Allocation | None = None
    prompts_each: int = 1
    own_baseline: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """The simulated training. Its clock counts engine steps.

    Attributes:
        rates: Pass rates of the prompts.
        prompts: Prompts per training step.
        lengths: Lengths of the responses.
        seeds: Number of repetitions with different seeds.
        warm_up: Training steps before the measured ones. The latency model learns in them, for the cap on seconds.
        steps: Measured training steps.
        slots: Largest number of requests that the engine runs at once. None means that all run.
    """

    rates: RateDistribution
    prompts: int = 64
    lengths: LengthModel = field(default_factory=LengthModel)
    seeds: int = 10
    warm_up: int = 1
    steps: int = 2
    slots: int | None = None


def simulate_variant(
    variant: Variant,
    setting: Setting,
    rates: Callable[[int], FloatArray],
    *,
    seed: int = 0,
    clock: tuple[float, float] = (1.0, 0.0),
) -> Iterator[dict[str, float]]:
    """Simulate consecutive training steps of one run, with the sampler that trains. `simulate` and `plan` do it here.

    Args:
        variant: Sampling plan.
        setting: What is simulated. Its pass rates and its number of seeds are not used.
        rates: Gives the pass rates [P] of a step's prompts.
        seed: Seed of the run.
        clock: Seconds of an engine step, and more of it per running response.

    Yields:
        Metrics of a training step after the warm-up, and its engine steps as `engine_steps`.

    Raises:
        UserError: The budget is too small for the first waves.
    """
    plan, known = variant.plan, KnownRates()
    rows = RowSettings(plan.group_size, plan.stop)
    sampler = AdaSampler(plan, rows, run_seed=seed, estimator=known, allocation=variant.allocation)
    for step in range(setting.warm_up + setting.steps):
        known.rate_P = rates(step)
        workload = Workload(known.rate_P, setting.lengths, seed=seed, step=step)
        source = DiscreteEventSource(workload.draw, slots=setting.slots, step_seconds=clock[0], row_seconds=clock[1])
        sampled = sampler.run_step(step, [str(p) for p in range(len(known.rate_P))], source)
        if sampled is None:
            raise InvariantError("a simulated step was dropped")
        if step >= setting.warm_up:
            yield {**sampled.sampling_metrics, "engine_steps": source.steps}


@dataclass(frozen=True, slots=True)
class SimulatedVariant:
    """Cost and yield of a variant, per training step: means with their 95 % intervals over seeds.

    One seed has no interval.

    Attributes:
        name: Name of the variant.
        responses: Requested responses.
        kept_responses: Responses in pools.
        tokens: Generated tokens.
        engine_steps: Duration of the sampling phase in engine steps.
        seconds: Duration of the sampling phase by the engine's clock.
        zero_signal: Share of groups whose labels are all equal.
        resolved: Share of prompts that met the exit condition.
        budget_hits: Share of training steps in which a cap refused a prompt.
    """

    name: str
    responses: Estimate
    kept_responses: Estimate
    tokens: Estimate
    engine_steps: Estimate
    seconds: Estimate
    zero_signal: Estimate
    resolved: Estimate
    budget_hits: Estimate


_FIGURES = tuple(f.name for f in fields(SimulatedVariant) if f.name != "name")
_CAPPED = {cap.code for cap in CAPS}


def compare_variants(variants: Sequence[Variant], setting: Setting) -> list[SimulatedVariant]:
    """Simulate each variant on the same prompts, labels and lengths.

    Raises:
        UserError: A variant's budget is too small for its first waves.
    """
    simulated = []
    for variant in variants:
        steps_SF = np.array([_run_variant(variant, setting, seed) for seed in range(setting.seeds)])
        mean_SF = steps_SF.mean(axis=1)
        mean_F, half_F = mean_SF.mean(axis=0), np.full(len(_FIGURES), np.nan)
        if setting.seeds > 1:
            half_F = student_quantile(setting.seeds - 1) * mean_SF.std(axis=0, ddof=1) / math.sqrt(setting.seeds)
        ends_F3 = np.stack([mean_F, mean_F - half_F, mean_F + half_F], axis=1)
        row = SimulatedVariant(variant.name, *(Estimate(*ends) for ends in ends_F3.tolist()))
        simulated.append(replace(row, zero_signal=UNKNOWN) if variant.own_baseline else row)
    return simulated


def _run_variant(variant: Variant, setting: Setting, seed: int) -> list[list[float]]:
    """Return the measured training steps of one repetition. Each has its figures in the order of _FIGURES."""
    prompts = setting.prompts * variant.prompts_each
    rate_P = setting.rates.draw(prompts, seed)
    return [
        [
            stats["samples_drawn"],
            stats["samples_in_pools"],
            stats["tokens_drawn"],
            stats["engine_steps"],
            stats["sampling_seconds"],
            stats["zero_signal_groups"],
            stats["prompts_resolved"] / prompts,
            float(stats["budget_bound"] in _CAPPED),
        ]
        for stats in simulate_variant(variant, setting, lambda _: rate_P, seed=seed)
    ]


def render_table(rows: Sequence[SimulatedVariant]) -> Table:
    """Return a table with one line per variant. It shows means with their intervals over seeds."""
    from rich.table import Table

    table = Table(title="per step: mean and its 95 % interval over seeds")
    table.add_column("variant")
    for name in _FIGURES:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(row.name, *(_format_estimate(getattr(row, name)) for name in _FIGURES))
    return table


def _format_estimate(figure: Estimate) -> str:
    if math.isnan(figure.value):
        return "n/a"
    digits = 3 if abs(figure.value) < 10 else 1
    interval = "" if math.isnan(figure.low) else f" [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"
    return f"{figure.value:.{digits}f}{interval}"
