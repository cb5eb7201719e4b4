"""The leaderboard's bench: what it runs, in which order, what it counts as done, and the statistics of its page."""

from __future__ import annotations

import copy
import csv
import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

if any(importlib.util.find_spec(name) is None for name in ("megatron", "ray", "vllm")):
    pytest.skip("the CPU back end is not installed", allow_module_level=True)

from nemo_ada.errors import UserError
from nemo_ada.lab.plan.roofline import H200_STEP
from tests.lazy import Lazy

BENCHMARKS = Path(__file__).parents[2] / "recipes" / "benchmarks"
RESULTS = BENCHMARKS.parent / "results"
bench, pages = Lazy("leaderboard"), Lazy("leaderboard_page")


@pytest.fixture(scope="module")
def protocol():
    return bench.Protocol()


KEYS: dict = {}
"""Keys of the protocol's jobs, which no test changes. Each takes a whole configuration."""


def results_in(folder, protocol, *published):
    made = bench.Results(protocol, folder, *published)
    made._keys = KEYS
    return made


@pytest.fixture
def results(protocol, tmp_path):
    return results_in(tmp_path / "out", protocol, None)


@pytest.fixture
def extended(tmp_path):
    """Results of a protocol that extends a grid twice, whatever the protocol file says."""
    protocol = bench.Protocol()
    protocol.values["extensions"] = 2
    return results_in(tmp_path / "out", protocol, None)


def result(job, gain=0.0, slope=3000.0):
    """A run without noise: a method with `gain` is better by it at every evaluation but that of the base."""
    places = [0, 1, 256, 512, 1024, 2048, 4096, 6144, 8192]
    points = [
        {"responses": x, "updates": x // 32, "prompts": x // 4, "live_rows": x // 2, "tokens": 17 * x, "pass4": 0.5,
         "steps": x / 128, "rows": x, "seconds": x / 400,
         "accuracy": 0.2 + 0.3 * (1 - math.exp(-x / slope)) + gain * (x > 0), "tiers": [0.1, 0.2, 0.3, None]}
        for x in places
    ]  # fmt: skip
    made = {"task": job.task, "method": job.method, "updates": job.updates, "rate": job.rate, "seed": job.seed,
            "base": job.seed % 2, "version": 1, "commit": "abc", "date": "", "seconds": 1.0,
            "why": {"ada/live_rows": 3.0}, "warmup_steps": 8, "tier_sizes": [9, 9, 9, 0], "points": points}  # fmt: skip
    return made | {"area": pages.area(made, "responses", 8192)}


def test_every_method_is_a_valid_run_of_every_number_of_updates(protocol):
    for method, settings in protocol.methods.items():
        for updates, rates in protocol.values["grid"].items() if not protocol.left(method) else ():
            config = protocol.config(bench.Job("sudoku", method, updates, rates[0], 200), Path("run"))
            assert config.updates_per_step == updates, method
            assert settings["name"]


def test_stages_name_methods_tasks_and_updates_that_there_are(protocol):
    for stage in protocol.values["stages"]:
        assert set(stage["tasks"]) <= set(protocol.values["tasks"])
        assert stage["methods"] == "all" or set(stage["methods"]) <= set(protocol.methods)
        assert set(stage["updates"]) <= set(protocol.values["grid"])
    for figure in protocol.values["figures"].values():
        assert set(figure["methods"]) <= set(protocol.methods)
        assert set(figure.get("tasks", ())) <= set(protocol.values["tasks"])
        assert set(figure.get("axes", ())) <= set(pages.AXES)


def test_all_tries_come_before_reported_seeds_and_every_method_has_as_many(protocol, results):
    methods = ["grpo4", "mean"]
    stage = {"tasks": ["sudoku"], "methods": methods, "updates": [4], "report": "each"}
    tries = list(results.jobs(stage, ["sudoku"], methods))
    assert len(tries) == 2 * 3 * 2 and {job.seed for job in tries} == set(protocol.values["tuning_seeds"])
    for job in tries:
        results.put(job, result(job, 0.1 * (job.rate == 1e-4)))
    jobs = [job for job in results.jobs(stage, ["sudoku"], methods) if results.get(job) is None]
    assert [(job.method, job.seed) for job in jobs[:4]] == [
        ("grpo4", 200),
        ("mean", 200),
        ("grpo4", 202),
        ("mean", 202),
    ]
    assert {job.rate for job in jobs} == {1e-4}, "the try with the largest area wins"


@pytest.mark.parametrize(("peak", "tried"), [
    (1e-4, [5e-5, 1e-4, 2e-4]),
    (2.5e-4, [5e-5, 1e-4, 2e-4, 4e-4]),
    (5e-5, [5e-5, 1e-4, 2e-4, 2.5e-5]),
    (1e-2, [5e-5, 1e-4, 2e-4, 4e-4, 8e-4]),
])  # fmt: skip
def test_rates_beyond_the_grid_are_tried_while_the_best_one_is_at_its_edge(extended, peak, tried):
    jobs = []
    for _ in range(30):  # more passes than jobs
        waiting = [job for job in extended.missing(["sudoku"], ["grpo4"], [4]) if job.seed >= 3000]
        if not waiting:
            break
        for job in waiting:
            extended.put(job, result(job, -0.1 * abs(math.log(job.rate / peak))))
        jobs += waiting
    assert sorted({job.rate for job in jobs}) == sorted(tried) and len(jobs) == 2 * len(tried)
    assert extended.tries("sudoku", "grpo4", [4]) == [(4, rate) for rate in tried]
    assert extended.best("sudoku", "grpo4", [4]) == (4, min(tried, key=lambda rate: abs(math.log(rate / peak))))


def test_a_method_whose_code_has_left_keeps_its_rows_and_does_not_run(protocol, tmp_path):
    published = results_in(tmp_path / "all", protocol)
    rows = pages.rows_of(protocol.values, published, "sudoku6", [4], "grpo4", ["ngu", "idle"])
    assert [(row.method, len(row.seeds)) for row in rows] == [("grpo4", 6), ("ngu", 6), ("idle", 6)]
    fresh = results_in(tmp_path / "fresh", protocol, None)
    assert list(fresh.missing(["sudoku6"], ["ngu", "idle", "popo"])) == []


def test_what_chooses_a_tasks_runs_changes_no_key(protocol):
    job = bench.Job("smollm2", "grpo4", 4, 1e-5, 200)
    changed = bench.Protocol()
    changed.values["tasks"]["smollm2"] |= {"grid": {4: [1e-5]}, "extensions": 1, "reported_seeds": [200, 299]}
    assert changed.key(job) == protocol.key(job)
    changed.values["tasks"]["smollm2"]["budget"] += 1
    assert changed.key(job) != protocol.key(job)


def test_a_changed_setting_is_another_run_and_a_new_name_is_not(protocol):
    job = bench.Job("sudoku", "grpo4", 4, 1e-4, 200)
    before = protocol.key(job)
    changed = bench.Protocol()
    changed.methods["grpo4"]["name"] = "another"
    assert changed.key(job) == before
    changed.methods["grpo4"]["n"] = 8
    assert changed.key(job) != before
    renewed = bench.Protocol()
    renewed.values["version"] += 1
    assert renewed.key(job) != before


def fill(results, gains):
    for method, gain in gains.items():
        for seeds in ("tuning_seeds", "reported_seeds"):
            for seed in results.protocol.values[seeds]:
                for rate in results.protocol.values["grid"][4]:
                    job = bench.Job("sudoku", method, 4, rate, seed)
                    results.put(job, result(job, gain + 0.001 * (seed % 3) - 0.1 * (rate != 1e-4)))


def with_a_base_each(protocol):
    """The protocol with a base model for each seed of sudoku, where the page shows it."""
    values = copy.deepcopy(protocol.values)
    values["tasks"]["sudoku"]["bases"] = len(values["reported_seeds"])
    values["figures"]["leaderboard"].pop("tasks")
    return values


def test_the_page_leaves_out_tasks_whose_seeds_share_base_models(protocol, results):
    fill(results, {"grpo4": 0.0, "mean": 0.05})
    assert "+.050" not in pages.page(protocol.values, results)[0]
    assert "+.050" in pages.page(with_a_base_each(protocol), results)[0]


@pytest.mark.long
def test_the_page_shows_paired_effects_and_can_be_made_from_the_published_results(protocol, results, tmp_path):
    fill(results, {"grpo4": 0.0, "mean": 0.05})
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    values = with_a_base_each(protocol)
    pages.write_page(values, results, first)
    assert "+.050±.000" in (first / "leaderboard.md").read_text()
    again = results_in(tmp_path / "empty", protocol, first / "leaderboard.jsonl")
    pages.write_page(values, again, second)
    for name in ("leaderboard.md", "leaderboard.csv", "leaderboard.jsonl"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    figures = {path.stem for path in (first / "figures").iterdir()}
    drawn = {name for name, figure in values["figures"].items() if {"grpo4", "mean"} <= set(figure["methods"])}
    assert figures == drawn, "no figure without rows"


def test_a_row_without_all_seeds_is_in_no_figure(protocol, results, tmp_path):
    """Its curve would be the mean over other bases than the baseline's."""
    fill(results, {"grpo4": 0.0, "mean": 0.05})
    figure = tmp_path / "leaderboard.png"
    values = with_a_base_each(protocol)
    pages.draw_curves(values, results, "leaderboard", figure)
    assert figure.exists()
    job = bench.Job("sudoku", "mean", *results.best("sudoku", "mean", [4]), protocol.values["reported_seeds"][0])
    (results.folder / f"{results.key(job)}.json").unlink()
    pages.draw_curves(values, results, "leaderboard", figure)
    assert not figure.exists()


def on_another_base(made):
    """The run as it would be on a base that another machine trained."""
    first, *rest = made["points"]
    return made | {"points": [first | {"accuracy": first["accuracy"] + 0.004}, *rest]}


def test_runs_of_two_bases_are_no_pair(protocol, results):
    fill(results, {"grpo4": 0.0, "mean": 0.05})
    cell = results.best("sudoku", "mean", [4])
    for seed in (200, 201):
        results.put(job := bench.Job("sudoku", "mean", *cell, seed), on_another_base(result(job, 0.05)))
    rows = pages.rows_of(protocol.values, results, "sudoku", [4], "grpo4", ["mean"])
    assert [row.seeds for row in rows] == [list(range(200, 208)), list(range(202, 208))]


@pytest.mark.long
def test_a_run_beside_results_of_another_base_ends_and_a_fresh_one_does_not(protocol, results, tmp_path, monkeypatch):
    fill(results, {"grpo4": 0.0})

    class Elsewhere(Scripted):
        def run(self, job):
            return on_another_base(super().run(job))

    elsewhere = Elsewhere(0.05)
    monkeypatch.setattr("leaderboard.Bench", elsewhere)
    with pytest.raises(UserError, match=r"another base model of sudoku .* --fresh"):
        bench.run(results, ["sudoku"], ["mean"], math.inf, [4])
    assert len(elsewhere.jobs) == 1 and results.get(elsewhere.jobs[0]) is None
    bench.run(results_in(tmp_path / "new", protocol, None), ["sudoku"], ["grpo4", "mean"], math.inf, [4])


@pytest.mark.long
def test_the_published_page_is_the_one_of_the_published_results(protocol, tmp_path):
    published = results_in(tmp_path / "empty", protocol)
    made = tmp_path / "results"
    made.mkdir()
    pages.write_page(protocol.values, published, made)
    for name in ("leaderboard.md", "leaderboard.csv", "leaderboard.jsonl"):
        assert (made / name).read_text() == (RESULTS / name).read_text(), f"run leaderboard.py page: {name}"


def test_seeds_of_two_tasks_are_compared_together_once_all_are_there(protocol):
    """A method is compared where all tasks of the group have it."""
    gains = {"grpo4": 0.0, "single_value": 0.03, "value4": 0.01, "mean": 0.02, "balance": 0.04, "dapo": 0.002}
    tables = {}
    for task in {task for tasks in protocol.values["joined"].values() for task in tasks}:
        seeds, methods = protocol.of(task, "reported_seeds"), protocol.of(task, "methods")
        runs = {
            name: {seed: result(bench.Job(task, name, 4, 1e-4, seed), gain * (seed % 7)) for seed in seeds}
            for name, gain in gains.items()
            if name in methods
        }
        rows = [pages.Row(name, (4, 1e-4), [1e-4], list(seeds), found, {}) for name, found in runs.items()]
        tables[task, pages.FOUR] = rows
    several = "words, twenty-four bases"
    seeds = [seed for task in protocol.values["joined"][several] for seed in protocol.of(task, "reported_seeds")]
    assert len(set(seeds)) == 24
    found, compared = pages.joined(protocol.values, tables), pages.joined_effects(protocol.values, tables)
    for name in ("value4", "dapo"):
        assert pages.text(pages.effect([gains[name] * (seed % 7) for seed in seeds]), True) in found
    alone = pages.effect([0.01 * (seed % 7) for seed in seeds]).p
    assert compared[several, "value4"][0]["accuracy"].p == pytest.approx(3 * alone), "two looks before the last runs"
    assert {name for group, name in compared if group == several} == {"value4", "dapo"}
    assert {name for group, name in compared if group == "words, twelve bases"} == gains.keys() - {"grpo4"}
    del tables["sudoku6b", pages.FOUR]
    assert pages.joined(protocol.values, tables) == ""


def test_holms_correction_stops_at_the_first_test_that_fails():
    assert pages.holm([0.001, 0.03, math.nan, 0.012, 0.2]) == [True, False, False, True, False]
    assert pages.holm([0.02, 0.02]) == [True, True]
    assert pages.holm([0.03, 0.03]) == [False, False]


def test_a_rising_curve_is_the_nearest_one_in_squares():
    np.testing.assert_allclose(pages.rising(np.array([1.0, 3.0, 2.0, 2.0, 5.0])), [1, 7 / 3, 7 / 3, 7 / 3, 5])


def test_responses_until_an_accuracy_are_read_off_the_rising_curve():
    points = [{"responses": x, "accuracy": y} for x, y in [(0, 0.0), (100, 0.6), (200, 0.2), (300, 0.8)]]
    assert pages.responses_to({"points": points}, 0.4) == 100
    assert pages.responses_to({"points": points}, 0.6) == 250
    assert pages.responses_to({"points": points}, 0.9) == math.inf


def test_a_method_that_needs_half_of_the_responses_has_the_ratio_one_half():
    jobs = [bench.Job("sudoku", "mean", 4, 1e-4, seed) for seed in (200, 201, 202, 203)]
    fast, slow = [result(job, slope=1500.0) for job in jobs], [result(job, slope=3000.0) for job in jobs]
    found = pages.ratio(fast, slow, 0.9)
    assert math.exp(found.mean) == pytest.approx(0.5, abs=0.03) and not found.bound
    assert pages.ratio(slow, fast, 1.0).bound == ">", "a run that never gets there gives a lower bound"


@pytest.mark.parametrize(
    ("mine", "other", "word"),
    [((0.6, 0.6), (0.5, 0.5), ""), ((0.1, 0.6), (0.5, 0.5), ">"), ((0.6, 0.6), (0.4, 0.6), "<"),
     ((0.1, 0.6), (0.4, 0.6), "~")],
)  # fmt: skip
def test_a_ratio_says_what_runs_that_never_reach_the_target_make_of_it(mine, other, word):
    def ends(accuracies):
        return [
            {"base": 0, "points": [{"responses": 0, "accuracy": 0.0}, *[{"responses": 9, "accuracy": high}] * 3]}
            for high in accuracies
        ]

    assert pages.ratio(ends(mine), ends(other), 1.0).bound == word


def test_the_sum_of_learning_rates_is_the_schedules():
    made = {"rate": 0.5, "updates": 2, "warmup_steps": 2, "points": [{"updates": u} for u in (0, 1, 4, 6)]}
    np.testing.assert_allclose(
        pages.costs(made, pages.SUMMED), 0.5 * np.cumsum([0, 0.25, 0.5, 0.75, 1, 1, 1])[[0, 1, 4, 6]]
    )


def test_the_same_numbers_are_one_test_and_an_unfinished_row_is_none():
    one, weak, other = pages.Effect(0.1, 0.05, 0.02), pages.Effect(0.1, 0.2, 0.3), pages.Effect(0.2, 0.1, 0.02)
    assert pages.significant([{"a": one, "b": one}, {}], ["a", "b"]) == [{"a", "b"}, set()]
    assert pages.significant([{"a": one, "b": weak}, {"a": other}], ["a", "b"]) == [set(), set()]


@pytest.mark.long
def test_a_job_that_cannot_run_here_is_named_and_the_others_run(results, monkeypatch, capsys):
    class Picky(Scripted):
        def run(self, job):
            if job.method == "mean":
                raise UserError("no model here")
            return super().run(job)

    picky = Picky(0.0)
    monkeypatch.setattr("leaderboard.Bench", picky)
    bench.run(results, ["sudoku"], ["mean", "grpo4"], math.inf, [16])
    assert capsys.readouterr().out.count("no model here") == 6
    assert {job.method for job in picky.jobs} == {"grpo4"}
    assert not list(results.missing(["sudoku"], ["grpo4"], [16]))


def test_only_some_numbers_of_updates_can_be_asked_for(results):
    found = list(results.missing(["sudoku"], ["grpo4"], [16]))
    assert found and {job.updates for job in found} == {16}


def test_the_row_that_runs_beside_a_method_is_the_baseline(tmp_path, monkeypatch, capsys):
    def listed(*options):
        words = ("list", "--fresh", "--out", str(tmp_path), "--task", "sudoku", "--method", "mean")
        monkeypatch.setattr(sys, "argv", ["leaderboard.py", *words, *options])
        assert bench.main() == 0
        jobs = capsys.readouterr().out.split()
        assert len(jobs) == len(set(jobs)), "a job of several stages is named once"
        return {job.split("-")[1] for job in jobs}

    assert listed() == {"grpo4", "mean"}
    assert listed("--baseline", "single_value") == {"single_value", "mean"}


def test_tiers_are_cut_at_the_bases_pass_rates():
    base = bench.Base(np.zeros(1), np.array([0.0, 0.05, 0.1, 0.3, 0.5, 0.9]))
    assert [tier.tolist() for tier in base.tiers([0.0, 0.1, 0.5])] == [[0], [1, 2], [3, 4], [5]]


@pytest.mark.parametrize("words", [
    ("run", "--minutes", "-1"), ("run", "--minutes", "nan"), ("run", "--out", __file__), ("run", "--seed", "300"),
    ("run", "--baseline", "mean"), ("page", "--task", "sudoku"), ("list", "--minutes", "3"), ("again", "--seed", "300"),
    ("again", "--task", "sudoku", "--method", "mean"), ("again", "--fresh"),
])  # fmt: skip
def test_wrong_options_end_before_anything_runs(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", *words])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2


def test_two_benches_share_a_folder_and_no_job_runs_twice(protocol, results, monkeypatch):
    tries = list(results.missing(["sudoku"], ["grpo4"], [16]))
    other = results_in(results.folder, protocol, None)
    held = other.claim(tries[0])

    class Ends(Scripted):
        """The other bench puts its result and ends when this one has nothing else to run."""

        def run(self, job):
            if job == tries[-1]:
                other.put(tries[0], result(tries[0]))
                held.close()
            if job == tries[1]:
                other.put(tries[2], result(tries[2]))
            return super().run(job)

    ends = Ends(0.0)
    monkeypatch.setattr("leaderboard.Bench", ends)
    bench.run(results, ["sudoku"], ["grpo4"], math.inf, [16])
    assert ends.jobs[: len(tries) - 2] == [tries[1], *tries[3:]] and not {tries[0], tries[2]} & {*ends.jobs}
    assert len(set(ends.jobs)) == len(ends.jobs) and not list(results.missing(["sudoku"], ["grpo4"], [16]))


def test_again_waits_for_the_other_processes_run(protocol, results, monkeypatch, capsys):
    fill(results, {"grpo4": 0.0, "mean": 0.05})
    job = bench.Job("sudoku", "mean", *results.best("sudoku", "mean", [4]), 300)
    other = results_in(results.folder, protocol, None)
    held = other.claim(job)

    class Patient(Scripted):
        def wait(self, jobs):
            assert jobs == [job]
            other.put(job, result(job, 0.05))
            held.close()

    patient = Patient(0.0)
    monkeypatch.setattr("leaderboard.Bench", patient)
    bench.again(results, "sudoku", ["mean"], [300], "grpo4")
    assert [one.method for one in patient.jobs] == ["grpo4"] and "+0.050" in capsys.readouterr().out


def test_rows_run_again_side_by_side_and_are_compared_at_equal_seconds(results, monkeypatch, capsys):
    fill(results, {"grpo4": 0.0, "mean": 0.05, "balance": 0.0})

    class Slow(Scripted):  # a response of `balance` takes twice the time, so it learns as if it had drawn half of them
        def run(self, job):
            made = super().run(job)
            for point in made["points"] if job.method == "balance" else ():
                point["seconds"] *= 2
            return made

    slow = Slow(0.05)
    monkeypatch.setattr("leaderboard.Bench", slow)
    bench.again(results, "sudoku", ["mean", "balance"], [300, 301], "grpo4")
    assert [(job.seed, job.method) for job in slow.jobs] == [
        (seed, method) for seed in (300, 301) for method in ("grpo4", "mean", "balance")
    ]
    said = capsys.readouterr().out.splitlines()
    (mean,) = (line for line in said if line.startswith("mean") and "2 seeds, area at equal seconds" in line)
    (late,) = (line for line in said if line.startswith("balance") and "2 seeds, area at equal seconds" in line)
    assert "+.050" in mean and ": -.0" in late
    assert any(line.startswith("balance") and "equal responses: +.000" in line for line in said)


CLAIMS = """
import sys, time
sys.path[:0] = {paths!r}
import leaderboard
protocol = leaderboard.Protocol()
results = leaderboard.Results(protocol, leaderboard.Path({folder!r}), None)
claim = results.claim(leaderboard.Job("sudoku", "mean", 4, 1e-4, 200))
print("claimed" if claim else "taken", flush=True)
time.sleep(600)
"""


def test_the_job_of_a_killed_process_is_taken_over(results):
    job = bench.Job("sudoku", "mean", 4, 1e-4, 200)
    script = CLAIMS.format(paths=[str(BENCHMARKS), str(BENCHMARKS.parents[1])], folder=str(results.folder))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "claimed\n"
        assert results.claim(job) is None
        other.kill()
    taken = results.claim(job)
    assert taken is not None
    taken.close()


class Scripted:
    """A bench whose runs of `mean` are better by `gain`."""

    def __init__(self, gain):
        self.gain, self.jobs = gain, []

    def __call__(self, _protocol, _results, _exits):
        return self

    def wait(self, jobs):
        pass

    def run(self, job):
        self.jobs.append(job)
        return result(job, self.gain if job.method == "mean" else 0.0)


@pytest.mark.parametrize(("gain", "word"), [(0.05, "inside"), (0.5, "OUTSIDE")])
def test_a_row_again_is_compared_with_the_interval_of_one_seed(gain, word, results, monkeypatch, capsys):
    fill(results, {"grpo4": 0.0, "mean": 0.05})
    for number, seed in enumerate(results.protocol.values["reported_seeds"]):  # the differences spread
        results.put(bench.Job("sudoku", "mean", 4, 1e-4, seed), result(bench.Job("sudoku", "mean", 4, 1e-4, seed),
                                                                       0.05 + 0.002 * number))  # fmt: skip
    scripted = Scripted(gain)
    monkeypatch.setattr("leaderboard.Bench", scripted)
    bench.again(results, "sudoku", ["mean"], [300], "grpo4")
    assert {job.seed for job in scripted.jobs} == {300} and len(scripted.jobs) == 2
    said = capsys.readouterr().out
    assert said.count(word) == 2 and f"{gain:+.3f}" in said
    bench.again(results, "sudoku", ["mean"], [300], "grpo4")
    assert len(scripted.jobs) == 2, "a run that is there is not run again"


@pytest.mark.parametrize(
    ("method", "seed"), [("mean", 200), ("mean", 3000), ("grpo4", 300), ("balance", 300)],
    ids=["a reported seed", "a tuning seed", "the baseline", "a row that is not there"],
)  # fmt: skip
def test_only_a_row_of_the_page_runs_again_and_only_on_a_new_seed(method, seed, results):
    fill(results, {"grpo4": 0.0, "mean": 0.05})
    with pytest.raises(UserError):
        bench.again(results, "sudoku", [method], [seed], "grpo4")


def test_the_interval_of_one_seed_is_the_prediction_interval():
    found = pages.effect([0.01, 0.02, 0.03, 0.06])
    spread = np.std([0.01, 0.02, 0.03, 0.06], ddof=1)
    low, high = pages.one_seed(found, 4)
    assert (high - low) / 2 == pytest.approx(3.182446 * spread * math.sqrt(1 + 1 / 4), rel=1e-5)
    assert (low + high) / 2 == pytest.approx(0.03)


def test_a_task_may_have_settings_of_its_own(protocol):
    values = protocol.values
    assert pages.setting(values, "smollm2", "budget") < pages.setting(values, "sudoku", "budget") == values["budget"]
    assert protocol.cells("smollm2", [4, 16]) == [(4, rate) for rate in pages.setting(values, "smollm2", "grid")[4]]
    stages = [stage for stage in values["stages"] if "smollm2" in stage["tasks"]]
    assert all(set(stage["methods"]) <= set(pages.setting(values, "smollm2", "methods")) for stage in stages)


def test_gpu_seconds_are_those_of_the_steps_that_were_measured():
    """Of all methods with 1,024 tokens but the first step of a process, whose kernels were not compiled yet."""
    compared = 0
    for name in ("steps_1024", "steps_1024_lean_idle"):
        for row in csv.DictReader((RESULTS / "gpu" / f"{name}.csv").read_text().splitlines()):
            if (row["run"], row["step"]) == ("grpo", "1"):
                continue
            live = 256 * (1 - float(row["zero-signal groups"] or 0))
            point = {"steps": 1, "rows": 256, "responses": float(row["responses"] or 256), "live_rows": live}
            seconds = float(row["step, s"]) - float(row["refit, s"])
            with_mean_refit = pages.costs({"points": [point]}, pages.GPU)[-1]
            assert with_mean_refit - H200_STEP.refit == pytest.approx(seconds, rel=0.11), row
            compared += 1
    assert compared == 7


def test_the_untuned_task_has_the_same_problems_each_time_and_wrong_demonstrations_at_some_places():
    import untuned

    first, again, other = (untuned.Sums(None, seed).splits() for seed in (1, 1, 2))
    assert first == again and first != other
    texts = [prompt.text for prompt in first.train + first.heldout] + [one.prompt_text for one in first.supervision]
    assert len(set(texts)) == len(texts) == 10_000, "no problem is in two splits"
    wrong = [eval(one.prompt_text.removesuffix("=")) != int(one.answer_text) for one in first.supervision]
    assert 0.1 < np.mean(wrong) < 0.9
    task, prompt = untuned.Sums(None, 1), first.train[0]
    labels = [task.submit(prompt, *answer).label for answer in ((prompt.answer, True), (prompt.answer, False))]
    assert labels == [1.0, 0.0], "an answer that was cut off is wrong"
