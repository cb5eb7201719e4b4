"""Several checkpoints in one evaluation."""

from __future__ import annotations

import json

import pytest

from nemo_ada.cli import evaluate as cli_evaluate
from tests.lab.data.fake_server import model_folder
from tests.lab.data.scripted_model import Adder
from tests.lab.data.test_command_line import run


class Spoken(Adder):
    """Reads the ids of a character tokenizer."""

    def _response(self, request):
        from nemo_ada.tasks.tokenizer import CharTokenizer

        text = CharTokenizer().decode(request.prompt)
        return super()._response(type(request)([ord(c) for c in text], request.seed, request.max_new_tokens))


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The command for checkpoints, without a model."""
    opened = []

    def open_provider(_server, folder, *_rest):
        opened.append(folder.name)
        return Spoken()

    monkeypatch.setattr(cli_evaluate, "open_provider", open_provider)
    source = tmp_path / "sums.jsonl"
    rows = ({"problem": f"{n}+1=", "answer": str(n + 1), "level": n % 2} for n in range(40))
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = [model_folder(tmp_path / "hf" / f"step_{step}") for step in (20, 100)]
    words = [*models, "--data", source, "--out", tmp_path / "out", "--verifier", "exact", "--k", 4]
    return [*words, "--max-prompt-tokens", 12], opened


def test_checkpoints_get_a_folder_each_and_two_are_compared(asked, tmp_path, capfd):
    words, opened = asked
    assert run("eval", *words) == 0
    assert opened == ["step_20", "step_100"]
    printed = capfd.readouterr().out
    assert "sums by level" in printed and "length by verdict" in printed and "maj@4" in printed
    folders = [tmp_path / "out" / name for name in opened]
    for folder in folders:
        own = json.loads((folder / "results.json").read_text())
        assert own["benchmarks"]["sums"]["groups"]["level"].keys() == {"0", "1"}
    assert f"nemo-ada eval compare {folders[0]} {folders[1]}" in " ".join(printed.split())
    assert run("eval", "compare", *folders) == 0
    assert run("eval", *words, "--server", "http://x") == 2 and run("eval", words[0], *words) == 2


def test_a_comparison_does_not_overwrite_somebody_elses_file(asked, tmp_path, capfd):
    words, _ = asked
    assert run("eval", *words) == 0
    (tmp_path / "notes.json").write_text("[1]")
    pair = ["eval", "compare", tmp_path / "out" / "step_20", tmp_path / "out" / "step_100", "--out"]
    assert run(*pair, tmp_path / "notes.json") == 2 and (tmp_path / "notes.json").read_text() == "[1]"
    assert run(*pair, tmp_path / "new.json") == run(*pair, tmp_path / "new.json") == 0


def test_a_small_model_gets_shorter_prompts_where_nobody_names_their_length(asked, monkeypatch, tmp_path):
    """A laptop's model has fewer positions than the default prompt."""
    words, _ = asked
    limits = []
    opened = cli_evaluate.open_provider
    monkeypatch.setattr(cli_evaluate, "open_provider", lambda *given: (limits.append(given[3]), opened(*given))[1])
    assert run("eval", *words[: words.index("--max-prompt-tokens")]) == 0
    assert {limit.max_prompt_tokens for limit in limits} == {32}  # of 64 positions
    told = [*words[:1], *words[2:]]
    told[told.index("--out") + 1] = tmp_path / "told"
    assert run("eval", *told) == 0
    assert limits[-1].max_prompt_tokens == 12
