"""slurm/prepare.sh and slurm/export.sh on a real SLURM: jobs of one node around a run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from chain import ROOT, Run
from cluster import Cluster

sys.path.insert(0, str(ROOT / "tests/rules/check"))
sys.path.insert(0, str(ROOT / "tests/rules/facts"))
from test_export import embedded
from test_prepare import home  # noqa: F401 - a fixture

from recipes import changed

pytestmark = pytest.mark.slurm


@pytest.mark.usefixtures("home")
def test_a_job_prepares_and_an_export_job_follows_a_job(
    one_node: Cluster, start: Callable[..., Run], tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(changed({"policy.model_name": "org/small", "data.train.data_path": str(config)})))
    settings = {"CONFIG": str(config)} | {name: os.environ[name] for name in ("HF_HOME", "HF_ENDPOINT")}
    prepared = start(one_node, script="prepare.sh", **settings)
    embedded(tmp_path / "run", 10)
    after = (f"--dependency=afterok:{prepared.job}",)
    exported = start(one_node, script="export.sh", options=after, **settings)
    exported.until(lambda: not one_node.jobs())
    assert [one_node.state(run.job) for run in (prepared, exported)] == ["COMPLETED"] * 2, exported.log()
    log = exported.log()
    assert "* fetch org/small" in log and "all of it was loaded again" in log
    assert json.loads((tmp_path / "run/hf/step_000010/config.json").read_text()) == {"step": 10}
