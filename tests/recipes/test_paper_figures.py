"""The numbers behind recipes/results/paper_figures.json against closed forms, and the file against its recipe."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from nemo_ada.core.sampling.exits import BalancedExit, PositiveExit
from tests.lazy import Lazy

stats = Lazy("scipy.stats")
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "recipes" / "results" / "paper_figures.json"


@pytest.fixture(scope="module")
def paper() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paper_figures", ROOT / "recipes" / "benchmarks" / "paper_figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("cap", "wave"), [(32, 4), (64, 8), (128, 16)])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_figure_10_is_the_sum_of_the_tails_before_each_wave(paper: ModuleType, cap: int, wave: int, k: int) -> None:
    """E[N] = M sum_w P(not done after w waves); balanced by inclusion and exclusion, both sides binomial."""
    rates = np.array([0.02, 0.3, 0.5, 0.9])
    drawn_W1 = np.arange(0, cap, wave)[:, None]
    few_pos, few_neg = stats.binom.cdf(k - 1, drawn_W1, rates), stats.binom.cdf(k - 1, drawn_W1, 1 - rates)
    few_both = np.where(
        drawn_W1 <= 2 * k - 2,
        stats.binom.cdf(k - 1, drawn_W1, rates) - stats.binom.cdf(drawn_W1 - k, drawn_W1, rates),
        0,
    )
    assert (cap, wave) in paper.BUDGETS and k in paper.WANTED
    positive = paper.figure_10(PositiveExit(k), cap, wave, rates)
    balanced = paper.figure_10(BalancedExit(k, k), cap, wave, rates)
    assert positive == pytest.approx(wave * few_pos.sum(axis=0), rel=1e-9)
    assert balanced == pytest.approx(wave * (few_pos + few_neg - few_both).sum(axis=0), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "weight"),
    [("without baseline", lambda p: p**-0.5), ("with baseline", lambda p: ((1 - p) / p) ** 0.5)],
)
def test_figure_7_is_the_lagrange_solution_to_one_response(paper: ModuleType, name: str, weight) -> None:  # type: ignore[no-untyped-def]
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
def test_figure_5_follows_the_beta_binomial(paper: ModuleType, mean: float) -> None:
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


def test_the_published_numbers_are_those_of_the_recipe(paper: ModuleType) -> None:
    assert json.loads(RESULTS.read_text(encoding="utf-8")) == paper.tables()
