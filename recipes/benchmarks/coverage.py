"""How often do the intervals of `nemo-ada eval` hold the truth? A simulation, about 4 minutes on one core.

    python recipes/benchmarks/coverage.py [--cells recipes/results/coverage.csv]

Each cell draws CASES evaluations of the same kind and counts the 95 % intervals that hold the true value.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from measure import measure
from tables import markdown_table

from nemo_ada.lab.evaluation.statistics import FloatArray, estimate, paired_test

CASES, PAIRED_CASES, FLIPS = 2000, 1000, 199
PROBLEMS = (30, 100, 500)
RATES = (0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98)
SHIFT, SPREAD = 0.7, 0.5  # logits between two models: mean and standard deviation over problems
TRUTH = 300_000  # problems, for the true difference
KINDS = {"equal": None, "Beta, a + b = 4": 4.0, "Beta, a + b = 1": 1.0, "Beta, a + b = 0.3": 0.3}
"""Pass rates of the problems: all equal, or spread more and more towards 0 and 1."""

PAGE = """# How often the intervals of an evaluation hold the truth

Made by `python recipes/benchmarks/coverage.py --cells recipes/results/coverage.csv`. The
script simulates evaluations of models whose pass rates are known, and counts how many of the 95 % intervals hold the
true mean. The true mean takes {rates} values, from {low} to {high}. The problems of each evaluation are drawn anew.
Their pass rates are equal, or come from a Beta distribution. A small a + b puts most problems near 0 or 1, as real
benchmarks do.

A cell below has the lowest and the highest share over these means, in percent, and the mean width of the interval at
a mean of 0.5, in points. coverage.csv has every cell.

## The mean of one model

Each share is of {cases} evaluations, so its standard error is about 0.5. Of {all} cells, {right} lie from 93 to 97 %,
{wide} above and {narrow} below (the lowest has {lowest} %). The shares above 97 % are mostly those of true means near
0 or 1 with few problems.

{means}

## The difference of two models on the same problems

Each share is of {paired} pairs, so its standard error is about 0.7. "Better" shifts the first model's pass rates by a
normal variable of mean {shift} and standard deviation {spread} on the scale of logits. "No difference" shifts nothing.
100 minus its share is how often an interval excludes 0 by mistake. The two last columns are the shares of p-values at
or below .05 over all means, in percent, for 30, 100 and 500 problems.

{differences}
"""
Cell = tuple[float, float]
"""Share of the intervals that hold the truth, in percent, and their mean width, in points."""
Row = tuple[int, str, int, str, list[Cell], list[float]]
"""k, kind of pass rates, problems, second model, a cell for each rate, and the shares of small p-values: t, flips."""


def chances(rng: np.random.Generator, problems: int, rate: float, alike: float | None) -> FloatArray:
    """Pass rates of the problems of one benchmark."""
    return np.full(problems, rate) if alike is None else rng.beta(rate * alike, (1.0 - rate) * alike, problems)


def moved(rng: np.random.Generator, chance_P: FloatArray) -> FloatArray:
    """Pass rates of a better model on these problems."""
    odds_P = chance_P / np.maximum(1.0 - chance_P, 1e-12) * np.exp(rng.normal(SHIFT, SPREAD, len(chance_P)))
    return odds_P / (1.0 + odds_P)


def mean_cell(rng: np.random.Generator, problems: int, k: int, rate: float, alike: float | None) -> Cell:
    """Coverage and mean width of the mean's interval."""
    found = [estimate(rng.binomial(k, chances(rng, problems, rate, alike)) / k) for _ in range(CASES)]
    covered = np.mean([one.low <= rate <= one.high for one in found])
    return round(100 * float(covered), 1), round(100 * float(np.mean([one.high - one.low for one in found])), 1)


def paired_row(
    rng: np.random.Generator, problems: int, k: int, alike: float | None, better: bool
) -> tuple[list[Cell], list[float]]:
    """Coverage per rate of the difference's interval, and shares of small p-values: t, flips."""
    cells: list[Cell] = []
    small = np.zeros(2)
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
        cells.append((round(100 * covered / PAIRED_CASES, 1), round(100 * width / PAIRED_CASES, 1)))
    return cells, [] if better else [round(100 * float(one), 1) for one in small / len(RATES) / PAIRED_CASES]


def means() -> list[Row]:
    """One response per problem does not show how pass rates differ, so it has one kind only."""
    rows: list[Row] = []
    for k in (1, 4, 32):
        for kind, alike in KINDS.items() if k > 1 else [("any", None)]:
            for problems in PROBLEMS:
                rng = np.random.default_rng([k, problems, len(rows)])
                rows.append((k, kind, problems, "", [mean_cell(rng, problems, k, r, alike) for r in RATES], []))
    return rows


def differences() -> list[Row]:
    """Both kinds of pairs."""
    rows: list[Row] = []
    for k in (1, 32):
        for kind in ("equal", "Beta, a + b = 4", "Beta, a + b = 1"):
            for problems in PROBLEMS:
                for better in (False, True):
                    rng = np.random.default_rng([k, problems, len(rows)])
                    cells, small = paired_row(rng, problems, k, KINDS[kind], better)
                    rows.append((k, kind, problems, "better" if better else "no difference", cells, small))
    return rows


def summary(rows: Sequence[Row], *, paired: bool) -> str:
    """A table with a line per k, kind and second model, and a column per number of problems."""
    lines: dict[tuple[int, str, str], dict[int, tuple[list[Cell], list[float]]]] = {}
    for k, kind, problems, second, cells, small in rows:
        lines.setdefault((k, kind, second), {})[problems] = cells, small
    heads = [
        "k",
        "pass rates",
        *(["second model"] if paired else []),
        *(f"{count} problems" for count in PROBLEMS),
    ]
    table = []
    for (k, kind, second), of in lines.items():
        row = [str(k), kind, *([second] if paired else [])]
        for cells, _ in of.values():
            shares = [share for share, _ in cells]
            row.append(f"{min(shares)} to {max(shares)} ({cells[RATES.index(0.5)][1]})")
        if paired:
            row += [", ".join(str(small[i]) for _, small in of.values() if small) for i in range(2)]
        table.append(row)
    heads += ["p (t)", "p (flips)"] if paired else []
    return markdown_table([dict(zip(heads, row, strict=True)) for row in table])


def page(means: Sequence[Row], differences: Sequence[Row]) -> str:
    """The whole page."""
    shares = np.array([share for row in means for share, _ in row[4]])
    inside = (shares >= 93) & (shares <= 97)
    return PAGE.format(
        rates=len(RATES), low=RATES[0], high=RATES[-1], cases=CASES, paired=PAIRED_CASES, shift=SHIFT,
        spread=SPREAD, all=len(shares), right=int(inside.sum()), wide=int((shares > 97).sum()),
        narrow=int((shares < 93).sum()), lowest=float(shares.min()), means=summary(means, paired=False),
        differences=summary(differences, paired=True),
    ).rstrip()  # fmt: skip


def every_cell(rows: Sequence[Row]) -> str:
    """All cells as CSV."""
    lines = ["k,pass rates,problems,second model,mean,share,width"]
    for k, kind, problems, second, cells, _ in rows:
        lines += [f'{k},"{kind}",{problems},{second},{rate},{share},{width}'
                  for rate, (share, width) in zip(RATES, cells, strict=True)]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(say: Callable[[str], None] = print) -> None:
    """Write the page, and the cells where --cells names a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, help="CSV file for every cell")
    arguments = parser.parse_args()
    first, second = means(), differences()
    say(page(first, second))
    if arguments.cells is not None:
        arguments.cells.write_text(every_cell([*first, *second]), encoding="utf-8")


if __name__ == "__main__":
    measure(main)
