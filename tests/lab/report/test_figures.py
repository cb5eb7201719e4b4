"""Numbers of the report agree with the records: tables, drawings, summaries, comparisons over seeds."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run, step_record

import nemo_ada.lab.report
from nemo_ada.core import metrics
from nemo_ada.lab.report import summary
from nemo_ada.lab.report.curves import average_curves, compute_difference, group_by_method
from nemo_ada.lab.report.draw import draw_figure, make_canvas
from nemo_ada.lab.report.figures import average_blocks, make_figures
from nemo_ada.lab.report.run import read_usable
from nemo_ada.lab.report.summary import format_number
from tests.lazy import Lazy

stats = Lazy("scipy.stats")


def runs_of(*folders):
    return read_usable(folders)[0]


def figure_of(runs, key):
    return next(figure for figure in make_figures(runs) if figure.key == key)


def axes_of(runs, key):
    """The figure as matplotlib drew it."""
    return make_canvas(figure_of(runs, key), list(group_by_method(runs))).axes[0]


def test_every_sampling_metric_that_the_report_names_is_one_that_is_emitted():
    source = "".join(path.read_text() for path in Path(nemo_ada.lab.report.__file__).parent.glob("*.py"))
    named = set(re.findall(r'"ada/(\w+)"', source))
    assert "zero_signal_groups" in named and named <= {*metrics.TABLE, *metrics.LISTS}


def test_lines_are_drawn_through_the_values_of_the_records(tmp_path):
    gap = {"train/token_mult_prob_error": 1.02}
    runs = runs_of(make_run(tmp_path / "a", 10, **gap), make_run(tmp_path / "b", 16, lift=0.1, **gap))
    for key, value in (
        ("zero-signal", lambda record: 0.25), ("responses", lambda record: 20.0), ("policy-gap", lambda record: 1.02),
        ("step-seconds", lambda record: record["time/step"]),
    ):  # fmt: skip
        for line, steps in zip(axes_of(runs, key).lines, (10, 16), strict=True):
            assert line.get_xdata().tolist() == list(range(1, steps + 1))
            assert line.get_ydata().tolist() == [value(step_record(step)) for step in range(1, steps + 1)]
    for key, cost in (("accuracy-responses", 20 * 64), ("accuracy-seconds", 2.6)):
        first, second = axes_of(runs, key).lines
        assert first.get_xdata() == pytest.approx([0.0, 10 * cost]) and second.get_xdata() == pytest.approx(
            first.get_xdata()
        )
        assert second.get_ydata() - first.get_ydata() == pytest.approx(0.1)


def test_what_a_run_reached_and_cost_stands_in_its_row(tmp_path):
    table = summary.make_overview(runs_of(make_run(tmp_path / "a", 60)))
    rates = [step_record(step)["ada/pass_rate"] for step in range(55, 61)]
    times = np.percentile([step_record(step)["time/step"] for step in range(1, 61)], (50, 95))
    scores = [f"{0.2 + more:.3f} → {0.2 + more + 0.4 * (1 - math.exp(-60 / 40)):.3f}" for more in (0.0, 0.2)]
    totals = [format_number(float(value)) for value in (76_800, 76_800 * 17, 192 * 60, 2.6 * 60)]
    ends = [format_number(float(np.mean(rates))), "20", "25.0%", "50.0%", *totals]
    assert table.loc["a"].tolist() == ["done", "60", *scores, *ends, " / ".join(format_number(float(t)) for t in times)]
    assert str(summary.make_terminal_table(table, "Overview").title) == "Overview"


def test_equal_cost_cuts_every_axis_at_what_all_runs_reached(tmp_path):
    table = summary.compare_at_equal_cost(runs_of(make_run(tmp_path / "a", 60), make_run(tmp_path / "b", 30, lift=0.1)))
    assert table.columns[0] == "up to 30 training steps"
    x = np.array([0.0, 10.0, 20.0, 30.0])
    area = np.trapezoid(0.2 + 0.4 * (1 - np.exp(-x / 40)), x) / 30
    assert table.iloc[:, 0].astype(float).tolist() == pytest.approx([area, area + 0.1], abs=2e-4)


@pytest.mark.parametrize("seeds", [2, 5, 40])
def test_the_interval_over_seeds_is_students_t_with_one_degree_of_freedom_less_than_seeds(seeds):
    gain_S = np.random.default_rng(seeds).normal(0.1, 0.05, seeds)
    low, high = stats.ttest_1samp(gain_S, 0.0).confidence_interval(0.95)
    found = compute_difference(gain_S.tolist())
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx((low, high), rel=1e-6)


@pytest.mark.parametrize(
    ("gains", "shown"), [([0.1, 0.1], "+0.100 ±0.000"), ([0.1], "+0.100"), ([float("nan"), 0.1], "none")]
)
def test_a_table_shows_no_interval_that_does_not_exist(gains, shown):
    assert str(compute_difference(gains)) == shown


def test_settings_that_differ_are_named_and_folders_are_not(tmp_path):
    runs = runs_of(
        make_run(tmp_path / "a", 3, config={"grpo": {"seed": 0, "n": 4}, "task": {"name": "t", "size": 1}}),
        make_run(tmp_path / "b", 3, config={"grpo": {"seed": 0, "n": 8}, "extra": None}),
    )
    columns = {key: tuple(values) for key, values in summary.find_setting_differences(runs).items()}
    assert columns == {"grpo.n": ("4", "8"), "task.size": ("1", "(not set)"), "extra": ("(not set)", "null")}
    assert any("different tasks" in note for note in summary.find_warnings(runs))


def test_long_runs_are_means_over_blocks_and_drawings_do_not_grow_with_them(tmp_path):
    short, long = runs_of(make_run(tmp_path / "short", 100, every=4), make_run(tmp_path / "long", 1000, every=40))
    (line,) = figure_of([long], "step-seconds").lines
    times = np.array([step_record(step)["time/step"] for step in range(1, 1001)])
    assert line.x.tolist() == (np.arange(100) * 10 + 5.5).tolist()
    assert line.y == pytest.approx(times.reshape(100, 10).mean(axis=1))
    sizes = [len(draw_figure(figure_of([run], "step-seconds"), ["x"], "svg")) for run in (short, long)]
    assert sizes[1] < 1.2 * sizes[0]


def test_blocks_leave_gaps_out_of_their_means():
    y = np.arange(150.0)
    y[[0, 4, 5]] = np.nan
    x, means = average_blocks(np.arange(150.0), y)
    assert x[:3].tolist() == [0.5, 2.5, 4.5] and means[:2].tolist() == [1.0, 2.5] and np.isnan(means[2])


def seeds(folder, name, lifts, **settings):
    """Runs of one method that differ in their seed, and by these lifts in their scores."""
    return [
        make_run(folder / f"{name}-seed{seed}", 30, lift=lift, config={"grpo": {"seed": seed, **settings}})
        for seed, lift in enumerate(lifts)
    ]


def test_runs_that_differ_only_in_their_seed_are_one_method(tmp_path):
    repeated = [make_run(tmp_path / f"again{i}", 3, config={"grpo": {"seed": 7, "n": 9}}) for i in range(2)]
    runs = runs_of(*seeds(tmp_path, "ada", [0.0, 0.1, 0.2], n=4), *seeds(tmp_path, "grpo", [0.0], n=8), *repeated)
    assert group_by_method(runs) == {"ada (3 seeds)": [0, 1, 2], "grpo-seed0": [3], "again0": [4], "again1": [5]}


def test_a_method_is_drawn_as_the_mean_of_its_seeds_with_students_band(tmp_path):
    lifts = [0.0, 0.05, 0.2]
    runs = runs_of(*seeds(tmp_path, "ada", lifts))
    axes = axes_of(runs, "accuracy-responses")
    (line,) = axes.lines
    expected = compute_difference(lifts)
    shown = 0.2 + 0.4 * (1 - np.exp(-np.array([0, 10, 20, 30]) / 40)) + expected.mean
    assert line.get_ydata() == pytest.approx(shown)
    low, high = (bound(axes.collections[0].get_paths()[0].vertices[:, 1]) for bound in (np.min, np.max))
    assert (low, high) == pytest.approx((shown[0] - expected.half_width, shown[-1] + expected.half_width))
    assert summary.compare_at_equal_cost(runs).loc["ada (3 seeds)"].str.contains("±").all()


def test_a_band_covers_only_what_all_seeds_reached():
    places, mean, half_width = average_curves(
        [(np.array([0.0, 10.0, 20.0]), np.zeros(3)), (np.array([5.0, 15.0]), np.ones(2))]
    )
    assert places.tolist() == [5.0, 10.0, 15.0] and mean.tolist() == [0.5] * 3
    assert half_width == pytest.approx([stats.t.ppf(0.975, 1) * 0.5] * 3)
