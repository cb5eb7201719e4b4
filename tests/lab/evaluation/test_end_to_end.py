"""The recipe on the CPU back end: real training, vLLM engine and tokenizer, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
LIMITS = ["--verifier", "exact", "--max-prompt-tokens", "16", "--max-new-tokens", "8"]

pytestmark = pytest.mark.slow  # minutes on a machine that others use too


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder that the recipe leaves."""
    out = tmp_path_factory.mktemp("recipe")
    recipe = [sys.executable, ROOT / "recipes" / "prepare_and_evaluate.py", "--out", out]
    done = subprocess.run(list(map(str, recipe)), env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def model(made: Path) -> Path:
    """The first model, the one with fewer steps."""
    name = json.loads((made / "set" / "card.json").read_text())["settings"]["model"]["name"]
    return made / "models" / name


def test_the_recipe_prepares_a_set_in_its_band(made):
    card = json.loads((made / "set" / "card.json").read_text())
    kept = lines(made / "set" / "dataset.jsonl")
    assert card["stages"]["measure"]["inputs"] == 200 and card["problems"] == len(kept) > 0
    assert all(0 < record["pass_rate"] <= 0.375 and record["responses"] == 8 for record in kept)


def test_every_response_is_kept_and_the_longer_trained_model_is_better(made):
    for name in ("first", "second"):
        responses = lines(made / name / "heldout" / "responses.jsonl")
        assert len(responses) == 800 and len({(r["id"], r["index"]) for r in responses}) == 800
        reward = sum(r["reward"] for r in responses) / 800
        found = json.loads((made / name / "results.json").read_text())["overall"]
        assert found["avg@8"]["mean"] == pytest.approx(reward)
        assert found["avg@8"]["mean"] <= found["pass@8"]["mean"]
    overall = json.loads((made / "comparison.json").read_text())["overall"]
    assert overall["difference"] > 0 and overall["p_t"] < 0.05


def test_a_preparation_killed_while_it_measures_writes_the_same_bytes(made, tmp_path):
    out = tmp_path / "set"
    command = [sys.executable, "-m", "nemo_ada.cli", "data", "prepare", made / "train.jsonl", "--out", out]
    command += ["--model", model(made), "--band", "v3", "--k", "8", *LIMITS]
    responses = out / "responses.jsonl"
    running = subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, cwd=ROOT)
    try:
        while not (responses.exists() and responses.read_bytes().count(b"\n") >= 256):
            assert running.poll() is None
            time.sleep(0.005)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert responses.read_bytes().count(b"\n") < 1600, "it was too fast to be killed in between"
    subprocess.run(list(map(str, command)), env=ENVIRONMENT, cwd=ROOT, check=True, timeout=PATIENCE)
    for name in ("dataset.jsonl", "rejected.jsonl", "pass_rates.jsonl", "card.json"):
        assert (out / name).read_bytes() == (made / "set" / name).read_bytes()


def test_equal_commands_give_equal_evaluations(made, tmp_path):
    command = [sys.executable, "-m", "nemo_ada.cli", "eval", model(made), "--data", made / "heldout.jsonl"]
    command += ["--out", tmp_path / "again", "--k", "8", *LIMITS]
    subprocess.run(list(map(str, command)), env=ENVIRONMENT, cwd=ROOT, check=True, timeout=PATIENCE)
    again, first, second = (sorted((folder / "heldout" / "responses.jsonl").open())
                            for folder in (tmp_path / "again", made / "first", made / "second"))  # fmt: skip
    assert again == first != second
