"""NeMo-RL's own configuration classes are asked where it can be imported (a package of that name stands for it)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nemo_ada.rules.check import own_classes

GRPO = """
from pydantic import BaseModel, model_validator
class Part(BaseModel):
    steps: int
    top: float = 1.0
    @model_validator(mode="after")
    def positive(self):
        if self.steps < 1:
            raise ValueError("steps must be above 0")
        return self
class MasterConfig(BaseModel, extra="allow"):
    grpo: Part
print("imports of NeMo-RL print")
"""
TAKEN = {"grpo": {"steps": 3}, "run_dir": "runs/x"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package nemo_rl that this Python and its children can import."""
    home = tmp_path / "home"
    (home / "nemo_rl/algorithms").mkdir(parents=True)
    for file in ("__init__.py", "algorithms/__init__.py"):
        (home / "nemo_rl" / file).touch()
    (home / "nemo_rl/algorithms/grpo.py").write_text(GRPO)
    monkeypatch.setenv("PYTHONPATH", str(home))
    monkeypatch.setattr(sys, "path", [str(home), *sys.path])
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return home


@pytest.mark.parametrize(
    ("config", "level", "key", "said"),
    [
        (TAKEN, "ok", "configuration", "MasterConfig takes it"),
        ({"grpo": {"steps": 0}}, "error", "grpo", "steps must be above 0"),
        ({"grpo": {"steps": "many"}}, "error", "grpo.steps", "'many'"),
        ({"grpo": {}}, "error", "grpo.steps", "it is missing"),
    ],
)
def test_validators_that_only_run_are_asked(package: Path, config: dict, level: str, key: str, said: str) -> None:
    (finding,) = own_classes.check_own_classes(config)
    assert (finding.level, finding.key) == (level, key)
    assert said in finding.message


def test_a_nemo_rl_that_cannot_be_imported_is_said(package: Path) -> None:
    (package / "nemo_rl/algorithms/grpo.py").write_text("import a_library_that_only_the_image_has")
    (finding,) = own_classes.check_own_classes(TAKEN)
    assert finding.level == "skipped"
    assert "a_library_that_only_the_image_has" in finding.message


def test_the_working_folder_brings_nothing(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    (finding,) = own_classes.check_own_classes(json.loads(json.dumps(TAKEN)))
    assert finding.level == "ok"


def test_within_a_job_and_without_nemo_rl_nobody_is_asked(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert list(own_classes.check_own_classes(TAKEN)) == []
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setattr(own_classes, "find_spec", lambda name: None)
    assert list(own_classes.check_own_classes(TAKEN)) == []
