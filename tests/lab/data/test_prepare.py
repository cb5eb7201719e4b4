"""Data preparation."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.data.measure import SamplingSpec
from nemo_ada.lab.data.prepare import OUTPUTS, prepare
from nemo_ada.lab.data.problem import compute_problem_id
from nemo_ada.lab.data.stages import parse_band
from tests.lab.data.scripted_model import in_a_process, preparation

pytestmark = pytest.mark.long


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_line_is_kept_or_listed_with_a_reason_and_the_card_describes_the_set(messy, tmp_path):
    card = prepare(preparation(messy), tmp_path / "set")
    kept, rejected = lines(tmp_path / "set" / "dataset.jsonl"), lines(tmp_path / "set" / "rejected.jsonl")
    numbers = [record["line"] for record in kept + rejected]
    blank = {n for n, line in enumerate(messy.read_text().split("\n"), start=1) if not line}
    assert sorted([*numbers, *blank]) == list(range(1, len(messy.read_text().split("\n")) + 1))
    assert card["problems"] == len(kept) > 20
    reasons = {record["line"]: (record["stage"], record["reason"]) for record in rejected}
    assert reasons[4][0] == "read" and "not JSON" in reasons[4][1]
    assert reasons[11] == ("read", "a JSON list, not an object")
    assert "no prompt field" in reasons[21][1] and "is empty" in reasons[22][1] and "surrogate" in reasons[31][1]
    contradiction = "the same problem has different answers in lines 7, 41, 42"
    assert {reasons[line] for line in (7, 41, 42)} == {("distinct", contradiction)}
    assert reasons[46] == ("length", "14 tokens, above the limit of 12")
    assert reasons[47] == ("length", "a NUL character")
    assert "null" in reasons[51][1]
    assert card["stages"]["read"]["left_out"] == {"malformed": 6}
    assert card["stages"]["distinct"]["left_out"] == {"conflicting": 3}
    assert next(r for r in rejected if r["line"] == 4)["excerpt"] == "{broken"
    rates = [record["pass_rate"] for record in kept]
    assert all(0.1 <= rate <= 0.9 for rate in rates)
    assert len(rates) == card["stages"]["band"]["kept"]
    drawn = {"k": 8, "seed": 0, "temperature": 1.0, "top_p": 1.0}
    assert card["settings"]["responses"] == drawn and card["settings"]["model"]["name"] == "adder"
    assert card["settings"]["judged_by"].startswith("exact (nemo-ada") and str(tmp_path) not in json.dumps(card)


@pytest.mark.parametrize(("what", "seed"), [("prepare", 1), ("evaluate", 3)])
def test_killed_at_random_points_it_draws_only_what_is_missing_and_ends_with_the_same_files(
    messy, tmp_path, what, seed
):
    whole, parts = tmp_path / "whole" / "set", tmp_path / "parts" / "set"
    for folder in (whole, parts):
        folder.parent.mkdir()
    assert in_a_process(what, messy, whole) == 0
    draw = random.Random(seed)
    kills = 0
    while (code := in_a_process(what, messy, parts, draw.randint(2, 8))) != 0:
        if code == -signal.SIGKILL:
            kills += 1
        else:  # it was killed while it wrote its outputs, and says so
            for name in OUTPUTS:
                (parts / name).unlink(missing_ok=True)
        assert kills < 60, "it never comes to its end"
    assert kills >= 3
    first, second = contents(parts), contents(whole)
    assert first.keys() == second.keys()
    for name in first.keys() - {".nemo-ada"}:
        sort = sorted if name.endswith("responses.jsonl") else list
        assert sort(first[name].splitlines()) == sort(second[name].splitlines()), name


def test_another_seed_draws_other_responses(messy, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        prepare(preparation(messy, drawing=SamplingSpec(8, seed)), tmp_path / name)
    a, b, c = ((tmp_path / name / "dataset.jsonl").read_bytes() for name in "abc")
    assert a == b != c


def test_answers_that_are_equal_by_value_do_not_contradict_each_other_and_the_first_is_kept(tmp_path):
    source = tmp_path / "a.jsonl"
    rows = [("a?", "0.5"), ("b?", "1"), ("a?", r"\frac{1}{2}"), ("b?", "2"), ("a?", "1/2")]
    source.write_text("".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in rows))
    plan = {"provider": None, "band": None, "encoder": None, "problems": {"verifier": "math"}}
    card = prepare(preparation(source, **plan), tmp_path / "set")
    assert [record["line"] for record in lines(tmp_path / "set" / "dataset.jsonl")] == [1]
    assert card["stages"]["distinct"]["left_out"] == {"conflicting": 2, "repeated": 2}


def test_the_other_columns_of_a_source_are_kept(tmp_path):
    source = tmp_path / "a.jsonl"
    more = {
        "level": "Level 3",
        "id": 7,
        "source": "x",
        "tags": ["a", {"b": None}],
        "none": None,
        "line": "far",
        "q": 1.5,
    }
    source.write_text(json.dumps({"problem": "1+1=", "answer": 2, **more}) + "\n")
    prepare(preparation(source, band=None), tmp_path / "set")
    (row,) = lines(tmp_path / "set" / "dataset.jsonl")
    assert (row["level"], row["source"], row["tags"], row["q"]) == ("Level 3", "x", ["a", {"b": None}], 1.5)
    assert (row["line"], row["source_line"], row["id"], row["source_id"]) == (1, "far", compute_problem_id("1+1="), 7)
    assert row["answer"] == "2" and "none" not in row and "columns" not in row


def test_measured_pass_rates_serve_another_band(messy, tmp_path):
    first = prepare(preparation(messy, band=None), tmp_path / "all")
    again = preparation(messy, provider=None, pass_rates=tmp_path / "all" / "pass_rates.jsonl", band=parse_band("hard"))
    card = prepare(again, tmp_path / "hard")
    rates = [record["pass_rate"] for record in lines(tmp_path / "all" / "dataset.jsonl")]
    measured = lines(tmp_path / "all" / "pass_rates.jsonl")
    assert all({"id", "line", "responses", "correct", "failed", "pass_rate"} == set(line) for line in measured)
    assert card["problems"] == sum(0 < rate <= 0.125 for rate in rates) > 0
    assert first["stages"]["measure"] == card["stages"]["measure"]


def test_a_problem_that_was_not_measured_is_listed(messy, tmp_path):
    rates = tmp_path / "rates.jsonl"
    rates.write_text(json.dumps({"problem": " 0+0= ", "pass_rate": 0.5}) + "\n")
    card = prepare(preparation(messy, provider=None, pass_rates=rates, band=None), tmp_path / "set")
    assert card["problems"] == 1 and card["stages"]["measure"]["left_out"] == {"unmeasured": 58}


def test_a_complete_set_is_not_made_again_and_belongs_to_its_settings(messy, tmp_path):
    first = prepare(preparation(messy), tmp_path / "set")
    plan = preparation(messy)
    assert prepare(plan, tmp_path / "set") == first and plan.provider.asked == []
    with pytest.raises(UserError, match=r"responses\.k: 8 -> 4"):
        prepare(preparation(messy, drawing=SamplingSpec(4)), tmp_path / "set")
    messy.write_text(messy.read_text() + "\n")
    with pytest.raises(UserError, match=r"source\.sha256"):
        prepare(preparation(messy), tmp_path / "set")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"provider": None}, "needs pass rates"),
        ({"pass_rates": Path("x")}, "both give pass rates"),
        ({"band": parse_band("0.999,0.9999")}, "no problem is left of 70; .*rejected.jsonl has the reasons"),
    ],
)
def test_settings_that_contradict_each_other_or_keep_nothing_are_refused(messy, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        prepare(preparation(messy, **changes), tmp_path / "set")
