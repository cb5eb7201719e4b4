"""How often do the intervals of `nemo-ada eval` hold the truth? A simulation, about 4 minutes on one core.

    python recipes/benchmarks/coverage.py > recipes/results/coverage.md

Each cell draws CASES evaluations of the same kind and counts the 95 % intervals that hold the true value. The page that
it writes is recipes/results/coverage.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from measure import measure

from nemo_ada.evaluation.statistics import FloatArray, estimate, paired_test

CASES, PAIRED_CASES, FLIPS = 2000, 1000, 199
PROBLEMS = (30, 100, 500)
RATES = (0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98)
SHIFT, SPREAD = 0.7, 0.5  # logits between two models: mean and standard deviation over problems
TRUTH = 300_000  # problems, for the true difference
KINDS = {"equal": None, "Beta, a + b = 4": 4.0, "Beta, a + b = 1": 1.0, "Beta, a + b = 0.3": 0.3}
"""Pass rates of the problems: all equal, or spread more and more towards 0 and 1."""

PAGE = """# How often the intervals of an evaluation hold the truth

Made by `python recipes/benchmarks/coverage.py > recipes/results/coverage.md`. Each number is the share of {cases} 95 %
intervals that hold the true value, in percent, and in brackets their mean width in points. The error of a share is
about 0.5 (one standard deviation). The problems of each evaluation are drawn anew: their pass rates are all equal, or
from a Beta distribution with the mean at the head of the column. A small a + b puts most problems near 0 or 1, as real
benchmarks do.

## The mean of one model

{means}

## The difference of two models on the same problems

The second model's pass rates are the first one's (mean at the head of the column), shifted by a normal variable of mean
{shift} and standard deviation {spread} on the scale of logits. "No difference" shifts by nothing; 100 minus its share
is how often an interval excludes 0 by mistake. These cells have {paired} cases each, so their error is about 0.7. The
two last columns of such a row are the shares of p-values at or below .05, over all rates.

{differences}
"""


def chances(rng: np.random.Generator, problems: int, rate: float, alike: float | None) -> FloatArray:
    """Pass rates of the problems of one benchmark."""
    return np.full(problems, rate) if alike is None else rng.beta(rate * alike, (1.0 - rate) * alike, problems)


def moved(rng: np.random.Generator, chance_P: FloatArray) -> FloatArray:
    """Pass rates of a better model on these problems."""
    odds_P = chance_P / np.maximum(1.0 - chance_P, 1e-12) * np.exp(rng.normal(SHIFT, SPREAD, len(chance_P)))
    return odds_P / (1.0 + odds_P)


def mean_cell(rng: np.random.Generator, problems: int, k: int, rate: float, alike: float | None) -> str:
    """Coverage and mean width of the mean's interval."""
    found = [estimate(rng.binomial(k, chances(rng, problems, rate, alike)) / k) for _ in range(CASES)]
    covered = np.mean([one.low <= rate <= one.high for one in found])
    return f"{100 * covered:.1f} ({100 * np.mean([one.high - one.low for one in found]):.1f})"


def paired_row(
    rng: np.random.Generator, problems: int, k: int, alike: float | None, better: bool
) -> tuple[list[str], list[float]]:
    """Coverage per rate of the difference's interval, and shares of small p-values: t, flips."""
    cells, small = [], np.zeros(2)
    for rate in RATES:
        truth, covered, width = 0.0, 0, 0.0
        if better:
            many_P = chances(rng, TRUTH, rate, alike)
            truth = float((moved(rng, many_P) - many_P).mean())
        for _ in range(PAIRED_CASES):
            first_P = chances(rng, problems, rate, alike)
            second_P = moved(rng, first_P) if better else first_P
            one = paired_test(rng.binomial(k, first_P) / k, rng.binomial(k, second_P) / k, flips=1 if better else FLIPS)
            covered += one.low <= truth <= one.high
            width += one.high - one.low
            small += (one.p_t <= 0.05, one.p_flips <= 0.05)
        cells.append(f"{100 * covered / PAIRED_CASES:.1f} ({100 * width / PAIRED_CASES:.1f})")
    return cells, [] if better else list(small / len(RATES) / (PAIRED_CASES))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def means() -> str:
    """One response per problem does not show how pass rates differ, so it has one kind only."""
    rows: list[list[str]] = []
    for k in (1, 4, 32):
        for kind, alike in KINDS.items() if k > 1 else [("any", None)]:
            for problems in PROBLEMS:
                rng = np.random.default_rng([k, problems, len(rows)])
                rows.append([str(k), kind, str(problems), *(mean_cell(rng, problems, k, r, alike) for r in RATES)])
    return table(["k", "pass rates", "problems", *map(str, RATES)], rows)


def differences() -> str:
    """Both kinds of pairs."""
    rows: list[list[str]] = []
    for k in (1, 32):
        for kind in ("equal", "Beta, a + b = 4", "Beta, a + b = 1"):
            for problems in PROBLEMS:
                for better in (False, True):
                    rng = np.random.default_rng([k, problems, len(rows)])
                    cells, small = paired_row(rng, problems, k, KINDS[kind], better)
                    name = "better" if better else "no difference"
                    shares = [f"{100 * share:.1f}" for share in small] or ["", ""]
                    rows.append([str(k), kind, str(problems), name, *cells, *shares])
    return table(["k", "pass rates", "problems", "second model", *map(str, RATES), "p (t)", "p (flips)"], rows)


def main(say: Callable[[str], None] = print) -> None:
    """Write the page."""
    say(
        PAGE.format(
            cases=CASES, paired=PAIRED_CASES, shift=SHIFT, spread=SPREAD, means=means(), differences=differences()
        ).rstrip()
    )


if __name__ == "__main__":
    measure(main)
