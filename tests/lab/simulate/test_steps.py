"""The simulator against the exact dynamic programme and closed forms, and what it reads and draws."""

import dataclasses
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from nemo_ada.core.prompts.allocation import Allocation, PowerRule
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit, PositiveExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import Estimate
from nemo_ada.lab.simulate.exact import summarise_rule
from nemo_ada.lab.simulate.steps import (
    BetaRates,
    MeasuredRates,
    Setting,
    Variant,
    compare_variants,
    render_table,
    simulate_variant,
)

GRPO = SamplingPlan(StopRule(FixedExit(8), (8,), 8), 8, 400)
BALANCED = SamplingPlan(StopRule(BalancedExit(2, 2), (8,), 32), 4, 400)


def share_near(figure, expected, draws):
    """Within four standard errors of a share of `draws` prompts."""
    return abs(figure.value - expected) < 4 * (expected * (1 - expected) / draws) ** 0.5


@pytest.mark.parametrize(("p", "rule"), [(0.1, BalancedExit(2, 2)), (0.6, PositiveExit(1))])
def test_agrees_with_the_dynamic_programme(p, rule):
    plan = dataclasses.replace(BALANCED, stop=dataclasses.replace(BALANCED.stop, exit=rule))
    row = compare_variants(
        [Variant("ours", plan)], Setting(MeasuredRates((p,)), prompts=64, seeds=6, warm_up=0, steps=1)
    )[0]
    exact = summarise_rule(StopRule(rule, (8,), 32), p)
    expected = 64 * exact.expected_samples
    assert abs(row.kept_responses.value - expected) < max(
        2 * (row.kept_responses.high - row.kept_responses.low), 1e-3 * expected
    )
    assert share_near(row.resolved, exact.p_resolved, 6 * 64) or exact.p_resolved > 1 - 1e-9
    assert share_near(row.zero_signal, exact.p_zero_signal, 6 * 64)


def test_groups_without_signal_of_grpo_have_their_closed_form():
    row = compare_variants([Variant("grpo", GRPO)], Setting(MeasuredRates((0.1,)), prompts=256, seeds=5, warm_up=0))[0]
    assert share_near(row.zero_signal, 0.9**8 + 0.1**8, 256 * 5 * 2)
    assert row.responses == Estimate(2048.0, 2048.0, 2048.0)


def test_variants_see_the_same_responses():
    setting = Setting(BetaRates(0.6, 1.5), seeds=2, warm_up=0, steps=1)
    rounds = Variant("rounds", dataclasses.replace(BALANCED, scheduler="rounds"))
    first, second, again = compare_variants([rounds, Variant("continuous", BALANCED), rounds], setting)
    assert first.tokens == second.tokens
    assert first.zero_signal == second.zero_signal
    assert second.engine_steps.value < first.engine_steps.value
    assert again == first


def test_budget_hits_are_the_share_of_steps_that_a_cap_ended():
    setting = Setting(BetaRates(0.6, 1.5), seeds=2, steps=1)
    tight = dataclasses.replace(BALANCED, budget=Budget(max_samples=520))
    loose = dataclasses.replace(BALANCED, budget=Budget(max_samples=64 * 32))
    bound, free = compare_variants([Variant("t", tight), Variant("l", loose)], setting)
    assert bound.budget_hits.value == 1.0
    assert bound.responses.value <= 520
    assert free.budget_hits.value == 0.0


def test_the_estimation_variant_allocates_by_the_true_rates():
    plan = SamplingPlan(StopRule(FixedExit(1), (32,), 32), 8, 400)
    known = Allocation(PowerRule(), 4, 32, 1e-3)
    rate_P = np.repeat([0.1, 0.9], 8)
    setting = Setting(BetaRates(0.6, 1.5), warm_up=0, steps=2)
    for stats in simulate_variant(Variant("est", plan, known), setting, lambda _: rate_P):
        assert stats["samples_drawn"] == 16 * 8
        assert stats["pool_size_max"] == known.compute_responses(rate_P, 8, np.arange(16.0)).max() > 8


def test_steps_with_a_duration_and_few_slots():
    rate_P = np.full(32, 0.5)
    alone, crowded = (
        next(iter(simulate_variant(
            Variant("g", GRPO), Setting(BetaRates(0.6, 1.5), warm_up=0, slots=slots), lambda _: rate_P, clock=clock
        )))
        for slots, clock in ((None, (1.0, 0.0)), (16, (0.02, 0.001)))
    )  # fmt: skip
    free, full = alone["engine_steps"], crowded["engine_steps"]
    assert full > 1.1 * free
    assert crowded["tokens_drawn"] == alone["tokens_drawn"]
    assert crowded["sampling_seconds"] == pytest.approx(0.02 * full + 0.001 * crowded["tokens_drawn"])
    assert alone["sampling_seconds"] == free


def test_pass_rates_are_read_from_numbers_and_json_lines(tmp_path):
    path = tmp_path / "rates.jsonl"
    path.write_text('0.25\n\n{"uid": "a", "pass_rate": 0.5}\n1\n', encoding="utf-8")
    rates = MeasuredRates.read(path)
    assert rates.rates == (0.25, 0.5, 1.0)
    assert set(rates.draw(200, seed=0).tolist()) == {0.25, 0.5, 1.0}


@pytest.mark.parametrize("line", ["1.5", "-0.1", "abc", '{"rate": 0.5}', "true", '"0.5"', "NaN", "[0.5]"])
def test_lines_that_are_no_pass_rate_are_named(tmp_path, line):
    path = tmp_path / "rates.txt"
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match="holds no pass rates"):
        MeasuredRates.read(path)
    path.write_text(f"0.5\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"rates\.txt:2: .* is no pass rate"):
        MeasuredRates.read(path)


def test_the_table_shows_every_variant_with_its_error_where_there_is_one():
    (alone,) = compare_variants([Variant("grpo", GRPO)], Setting(BetaRates(1, 1), seeds=1, steps=1))
    assert np.isnan(alone.tokens.low)
    rows = [alone, dataclasses.replace(alone, name="ada", responses=Estimate(512.0, 511.96, 512.04))]
    console = Console(width=200, record=True, file=StringIO())
    console.print(render_table(rows))
    text = console.export_text()
    assert "grpo" in text and "ada" in text and "512.0 [512.0, 512.0]" in text
