"""Data preparation."""

from __future__ import annotations

import json
import random
import signal
from functools import partial
from pathlib import Path

import pytest

from nemo_ada.errors import FailedResponsesError, UserError
from nemo_ada.lab.data.journal import Journal
from nemo_ada.lab.data.measure import REDRAWS, Measurement, Question
from nemo_ada.lab.data.prepare import prepare
from nemo_ada.lab.data.problem import Problem, problem_id
from nemo_ada.lab.data.stages import measure_stage, parse_band
from nemo_ada.verify.judge import Judge
from nemo_ada.verify.verdict import CRASH, TIMEOUT, Verdict
from tests.lab.data.scripted_model import Adder, Characters, in_a_process, preparation

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
    assert sum(card["histogram"]["kept"]) == len(rates) == card["stages"]["band"]["kept"]
    assert card["histogram"]["measured"][16] > 0 == card["histogram"]["kept"][16]
    assert card["settings"]["responses"] == {"k": 8, "seed": 0, "max_new_tokens": 4096}
    assert card["settings"]["model"] == {"name": "adder", "fingerprint": "0" * 16}
    text = (tmp_path / "set" / "README.md").read_text()
    assert "| distinct |" in text and "exact (nemo-ada" in text and str(tmp_path) not in text
    assert all(f"\n\n{block}" in text for block in ("| stage |", "| pass rate", "## Settings", "- source:"))


@pytest.mark.parametrize(("what", "seed"), [("prepare", 1), ("prepare", 2), ("evaluate", 3)])
def test_killed_at_random_points_it_writes_the_same_bytes(messy, tmp_path, what, seed):
    whole, parts = tmp_path / "whole" / "set", tmp_path / "parts" / "set"
    for folder in (whole, parts):
        folder.parent.mkdir()
    assert in_a_process(what, messy, whole) == 0
    draw = random.Random(seed)
    kills = 0
    while (code := in_a_process(what, messy, parts, draw.randint(4, 40))) == -signal.SIGKILL:
        kills += 1
        assert kills < 60, "it never comes to its end"
    assert code == 0 and kills >= 3
    assert contents(parts) == contents(whole)
    assert not (parts / "work").exists()


def test_chunks_do_not_change_what_is_drawn(messy, tmp_path):
    for name, chunk in (("a", 4), ("b", 7)):
        prepare(preparation(messy, chunk=chunk), tmp_path / name)
    assert (tmp_path / "a" / "dataset.jsonl").read_bytes() == (tmp_path / "b" / "dataset.jsonl").read_bytes()
    prepare(preparation(messy, seed=1), tmp_path / "c")
    assert (tmp_path / "a" / "dataset.jsonl").read_bytes() != (tmp_path / "c" / "dataset.jsonl").read_bytes()


def test_answers_that_are_equal_by_value_do_not_contradict_each_other_and_the_first_is_kept(tmp_path):
    source = tmp_path / "a.jsonl"
    rows = [("a?", "0.5"), ("b?", "1"), ("a?", r"\frac{1}{2}"), ("b?", "2"), ("a?", "1/2")]
    source.write_text("".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in rows))
    plan = {"provider": None, "band": None, "encoder": None, "max_prompt_tokens": 0}
    card = prepare(preparation(source, judge=Judge("math"), **plan), tmp_path / "set")
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
    assert (row["line"], row["source_line"], row["id"], row["source_id"]) == (1, "far", problem_id("1+1="), 7)
    assert row["answer"] == "2" and "none" not in row and "columns" not in row


def test_measured_pass_rates_serve_another_band(messy, tmp_path):
    first = prepare(preparation(messy, band=None), tmp_path / "all")
    again = preparation(messy, provider=None, pass_rates=tmp_path / "all" / "pass_rates.jsonl", band=parse_band("hard"))
    card = prepare(again, tmp_path / "hard")
    rates = [record["pass_rate"] for record in lines(tmp_path / "all" / "dataset.jsonl")]
    measured = lines(tmp_path / "all" / "pass_rates.jsonl")
    assert all({"id", "line", "responses", "correct", "failed", "pass_rate"} == set(line) for line in measured)
    assert card["problems"] == sum(0 < rate <= 0.125 for rate in rates) > 0
    assert first["histogram"]["measured"] == card["histogram"]["measured"]


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
        prepare(preparation(messy, k=4), tmp_path / "set")
    messy.write_text(messy.read_text() + "\n")
    with pytest.raises(UserError, match=r"source\.sha256"):
        prepare(preparation(messy), tmp_path / "set")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"provider": None}, "needs pass rates"),
        ({"pass_rates": Path("x")}, "both give pass rates"),
        ({"encoder": None, "provider": None, "band": None}, "needs a tokenizer"),
        ({"band": parse_band("0.999,0.9999")}, "the stage band left out"),
    ],
)
def test_settings_that_contradict_each_other_or_keep_nothing_are_refused(messy, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        prepare(preparation(messy, **changes), tmp_path / "set")


class Failing(Judge):
    """Fails on every n-th response."""

    def __init__(self, every: int, cause: str = TIMEOUT) -> None:
        super().__init__("exact")
        self._every, self._seen, self._cause = every, 0, cause

    def verdicts(self, responses):
        found = super().verdicts(responses)
        for i in range(len(found)):
            self._seen += 1
            if self._seen % self._every == 0:
                found[i] = Verdict(None, self._cause)
        return found


def problems(count):
    return [Problem(problem_id(f"{n}+1="), n + 1, f"{n}+1=", str(n + 1)) for n in range(count)]


def questions(count, judge):
    return [Question(problem, Characters(), judge, 9) for problem in problems(count)]


def measurement(k, limits_are_wrong=False):
    return Measurement(Adder(), k, 0, limits_are_wrong=limits_are_wrong)


def test_what_could_not_be_judged_is_drawn_again_with_its_own_seed():
    drawn = list(measurement(8).draw(questions(20, Failing(25))))
    failed = sum(judged.reward is None for own in drawn for judged in own)
    assert failed > 0
    for own in drawn:
        assert sum(judged.reward is not None for judged in own) == 8
        assert [judged.index for judged in own] == list(range(len(own)))
        assert len({judged.seed for judged in own}) == len(own)


def test_in_an_evaluation_an_answer_that_hits_the_verifiers_limits_is_wrong_and_not_drawn_again():
    drawn = list(measurement(8, limits_are_wrong=True).draw(questions(20, Failing(4))))
    assert all([judged.index for judged in own] == list(range(8)) for own in drawn)
    late = [judged for own in drawn for judged in own if judged.cause is not None]
    assert len(late) == 40 and {(judged.reward, judged.cause) for judged in late} == {(0.0, TIMEOUT)}
    (own,) = measurement(2, limits_are_wrong=True).draw(questions(1, Failing(1, CRASH)))
    assert len(own) == 2 + REDRAWS, "a worker that died says nothing about the answer"


def test_a_pass_rate_is_over_the_judged_responses_and_failures_are_counted_apart(tmp_path):
    ask = partial(Question, encoder=Characters(), judge=Failing(9), max_new_tokens=9)
    stage = measure_stage(measurement(4), ask, 7, Journal(tmp_path / "measure.jsonl"))
    records = stage.process([problem.record() for problem in problems(40)])
    whole = list(measurement(4).draw(questions(40, Judge("exact"))))
    assert sum(record["failed"] for record in records) > 10
    for record, own in zip(records, whole, strict=True):
        assert record["responses"] == 4 and record["pass_rate"] == record["correct"] / 4
        assert record["failed"] or record["correct"] == sum(judged.reward for judged in own)


def test_redraws_have_an_end_and_a_broken_verifier_stops_the_measurement():
    (own,) = measurement(2).draw(questions(1, Failing(1)))
    assert len(own) == 2 + REDRAWS and all(judged.reward is None for judged in own)
    with pytest.raises(FailedResponsesError, match="failed on"):
        list(measurement(8).draw(questions(40, Failing(2))))


def test_a_journal_that_was_cut_or_damaged_is_refused(tmp_path):
    path = tmp_path / "j.jsonl"
    Journal(path).commit([{"n": 1}], items=1)
    for damaged, content in ((path, ""), (tmp_path / "j.jsonl.state.json", "{")):
        damaged.write_text(content)
        with pytest.raises(UserError, match="is damaged"):
            Journal(path)
