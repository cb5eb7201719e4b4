"""From counts to tables: weights, pairs, presets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.benchmark import find_benchmarks, list_presets
from nemo_ada.lab.evaluation.results import (
    BenchmarkResult,
    Evaluation,
    choose_ks,
    compare_evaluations,
    find_setting_differences,
    summarise_results,
)

NONE: dict = {}


def records(correct, k=8, offset=0):
    counts = {"responses": k, "failed": 0, "tokens": 9 * k, "finished": k}
    return [{"id": f"p{offset + i}", "line": i + 1, "correct": c, **counts} for i, c in enumerate(correct)]


def saved(folder: Path, counts: dict[str, list[dict]], k=8, **settings) -> Evaluation:
    scored = [BenchmarkResult.of(name, rows, 0) for name, rows in counts.items()]
    made_with = {"k": k, "seed": 0, "model": {"fingerprint": folder.name}} | settings
    for name, rows in counts.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "results.json").write_text(json.dumps({"settings": made_with, **summarise_results(scored, k)}))
    return Evaluation.read(folder)


def test_the_overall_mean_is_weighted_by_prompts():
    small, large = BenchmarkResult.of("s", records([8] * 10), 0), BenchmarkResult.of("l", records([0] * 30), 2)
    found = summarise_results([small, large], 8)
    assert found["benchmarks"]["s"]["avg@8"]["mean"] == 1.0
    overall = found["overall"]["avg@8"]
    assert (overall["mean"], overall["prompts"]) == (0.25, 40) and 0.15 < overall["low"] < 0.25 < overall["high"] < 0.36
    assert found["overall"]["mean_tokens"] == 9.0 and found["overall"]["rejected_problems"] == 2


def test_problems_have_a_table_per_level_and_one_that_not_all_have(tmp_path):
    rows = records([8, 0, 4, 2])
    for row, level in zip(rows, ("Level 2", "Level 10", "Level 2", None), strict=True):
        row["columns"] = {"id": row["id"]} | ({"level": level} if level else {})
    groups = summarise_results([BenchmarkResult.of("a", rows, 0)], 8)["benchmarks"]["a"]["groups"]
    assert list(groups["level"]) == ["Level 2", "Level 10"]
    assert groups["level"]["Level 2"]["avg@8"]["mean"] == 0.75 and groups["level"]["Level 2"]["prompts"] == 2
    assert groups["level"]["Level 10"]["avg@8"]["high"] > 0.0
    many = [row | {"columns": {"source": str(n)}} for n, row in enumerate(records([1] * 40))]
    assert summarise_results([BenchmarkResult.of("a", many, 0)], 8)["benchmarks"]["a"]["groups"] == {}


def test_pass_at_k_is_reported_on_a_ladder():
    assert choose_ks(32) == [2, 4, 8, 16, 32] and choose_ks(6) == [2, 4, 6] and choose_ks(1) == [1]
    found = summarise_results([BenchmarkResult.of("a", records([0, 1, 8]), 0)], 8)["overall"]
    assert found["avg@8"]["mean"] == pytest.approx(9 / 24)
    assert found["pass@2"]["mean"] == pytest.approx((0 + (1 - (7 * 6) / (8 * 7)) + 1) / 3)
    assert found["pass@8"]["mean"] == pytest.approx(2 / 3)


def test_a_prompt_without_enough_judged_responses_leaves_pass_at_k_only():
    rows = records([4, 4])
    rows[1] |= {"responses": 7, "failed": 1}
    found = summarise_results([BenchmarkResult.of("a", rows, 0)], 8)["overall"]
    assert found["avg@8"]["prompts"] == 2 and found["pass@8"]["prompts"] == 1 and found["unjudged"] == 1


def test_models_are_compared_on_the_problems_that_both_have(tmp_path):
    a = saved(tmp_path / "a", {"x": records([1, 2, 3, 4]), "only-a": records([1, 1])})
    b = saved(tmp_path / "b", {"x": list(reversed(records([8, 4, 5], offset=1)))})
    rows = compare_evaluations(a, b)
    assert set(rows) == {"x", "overall"}
    assert rows["x"]["prompts"] == 3 and rows["x"]["left_out"] == 1
    assert rows["x"]["first"] == pytest.approx(9 / 24) and rows["x"]["second"] == pytest.approx(17 / 24)
    assert rows["x"]["difference"] == pytest.approx(8 / 24)


def test_a_difference_in_how_models_were_evaluated_is_named(tmp_path):
    a = saved(tmp_path / "a", {"x": records([1, 2])}, temperature=1.0, benchmarks={"x": {"suffix": ""}, "y": {"n": 1}})
    b = saved(tmp_path / "b", {"x": records([1, 2])}, temperature=0.6, benchmarks={"x": {"suffix": "!"}}, seed=1)
    assert find_setting_differences(a, b) == ["benchmarks.x.suffix: '' and '!'", "temperature: 1.0 and 0.6"]


def test_nothing_in_common_is_an_error(tmp_path):
    a, b = saved(tmp_path / "a", {"x": records([1, 2])}), saved(tmp_path / "b", {"y": records([1, 2])})
    with pytest.raises(UserError, match="no benchmark with two problems in common"):
        compare_evaluations(a, b)
    with pytest.raises(UserError, match="holds no complete evaluation"):
        Evaluation.read(tmp_path)


@pytest.mark.parametrize("name", sorted(list_presets()))
def test_every_preset_is_valid(name):
    assert all(benchmark.name and benchmark.source for benchmark in find_benchmarks([name], NONE))


def test_a_preset_takes_a_local_copy_and_changes_from_the_command_line(tmp_path):
    (found,) = find_benchmarks([f"math500={tmp_path}/m.jsonl"], {"max_new_tokens": 64, "system": None})
    assert found.source == f"{tmp_path}/m.jsonl" and found.name == "math500"
    assert found.max_new_tokens == 64 and found.system is not None
    (hub,) = find_benchmarks(["owner/some-set"], NONE)
    assert (hub.name, hub.source) == ("some-set", "owner/some-set")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["mth500"], "no preset and no file; presets: aime_like"),
        (["a.jsonl", "b/a.jsonl"], "given twice"),
        (["paper=x.jsonl"], "is a suite"),
        (["nowhere.yaml"], "cannot read the benchmark .*nowhere.yaml"),
    ],
)
def test_names_that_mean_nothing_are_refused(names, message):
    with pytest.raises(UserError, match=message):
        find_benchmarks(names, NONE)


@pytest.mark.parametrize(
    "name", ["../../x", "a/b", "..", ".", "", ".hidden", "overall", "Overall", "results.json", "a\\nb", " a"]
)
def test_the_name_of_a_benchmark_is_no_path_and_no_name_that_is_taken(tmp_path, name):
    with pytest.raises(UserError, match="must be the name of a folder"):
        find_benchmarks([f"{name}={tmp_path}/m.jsonl"], NONE)


def test_names_of_usual_files_are_taken_and_those_that_differ_in_case_only_are_refused():
    found = find_benchmarks(["my set (v1.2).jsonl", "d\u00fcsen+1.jsonl"], NONE)
    assert [own.name for own in found] == ["my set (v1.2)", "d\u00fcsen+1"]
    with pytest.raises(UserError, match="given twice"):
        find_benchmarks(["a.jsonl", "b/A.jsonl"], NONE)


def test_a_misspelled_key_of_a_benchmark_is_refused(tmp_path):
    (tmp_path / "b.yaml").write_text("name: b\nsource: b.jsonl\nmax_new_token: 5\n")
    with pytest.raises(UserError, match="did you mean max_new_tokens"):
        find_benchmarks([str(tmp_path / "b.yaml")], NONE)
