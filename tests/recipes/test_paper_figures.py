"""The numbers behind recipes/results/paper_figures.json against closed forms, and the file against its recipe."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.lazy import Lazy

paper, stats = Lazy("paper_figures"), Lazy("scipy.stats")
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "recipes" / "results" / "paper_figures.json"


@pytest.mark.parametrize(
    ("name", "weight"),
    [("without baseline", lambda p: p**-0.5), ("with baseline", lambda p: ((1 - p) / p) ** 0.5)],
)
def test_figure_7_is_the_lagrange_solution_to_one_response(name: str, weight) -> None:  # type: ignore[no-untyped-def]
    rates, split = paper.figure_7()
    share = weight(rates)
    free = np.ones(len(rates), bool)
    while True:  # prompts at the bound n >= 1 leave the rest to the others
        real = np.where(free, share * (4096 - (~free).sum()) / share[free].sum(), 1.0)
        if (real >= 1.0).all():
            break
        free &= real >= 1.0
    assert split[name].sum() == 4096
    assert np.abs(split[name] - real).max() < 1.0


@pytest.mark.parametrize("mean", [0.15, 0.5])
def test_figure_5_follows_the_beta_binomial(mean: float) -> None:
    a, b = mean * paper.STRENGTH, (1 - mean) * paper.STRENGTH
    step = paper.figure_5(mean)
    few = [stats.betabinom.cdf(0, drawn, a, b) for drawn in (0, 8, 16, 24)]
    assert step.extra_positive == pytest.approx(512 * (8 * sum(few) - 4), rel=1e-9)
    few_pos, few_neg = ([stats.betabinom.cdf(1, n, *ab) for n in (8, 16, 24)] for ab in ((a, b), (b, a)))
    assert step.extra_balance == pytest.approx(512 * (8 * (1 + sum(few_pos) + sum(few_neg)) - 4), rel=1e-9)
    assert step.early_positive == pytest.approx(512 * (1 - few_pos[1]), rel=1e-9)
    assert step.early_both == pytest.approx(512 * (1 - few_pos[1] - few_neg[1]), rel=1e-9)
    assert step.lack_positive == pytest.approx(512 * stats.betabinom.cdf(1, 32, a, b), rel=1e-6)
    assert step.lack_negative == pytest.approx(512 * stats.betabinom.cdf(1, 32, b, a), rel=1e-6)


def test_the_published_numbers_are_those_of_the_recipe() -> None:
    assert json.loads(RESULTS.read_text(encoding="utf-8")) == paper.tables()
