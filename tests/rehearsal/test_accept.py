"""`nemo-ada accept`: its runs, what it judges, and what it leaves to another attempt.

A script stands in for the driver of a run on GPUs. NeMo-RL's real driver runs in a rehearsal of the command
(recipes/results/rehearsal.md has one).
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.plan.command import PlanOptions
from nemo_ada.rehearsal import accept, installation
from nemo_ada.rehearsal.report import Events, compare_resumed_on_other_responses
from nemo_ada.rehearsal.shrink import Layout, shorten
from nemo_ada.rules.facts.nemo_config import load_config
from nemo_ada.run.files import claim

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "qwen2.5-math-7b.yaml"
needs_nemo_rl = pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="our configs build on NeMo-RL's files")

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


def accepted(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *overrides: str,
    config: Path = CONFIG,
    fp8: bool = False,
    plan: bool = False,
    **asked: Any,
) -> tuple[int, dict[str, Any]]:
    """Exit code and report.json of an acceptance whose runs do what is asked. Without `plan` nothing is forecast."""
    few = partial(PlanOptions, steps=2)
    monkeypatch.setattr(accept, "PlanOptions", few)
    if not plan:
        monkeypatch.setattr(accept, "make_plan", refused)
    driver, python = folder / "driver.py", folder / "python"
    driver.write_text(DRIVER, encoding="utf-8")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {driver} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    gpus = installation.Installation(folder, folder, folder, python, python, stand_ins=False)
    monkeypatch.setattr(installation, "here", lambda: gpus)
    words = [f"run_dir={out}", "resume=auto", *overrides]  # as node.sh gives them
    code = accept.accept(config, words, steps=3, fp8=fp8, rehearse=False, out=None, say=lambda text: None)
    return code, json.loads((out / "report.json").read_text(encoding="utf-8"))


def refused(*arguments: Any) -> None:
    raise UserError("no plan")


def runs(folder: Path) -> dict[str, int]:
    """How often each run took place."""
    return {path.stem: len(path.read_text()) for path in (folder / "out").glob("*.runs")}


def state(folder: Path) -> str:
    return str(json.loads((folder / "out" / "status.json").read_text())["state"])


@needs_nemo_rl
def test_the_runs_follow_each_other_and_the_report_compares_them(tmp_path, monkeypatch):
    code, report = accepted(tmp_path, monkeypatch, fp8=True, plan=True)
    assert (code, state(tmp_path)) == (0, "done")
    assert runs(tmp_path) == {"stock": 1, "ours": 1, "resumed": 1, "fp8": 1}
    stock, ours, fp8 = (
        json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("stock", "ours", "fp8")
    )
    assert "reinforce_ada" not in stock and stock["grpo"]["adv_estimator"]["name"] == "grpo"
    assert not stock["checkpointing"]["enabled"] and ours["checkpointing"]["enabled"]
    assert ours["policy"]["model_name"] == load_config(CONFIG)["policy"]["model_name"]
    assert accept.uses_fp8(fp8) and not accept.uses_fp8(ours)
    tables = {table["title"].split()[0]: table["rows"] for table in report["tables"]}
    step = next(row for row in tables["Seconds"] if row[0] == "step")
    assert float(step[2]) == 250.0 and float(step[3]) > 0 and float(step[5]) == 250.0  # median of steps 2 and 3
    assert any("H100" in cell for row in tables["Largest"] for cell in row)
    assert any("never" in note or "Nobody" in note for note in report["notes"])
    names = [number["name"] for number in report["numbers"]]
    for part in ("ours: packed", "stock: step 1", "fp8: step 3", "resumed step 3: prompts"):
        assert any(part in name for name in names)


@needs_nemo_rl
@pytest.mark.parametrize("asked", [{"ours": {"token_mult_prob_error": 1.2}}, {"resumed": {"lr": 0.5}}], ids=str)
def test_a_number_out_of_bounds_fails(asked, tmp_path, monkeypatch):
    code, report = accepted(tmp_path, monkeypatch, **asked)
    assert (code, state(tmp_path), report["passed"]) == (1, "failed", False)


@needs_nemo_rl
def test_a_run_that_fails_is_named_without_secrets_and_another_attempt_repeats_only_the_rest(tmp_path, monkeypatch):
    code, report = accepted(tmp_path, monkeypatch, fails="ours")
    assert (code, report["failure"][0]) == (1, "ours")
    assert "hf_abcdefghijklmnopqrstuvwxyz0123" not in json.dumps(report)
    assert "resumed" not in runs(tmp_path)
    assert accepted(tmp_path, monkeypatch)[0] == 0
    assert runs(tmp_path) == {"stock": 1, "ours": 1, "resumed": 1}
    assert accepted(tmp_path, monkeypatch, "grpo.seed=5")[0] == 0
    assert runs(tmp_path) == {"stock": 2, "ours": 2, "resumed": 2}


@needs_nemo_rl
def test_the_batch_script_sees_a_run_that_it_stopped(tmp_path, monkeypatch):
    code, _ = accepted(tmp_path, monkeypatch, fails="stock", code=75)
    assert (code, state(tmp_path)) == (75, "stopped")
    assert json.loads((tmp_path / "out" / "heartbeat").read_text())["phase"] == "stock"


@needs_nemo_rl
def test_an_error_of_check_starts_no_run(tmp_path, monkeypatch):
    code, report = accepted(tmp_path, monkeypatch, "policy.train_global_batch_size=7")
    assert (code, state(tmp_path), report["failure"][0]) == (2, "failed", "check")
    assert not runs(tmp_path)


@needs_nemo_rl
def test_a_config_without_reinforce_ada_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError):
        accepted(tmp_path, monkeypatch, "reinforce_ada=null")


@needs_nemo_rl
def test_a_config_over_nemo_gym_makes_the_same_runs(tmp_path, monkeypatch):
    config = ROOT / "configs" / "qwen3-4b-instruct-2507-gym-math.yaml"
    code, report = accepted(tmp_path, monkeypatch, config=config)
    assert (code, report["failure"]) == (0, None)
    assert set(runs(tmp_path)) == {"stock", "ours", "resumed"}
    stock = json.loads((tmp_path / "out" / "stock.json").read_text(encoding="utf-8"))
    assert stock["env"]["should_use_nemo_gym"] and "reinforce_ada" not in stock


@needs_nemo_rl
def test_a_config_in_fp8_is_compared_with_bf16():
    config = load_config(ROOT / "configs" / "qwen3-30b-a3b-fp8.yaml")
    assert accept.uses_fp8(config)
    assert not accept.uses_fp8(accept.in_bf16(config))


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
    assert accept.layout_of(config) == Layout("megatron", 4, 1, 1, 1, 4), (
        "a node is vLLM's, though its GPUs are not counted"
    )


def test_a_resumed_run_with_other_responses_must_have_the_same_prompts():
    def events(prompts: list[list[str]], first: int) -> Events:
        steps = [{"event": "metrics", "prefix": "train", "step": first + i, "numbers": {"lr": 0.1, "loss": 0.5}}
                 for i in range(len(prompts))]  # fmt: skip
        return Events([*steps, *({"event": "rows", "rows": [], "prompts": step} for step in prompts)])

    whole = events([["a"], ["b"], ["c", "d"]], 1)
    assert all(one.passed for one in compare_resumed_on_other_responses(whole, events([["d", "c"]], 3), 2, 3))
    assert not all(one.passed for one in compare_resumed_on_other_responses(whole, events([["c", "c"]], 3), 2, 3))
    assert not all(one.passed for one in compare_resumed_on_other_responses(whole, events([["c", "d"]], 2), 2, 3))


@needs_nemo_rl
@pytest.mark.parametrize("name", ["metrics.jsonl", "ours"])
def test_the_folder_of_something_else_stays_as_it_is(name, tmp_path, monkeypatch):
    (tmp_path / "out" / name).mkdir(parents=True)
    (tmp_path / "out" / name / "mine").write_text("kept")
    with pytest.raises(UserError):
        accepted(tmp_path, monkeypatch)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [name]
    assert (tmp_path / "out" / name / "mine").read_text() == "kept"


@needs_nemo_rl
def test_two_acceptances_do_not_share_a_folder(tmp_path, monkeypatch):
    with claim(tmp_path / "out", "accept", "--out"), pytest.raises(UserError):
        accepted(tmp_path, monkeypatch)
    assert not runs(tmp_path)
