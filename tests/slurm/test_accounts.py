"""A site that keeps accounts: slurmdbd with limits on the jobs of a user, on a real SLURM with a data base."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from chain import Run
from cluster import MOST_JOBS, cluster, search_path, why_not

from nemo_ada.rules.check.cluster import check_cluster

pytestmark = pytest.mark.slurm


def test_a_limit_on_jobs_makes_a_run_several_submissions_and_sacct_knows_its_slots(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MaxSubmitJobs=3: SLURM refuses 20, 10 and 5 slots, and takes 2."""
    missing = [name for name in ("slurmdbd", "mariadbd") if shutil.which(name, path=search_path()) is None]
    if missing or why_not() is not None:
        pytest.skip(why_not() or f"no {', '.join(missing)} (slurmdbd, mariadb-server)")
    with cluster(tmp_path / "c", accounts=True) as running:
        words = ("steps=9", "wait_at=2", "step_seconds=0.1", "term=node")
        run = start(running, *words, itself=True)
        assert "SLURM refuses 20 slots for this run (see above), and takes 2" in run.printed, run.printed
        assert "job submit limit" in run.printed
        run.until(lambda: len(run.steps()) >= 2)
        running.run("scancel", run.current())
        run.until(lambda: run.attempts() == 2 and bool(run.steps()))
        run.over("done")
        assert run.steps() == list(range(1, 10)) and run.reasons() == ["asked", "done"]
        run.until(lambda: run.status()["ended"].get(f"{run.job}_1") == "CANCELLED")
        for name, value in {**running.env, "NEMO_ADA_SITE": "/none/site.env"}.items():
            monkeypatch.setenv(name, value)
        found = {finding.key: finding.message for finding in check_cluster() if finding.level == "warning"}
        assert f"a user may have {MOST_JOBS} jobs submitted" in found["MaxSubmitJobs"]
        assert "without `safe`" in found["AccountingStorageEnforce"] and "AccountingStorageTRES" not in found
