"""`nemo-ada check --site` on a real SLURM: it says what will not work for a run of slots."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from cluster import Cluster

from nemo_ada.rules.check.cluster import check_cluster

pytestmark = pytest.mark.slurm


def found(
    monkeypatch: pytest.MonkeyPatch, running: Cluster, seconds: float | None = None, **shell: str
) -> set[tuple[str, str]]:
    """The findings that are no `ok`, as (level, key)."""
    for name, value in {**running.env, "NEMO_ADA_SITE": "/none/site.env", **shell}.items():
        monkeypatch.setenv(name, value)
    return {(finding.level, finding.key) for finding in check_cluster(seconds) if finding.level != "ok"}


def test_what_fits_gives_no_warning_and_each_misfit_its_own(
    one_node: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert found(monkeypatch, one_node, 3600.0) == set(), "KillWait 15 and GraceTime 30 hold the 25 s"
    assert found(monkeypatch, one_node, SBATCH_PARTITION="again") >= {("warning", "PREEMPT_SECONDS")}
    site = tmp_path / "site.env"
    assert ("warning", "PREEMPT_SECONDS") in found(monkeypatch, one_node, NEMO_ADA_SITE=str(site))
    written = site.read_text()
    assert "\nPREEMPT_SECONDS=10\n" in written, "KillWait 15, no grace time, and 5 s for the end"
    again = found(monkeypatch, one_node, NEMO_ADA_SITE=str(site))
    assert again == {("warning", "environment")}, "what is written mends it"
    assert site.read_text() == written
    assert ("error", "SBATCH_PARTITION") in found(monkeypatch, one_node, SBATCH_PARTITION="none")
    monkeypatch.delenv("SBATCH_PARTITION")
    assert found(monkeypatch, one_node, CONTAINER="/x.sqsh") == {("error", "RUNTIME")}
    monkeypatch.delenv("CONTAINER")
    assert found(monkeypatch, one_node, SQUEUE_FORMAT="%i") == {("warning", "environment")}
    monkeypatch.delenv("SQUEUE_FORMAT")
    one_node.run("scontrol", "update", "partitionname=main", "maxtime=60")
    try:
        assert found(monkeypatch, one_node, 7200.0) == {("error", "--time")}
        assert found(monkeypatch, one_node, 1800.0) == set()
    finally:
        one_node.run("scontrol", "update", "partitionname=main", "maxtime=INFINITE")


def test_a_cache_that_the_group_cannot_share_and_a_nodes_limits_are_named(
    one_node: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o775)
    assert found(monkeypatch, one_node, HF_HOME=str(cache)) == {("warning", "HF_HOME")}
    cache.chmod(0o2775)
    assert found(monkeypatch, one_node, HF_HOME=str(cache)) == set()
    assert ("warning", "RAY_PORT") in found(monkeypatch, one_node, SLURM_JOB_ID="7", RAY_PORT="60000")
    limits = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (100, limits[1]))
    try:
        assert ("warning", "ulimit -u") in found(monkeypatch, one_node, SLURM_JOB_ID="7")
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, limits)


def test_enroots_folders_that_another_user_made_are_named_on_a_node(
    one_node: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The stand-in makes and enters its folder, as enroot does before it looks at its words."""
    (tmp_path / "enroot").write_text(
        f"#!/bin/bash\nset -e\numask 077\nmkdir -p {tmp_path}/data/$UID\ncd {tmp_path}/data/$UID\n"
    )
    (tmp_path / "enroot").chmod(0o755)
    path = {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{one_node.env['PATH']}"}
    assert "enroot" not in {key for _, key in found(monkeypatch, one_node, **path)}
    (tmp_path / "data" / str(os.getuid())).rmdir()
    (tmp_path / "data" / str(os.getuid())).touch()  # root may enter all folders, but no file
    assert ("error", "enroot") in found(monkeypatch, one_node, **path)
