"""An evaluation accounts for every problem and response, and its folder belongs to its settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.data.measure import SamplingSpec
from nemo_ada.lab.evaluation.benchmark import Benchmark
from nemo_ada.lab.evaluation.evaluate import evaluate
from tests.lab.data.scripted_model import Adder, Characters


class Unreachable(Adder):
    """Fails as a server does that is not there."""

    def respond(self, requests):
        raise UserError("no server")


def encoder_of(_benchmark: Benchmark) -> Characters:
    return Characters()


def asked(tmp_path: Path, name: str = "sums") -> list[Benchmark]:
    source = tmp_path / "sums.jsonl"
    source.write_text("".join(json.dumps({"problem": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(3)))
    benchmark = Benchmark(name=name, source=str(source), verifier="exact", max_prompt_tokens=12)
    return [benchmark]


def test_a_command_that_drew_nothing_can_be_corrected(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="no server"):
        evaluate(asked(tmp_path), encoder_of, Unreachable(), SamplingSpec(2), out)
    found = evaluate(asked(tmp_path), encoder_of, Adder(), SamplingSpec(4, 1), out)
    assert found["settings"]["k"] == 4 and json.loads((out / "settings.json").read_text())["k"] == 4
    with pytest.raises(UserError, match="k: 4 -> 2"):
        evaluate(asked(tmp_path), encoder_of, Adder(), SamplingSpec(2, 1), out)


def test_an_evaluation_accounts_for_every_problem_and_response_and_is_not_made_again(tmp_path, caplog):
    def lines(name: str) -> list[dict]:
        return [json.loads(line) for line in (tmp_path / "out" / "sums" / name).read_text().splitlines()]

    sums = [("1+1=", 2), ("9+9=", 18), (" 1+1= ", 2), ("30+9=", 39), ("7+7=", 14), ("7+7=", 15)]
    sums += [("9" * 12 + "+1=", 1), ("\0", 1)]
    source = tmp_path / "sums.jsonl"
    source.write_text("{broken\n" + "".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in sums))
    benchmark = Benchmark(name="sums", source=str(source), verifier="exact", max_prompt_tokens=12)
    model, seen = Adder(), []
    jobs, drawing = [benchmark], SamplingSpec(4)
    found = evaluate(jobs, encoder_of, model, drawing, tmp_path / "out", lambda *progress: seen.append(progress))
    left_out = [(1, "read", "malformed"), (4, "distinct", "repeated"), (6, "distinct", "conflicting"),
                (7, "distinct", "conflicting"), (8, "length", "overlong"), (9, "length", "unreadable")]  # fmt: skip
    assert [(line["line"], line["stage"], line["kind"]) for line in lines("rejected.jsonl")] == left_out
    assert "sums: 6 problems are left out" in caplog.text
    assert seen == [("responses", 0, 12), ("responses", 12, 12)]
    responses, problems = lines("responses.jsonl"), lines("problems.jsonl")
    assert sorted((r["line"], r["index"]) for r in responses) == [(line, i) for line in (2, 3, 5) for i in range(4)]
    for problem in problems:
        own = [r for r in responses if r["id"] == problem["id"]]
        counts = {"responses": 4, "correct": sum(r["reward"] for r in own), "failed": 0, "timed_out": 0}
        costs = {"tokens": sum(r["tokens"] for r in own), "finished": sum(r["finished"] for r in own)}
        right = [r for r in own if r["reward"] == 1.0]
        majority = problem.pop("majority")
        assert problem == {"id": own[0]["id"], "line": own[0]["line"], **counts, **costs}
        assert majority == (len(right) > 2 or 0.5 * (len(right) == 2)), "there are two answers: the sum, and one more"
    overall = found["overall"]
    assert overall["avg@4"]["mean"] == pytest.approx(sum(r["reward"] for r in responses) / 12)
    assert 0.0 < overall["avg@4"]["mean"] < 1.0 and overall["rejected_problems"] == 6 and overall["unjudged"] == 0
    settings = found["settings"]
    assert settings["model"] == {"name": "adder", "fingerprint": "0" * 16} and settings["tokenizer"] == "characters"
    assert (settings["k"], settings["seed"], settings["temperature"]) == (4, 0, 1.0)
    assert settings["benchmarks"]["sums"]["source"]["file"] == "sums.jsonl"
    assert {"judged_by", "verifier"} <= settings["benchmarks"]["sums"].keys()
    assert json.loads((tmp_path / "out" / "settings.json").read_text()) == settings
    drawn = list(model.asked)
    assert evaluate(jobs, encoder_of, model, drawing, tmp_path / "out") == found and model.asked == drawn
    (tmp_path / "out" / "results.json").write_text("{")
    with pytest.raises(UserError, match=r"results\.json cannot be read"):
        evaluate(jobs, encoder_of, model, drawing, tmp_path / "out")


def test_a_benchmark_may_be_cut_to_its_first_problems_and_needs_one_that_can_be_used(tmp_path):
    (job,) = asked(tmp_path)
    found = evaluate([job], encoder_of, Adder(), SamplingSpec(2, max_prompts=2), tmp_path / "two")
    assert found["overall"]["prompts"] == 2
    short = job.model_copy(update={"max_prompt_tokens": 1})
    with pytest.raises(UserError, match="no problem can be used"):
        evaluate([short], encoder_of, Adder(), SamplingSpec(2), tmp_path / "none")
