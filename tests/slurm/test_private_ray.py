"""Ray's folder on a node lies below one that no other user can enter, and a planted one is refused."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.people import OTHER, as_other, needs_two_users

NODE = Path(__file__).resolve().parents[2] / "slurm" / "node.sh"
RAY = """#!/bin/sh
pwd >"$SEEN.ray"
echo "$TMPDIR" >>"$SEEN.ray"
stat -c '%u %a' "$TMPDIR" >>"$SEEN.ray"
for word; do case $word in --temp-dir=*) mkdir -p "${word#*=}"; chmod 777 "${word#*=}"; touch "$RAYS_DONE" ;; esac; done
exec sleep 600
"""
DRIVER = """#!/bin/sh
until [ -e "$RAYS_DONE" ]; do sleep 0.1; done
stat -c '%u %a' "$RAY_FOLDER" >"$SEEN"
"""


@pytest.fixture
def ray_folder():
    folder = Path(f"/tmp/nemo-ada-ray-{secrets.token_hex(8)}")
    yield folder
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def node(tmp_path: Path, ray_folder: Path, **settings: str) -> tuple[int, str]:
    """Run the script of a job's only node, with stand-ins for Ray and the driver. Its exit code and its log."""
    tools, attempt = tmp_path / "tools", tmp_path / "attempt"
    tools.mkdir()
    attempt.mkdir()
    for name, text in {"ray": RAY, "driver": DRIVER}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (attempt / "canary").touch()
    variables = {
        "PATH": f"{tools}:{os.environ['PATH']}", "SLURMD_NODENAME": "localhost", "NODE_NAMES": "localhost",
        "SLURM_JOB_ID": f"{os.getpid()}", "ATTEMPT_DIR": str(attempt), "RUN_DIR": str(tmp_path), "NODE_SETUP": "",
        "HEALTH": "0", "RAY_START": "1", "RAY_PORT": "23900", "RAY_SECONDS": "60", "SHARED_SECONDS": "5",
        "LAUNCH": "driver", "CONFIG": "x.yaml", "PYTHON": "true", "NEMO_ADA_HOME": str(tmp_path),
        "RAY_FOLDER": str(ray_folder), "SEEN": str(tmp_path / "seen"), "RAYS_DONE": str(tmp_path / "rays-done"),
        **settings,
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(NODE)], env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.returncode, (attempt / "node-localhost.log").read_text()


def test_rays_folder_lies_below_one_of_ours_alone_and_both_are_removed(tmp_path, ray_folder):
    code, log = node(tmp_path, ray_folder)
    assert code == 0, log
    assert (tmp_path / "seen").read_text().split() == [str(os.getuid()), "700"]
    private = f"{ray_folder}\n{ray_folder}/t\n{os.getuid()} 700\n"
    assert (tmp_path / "seen.ray").read_text() == private, "Ray and its workers stand in the private folder"
    assert not ray_folder.exists()


@pytest.mark.parametrize("name", ["scratch", "away", "x" * 60])
def test_the_users_temporary_folder_gets_a_private_one_and_else_the_jobs_is_taken(tmp_path, ray_folder, name):
    top = Path(tempfile.mkdtemp(dir="/tmp"))
    if name != "away":
        (top / name).mkdir(mode=0o777)
    code, log = node(tmp_path, ray_folder, TMPDIR=str(top / name))
    taken = top / name / ray_folder.name if name == "scratch" else ray_folder / "t"
    left = list(top.glob("*/*"))
    shutil.rmtree(top)
    assert code == 0 and (tmp_path / "seen.ray").read_text().split()[1:] == [str(taken), str(os.getuid()), "700"], log
    assert not left and ("is not used" in log) == (name != "scratch")


def test_a_node_that_fails_leaves_nothing_of_rays_behind(tmp_path, ray_folder):
    code, log = node(tmp_path, ray_folder, LAUNCH="no-such-driver")
    assert code == 1 and "there is no command no-such-driver" in log
    assert not ray_folder.exists()


def plant_a_folder(folder: Path, _target: Path) -> None:
    folder.mkdir(mode=0o777)
    os.chown(folder, OTHER, OTHER)


def plant_a_link(folder: Path, target: Path) -> None:
    as_other('ln -s "$1" "$2"', target, folder)


@needs_two_users
@pytest.mark.parametrize("plant", [plant_a_folder, plant_a_link])
def test_a_folder_that_another_user_planted_is_refused_and_stays(tmp_path, ray_folder, plant):
    (tmp_path / "mine").mkdir(mode=0o700)
    plant(ray_folder, tmp_path / "mine")
    code, log = node(tmp_path, ray_folder)
    assert code != 0 and "not ours alone" in log
    assert os.path.lexists(ray_folder) and list((tmp_path / "mine").iterdir()) == []


def test_two_jobs_get_different_names(tmp_path):
    script = f"source {NODE.parent}/lib.sh; random 8; echo; random 8"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    first, second = done.stdout.split()
    assert first != second and len(first) == 16
