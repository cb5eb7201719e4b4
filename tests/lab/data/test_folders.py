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
from nemo_ada.lab.data.journal import claimed
from nemo_ada.lab.data.prepare import prepare
from tests.lab.data.fake_server import completion, model_folder, serving
from tests.lab.data.scripted_model import Adder, preparation, run_evaluation
from tests.lab.data.test_command_line import run
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
KILLED = "0f" * 16  # the random part of a temporary name
SETTINGS = {"k": 1, "nemo_ada": "0"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def commands(messy: Path, out: Path, model: Path) -> dict[str, list[str]]:
    limits = ["--verifier", "exact", "--max-prompt-tokens", "12"]
    return {
        "data": ["data", "prepare", str(messy), "--out", str(out), "--verifier", "exact", "--max-prompt-tokens", "0"],
        "eval": ["eval", str(model), "--data", str(messy), "--out", str(out), *limits],
    }


@pytest.mark.parametrize("command", ["data", "eval"])
@pytest.mark.parametrize("settings", [None, "{}", '{"editor.tabSize": 2}', "[]", "{"])
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


def test_hidden_files_in_a_folder_of_ours_stay_and_only_leftovers_of_our_writes_go(tmp_path):
    with claimed(tmp_path / "set", SETTINGS):
        pass
    (tmp_path / "set" / "deep").mkdir()
    left = {
        ".card.json.4711",
        ".hidden",
        ".vimrc.2",
        f".card.json.{KILLED}.tmp.bak",
        f".mine.{KILLED}.tmp",
        f"deep/.card.json.{KILLED}.tmp",
    }
    for name in {f".card.json.{KILLED}.tmp", f".dataset.jsonl.{KILLED}.tmp", *left}:
        (tmp_path / "set" / name).touch()
    with claimed(tmp_path / "set", SETTINGS):
        assert contents(tmp_path / "set").keys() == {"settings.json", ".nemo-ada.lock", *left}


def test_a_start_that_was_killed_before_its_first_file_is_no_foreign_folder(tmp_path):
    for name in (".nemo-ada.lock", f".settings.json.{KILLED}.tmp"):
        (tmp_path / name).touch()
    with claimed(tmp_path, SETTINGS):
        assert json.loads((tmp_path / "settings.json").read_text()) == SETTINGS


class Stopping(Adder):
    def submit(self, number, request):
        raise UserError("no further")


@pytest.mark.parametrize("name", ["README.md", "dataset.jsonl", "rejected.jsonl", "pass_rates.jsonl"])
def test_a_file_that_the_user_put_there_in_between_is_not_overwritten(messy, tmp_path, name):
    out = tmp_path / "set"
    with pytest.raises(UserError, match="no further"):
        prepare(preparation(messy, provider=Stopping()), out)
    (out / name).write_text("mine")
    with pytest.raises(UserError, match=f"{name} is not a file of this preparation; move it away"):
        prepare(preparation(messy), out)
    assert (out / name).read_text() == "mine"
    (out / name).unlink()
    assert prepare(preparation(messy), out)["problems"] > 20


def test_notes_of_the_user_in_the_work_folder_stay(messy, tmp_path):
    with pytest.raises(UserError, match="no further"):
        prepare(preparation(messy, provider=Stopping()), tmp_path / "set")
    (tmp_path / "set" / "work" / "notes.txt").write_text("mine")
    prepare(preparation(messy), tmp_path / "set")
    assert [path.name for path in (tmp_path / "set" / "work").iterdir()] == ["notes.txt"]


def test_a_preparation_does_not_take_the_folder_of_an_evaluation_nor_the_other_way_round(messy, tmp_path):
    run_evaluation(messy, tmp_path / "eval")
    prepare(preparation(messy), tmp_path / "set")
    for work in (
        lambda: prepare(preparation(messy), tmp_path / "eval"),
        lambda: run_evaluation(messy, tmp_path / "set"),
    ):
        with pytest.raises(UserError, match="belongs to another command"):
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
        options = f"--k 2 --verifier exact --max-prompt-tokens 12 --max-new-tokens 8 --chunk 4 --server {server.url}"
        words = [sys.executable, "-m", "nemo_ada.cli", *starts[command], "--out", out, *options.split()]
        given = {"cwd": ROOT, "env": {**os.environ, "no_proxy": "*"}, "stderr": subprocess.PIPE, "text": True}
        first = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, **given)
        try:
            assert asked.wait(PATIENCE)
            before = contents(out)
            capfd.readouterr()
            assert run(*words[3:]) == 2
            assert f"--out={out} is in use by process {first.pid} " in capfd.readouterr().err
            assert contents(out) == before
        finally:
            go_on.set()
            _, error = first.communicate(timeout=PATIENCE)
        assert first.returncode == 0, error
    assert len(server.asked) == 40
    if command == "eval":
        responses = [json.loads(line) for line in (out / "sums" / "responses.jsonl").read_text().splitlines()]
        assert len({(r["id"], r["index"]) for r in responses}) == len(responses) == 40
    else:
        assert json.loads((out / "card.json").read_text())["problems"] == 20


def test_a_response_that_stands_twice_in_the_journal_is_not_counted_twice(messy, tmp_path):
    out = tmp_path / "out"
    run_evaluation(messy, out)
    (out / "results.json").unlink()
    journal, state = out / "sums" / "responses.jsonl", out / "sums" / "responses.jsonl.state.json"
    first = journal.read_bytes().split(b"\n")[0] + b"\n"
    journal.write_bytes(journal.read_bytes() + first)
    state.write_text(json.dumps(json.loads(state.read_text()) | {"bytes": journal.stat().st_size}))
    with pytest.raises(UserError, match=r"holds the response 0 of problem \w+ twice"):
        run_evaluation(messy, out)
