"""`nemo-ada train` on a recipe of configs/, in processes of its own, with NeMo-RL's real set-up (launch_driver.py).

A run is stopped by its stop file (exit 75), refused with a changed configuration (exit 2), goes on and is killed in the
middle of a step, gives a step up because its job ends (exit 75), and goes on to its end (exit 0). Beside it the same
run goes through without a stop.

1. Losses, samples, validation scores and the final weights are those of the uninterrupted run.
2. status.json, records, checkpoints and the W&B run say so; report and plan read the folder.
3. The math environment of the recipes judges the answers; one reference that hangs costs its deadline per validation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from nemo_ada.jobcontrol import EXIT_DONE, EXIT_STOPPED, EXIT_USER_ERROR
from nemo_ada.planning.history import History
from nemo_ada.report.run import Run
from nemo_ada.rundir import read_lines

pytestmark = [pytest.mark.nemo_rl, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "configs" / "qwen2.5-math-1.5b" / "ada-qwen2.5-math-1.5b-1n8g-tp1.yaml"
STEPS = 6
HANGING_REFERENCE = "9^{9^{9^{9}}}"
KILLED = -9


def changes(folder: Path) -> dict[str, Any]:
    """What makes the recipe tiny. Its sections `reinforce_ada`, `env` and `data.default` stay as they are."""
    return {
        "defaults": str(RECIPE),
        "resume": "auto",
        "grpo": {"num_prompts_per_step": 4, "max_num_steps": STEPS, "val_period": 2, "max_val_samples": 4}
        | {"val_batch_size": 4},
        "policy": {
            "model_name": str(folder / "model"),
            "tokenizer": {"chat_template": "{{ messages[-1]['content'] }}"},
            "train_global_batch_size": 16,
            "train_micro_batch_size": 4,
            "max_total_sequence_length": 24,
            "make_sequence_length_divisible_by": 1,
            "megatron_cfg": {"optimizer": {"lr": 0.01, "min_lr": 0.01}},
            "generation": {"max_new_tokens": 4, "vllm_cfg": {"enable_vllm_metrics_logger": False}},
        },
        "data": {
            "max_input_seq_length": 16,
            "num_workers": 0,
            "train": {"data_path": str(folder / "train.jsonl")},
            "validation": {
                "dataset_name": "ResponseDataset",
                "data_path": str(folder / "validation.jsonl"),
                "input_key": "problem",
                "output_key": "gt",
            },
        },
        "env": {"ada_math": {"deadline_s": 3.0, "workers": 1}},
        "checkpointing": {"save_period": 2},
        "cluster": {"gpus_per_node": 1},
        "logger": {"monitor_gpus": False},
    }


@dataclass(frozen=True)
class Lab:
    """A folder with a configuration, data and a tokenizer, and a way to launch in it."""

    folder: Path

    def arguments(self, name: str, *overrides: str) -> list[str]:
        return ["train", str(self.folder / "tiny.yaml"), f"run_dir={self.folder / name}", *overrides]

    def launch(self, *launches: dict[str, Any]) -> tuple[int, list[int], str]:
        """One process. (its exit code, the codes of its launches, what it wrote to standard error)."""
        results = self.folder / "codes"
        results.unlink(missing_ok=True)
        here = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "nemo"), os.environ.get("PYTHONPATH", "")])
        log = self.folder / "driver.log"
        with log.open("a") as file:
            done = subprocess.run(
                [sys.executable, "-m", "nemo_support.launch_driver", str(results), json.dumps(launches)],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": here, "NEMO_RL_HOME": upstream(), "WANDB_MODE": "offline"},
                stdout=file,
                stderr=subprocess.PIPE,
                text=True,
                timeout=600,
            )
            file.write(done.stderr)
        codes = [int(line) for line in results.read_text().split()] if results.exists() else []
        return done.returncode, codes, done.stderr


def upstream() -> str:
    import nemo_rl

    return str(Path(nemo_rl.__file__).parents[1])


@pytest.fixture(scope="module")
def lab(harness: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    from nemo_support.launch_driver import tokenizer
    from nemo_support.tiny_model import tiny_model

    folder = tmp_path_factory.mktemp("lab")
    words = tokenizer()
    tiny_model(len(words), seed=1).config.save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    problems = {"train": [(f"p{n}=", "1") for n in range(10, 26)]}
    problems["validation"] = [(f"v{n}=", "1") for n in (13, 15, 17)] + [("v19=", HANGING_REFERENCE)]
    for name, pairs in problems.items():
        lines = [json.dumps({"problem": problem, "gt": answer}) for problem, answer in pairs]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    (folder / "tiny.yaml").write_text(yaml.safe_dump(changes(folder), sort_keys=False))
    (folder / "configs").symlink_to(ROOT / "configs")  # the recipes' prompt files are named from the project's root
    return Lab(folder)


@pytest.fixture(scope="module")
def story(lab: Lab) -> dict[str, Any]:
    """All launches, in three processes; what each ended with, and the status after it."""
    wandb = "logger.wandb_enabled=true"
    broken = lab.folder / "broken"

    def status() -> dict[str, Any]:
        return json.loads((broken / "status.json").read_text())

    told: dict[str, Any] = {}
    told["first"] = lab.launch(
        {"arguments": lab.arguments("straight")},
        {"arguments": lab.arguments("broken", wandb, "grpo.max_num_steps=4"), "stop_in": 3},
    )
    told["stopped"] = status()
    (broken / "STOP").unlink()
    told["second"] = lab.launch(
        {"arguments": lab.arguments("broken", "loss_fn.ratio_clip_max=0.5", "+policy.extra=1")},
        {"arguments": lab.arguments("broken"), "kill_in": 2},
    )
    told["killed"] = status()
    told["third"] = lab.launch(
        {"arguments": lab.arguments("broken"), "seconds": 20}, {"arguments": lab.arguments("broken", wandb)}
    )
    told["done"] = status()
    return told


def test_exit_codes_and_status_tell_what_happened(story: dict[str, Any]) -> None:
    assert story["first"][:2] == (EXIT_STOPPED, [EXIT_DONE, EXIT_STOPPED]), story["first"][2][-2000:]
    assert (story["stopped"]["state"], story["stopped"]["step"]) == ("stopped", 3)
    assert story["second"][:2] == (KILLED, [EXIT_USER_ERROR]), story["second"][2][-2000:]
    assert (story["killed"]["state"], story["killed"]["step"]) == ("running", 4)
    assert story["third"][:2] == (EXIT_DONE, [EXIT_STOPPED, EXIT_DONE]), story["third"][2][-2000:]
    assert (story["done"]["state"], story["done"]["step"], story["done"]["max_steps"]) == ("done", STEPS, STEPS)


def test_a_changed_configuration_is_refused_by_its_keys(story: dict[str, Any]) -> None:
    message = " ".join(story["second"][2].split())
    assert "belongs to another configuration" in message
    assert "loss_fn.ratio_clip_max: 0.28 -> 0.5" in message and "policy.extra: None -> 1" in message


COMPARED = ("step", "train/loss", "train/reward", "ada/samples_drawn", "ada/pass_rate", "ada/live_rows")
TOTAL = ("total/responses", "total/tokens", "total/rows", "total/live_rows")
SCORES = ("step", "val/accuracy", "val/response_length", "val/without_label")


def test_the_interrupted_run_is_the_uninterrupted_one(lab: Lab, story: dict[str, Any]) -> None:
    def picked(name: str, file: str, keys: tuple[str, ...]) -> list[list[Any]]:
        return [[line[key] for key in keys] for line in read_lines(lab.folder / name / f"{file}.jsonl")]

    steps = picked("straight", "metrics", COMPARED + TOTAL)
    assert [line[0] for line in steps] == list(range(1, STEPS + 1)) and any(line[1] for line in steps)
    assert picked("broken", "metrics", COMPARED + TOTAL) == steps
    scores = picked("straight", "evaluations", SCORES)
    assert [line[0] for line in scores] == [0, 2, 4, 6]
    assert picked("broken", "evaluations", SCORES) == scores
    weights = [
        torch.load(lab.folder / name / "checkpoints" / f"step_{STEPS}" / "policy" / "weights" / "model.pt")
        for name in ("straight", "broken")
    ]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_every_validation_counts_the_answer_that_could_not_be_judged(lab: Lab, story: dict[str, Any]) -> None:
    evaluations = read_lines(lab.folder / "straight" / "evaluations.jsonl")
    assert [line["val/without_label"] for line in evaluations] == [1.0] * 4
    assert all(line["val/accuracy"] in (0.0, 0.25, 0.5, 0.75) for line in evaluations)
    assert any(line["val/accuracy"] > 0 for line in evaluations)


def test_the_tracking_run_goes_on(lab: Lab, story: dict[str, Any]) -> None:
    run_id = json.loads((lab.folder / "broken" / "tracking.json").read_text())["wandb_id"]
    kept = [path.name for path in (lab.folder / "broken" / "logs").glob("exp_*/wandb/wandb/offline-run-*")]
    assert len(kept) == 2 and all(name.endswith(f"-{run_id}") for name in kept)


def test_report_and_plan_read_the_run(lab: Lab, story: dict[str, Any]) -> None:
    run = Run.read(lab.folder / "broken")
    assert run.notes == () and run.state == "done" and len(run.steps) == STEPS
    assert run.config["reinforce_ada.preset"] == "ada_seq_balance"
    history = History.read(lab.folder / "broken")
    assert len(history.lengths_L) > 0 and (history.step_S > 0).all()
