"""Numbers that no run can work with are refused before a job starts, by `check` and by `plan`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_ada.check.bounds import BOUNDS, bounds
from nemo_ada.check.command import examine
from nemo_ada.check.command import recipe as check
from nemo_ada.check.finding import exit_code
from nemo_ada.cluster.config import Values
from nemo_ada.config.load import load_run
from nemo_ada.errors import UserError
from nemo_ada.planning.command import make_plan

sys.path.insert(0, str(Path(__file__).parent))
from recipes import changed

ROOT = Path(__file__).parents[2]
REFUSED: list[tuple[str, Any, str]] = [
    ("policy.generation.vllm_cfg.gpu_memory_utilization", 2, "must be a number above 0, at most 1; 0.6 would work"),
    ("policy.generation.vllm_cfg.gpu_memory_utilization", 0, "above 0"),
    ("policy.generation.temperature", -1, "must be a number above 0; 1.0 would work"),
    ("policy.generation.temperature", math.nan, "above 0"),
    ("policy.generation.top_p", 1.5, "at most 1"),
    ("policy.megatron_cfg.optimizer.lr", -1, "must be a number above 0; 1.0e-6 would work"),
    ("policy.megatron_cfg.optimizer.lr", "fast", "above 0"),
    ("grpo.max_num_steps", -1, "must be a whole number of 1 or more; 400 would work"),
    ("grpo.max_num_steps", True, "whole number"),
    ("grpo.val_period", -5, "0 or more"),
    ("checkpointing.save_period", 0, "must be a whole number of 1 or more; 50 would work"),
    ("run_dir", "", "names no folder; runs/NAME would work"),
    ("run_dir", "  ", "names no folder"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_value_that_cannot_be_is_the_only_finding(key: str, value: Any, message: str, tmp_path: Path) -> None:
    found = check(changed({key: value}))
    assert [(finding.level, finding.key) for finding in found] == [("error", key)]
    assert message in found[0].message and found[0].message.startswith(f"{key}=")
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(changed({"grpo.max_num_steps": 400} | {key: value})))
    with pytest.raises(UserError, match=f"{key}="):
        make_plan(path, [], time="04:00:00", steps=1)


def test_what_works_keeps_its_bound_and_so_does_text_that_is_a_number() -> None:
    for key, (bound, works) in BOUNDS.items():
        assert bound.holds(works), key
    assert not list(bounds(Values(changed({"policy.megatron_cfg.optimizer.lr": "1e-6"}))))
    assert not list(bounds(Values(changed({}))))


@pytest.mark.parametrize("folder", ["run_dir=", "run_dir='  '"])
def test_a_cpu_run_without_a_folder_is_refused(folder: str) -> None:
    path = ROOT / "configs/cpu/jsonl.yaml"
    with pytest.raises(UserError, match=r"run_dir=.*names no folder; runs/NAME would work"):
        load_run(path, [folder])
    found = examine(path, [folder], verifier=False)
    assert exit_code(found) == 2 and "run_dir" in found[0].message
