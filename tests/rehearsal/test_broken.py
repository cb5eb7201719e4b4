"""Broken configs end a rehearsal with the phase and the cause: most before a worker starts, the others in its phase."""

from __future__ import annotations

import os
from pathlib import Path

import bench_rehearsal as recipe
import pytest

from nemo_ada.errors import UserError
from nemo_ada.rehearsal import installation

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME is not set")


def ends_as_told(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.chdir(ROOT)
    phase, cause, config, *overrides = recipe.BROKEN[name]
    report = recipe.rehearse(folder / "out", config, overrides, 3, resume=False)
    assert (report["failure"][0], report["passed"]) == (phase, False), report["failure"]
    assert cause in report["failure"][1]
    return int(report["code"])


@pytest.mark.long
@pytest.mark.parametrize("name", recipe.BROKEN)
def test_a_config_that_cannot_work_starts_no_worker(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find", lambda **_: pytest.fail("a worker's interpreter was looked for"))
    assert ends_as_told(name, tmp_path, monkeypatch) == 2


def test_nemo_rls_own_example_gets_as_far_as_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prompts and responses together may be longer than a row: NeMo-RL then shortens the response."""
    monkeypatch.setattr(installation, "find", lambda **_: (_ for _ in ()).throw(UserError("workers are wanted")))
    config, *overrides = recipe.MODELS["plain-nemo-rl-megatron"]
    report = recipe.rehearse(tmp_path / "out", config, overrides, 3, resume=False)
    assert report["failure"] == ("config", "workers are wanted")
