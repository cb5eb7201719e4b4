"""A recipe of configs/ made tiny, and launches of it in processes of their own (launch_driver.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from nemo_ada.run.folder import read_lines
from tests.faults.processes import MARK, ROOT, marked

RECIPE = ROOT / "configs" / "qwen2.5-math-1.5b.yaml"
HANGING_REFERENCE = "9^{9^{9^{9}}}"
KILLED = -9
STEP_KEYS = ("step", "train/loss", "train/reward", "ada/samples_drawn", "ada/pass_rate", "ada/live_rows")
STEP_TOTALS = ("total/responses", "total/tokens", "total/rows", "total/live_rows")
SCORE_KEYS = ("step", "val/accuracy", "val/response_length", "val/without_label")


def changes(folder: Path) -> dict[str, Any]:
    """What makes the recipe tiny. Its sections `reinforce_ada`, `env` and `data.default` stay as they are."""
    return {
        "defaults": str(RECIPE),
        "resume": "auto",
        "grpo": {"num_prompts_per_step": 4, "val_period": 2, "max_val_samples": 4, "val_batch_size": 4},
        "policy": {
            "model_name": str(folder / "model"),
            "tokenizer": {"chat_template": "{{ messages[-1]['content'] }}"},
            "train_global_batch_size": 16,
            "train_micro_batch_size": 4,
            "max_total_sequence_length": 24,
            "make_sequence_length_divisible_by": 1,
            "megatron_cfg": {"optimizer": {"lr": 0.001, "min_lr": 0.001}},
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

    @classmethod
    def furnish(cls, folder: Path) -> Lab:
        """Write what a launch needs. One of four references of the validation hangs the verifier."""
        from nemo_support.launch_driver import tokenizer
        from nemo_support.tiny_model import tiny_model

        words = tokenizer()
        tiny_model(len(words), seed=1).config.save_pretrained(folder / "model")
        words.save_pretrained(folder / "model")
        problems = {"train": [(f"p{n}=", "1") for n in range(10, 26)]}
        problems["validation"] = [(f"v{n}=", "1") for n in (13, 15, 17)] + [("v19=", HANGING_REFERENCE)]
        for name, pairs in problems.items():
            lines = [json.dumps({"problem": problem, "gt": answer}) for problem, answer in pairs]
            (folder / f"{name}.jsonl").write_text("\n".join(lines))
        (folder / "tiny.yaml").write_text(yaml.safe_dump(changes(folder), sort_keys=False))
        (folder / "configs").symlink_to(ROOT / "configs")  # recipes name their prompt files from the project's root
        return cls(folder)

    def arguments(self, name: str, *overrides: str) -> list[str]:
        """Of `nemo-ada`, for the run `name`."""
        return ["train", str(self.folder / "tiny.yaml"), f"run_dir={self.folder / name}", *overrides]

    def launch(self, *launches: dict[str, Any]) -> tuple[int, list[int], str]:
        """One process. (its exit code, the codes of its launches, what it wrote to standard error).

        Returns when all of its processes are gone. Where one stays, the test's time-out says so.
        """
        results = self.folder / "codes"
        results.unlink(missing_ok=True)
        here = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "nemo"), os.environ.get("PYTHONPATH", "")])
        log, mark = self.folder / "driver.log", uuid.uuid4().hex
        variables = {"PYTHONPATH": here, "NEMO_RL_HOME": upstream(), "WANDB_MODE": "offline", MARK: mark}
        variables["TORCH_CUDA_ARCH_LIST"] = "9.0"  # NVIDIA's image sets it
        with log.open("a") as file, (self.folder / "errors.log").open("w+") as errors:
            done = subprocess.run(
                [sys.executable, "-m", "nemo_support.launch_driver", str(results), json.dumps(launches)],
                cwd=self.folder,
                env={**os.environ, **variables},
                stdout=file,
                stderr=errors,
                timeout=600,
            )
            errors.seek(0)
            told = errors.read()
            file.write(told)
        while marked(mark):
            time.sleep(0.2)
        codes = [int(line) for line in results.read_text().split()] if results.exists() else []
        return done.returncode, codes, told

    def status(self, name: str) -> dict[str, Any]:
        """What the run `name` says of itself."""
        return dict(json.loads((self.folder / name / "status.json").read_text()))


def upstream() -> str:
    """NeMo-RL's checkout."""
    import nemo_rl

    return str(Path(nemo_rl.__file__).parents[1])


def picked(run: Path) -> tuple[list[list[Any]], list[list[Any]]]:
    """Numbers of a run's steps and evaluations that hold no clock's reading, in the order of the keys above."""
    return (
        [[line[key] for key in STEP_KEYS + STEP_TOTALS] for line in read_lines(run / "metrics.jsonl")],
        [[line[key] for key in SCORE_KEYS] for line in read_lines(run / "evaluations.jsonl")],
    )


def same_weights(one: Path, other: Path, step: int) -> bool:
    """Whether the policies of two runs after `step` are equal to the bit."""
    place = Path("checkpoints") / f"step_{step}" / "policy" / "weights" / "model.pt"
    ours, theirs = torch.load(one / place), torch.load(other / place)
    return bool(ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours))
