"""The command that evaluates a model, and the one that compares two evaluations, without a real model."""

from __future__ import annotations

import json

import pytest

from nemo_ada.cli import evaluate as cli_evaluate
from nemo_ada.tasks.tokenizer import CharTokenizer
from tests.lab.data.fake_server import model_folder
from tests.lab.data.scripted_model import Adder
from tests.lab.data.test_command_line import run


class Spoken(Adder):
    """Reads the ids of a character tokenizer."""

    def read(self, prompt):
        return CharTokenizer().decode(prompt)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Evaluates a checkpoint; the limits that its model was opened with."""
    opened = []

    def open_provider(_server, _folder, _tokenizer, limits):
        opened.append(limits)
        return Spoken()

    monkeypatch.setattr(cli_evaluate, "open_provider", open_provider)
    source = tmp_path / "sums.jsonl"
    rows = ({"problem": f"{n}+1=", "answer": str(n + 1), "level": n % 2} for n in range(40))
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def evaluated(step, *more):
        folder = tmp_path / "hf" / f"step_{step}"
        model = folder if folder.exists() else model_folder(folder)
        out = ["--out", tmp_path / "out" / f"step_{step}"]
        assert run("eval", model, "--data", source, *out, "--verifier", "exact", "--k", 4, "--seed", step, *more) == 0
        return opened[-1]

    return evaluated


def test_evaluations_have_tables_and_two_are_compared(asked, tmp_path, capfd):
    for step in (20, 100):
        asked(step)
    printed = capfd.readouterr().out
    assert "sums by level" in printed and "maj@4" in printed
    folders = [tmp_path / "out" / f"step_{step}" for step in (20, 100)]
    own = json.loads((folders[0] / "results.json").read_text())
    assert own["benchmarks"]["sums"]["groups"]["level"].keys() == {"0", "1"}
    (tmp_path / "notes.json").write_text("[1]")
    assert run("eval", "compare", *folders, "--out", tmp_path / "notes.json") == 2
    assert (tmp_path / "notes.json").read_text() == "[1]"
    for _ in range(2):
        assert run("eval", "compare", *folders, "--out", tmp_path / "new.json") == 0
    assert json.loads((tmp_path / "new.json").read_text())["overall"]["prompts"] == 40


def test_a_small_model_gets_shorter_prompts_where_nobody_names_their_length(asked):
    """A laptop's model has fewer positions than the default prompt."""
    assert asked(1).max_prompt_tokens == 32  # of 64 positions
    assert asked(2, "--max-prompt-tokens", 12).max_prompt_tokens == 12
