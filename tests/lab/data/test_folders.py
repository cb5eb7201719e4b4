"""The folder of `--out`: nothing in it that is somebody else's is touched, and one command uses it at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.data.prepare import OUTPUTS, prepare
from tests.lab.data.fake_server import completion, model_folder, serving
from tests.lab.data.scripted_model import Adder, preparation, run_evaluation
from tests.lab.data.test_command_line import run
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
KILLED = "0f" * 16  # the random part of a temporary name


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def commands(messy: Path, out: Path, model: Path) -> dict[str, list[str]]:
    limits = ["--verifier", "exact", "--max-prompt-tokens", "12"]
    return {
        "data": ["data", "prepare", str(messy), "--out", str(out), "--verifier", "exact"],
        "eval": ["eval", str(model), "--data", str(messy), "--out", str(out), *limits],
    }


@pytest.mark.parametrize("command", ["data", "eval"])
@pytest.mark.parametrize("settings", [None, '{"editor.tabSize": 2}', "{"])
def test_a_folder_of_somebody_else_is_refused_and_stays_as_it_is(messy, tmp_path, capfd, command, settings):
    out = tmp_path / "home"
    (out / "deep").mkdir(parents=True)
    for name in ("README.md", "dataset.jsonl", ".bash.1", "deep/.notes.2", f"deep/.card.json.{KILLED}.tmp", "lock"):
        (out / name).write_text("mine")
    if settings is not None:
        (out / "settings.json").write_text(settings)
    before = contents(out)
    assert run(*commands(messy, out, model_folder(tmp_path / "model"))[command]) == 2
    assert contents(out) == before
    assert str(out) in capfd.readouterr().err


class Stopping(Adder):
    def respond(self, requests):
        raise UserError("no further")


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_file_that_the_user_put_there_in_between_is_not_overwritten(messy, tmp_path, name):
    out = tmp_path / "set"
    with pytest.raises(UserError, match="no further"):
        prepare(preparation(messy, provider=Stopping()), out)
    (out / name).write_text("mine")
    (out / f".card.json.{KILLED}.tmp").touch()
    with pytest.raises(UserError, match=f"{name} is there, and the set is not complete"):
        prepare(preparation(messy), out)
    assert (out / name).read_text() == "mine"
    (out / name).unlink()
    assert prepare(preparation(messy), out)["problems"] > 20
    assert not list(out.glob("*.tmp")), "what a killed write has left is removed"


def test_a_preparation_does_not_take_the_folder_of_an_evaluation_nor_the_other_way_round(messy, tmp_path):
    run_evaluation(messy, tmp_path / "eval")
    prepare(preparation(messy), tmp_path / "set")
    for work in (
        lambda: prepare(preparation(messy), tmp_path / "eval"),
        lambda: run_evaluation(messy, tmp_path / "set"),
    ):
        with pytest.raises(UserError, match="did not make it"):
            work()


@pytest.mark.parametrize("command", ["data", "eval"])
def test_a_second_process_on_the_same_folder_is_refused_and_the_first_one_ends_as_if_alone(
    tmp_path, monkeypatch, capfd, command
):
    """The first process waits for the server's answer, so it surely runs when the second one, this one, starts."""
    monkeypatch.setenv("no_proxy", "*")
    source = tmp_path / "sums.jsonl"
    source.write_text("".join(json.dumps({"problem": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(20)))
    model, asked, go_on = model_folder(tmp_path / "model"), threading.Event(), threading.Event()

    def answer(_asked):
        asked.set()
        go_on.wait(PATIENCE)
        return completion("7")

    with serving(model, answer) as server:
        out = tmp_path / "out"
        starts = {"eval": ["eval", model, "--data", source], "data": ["data", "prepare", source, "--model", model]}
        options = f"--k 2 --verifier exact --max-prompt-tokens 12 --max-new-tokens 8 --server {server.url}"
        words = [sys.executable, "-m", "nemo_ada.cli", *starts[command], "--out", out, *options.split()]
        given = {"cwd": ROOT, "env": {**os.environ, "no_proxy": "*"}, "stderr": subprocess.PIPE, "text": True}
        first = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, **given)
        try:
            assert asked.wait(PATIENCE)
            before = contents(out)
            capfd.readouterr()
            assert run(*words[3:]) == 2
            assert f"--out={out} is in use by " in capfd.readouterr().err
            assert contents(out) == before
        finally:
            go_on.set()
            _, error = first.communicate(timeout=PATIENCE)
        assert first.returncode == 0, error
    assert len(server.asked) == 40
    place = out / "sums" if command == "eval" else out
    responses = [json.loads(line) for line in (place / "responses.jsonl").read_text().splitlines()]
    assert len({(r["id"], r["index"]) for r in responses}) == len(responses) == 40
