"""The engine stays full: over the borders of chunks, and from one benchmark to the next."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.data.measure import Measurement, response_seed
from nemo_ada.lab.evaluation.benchmark import Benchmark
from nemo_ada.lab.evaluation.evaluate import SamplingSpec, evaluate
from tests.lab.data.scripted_model import Adder, Characters

sys.path.insert(0, str(Path(__file__).parents[3] / "recipes" / "benchmarks"))

import bench_stream


def test_a_stream_takes_fewer_engine_steps_than_chunks():
    asked = bench_stream.questions(200)
    assert bench_stream.steps(asked, 8, 256, 16) > 3 * bench_stream.steps(asked, 8, 256, None)


def test_a_stream_costs_little_more_than_a_full_engine_and_its_longest_response():
    engine, asked = bench_stream.SimulatedEngine(64), bench_stream.questions(100)
    drawn = list(Measurement(engine, 8, 0, limits_are_wrong=True).draw(asked))
    tokens = [judged.response.tokens for own in drawn for judged in own]
    assert engine.steps <= sum(tokens) / 64 + max(tokens)


def test_problems_come_in_order_with_the_same_responses_whatever_fits_into_the_engine():
    asked = bench_stream.questions(150)

    def drawn(slots):
        measurement = Measurement(bench_stream.SimulatedEngine(slots), 4, 7, limits_are_wrong=True)
        return [[(j.index, j.seed, j.response) for j in own] for own in measurement.draw(asked)]

    assert drawn(5) == drawn(300)
    assert [own[2][1] for own in drawn(5)] == [response_seed(7, one.problem.uid, 2) for one in asked]


def test_problems_that_wait_for_a_long_response_are_bounded():
    """The first response never ends while others do; the stream stops opening problems."""

    class Stuck(bench_stream.SimulatedEngine):
        def submit(self, number, request):
            super().submit(number, request)
            if number == 0:
                self._ends = [(10**9, 0, 1)]

    opened = []

    def ask():
        for one in bench_stream.questions(5000):
            opened.append(one)
            yield one

    next(Measurement(Stuck(8), 1, 0, limits_are_wrong=True).draw(ask()))
    assert len(opened) <= 16 * 8


class Watched(Adder):
    """Keeps how many requests were open when it was asked to go on."""

    def __init__(self, capacity):
        super().__init__(capacity)
        self.full = []

    def collect(self):
        self.full.append(len(self._open) == self.capacity)
        return super().collect()


def benchmarks(tmp_path, sizes):
    for name, size in sizes.items():
        rows = ({"problem": f"{n}+{size}=", "answer": str(n + size)} for n in range(size))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        own = Benchmark(name=name, source=str(tmp_path / f"{name}.jsonl"), verifier="exact", max_prompt_tokens=12)
        yield own


def test_one_engine_serves_all_benchmarks_and_waits_only_at_the_end_of_the_last(tmp_path):
    model, jobs = Watched(16), list(benchmarks(tmp_path, {"a": 9, "b": 3, "c": 40}))
    evaluate(jobs, lambda _: Characters(), model, SamplingSpec(4, 0, {}, chunk=2), tmp_path / "out")
    assert model.full == sorted(model.full, reverse=True) and sum(model.full) >= 30
    alone = tmp_path / "alone"
    evaluate(jobs[1:2], lambda _: Characters(), Adder(1), SamplingSpec(4, 0, {}, chunk=50), alone)
    assert (alone / "b" / "responses.jsonl").read_bytes() == (tmp_path / "out" / "b" / "responses.jsonl").read_bytes()


def test_what_was_finished_when_a_server_went_away_is_kept(tmp_path):
    class Dying(Adder):
        def collect(self):
            if len(self.asked) > 60:
                raise UserError("gone")
            first = min(self._open)
            return [(first, self._response(self._open.pop(first)))]

    jobs = list(benchmarks(tmp_path, {"a": 5, "b": 40}))
    with pytest.raises(UserError, match="gone"):
        evaluate(jobs, lambda _: Characters(), Dying(8), SamplingSpec(2, 0, {}, chunk=100), tmp_path / "out")
    kept = sum(1 for name in "ab" for _ in (tmp_path / "out" / name / "responses.jsonl").open())
    model = Adder(8)
    evaluate(jobs, lambda _: Characters(), model, SamplingSpec(2, 0, {}, chunk=100), tmp_path / "out")
    assert kept > 10 and kept + len(model.asked) == 90
