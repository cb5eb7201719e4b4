"""`nemo-ada rehearse --gpu`: what it makes of the events of the first real run, its time limit, and its configs.

h200.events.jsonl holds what the slice `methods` noted on an H200 on 26 November 2026 (recipes/results/gpu.md), without
the events per response.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_ada.errors import UserError
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.rehearsal import installation, observe, tables
from nemo_ada.rehearsal.command import Rehearsal
from nemo_ada.rehearsal.fit import ONE_GPU
from nemo_ada.rehearsal.gpu import GpuOptions, Slices, rehearse_on_gpu
from nemo_ada.rehearsal.report import Events, Report
from nemo_ada.rehearsal.runs import BALANCE, GRPO, METHODS, PRESETS, RESUMED, STOCK, Configs, choose_runs
from nemo_ada.rehearsal.standins.responses import Draws
from nemo_ada.rehearsal.tables import Forecasts
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.run.job_control import JobControl

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "qwen2.5-math-1.5b.yaml"
needs_nemo_rl = pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="our configs build on NeMo-RL's files")
H200 = "NVIDIA H200"

MODEL = {  # Qwen2.5-Math-1.5B
    "model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip


def real() -> Events:
    """The events of the slice."""
    return Events.read(Path(__file__).with_name("h200.events.jsonl"))


def slices(folder: Path, deadline: float | None = None) -> Slices:
    """Slices without processes."""
    nothing = installation.Installation(folder, folder, folder, folder, folder)
    rehearsal = Rehearsal(nothing, folder, ONE_GPU, lambda text: None)
    return Slices(rehearsal, JobControl(folder, 2), deadline, lambda done: None)


def test_the_runs_of_a_driver_are_told_apart_and_a_cut_one_keeps_its_steps() -> None:
    runs = real().runs()
    assert list(runs) == [GRPO, BALANCE]
    assert (sorted(runs[GRPO].steps()), sorted(runs[BALANCE].steps())) == ([1, 2], [1])
    assert runs[GRPO].failure() is None
    failed = runs[BALANCE].failure()
    assert failed is not None and "TimeoutError" in failed[1]


def test_the_largest_memory_of_a_phase_is_what_was_in_use_while_it_ran() -> None:
    lines: list[dict[str, Any]] = [
        {"event": "used", "bytes": 9}, {"event": "begin", "phase": "a"}, {"event": "used", "bytes": 3},
        {"event": "begin", "phase": "b"}, {"event": "used", "bytes": 7}, {"event": "end", "phase": "b", "seconds": 1},
        {"event": "used", "bytes": 5}, {"event": "end", "phase": "a", "seconds": 2}, {"event": "used", "bytes": 99},
    ]  # fmt: skip
    assert Events(lines).memory_by_phase() == {"a": 9, "b": 7}
    used = real().memory_by_phase()
    assert used["set-up"] / 2**30 == pytest.approx(85.3, abs=0.1)
    assert used["log-probs"] > used["refit"] > used["set-up"]


def test_the_tables_of_the_first_run_are_those_of_its_page(tmp_path: Path) -> None:
    report = Report("c", "nemo-ada rehearse c --gpu", ONE_GPU, [], [])
    draws = Draws((0.5,), LengthModel(30.0, 0.7, 1.3, 100))
    made = Configs({GRPO: {}}, [], ONE_GPU, None, draws, (), dry_run=False, real=True, saved=None)
    tables.fill_report(report, {METHODS: real()}, {}, Forecasts(memory={"refit": 9.75}), made, 2)
    assert not report.passed, "a slice was cut"
    assert {number.name for number in report.measurements if not number.passed} == {"balance: steps that are missing"}
    every = next(table for table in report.tables if table.title == "Every step")
    steps = {tuple(row[:2]): dict(zip(every.head, row, strict=True)) for row in every.rows}
    page = (ROOT / "recipes/results/gpu.md").read_text(encoding="utf-8")
    for (run, number), row in steps.items():
        line = next(line for line in page.splitlines() if line.startswith("| 2048 ") and f"| {number} |" in line
                    and (run in line or f"ada_seq_{run}" in line))  # fmt: skip
        cells = [cell.strip() for cell in line.split("|")]
        assert float(cells[6]) == pytest.approx(float(row["sampling, s"]), abs=0.06)
        assert float(cells[11]) == pytest.approx(float(row["step, s"]), abs=0.06)
    of_card = next(table for table in report.tables if table.title.startswith("Memory"))
    memory = {row[1]: row for row in of_card.rows if row[0] == METHODS}
    assert float(memory["refit"][4]) == pytest.approx(97.0 / 9.75, abs=0.01)


def test_a_slice_that_has_no_time_is_left_out_and_one_that_has_gets_what_is_left(tmp_path: Path) -> None:
    late = slices(tmp_path, time.monotonic() + 1)
    late.run("methods", lambda: pytest.fail("it must not start"))
    assert "no time" in late.failures["methods"]
    early = slices(tmp_path, time.monotonic() + 1000)
    early.run("methods", lambda: (0, Events([{"event": "done", "code": 0}])))
    assert not early.failures and 900 < early.rehearsal.limit < 1000


@needs_nemo_rl
def test_every_run_has_its_preset_and_single_stream_has_as_many_rows(tmp_path: Path) -> None:
    config = load_config(CONFIG, ["policy.generation.max_new_tokens=1024"])
    made = Configs.of(config, tmp_path, steps=3, scale=0.25, card=H200, dry_run=False)
    assert list(made.configs) == [STOCK, GRPO, *PRESETS]
    assert "reinforce_ada" not in made.configs[GRPO]
    rows = {
        one["grpo"]["num_prompts_per_step"] * one["grpo"]["num_generations_per_prompt"] for one in made.configs.values()
    }
    assert rows == {512}
    assert {one["policy"]["train_global_batch_size"] for one in made.configs.values()} == {128}
    assert made.count_problems(3) == 3 * 512, "single stream has the most prompts"
    assert made.shape.layers == 28 and made.draws.lengths.max_new_tokens == 1024
    assert set(made.draws.rates) == {k / 16 for k in range(1, 6)}, "those of the config's data set"
    assert [name for name, one in made.configs.items() if one["checkpointing"]["enabled"]] in (["lean"], [])
    assert made.configs[BALANCE]["card"] == "H200"
    titles = {one.title for one in made.stand_ins}
    assert {"NCCL's Python bindings (nccl4py)", "GPU nodes under Ray"} <= titles, "the report names what was replaced"
    assert "vLLM's random state" in titles and "Transformer Engine layers" not in titles and "torch.cuda" not in titles


@needs_nemo_rl
def test_only_the_wanted_runs_take_place_and_the_last_that_repeats_is_resumed(tmp_path: Path) -> None:
    wanted = ("single", "lean", RESUMED)
    made = Configs.of(load_config(CONFIG), tmp_path, steps=2, scale=0.1, card=H200, dry_run=False, runs=wanted)
    assert (list(made.configs), made.saved) == (["single", "lean"], "lean")
    without = Configs.of(load_config(CONFIG), tmp_path, steps=2, scale=0.1, card=H200, dry_run=True, runs=["grpo"])
    assert (list(without.configs), without.saved) == ([GRPO], None)


@needs_nemo_rl
def test_a_run_has_the_keys_in_its_name_and_workers_that_differ_have_a_driver_of_their_own(tmp_path: Path) -> None:
    four = "single+grpo.num_generations_per_prompt=4+grpo.num_prompts_per_step=512"
    capped = "balance+++reinforce_ada.budget.max_seconds=20"
    short = "lean+policy.generation.max_new_tokens=64"
    config = load_config(CONFIG)
    wanted = choose_runs([GRPO, "single", four, capped, short, RESUMED], full=False)
    made = Configs.of(config, tmp_path, steps=2, scale=0.125, card=H200, dry_run=False, runs=wanted)
    assert list(made.configs) == [GRPO, "single", four, capped, short] and made.saved == short
    one, other = (made.configs[name]["grpo"] for name in ("single", four))
    assert (other["num_generations_per_prompt"], other["num_prompts_per_step"]) == (4, 64)
    assert one["num_prompts_per_step"] == 256 and made.configs[four]["reinforce_ada"]["preset"] == "ada_single"
    assert made.configs[capped]["reinforce_ada"]["budget"]["max_seconds"] == 20
    assert made.configs[capped]["run_dir"] == str(tmp_path / capped)
    assert {name: list(runs) for name, runs in made.drivers().items()} == {
        METHODS: [GRPO, "single", four, capped], short: [short],
    }  # fmt: skip


@needs_nemo_rl
def test_a_folder_with_weights_keeps_its_weights_and_the_users_data(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }))  # fmt: skip
    words = [f"policy.model_name={folder}", "data.train.data_path=mine.jsonl"]
    assert not Configs.of(load_config(CONFIG, words), tmp_path, steps=2, scale=1, card=H200, dry_run=False).real
    (folder / "model.safetensors").write_bytes(b"")
    for dry_run in (False, True):
        made = Configs.of(load_config(CONFIG, words), tmp_path, steps=2, scale=1, card=H200, dry_run=dry_run)
        assert made.real
        for config in made.configs.values():
            assert config["policy"]["model_name"] == str(folder)
            assert config["data"]["train"]["data_path"] == "mine.jsonl"
        titles = {one.title for one in made.stand_ins}
        assert "A new learner for each run" not in titles and ("vLLM's random state" in titles) == dry_run
        assert "A new engine for each run" in titles


@needs_nemo_rl
def test_the_forecast_is_made_for_the_card(tmp_path: Path) -> None:
    made = Configs.of(load_config(CONFIG), tmp_path, steps=2, scale=0.125, card=H200, dry_run=False)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    forecast = Forecasts.of(made, tmp_path)
    assert forecast.warnings == []
    grpo, balance = (forecast.plans[name].forecast for name in (GRPO, BALANCE))
    assert balance.phases["sampling"].p50 > 2 * grpo.phases["sampling"].p50
    assert grpo.phases["update"].p50 > forecast.plans["lean"].forecast.phases["update"].p50, "all rows are trained on"


@needs_nemo_rl
def test_a_reward_beside_the_yaml_does_not_stop_the_forecast(tmp_path: Path) -> None:
    config = load_config(CONFIG)
    config["env"]["ada_math"]["reward"] = "beside_the_yaml:exact"
    made = Configs.of(config, tmp_path, steps=2, scale=0.125, card=H200, dry_run=False, runs=[GRPO])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    forecast = Forecasts.of(made, tmp_path)
    assert forecast.warnings == [] and set(forecast.plans) == {GRPO}


@needs_nemo_rl
def test_without_a_gpu_it_says_so_before_it_makes_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**options: Any) -> int:
        return rehearse_on_gpu(CONFIG, [], GpuOptions(steps=2), keep=tmp_path / "new", say=lambda text: None)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="--dry-run"):
        start()
    assert not (tmp_path / "new").exists()


@needs_nemo_rl
@pytest.mark.parametrize(
    "words",
    [["--gpu", "--scale", "2"], ["--full"], ["--gpu", "--full", "--scale", ".5"], ["--gpu", "--full", "--runs", "lean"],
     ["--gpu", "--full", "--steps", "1"],
     ["--gpu", "--full", "reinforce_ada=null"],
     ["--gpu", "env.should_use_nemo_gym=true"], ["--dry-run"], ["--runs", "grpo"], ["--gpu", "--no-resume"],
     ["--gpu", "--runs", "lean,nonsense"], ["--gpu", "--runs", "resumed"], ["--gpu", "--runs", "grpo,resumed"],
     ["--gpu", "--runs", "balance+grpo.num_prompts_per_stepp=4"], ["--gpu", "--runs", "balance,resumed+grpo.seed=4"],
     ["--gpu", "--runs", "balance+run_dir=../elsewhere"], ["--gpu", "--runs", "balance+"],
     ["--gpu", "--runs", "balance+reinforce_ada.budget.max_seconds=soon"]],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_before_anything_is_made(tmp_path: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "nemo_ada.cli", "rehearse", str(CONFIG), *words, "--keep", str(tmp_path / "new")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("step", "numbers", "ends"),
    [(1, {"reward": 0.0}, True), (1, {"reward": 0.1}, False), (2, {"reward": 0.0}, False), (1, {"loss": 0.0}, False),
     (1, {"ada/pass_rate": 0.0, "reward": 0.5}, True), (1, {"ada/pass_rate": 0.01, "reward": 0.0}, False)],
)  # fmt: skip
def test_a_run_that_should_learn_ends_where_its_first_step_has_no_right_answer(
    step: int, numbers: dict[str, float], ends: bool
) -> None:
    class Logger:
        def log_metrics(self, metrics: dict[str, float], step: int, prefix: str | None = "") -> None:
            logged.append((step, prefix))

    logged: list[Any] = []
    observe.require_right_answers(SimpleNamespace(Logger=Logger))  # type: ignore[arg-type]
    Logger().log_metrics({"accuracy": 0.0}, step, prefix="validation")
    if ends:
        with pytest.raises(UserError, match="what the verifier reads"):
            Logger().log_metrics(numbers, step, prefix="train")
    else:
        Logger().log_metrics(numbers, step, prefix="train")
    assert logged == [(step, "validation"), (step, "train")], "what ends a run is in its log"


@needs_nemo_rl
def test_the_short_dry_run_walks_a_slice_with_real_workers(tmp_path: Path) -> None:
    """The form for every CI run; the next test has all slices."""
    try:
        installation.find()
    except UserError as missing:
        pytest.skip(str(missing))
    options = GpuOptions(steps=2, dry_run=True, runs=["lean"])
    code = rehearse_on_gpu(CONFIG, [], options, keep=tmp_path / "kept", say=lambda text: None)
    report = json.loads((tmp_path / "kept" / "report.json").read_text(encoding="utf-8"))
    assert (code, report["failure"]) == (0, None)
    steps = next(table["rows"] for table in report["tables"] if table["title"] == "Every step")
    assert [row[0] for row in steps] == ["lean", "lean"] and all(float(row[-2]) < 1.0001 for row in steps)


@pytest.mark.slow
@needs_nemo_rl
def test_the_dry_run_passes_every_slice_with_real_workers(tmp_path: Path) -> None:
    try:
        installation.find()
    except UserError as missing:
        pytest.skip(str(missing))
    options = GpuOptions(steps=2, dry_run=True)
    code = rehearse_on_gpu(CONFIG, [], options, keep=tmp_path / "kept", say=lambda text: None)
    report = json.loads((tmp_path / "kept" / "report.json").read_text(encoding="utf-8"))
    assert (code, report["failure"]) == (0, None)
    steps = next(table["rows"] for table in report["tables"] if table["title"] == "Every step")
    assert [row[0] for row in steps] == [name for name in (STOCK, GRPO, *PRESETS) for _ in range(2)] + [RESUMED]
    assert all(float(row[-2]) < 1.0001 for row in steps), "engine and learner agree in float32"


@pytest.mark.slow
@needs_nemo_rl
def test_runs_with_real_weights_share_a_driver_and_its_engine(tmp_path: Path) -> None:
    """The weights are those that a rehearsal of random ones has left."""
    try:
        installation.find()
    except UserError as missing:
        pytest.skip(str(missing))

    def rehearse(name: str, words: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
        options = GpuOptions(steps=2, dry_run=True, runs=wanted)
        code = rehearse_on_gpu(CONFIG, words, options, keep=tmp_path / name, say=lambda text: None)
        report: dict[str, Any] = json.loads((tmp_path / name / "report.json").read_text(encoding="utf-8"))
        assert (code, report["failure"]) == (0, None)
        return report

    rehearse("random", [], ["lean"])
    sets = {name: {"dataset_name": "ResponseDataset", "data_path": f"{tmp_path}/random/data/{name}.jsonl",
                   "input_key": "problem", "output_key": "gt"} for name in ("train", "validation")}  # fmt: skip
    own = tmp_path / "own.yaml"
    own.write_text(json.dumps({"data": sets, "policy": {
        "model_name": f"{tmp_path}/random/model", "max_total_sequence_length": 384, "train_global_batch_size": 64,
        "generation": {"vllm_cfg": {"max_model_len": 384}},
    }, "grpo": {"num_prompts_per_step": 64}}))  # fmt: skip
    report = rehearse("real", [str(own)], [GRPO, "lean"])
    steps = next(table["rows"] for table in report["tables"] if table["title"] == "Every step")
    assert [row[0] for row in steps] == [GRPO, GRPO, "lean", "lean"]
    assert all(float(row[-2]) < 1.0001 for row in steps), "each refit gave the engine the learner of its run"
    log = (tmp_path / "real" / f"{METHODS}.log").read_text(errors="replace")
    assert log.count("Initializing a V1 LLM engine") == 1
