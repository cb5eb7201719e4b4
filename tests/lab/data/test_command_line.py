"""`nemo-ada data` and `nemo-ada eval` as a user meets them: exit code 2 and one line that says what would work."""

from __future__ import annotations

import json

import pytest

from nemo_ada.cli import data as cli_data
from nemo_ada.cli import evaluate as cli_evaluate
from nemo_ada.cli.main import app, run_guarded
from nemo_ada.errors import UserError
from nemo_ada.lab.data.providers import Limits


def run(*words) -> int:
    return run_guarded(lambda: app([str(word) for word in words], standalone_mode=False))


def test_a_local_file_is_prepared_without_a_model(messy, tmp_path, capsys):
    out = tmp_path / "set"
    assert run("data", "prepare", messy, "--out", out, "--verifier", "exact") == 0
    assert json.loads((out / "card.json").read_text())["problems"] == 61
    printed = capsys.readouterr().out
    assert "malformed 6" in printed and f"the reasons are in {out / 'rejected.jsonl'}" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data", "prepare", "FILE", "--verifier", "maths"], "--verifier='maths': must be math or exact"),
        (["data", "prepare", "FILE", "--band", "v9"], "--band=v9: "),
        (["data", "prepare", "FILE", "--band", "v3"], "--band=v3 needs pass rates"),
        (["data", "prepare", "FILE", "--k", "0"], "--k=0: input should be greater than 0"),
        (["data", "prepare", "nowhere.jsonl"], "no such file"),
        (["data", "prepare", "FILE", "--model", "nowhere"], "is no Hugging Face model folder"),
        (["data", "prepare", "FILE", "--server", "http://x:1"], "--server=http://x:1 needs --model"),
        (["eval", ".", "--data", "mth500"], "--data=mth500: no preset and no file"),
        (["eval", ".", "--data", "FILE"], "is no Hugging Face model folder"),
        (["eval", "nowhere", "--data", "FILE"], "nowhere is no Hugging Face model folder"),
        (["eval", "compare", "nowhere", "nowhere"], "holds no complete evaluation"),
    ],
)
def test_a_mistake_is_one_line(messy, tmp_path, capfd, words, message):
    given = [str(messy) if word == "FILE" else word for word in words]
    if "compare" not in given:
        given += ["--out", str(tmp_path / "out")]
    assert run(*given) == 2
    error = capfd.readouterr().err
    assert message in error and "Traceback" not in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("words", [["data", "prepare", "FILE", "--model"], ["eval", "--data", "FILE"]])
def test_sampling_options_reach_the_model(messy, tmp_path, monkeypatch, words):
    reached = []

    def open_provider(_access, _folder, _tokenizer, limits):
        reached.append(limits)
        raise UserError("no further")

    for module in (cli_data, cli_evaluate):
        monkeypatch.setattr(module, "open_provider", open_provider)
    given = [str(messy) if word == "FILE" else word for word in words]
    options = {"max-prompt-tokens": 7, "max-new-tokens": 6, "temperature": 0.5, "top-p": 0.9, "max-num-seqs": 3}
    run(*given, tmp_path, "--out", tmp_path / "out", *(word for k, v in options.items() for word in (f"--{k}", v)))
    assert reached == [Limits(7, 6, 0.5, 0.9, 3)]


def test_a_wrong_tokenizer_rejects_no_problem_and_the_corrected_command_goes_on(messy, tmp_path, capfd):
    out = tmp_path / "set"
    asked = ("data", "prepare", messy, "--out", out, "--verifier", "exact")
    assert run(*asked, "--tokenizer", "/nope") == 2
    assert "give a folder with a tokenizer.json" in capfd.readouterr().err
    assert not (out / "rejected.jsonl").exists()
    assert run(*asked) == 0
    assert json.loads((out / "card.json").read_text())["problems"] == 61
