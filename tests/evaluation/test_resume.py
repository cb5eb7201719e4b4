"""A folder that an evaluation drew nothing into belongs to nobody; one with responses belongs to its settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.evaluation.benchmark import Benchmark
from nemo_ada.evaluation.evaluate import BenchmarkJob, Drawing, evaluate
from tests.data.scripted_model import Adder, Characters


class Unreachable(Adder):
    """Fails as a server does that is not there."""

    def respond(self, requests):
        raise UserError("no server")


def asked(tmp_path: Path, model: Adder, name: str = "sums") -> list[BenchmarkJob]:
    source = tmp_path / "sums.jsonl"
    source.write_text("".join(json.dumps({"problem": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(3)))
    benchmark = Benchmark(name=name, source=str(source), verifier="exact", max_prompt_tokens=12)
    return [BenchmarkJob(benchmark, Characters(), model)]


def test_a_command_that_drew_nothing_can_be_corrected(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="no server"):
        evaluate(asked(tmp_path, Unreachable()), Drawing(2, 0, {}), out)
    found = evaluate(asked(tmp_path, Adder(), "others"), Drawing(4, 1, {}), out)
    assert found["settings"]["k"] == 4 and json.loads((out / "settings.json").read_text())["k"] == 4
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["others"]
    with pytest.raises(UserError, match="k: 4 -> 2"):
        evaluate(asked(tmp_path, Adder(), "others"), Drawing(2, 1, {}), out)
