"""One read-only installation, two users of a group with umask 022: each trains alone, and reads the other one's run."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chain import ROOT
from cluster import Cluster, cluster, why_not

from tests.patience import PATIENCE
from tests.people import OTHER

pytestmark = pytest.mark.slurm

GROUP = 64000
SECOND = 1  # daemon: SLURM starts jobs of known users only
DRIVER = """#!/bin/bash
for word; do case $word in run_dir=*) dir=${word#*=} ;; esac; done
echo '{"state": "done", "step": 1, "max_steps": 1}' >"$dir/status.json"
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that a second user can reach. The tests' own folders are closed to all others."""
    folder = Path(tempfile.mkdtemp(prefix="nemo-ada-site-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_user(
    user: int, running: Cluster, cwd: Path, *command: object, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), user=user, group=GROUP, extra_groups=[], umask=0o022, cwd=cwd, text=True, check=False,
        env={**running.env, "HOME": str(cwd), **variables}, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip


def test_two_users_train_from_one_installation_that_neither_can_write(open_folder: Path) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    tree, runs = open_folder / "nemo-ada", open_folder / "runs"
    for name in ("slurm", "configs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "site.env"))
    (open_folder / "driver").write_text(DRIVER)
    (open_folder / "driver").chmod(0o755)
    settings = f"CONTAINER=\nNEMO_RL_HOME=/opt/nemo-rl\nRUN_ROOT={runs}\nLAUNCH={open_folder}/driver\nRAY_START=0\n"
    settings += "HEALTH=0 PREFLIGHT=0 POLL_SECONDS=1\numask 002\n"
    (tree / "slurm" / "site.env").write_text(settings)
    subprocess.run(["chmod", "-R", "a+rX,go-w", tree], check=True)
    runs.mkdir()
    os.chown(runs, 0, GROUP)
    runs.chmod(0o2775)
    with cluster(open_folder / "c") as running:
        for folder in (open_folder / "c", open_folder / "c" / "munge"):
            folder.chmod(0o711)
        for user in (OTHER, SECOND):
            home = open_folder / f"home{user}"
            home.mkdir()
            os.chown(home, user, GROUP)
            own = home / "site.env"
            own.write_text(f"source {tree}/slurm/site.env\nRETRY_SECONDS=7\n")
            done = as_user(user, running, home, "bash", tree / "slurm" / "train_7b_ada.sh", RUN_DIR=f"{runs}/{user}",
                           NEMO_ADA_SITE=str(own), NEMO_ADA_HOME=str(tree))  # fmt: skip
            assert done.returncode == 0, done
            deadline = time.monotonic() + PATIENCE
            while "\tover\tdone" not in (runs / str(user) / "jobs.tsv").read_text():
                assert time.monotonic() < deadline, [path.read_text() for path in runs.rglob("*.log")]
                time.sleep(0.3)
        other = as_user(SECOND, running, runs, "bash", "-c", f"cat {runs}/{OTHER}/*.tsv {runs}/{OTHER}/status.json")
        assert other.returncode == 0 and "done" in other.stdout, "the group reads all runs"
        home = open_folder / f"home{OTHER}"
        (runs / str(OTHER)).chmod(0o2755)
        taken = as_user(SECOND, running, home, "bash", tree / "slurm" / "train_7b_ada.sh", RUN_DIR=f"{runs}/{OTHER}",
                        NEMO_ADA_HOME=str(tree))  # fmt: skip
        assert taken.returncode == 2 and "cannot be written: put RUN_DIR=FOLDER in front" in taken.stderr, taken
    assert not list(tree.rglob("*.log")) and not list(tree.rglob("__pycache__"))
