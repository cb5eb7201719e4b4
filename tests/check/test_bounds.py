"""Numbers that no run can work with are refused before a job starts, by `check` and by `plan`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from nemo_ada.check.bounds import BOUNDS, bounds
from nemo_ada.check.command import examine
from nemo_ada.check.finding import exit_code
from nemo_ada.cluster.config import Values
from nemo_ada.config.load import load_run
from nemo_ada.errors import UserError
from nemo_ada.planning.command import make_plan

sys.path.insert(0, str(Path(__file__).parent))
from recipes import changed

ROOT = Path(__file__).parents[2]


def test_plan_refuses_what_check_refuses(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(changed({"grpo.max_num_steps": 400, "policy.generation.temperature": -1})))
    with pytest.raises(UserError, match=r"policy\.generation\.temperature="):
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
