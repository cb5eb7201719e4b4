"""`nemo-ada rehearse --gpu --full`: its runs and what it judges.

A script stands in for the driver of a run on GPUs. NeMo-RL's real driver runs in a rehearsal of the command
(recipes/results/rehearsal.md has one).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.errors import UserError
from nemo_ada.rehearsal import installation, runs
from nemo_ada.rehearsal.gpu import GpuOptions, rehearse_on_gpu
from nemo_ada.rehearsal.report import Events, compare_resumed
from nemo_ada.rehearsal.shrink import Layout, shorten
from nemo_ada.rehearsal.tables import Forecasts
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.run.files import claim_folder

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "qwen2.5-math-7b.yaml"
needs_nemo_rl = pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="our configs build on NeMo-RL's files")

SHORT = GpuOptions(steps=3, full=True)

DRIVER = """
import json, os, sys
from pathlib import Path
CONFIG = Path(next(word for word in sys.argv if word.endswith(".json")))
config = json.loads(CONFIG.read_text())
name, steps, run = CONFIG.stem, config["grpo"]["max_num_steps"], Path(config["run_dir"])
asked = json.loads((CONFIG.parents[1] / "asked.json").read_text())
first = steps if name == "resumed" else 1
def note(**event):
    with open(os.environ["NEMO_ADA_REHEARSAL_EVENTS"], "a") as file:
        file.write(json.dumps(event) + "\\n")
note(event="run", name=name)
if name == asked.get("fails"):
    note(event="failed", kind="RuntimeError", message="CUDA out of memory, token hf_abcdefghijklmnopqrstuvwxyz0123")
    sys.exit(asked.get("code", 1))
for step in range(first, steps + 1):
    numbers = {"loss": 0.1 * step, "lr": 1e-6 * step, "grad_norm": 1.0}
    numbers |= {"token_mult_prob_error": 1.02, "gen_kl_error": 0.001}
    note(event="rows", rows=[f"{name}{step}"], prompts=[f"p{step}"])
    note(event="metrics", prefix="train", step=step, numbers=numbers | asked.get(name, {}))
    seconds = {"total_step_time": 100.0 * step, "generation": 60.0}
    note(event="metrics", prefix="timing/train", step=step, numbers=seconds)
if "--logprobs" in sys.argv:
    note(event="memory", allocated=40 * 2**30, reserved=50 * 2**30, card="NVIDIA H100 80GB HBM3")
    note(event="gradient norms", packed=1.0, unpacked=1.01)
if config["checkpointing"]["enabled"]:
    for step in (steps - 1, steps):
        (run / "checkpoints" / f"step_{step}").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints" / f"step_{step}" / "weights").write_text("w")
CONFIG.with_suffix(".runs").open("a").write("x")
note(event="done", code=0)
"""


def rehearsed(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *overrides: str,
    config: Path = CONFIG,
    options: GpuOptions = SHORT,
    plan: bool = False,
    **asked: Any,
) -> tuple[int, dict[str, Any]]:
    """Exit code and report.json of a rehearsal whose runs do what is asked. Without `plan` nothing is forecast."""
    if not plan:
        monkeypatch.setattr(Forecasts, "of", lambda made, folder: Forecasts())
    driver, python = folder / "driver.py", folder / "python"
    driver.write_text(DRIVER, encoding="utf-8")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {driver} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    gpus = installation.Installation(folder, folder, folder, python, python, stand_ins=False)
    monkeypatch.setattr(installation, "use_own_environment", lambda: gpus)
    words = [f"run_dir={out}", "resume=auto", *overrides]  # as node.sh gives them
    code = rehearse_on_gpu(config, words, options, keep=None, say=lambda text: None)
    return code, json.loads((out / "report.json").read_text(encoding="utf-8"))


def made(folder: Path) -> dict[str, int]:
    """How often each run took place."""
    return {path.stem: len(path.read_text()) for path in (folder / "out").glob("*.runs")}


def state(folder: Path) -> str:
    return str(json.loads((folder / "out" / "status.json").read_text())["state"])


@needs_nemo_rl
def test_the_runs_follow_each_other_and_the_report_compares_them(tmp_path, monkeypatch):
    code, report = rehearsed(tmp_path, monkeypatch, plan=True)
    assert (code, state(tmp_path)) == (0, "done")
    assert made(tmp_path) == {"grpo": 1, "own": 1, "resumed": 1}
    grpo, own = (json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("grpo", "own"))
    assert "reinforce_ada" not in grpo and grpo["grpo"]["adv_estimator"]["name"] == "grpo"
    assert not grpo["checkpointing"]["enabled"] and own["checkpointing"]["enabled"]
    assert own["policy"]["model_name"] == load_config(CONFIG)["policy"]["model_name"]
    tables = {table["title"].split()[0]: table["rows"] for table in report["tables"]}
    steps = {row[0]: row for row in tables["Seconds"] if row[1] == "step"}
    assert float(steps["grpo"][3]) == float(steps["own"][3]) == 250.0, "the median of steps 2 and 3"
    assert float(steps["own"][2]) > 0
    assert {row[0] for row in tables["Every"]} == {"grpo", "own", "resumed"}
    learner = [row for row in tables["Memory"] if row[1].startswith("learner")]
    assert {(row[0], float(row[3])) for row in learner} == {("own", 40.0)} and float(learner[0][2]) > 0
    assert any("H100" in row[1] for row in tables["Versions"] if row[0] == "card")
    assert any("Nobody" in note for note in report["notes"])
    names = [number["name"] for number in report["numbers"]]
    for part in ("own: packed", "grpo: step 1", "resumed step 3: prompts"):
        assert any(part in name for name in names)


@needs_nemo_rl
@pytest.mark.parametrize("asked", [{"own": {"token_mult_prob_error": 1.2}}, {"resumed": {"lr": 0.5}}], ids=str)
def test_a_number_out_of_bounds_fails(asked, tmp_path, monkeypatch):
    code, report = rehearsed(tmp_path, monkeypatch, **asked)
    assert (code, state(tmp_path), report["passed"]) == (1, "failed", False)


@needs_nemo_rl
def test_a_run_that_fails_is_named_without_secrets_and_nothing_follows_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz0123")
    code, report = rehearsed(tmp_path, monkeypatch, fails="own")
    assert (code, report["failure"][0]) == (1, "own")
    assert "hf_abcdefghijklmnopqrstuvwxyz0123" not in json.dumps(report)
    assert "resumed" not in made(tmp_path)
    assert rehearsed(tmp_path, monkeypatch)[0] == 0, "another attempt begins anew"


@needs_nemo_rl
def test_the_batch_script_sees_a_run_that_it_stopped(tmp_path, monkeypatch):
    code, _ = rehearsed(tmp_path, monkeypatch, fails="grpo", code=75)
    assert (code, state(tmp_path)) == (75, "stopped")
    assert json.loads((tmp_path / "out" / "heartbeat").read_text())["phase"] == "grpo"


@needs_nemo_rl
def test_an_error_of_check_starts_no_run(tmp_path, monkeypatch):
    code, report = rehearsed(tmp_path, monkeypatch, "policy.train_global_batch_size=7")
    assert (code, state(tmp_path), report["failure"][0]) == (2, "failed", "check")
    assert not made(tmp_path)


@needs_nemo_rl
def test_a_config_without_reinforce_ada_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError):
        rehearsed(tmp_path, monkeypatch, "reinforce_ada=null")


@needs_nemo_rl
def test_a_config_over_nemo_gym_makes_the_same_runs(tmp_path, monkeypatch):
    config = ROOT / "configs" / "qwen3-4b-instruct-2507-gym-math.yaml"
    code, report = rehearsed(tmp_path, monkeypatch, config=config)
    assert (code, report["failure"]) == (0, None)
    assert set(made(tmp_path)) == {"grpo", "own", "resumed"}
    grpo = json.loads((tmp_path / "out" / "grpo.json").read_text(encoding="utf-8"))
    assert grpo["env"]["should_use_nemo_gym"] and "reinforce_ada" not in grpo


def test_a_short_run_keeps_every_size():
    config = {"grpo": {"num_prompts_per_step": 512, "num_generations_per_prompt": 4, "max_num_steps": 400,
                       "val_period": 10},
              "checkpointing": {"enabled": True, "save_period": 10, "keep_top_k": 3},
              "policy": {"megatron_cfg": {"enabled": True, "tensor_model_parallel_size": 4,
                                          "pipeline_model_parallel_size": 1},
                         "max_total_sequence_length": 4096, "train_global_batch_size": 512, "train_micro_batch_size": 1,
                         "generation": {"max_new_tokens": 1024,
                                        "colocated": {"enabled": False, "resources": {"num_nodes": 1}}}},
              "cluster": {"num_nodes": 3, "gpus_per_node": 8}}  # fmt: skip
    short = shorten(config, out=Path("run"), steps=3).config
    assert short["policy"] == config["policy"] and short["grpo"]["num_prompts_per_step"] == 512
    assert (short["grpo"]["max_num_steps"], short["checkpointing"]["save_period"]) == (3, 2)
    assert runs.read_layout(config) == Layout("megatron", 4, 1, 1, 1, 4), (
        "a node is vLLM's, though its GPUs are not counted"
    )


def test_a_resumed_run_with_other_responses_must_have_the_same_prompts():
    def events(prompts: list[list[str]], first: int) -> Events:
        steps = [{"event": "metrics", "prefix": "train", "step": first + i, "numbers": {"lr": 0.1, "loss": 0.5}}
                 for i in range(len(prompts))]  # fmt: skip
        return Events([*steps, *({"event": "rows", "rows": [], "prompts": step} for step in prompts)])

    whole = events([["a"], ["b"], ["c", "d"]], 1)
    assert all(one.passed for one in compare_resumed(whole, events([["d", "c"]], 3), 2, 3, "prompts"))
    assert not all(one.passed for one in compare_resumed(whole, events([["c", "c"]], 3), 2, 3, "prompts"))
    assert not all(one.passed for one in compare_resumed(whole, events([["c", "d"]], 2), 2, 3, "prompts"))


@needs_nemo_rl
@pytest.mark.parametrize("name", ["metrics.jsonl", "own"])
def test_the_folder_of_something_else_stays_as_it_is(name, tmp_path, monkeypatch):
    (tmp_path / "out" / name).mkdir(parents=True)
    (tmp_path / "out" / name / "mine").write_text("kept")
    with pytest.raises(UserError):
        rehearsed(tmp_path, monkeypatch)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [name]
    assert (tmp_path / "out" / name / "mine").read_text() == "kept"


@needs_nemo_rl
def test_two_rehearsals_do_not_share_a_folder(tmp_path, monkeypatch):
    with claim_folder(tmp_path / "out", "rehearse --gpu", "--keep"), pytest.raises(UserError):
        rehearsed(tmp_path, monkeypatch)
    assert not made(tmp_path)
