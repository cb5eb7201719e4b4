"""Numbers of the report agree with the records: tables, drawings, summaries, comparisons over seeds."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_runs import make_run, rewrite, step_record

import nemo_ada.lab.report
from nemo_ada.core import metrics
from nemo_ada.lab.report import summary
from nemo_ada.lab.report.curves import band, by_method, difference
from nemo_ada.lab.report.draw import panel_canvas, panel_svg
from nemo_ada.lab.report.figures import SAMPLING, all_figures
from nemo_ada.lab.report.page import render
from nemo_ada.lab.report.run import read_usable
from nemo_ada.lab.report.series import TREND, in_blocks, number_text, trend
from tests.lazy import Lazy

stats = Lazy("scipy.stats")


def runs_of(*folders):
    return read_usable(folders)[0]


def figure_of(runs, key):
    return next(figure for figure in all_figures(runs) if figure.key == key)


def rows_of(figure, run=None):
    """The rows of a figure's table without the names of the runs, of one run or of all."""
    table = figure.table if run is None else figure.table[figure.table["run"] == run]
    return [tuple(row) for row in table.drop(columns="run").itertuples(index=False)]


def axes_of(panel):
    """The panel as matplotlib drew it."""
    return panel_canvas(panel).axes[0]


def test_every_sampling_metric_that_a_figure_names_is_one_that_is_emitted():
    source = "".join(path.read_text() for path in Path(nemo_ada.lab.report.__file__).parent.glob("*.py"))
    old = set(re.findall(r'"ada/(\w+)": "ada/', source))
    named = set(re.findall(r'"ada/(\w+)"', source)) - old
    emitted = {*metrics.TABLE, *metrics.LISTS, "tokens_skipped", "rows_skipped"}
    assert "zero_signal_groups" in named and named <= emitted


def test_shares_are_of_the_prompts_that_were_drawn_for(tmp_path):
    figure = figure_of(runs_of(make_run(tmp_path / "a", 3)), "sampling")
    assert rows_of(figure) == [(str(step), 20.0, 32 / 64, 12 / 64, 4 / 64, 0.25, 0.5) for step in (1, 2, 3)]
    assert figure.caption == SAMPLING.caption, "so few steps have no rolling means"


def test_lines_are_drawn_through_the_values_of_the_table(tmp_path):
    runs = runs_of(make_run(tmp_path / "a", 10), make_run(tmp_path / "b", 16, lift=0.1))
    figure = figure_of(runs, "sampling")
    assert [panel.title for panel in figure.panels] == list(figure.table.columns[2:])
    for panel in figure.panels:
        drawn = [line for line in axes_of(panel).lines if len(line.get_xdata()) > 1]
        for run, line in zip("ab", drawn, strict=True):
            assert line.get_ydata().tolist() == figure.table.loc[figure.table["run"] == run, panel.title].tolist()
    assert len(drawn) == 2


def test_what_a_run_reached_cost_and_comes_from_stands_in_its_row_and_card(tmp_path):
    folder = make_run(tmp_path / "a", 60)
    facts = {"command": "c", "commit": "d", "started": "e", "nemo_ada": "f", "python": "g", "platform": "h"}
    (folder / "environment.json").write_text(json.dumps(facts | {"packages": {"numpy": "2", "ray": "3"}}))
    runs = runs_of(folder)
    card = {"folder": str(folder), "state": "done", **facts, "packages": "numpy 2, ray 3"}
    assert summary.provenance(runs[0]) == card
    table = summary.overview(runs)
    rates = [step_record(step)["ada/pass_rate"] for step in range(55, 61)]
    times = np.percentile([step_record(step)["time/step"] for step in range(1, 61)], (50, 95))
    scores = [f"{0.2 + more:.3f} → {0.2 + more + 0.4 * (1 - math.exp(-60 / 40)):.3f}" for more in (0.0, 0.2)]
    totals = [number_text(float(value)) for value in (76_800, 76_800 * 17, 192 * 60, 2.6 * 60)]
    ends = [number_text(float(np.mean(rates))), "20", "25.0%", "50.0%", *totals]
    assert table.loc["a"].tolist() == ["done", "60", *scores, *ends, " / ".join(number_text(float(t)) for t in times)]
    assert str(summary.terminal_table(table, "Overview").title) == "Overview"


def test_times_are_compared_with_the_plan(tmp_path):
    folder, bare = make_run(tmp_path / "a", 60), make_run(tmp_path / "b", 3)
    seconds = {"p50": 2.5, "p95": 2.7, "worst": 2.9, "origin": "measured here"}
    phases = {"sampling": seconds, "training": {"p50": 0.25, "p95": 0.35, "worst": 1.0}, "refit": "?"}
    nothing = {"p50": 0.0, "p95": 0.0, "worst": 0.0, "origin": "not measured"}
    plan = {"forecast": {"phases": phases, "step": seconds, "evaluation": nothing}, "caps": {"max_samples": 512}}
    (folder / "plan.json").write_text(json.dumps(plan))
    runs = runs_of(folder, bare)
    sampling, times = (
        np.array([step_record(step)[f"time/{phase}"] for step in range(1, 61)]) for phase in ("sampling", "step")
    )
    figure = figure_of(runs, "time")
    rows = {row[0]: row[1:] for row in rows_of(figure, "a")}
    quantiles = (*np.percentile(sampling, (50, 95)), sampling.max())
    assert rows["sampling"] == pytest.approx((sampling.mean(), 60, sampling.mean(), *quantiles, 2.5, 2.7))
    assert rows["update"][-2:] == (0.25, 0.35) and rows["step"][-2:] == (2.5, 2.7)
    assert rows["evaluation"][1] == 7 and np.isnan([*rows["evaluation"][-2:], *rows["refit"][-2:]]).all()

    row = summary.predictions(runs).loc["a"].tolist()
    seen = [number_text(float(value)) for value in (*np.percentile(times, (50, 95)), times.max())]
    assert row[:2] == ["2.5 / 2.7 / 2.9", " / ".join(seen)]
    assert row[3:] == [f"{(times > 2.7).mean():.1%}", f"{(times > 2.9).mean():.1%}", "max_samples 512", "measured here"]
    assert summary.predictions(runs[1:]) is None
    (folder / "plan.json").write_text(json.dumps(plan | {"own_run": True}))
    assert "no prediction" in summary.predictions(runs_of(folder)).loc["a"].tolist()[-1]


def test_the_seconds_of_a_phase_are_spread_over_all_steps_also_those_without_it(tmp_path):
    folder = make_run(tmp_path / "a", 60)
    with rewrite(folder) as records:
        for record in records[15:]:
            del record["time/refit"]
    runs = runs_of(folder)
    per_step = figure_of(runs, "time").table.set_index("phase")["s per step"]
    assert per_step["refit"] == pytest.approx(0.03 * 15 / 60)
    assert per_step["evaluation"] == pytest.approx(1.5 * 7 / 60)
    assert per_step["update"] == pytest.approx(0.3)


def test_pass_rates_are_shares_of_the_counted_prompts_in_blocks_of_steps(tmp_path):
    folder, old = make_run(tmp_path / "a", 100), make_run(tmp_path / "old", 5)
    with rewrite(old) as records:
        for record in records:
            del record["ada/pass_rate_histogram"]
    runs = runs_of(old, folder)
    figure = figure_of(runs, "pass-rates")
    counts = np.array([step_record(step)["ada/pass_rate_histogram"] for step in range(1, 101)], float)
    assert set(figure.table["run"]) == {"a"} and len(figure.table) == 34  # blocks of three steps
    share_B = counts[3:6].sum(axis=0) / counts[3:6].sum()
    assert rows_of(figure)[1] == ("4-6", 192.0, *(f"{share:.1%}" for share in share_B))
    assert "old" in figure.caption and "4-6" in render(runs, written="now")
    assert not len(figure_of(runs[:1], "pass-rates").table)


@pytest.mark.parametrize("damage", [None, "x", [1], [1] * 8 + ["x"], [1] * 8 + [-1], [1] * 8 + [1e999]])
def test_a_damaged_histogram_is_a_gap(tmp_path, damage):
    folder = make_run(tmp_path / "a", 4)
    with rewrite(folder) as records:
        records[2]["ada/pass_rate_histogram"] = damage
    (run,) = runs_of(folder)
    assert any("line 3: ada/pass_rate_histogram" in note for note in run.notes)
    rows = rows_of(figure_of([run], "pass-rates"))
    assert rows[2][1:] == (0.0, *["–"] * 9) and rows[3][1] == 64.0


def test_equal_cost_cuts_every_axis_at_what_all_runs_reached(tmp_path):
    table = summary.equal_cost(runs_of(make_run(tmp_path / "a", 60), make_run(tmp_path / "b", 30, lift=0.1)))
    assert table.columns[0] == "up to 30 training steps"
    x = np.array([0.0, 10.0, 20.0, 30.0])
    area = np.trapezoid(0.2 + 0.4 * (1 - np.exp(-x / 40)), x) / 30
    assert table.iloc[:, 0].astype(float).tolist() == pytest.approx([area, area + 0.1], abs=2e-4)


@pytest.mark.parametrize("seeds", [2, 5, 40])
def test_the_interval_over_seeds_is_students_t_with_one_degree_of_freedom_less_than_seeds(seeds):
    gain_S = np.random.default_rng(seeds).normal(0.1, 0.05, seeds)
    low, high = stats.ttest_1samp(gain_S, 0.0).confidence_interval(0.95)
    found = difference(gain_S.tolist())
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx((low, high), rel=1e-6)


@pytest.mark.parametrize(
    ("gains", "shown"), [([0.1, 0.1], "+0.100 ±0.000"), ([0.1], "+0.100"), ([float("nan"), 0.1], "none")]
)
def test_a_table_shows_no_interval_that_does_not_exist(gains, shown):
    assert str(difference(gains)) == shown


def test_settings_that_differ_are_named_and_folders_are_not(tmp_path):
    runs = runs_of(
        make_run(tmp_path / "a", 3, config={"grpo": {"seed": 0, "n": 4}, "task": {"name": "t", "size": 1}}),
        make_run(tmp_path / "b", 3, config={"grpo": {"seed": 0, "n": 8}, "extra": None}),
    )
    rows = {row[0]: tuple(row[1:]) for row in summary.differences(runs).itertuples()}
    assert rows == {"grpo.n": ("4", "8"), "task.size": ("1", "(not set)"), "extra": ("(not set)", "null")}
    assert any("different tasks" in note for note in summary.warnings(runs))


def test_long_runs_are_means_over_blocks_and_drawings_do_not_grow_with_them(tmp_path):
    short, long = runs_of(make_run(tmp_path / "short", 100, every=4), make_run(tmp_path / "long", 1000, every=40))
    rows = rows_of(figure_of([long], "pass-rate"))
    rates = np.array([step_record(step)["ada/pass_rate"] for step in range(1, 1001)])
    assert [row[0] for row in rows][:2] == ["1-10", "11-20"] and len(rows) == 100
    assert rows[1][-1] == pytest.approx(rates[10:20].mean())
    drawn = [sum(len(panel_svg(panel)) for panel in figure_of([run], "optimiser").panels) for run in (short, long)]
    assert drawn[1] < 1.2 * drawn[0]


def test_blocks_leave_gaps_out_of_their_means():
    values = [1.0, np.nan, 3.0, np.nan, np.nan, np.nan, 7.0]
    blocks = in_blocks(pd.DataFrame({"step": np.arange(1.0, 8.0), "value": values}), 3)
    assert list(blocks.index) == ["1-3", "4-6", "7"]
    assert blocks["value"].tolist()[::2] == [2.0, 7.0] and np.isnan(blocks["value"].iloc[1])


def test_the_trend_is_the_mean_of_its_neighbours():
    values = np.random.default_rng(0).normal(size=40)
    values[20] = np.nan
    rolling, half = trend(pd.Series(values)), TREND // 2
    for i in range(40):
        near = values[max(0, i - half) : i + half + 1]
        assert np.isnan(rolling[i]) if i == 20 else rolling[i] == pytest.approx(np.nanmean(near))
    assert trend(pd.Series(values[: 2 * TREND - 1])) is None


def seeds(folder, name, lifts, **settings):
    """Runs of one method that differ in their seed, and by these lifts in their scores."""
    return [
        make_run(folder / f"{name}-seed{seed}", 30, lift=lift, config={"grpo": {"seed": seed, **settings}})
        for seed, lift in enumerate(lifts)
    ]


def test_runs_that_differ_only_in_their_seed_are_one_method(tmp_path):
    repeated = [make_run(tmp_path / f"again{i}", 3, config={"grpo": {"seed": 7, "n": 9}}) for i in range(2)]
    runs = runs_of(*seeds(tmp_path, "ada", [0.0, 0.1, 0.2], n=4), *seeds(tmp_path, "grpo", [0.0], n=8), *repeated)
    assert by_method(runs) == {"ada (3 seeds)": [0, 1, 2], "grpo-seed0": [3], "again0": [4], "again1": [5]}


def test_a_method_is_drawn_as_the_mean_of_its_seeds_with_students_band(tmp_path):
    lifts = [0.0, 0.05, 0.2]
    runs = runs_of(*seeds(tmp_path, "ada", lifts))
    figure = figure_of(runs, "heldout-accuracy")
    assert figure.methods == [0] and "95 % interval over seeds" in figure.caption
    assert len(figure.table) == 3 * 4, "the table has every run"
    axes = axes_of(figure.panels[0])
    (line,) = axes.lines
    expected = difference(lifts)
    shown = 0.2 + 0.4 * (1 - np.exp(-np.array([0, 10, 20, 30]) / 40)) + expected.mean
    assert line.get_ydata() == pytest.approx(shown)
    low, high = (bound(axes.collections[0].get_paths()[0].vertices[:, 1]) for bound in (np.min, np.max))
    assert (low, high) == pytest.approx((shown[0] - expected.half_width, shown[-1] + expected.half_width))
    assert summary.equal_cost(runs).loc["ada (3 seeds)"].str.contains("±").all()


def test_a_band_covers_only_what_all_seeds_reached():
    places, mean, half_width = band([(np.array([0.0, 10.0, 20.0]), np.zeros(3)), (np.array([5.0, 15.0]), np.ones(2))])
    assert places.tolist() == [5.0, 10.0, 15.0] and mean.tolist() == [0.5] * 3
    assert half_width == pytest.approx([stats.t.ppf(0.975, 1) * 0.5] * 3)


def test_loss_entropy_kl_and_length_are_drawn_under_the_names_of_both_back_ends(tmp_path):
    ours = {"train/loss": 0.1, "train/approx_kl": 0.01}
    theirs = {"train/kl_penalty": 0.2, "train/gen_kl_error": 0.01, "train/mean_gen_tokens_per_sample": 300.0}
    runs = runs_of(make_run(tmp_path / "a", 3, **ours), make_run(tmp_path / "b", 3, **theirs))
    titles = [panel.title for panel in figure_of(runs, "optimiser").panels]
    assert titles[:6] == [
        "loss", "policy entropy (nats per token)", "KL to the policy before the update", "KL to the reference policy",
        "KL between rollout and learner", "tokens per response",
    ]  # fmt: skip


def test_prompts_and_updates_are_axes_of_cost_where_steps_say_so(tmp_path):
    runs = runs_of(make_run(tmp_path / "a", 30, **{"train/updates": 4}), make_run(tmp_path / "b", 30, lift=0.1))
    figure = figure_of(runs, "heldout-accuracy")
    labels = [panel.x_label for panel in figure.panels]
    assert figure.choice and labels[1:4] == ["responses drawn", "prompts", "updates"]
    lines = axes_of(figure.panels[2]).lines
    assert [line.get_xdata().tolist() for line in lines] == [[0.0, 640.0, 1280.0, 1920.0]] * 2, "64 prompts per step"
    (updates,) = axes_of(figure.panels[3]).lines  # only the first run recorded them
    assert updates.get_xdata().tolist() == [0.0, 40.0, 80.0, 120.0]
    table = summary.equal_cost(runs)
    assert "up to 1,920 prompts" in table.columns and not any("updates" in name for name in table.columns)


def test_the_page_shows_one_axis_at_a_time_and_lets_the_reader_choose(tmp_path):
    runs = runs_of(make_run(tmp_path / "a", 3))
    page = render(runs, written="now")
    for figure in (figure for figure in all_figures(runs) if figure.choice):
        radios = re.findall(rf'<input type="radio" name="{figure.key}"[^>]*>', page)
        assert len(radios) == len(figure.panels) and sum("checked" in radio for radio in radios) == 1
        ids = re.findall(rf'id="({figure.key}-\d+)"', page)
        assert all(f'<label for="{name}">' in page for name in ids)
        for place in range(1, len(radios) + 1):
            assert f".choice input:nth-of-type({place}):checked ~ .panels img:nth-of-type({place})" in page
