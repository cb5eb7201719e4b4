"""One stream of requests: it keeps the model full, and what has ended is kept."""

from __future__ import annotations

import json

import pytest

from nemo_ada.errors import FailedResponsesError, UserError
from nemo_ada.lab.data.kept import Responses
from nemo_ada.lab.data.measure import Measurement, Question, SamplingSpec, compute_seed
from nemo_ada.lab.data.problem import Problem, compute_problem_id
from nemo_ada.lab.evaluation.benchmark import Benchmark
from nemo_ada.lab.evaluation.evaluate import evaluate
from nemo_ada.verify.judge import ByText
from nemo_ada.verify.verdict import CRASH, TIMEOUT, Verdict
from tests.lab.data.scripted_model import Adder, Characters


def benchmarks(tmp_path, sizes):
    for name, size in sizes.items():
        rows = ({"problem": f"{n}+{size}=", "answer": str(n + size)} for n in range(size))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        own = Benchmark(name=name, source=str(tmp_path / f"{name}.jsonl"), verifier="exact", max_prompt_tokens=12)
        yield own


def test_one_engine_serves_all_benchmarks_and_has_room_only_at_the_end_of_the_last(tmp_path):
    model, jobs = Adder(16), list(benchmarks(tmp_path, {"a": 9, "b": 3, "c": 40}))
    evaluate(jobs, lambda _: Characters(), model, SamplingSpec(4), tmp_path / "out")
    assert model.full == sorted(model.full, reverse=True) and sum(model.full) >= 30
    evaluate(jobs[1:2], lambda _: Characters(), Adder(1), SamplingSpec(4), tmp_path / "alone")
    found = [sorted((tmp_path / name / "b" / "responses.jsonl").open()) for name in ("out", "alone")]
    assert found[0] == found[1], "the responses do not depend on what fits into the engine"


def test_what_had_ended_when_a_server_went_away_is_kept(tmp_path):
    class Dying(Adder):
        def respond(self, requests):
            for ended in super().respond(requests):
                yield ended
                if len(self.asked) > 60:
                    raise UserError("gone")

    jobs = list(benchmarks(tmp_path, {"a": 5, "b": 40}))
    with pytest.raises(UserError, match="gone"):
        evaluate(jobs, lambda _: Characters(), Dying(8), SamplingSpec(2), tmp_path / "out")
    kept = sum(1 for name in "ab" for _ in (tmp_path / "out" / name / "responses.jsonl").open())
    model = Adder(8)
    evaluate(jobs, lambda _: Characters(), model, SamplingSpec(2), tmp_path / "out")
    assert kept > 50 and kept + len(model.asked) == 90


class Failing(ByText):
    """Fails on every n-th response."""

    def __init__(self, every: int, cause: str = TIMEOUT) -> None:
        super().__init__()
        self._every, self._seen, self._cause = every, 0, cause

    def verdicts(self, responses):
        found = super().verdicts(responses)
        for i in range(len(found)):
            self._seen += 1
            if self._seen % self._every == 0:
                found[i] = Verdict(None, self._cause)
        return found


def drawn(tmp_path, problems, k, judge, *, limits_are_wrong=False):
    texts = [f"{n}+1=" for n in range(problems)]
    made = [Problem(compute_problem_id(text), n + 1, text, str(n + 1), str(n + 1)) for n, text in enumerate(texts)]
    responses = Responses(tmp_path / "responses.jsonl")
    asked = [Question(problem, Characters(), judge, 9, responses) for problem in made]
    Measurement(Adder(), SamplingSpec(k, 7), limits_are_wrong=limits_are_wrong).draw(asked)
    return list(responses.read())


def test_a_response_has_a_seed_of_its_own(tmp_path):
    found = drawn(tmp_path, 20, 8, ByText())
    assert len(found) == 160 == len({(one["id"], one["index"]) for one in found})
    assert all(one["seed"] == compute_seed(7, one["id"], one["index"]) for one in found)


@pytest.mark.parametrize(("cause", "in_evaluations"), [(TIMEOUT, 0.0), (CRASH, None)])
def test_an_answer_that_hits_the_verifiers_limits_is_wrong_in_an_evaluation_and_unlabelled_elsewhere(
    tmp_path, cause, in_evaluations
):
    for name, wrong, reward in (("data", False, None), ("eval", True, in_evaluations)):
        (tmp_path / name).mkdir()
        found = drawn(tmp_path / name, 20, 8, Failing(25, cause), limits_are_wrong=wrong)
        failed = [one for one in found if one.get("cause") == cause]
        assert len(failed) == 6 and all(one["reward"] == reward for one in failed)


def test_a_broken_verifier_stops_the_measurement(tmp_path):
    with pytest.raises(FailedResponsesError, match="failed on"):
        drawn(tmp_path, 40, 8, Failing(2))


def test_a_damaged_line_is_refused_and_a_line_without_its_end_or_a_second_time_does_not_count(tmp_path):
    line = json.dumps({"id": "a", "index": 0}) + "\n"
    path = tmp_path / "responses.jsonl"
    for content, message in (("{\n" + line, "line 1"), ("{}\n", "'id'")):
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            Responses(path)
    path.write_text(line * 2 + '{"id": "b", "ind')
    found = Responses(path)
    assert found.done == {("a", 0)} and path.read_text() == line * 2 and len(list(found.read())) == 1
