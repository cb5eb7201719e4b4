"""The page of a group's installation (slurm/site.md), walked by two accounts of a group with umask 022."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chain import ROOT
from cluster import Cluster, cluster, search_path, why_not

from tests.patience import PATIENCE
from tests.people import Person, accounts

pytestmark = pytest.mark.slurm

PAGE = (ROOT / "slurm/site.md").read_text()
STEP = re.compile(r"\*\*(\d+)\. (?:(?!\*\*\d).)*?```bash\n(.*?)```", re.DOTALL)
DRIVER = """#!/bin/bash
for word; do case $word in run_dir=*) dir=${word#*=} ;; esac; done
echo "$WANDB_MODE" >"$dir/mode"
echo "$1" >"$dir/yaml"
cat train.jsonl mine.py >"$dir/seen"
echo '{"state": "done", "step": 1, "max_steps": 1}' >"$dir/status.json"
"""
PREPARE = """#!/bin/bash
[ "$1" = prepare ] || exit 9
mkdir -p "$HF_HOME/hub/models--org--name/blobs" && echo >"$HF_HOME/hub/models--org--name/blobs/$UID"
"""
MODULE = """module() {  # what a module file of ours needs of Lmod
  if [[ $1 == use ]]; then MODULES=$2; return; fi
  local root word name value
  while read -r word name value; do
    value=${value//\\$root/$root}
    case $word in
      set) root=$value ;;
      setenv) export "$name=$value" ;;
      prepend-path) export "$name=$value:${!name}" ;;
    esac
  done <"$MODULES/$2"
}
"""
SETTINGS = """CONTAINER=
NEMO_RL_HOME=/opt/nemo-rl
RUN_ROOT=/shared/runs
HF_HOME=/shared/huggingface
LAUNCH=/shared/driver
RAY_START=0 HEALTH=0 PREFLIGHT=0 POLL_SECONDS=1
NODE_SETUP=/shared/setup
unset SBATCH_ACCOUNT SBATCH_PARTITION
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that a second user can reach. The tests' own folders are closed to all others."""
    folder = Path(tempfile.mkdtemp(prefix="nemo-ada-site-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


class Walk:
    """The commands of the page, with a folder in place of /shared and another group's name."""

    def __init__(self, folder: Path, running: Cluster, group: str) -> None:
        self.folder, self.running, self.group = folder, running, group
        self.steps = {int(number): self.named(text) for number, text in STEP.findall(PAGE)}

    def named(self, text: str) -> str:
        text = text.replace("/shared", f"{self.folder}/shared").replace(" ml ", f" {self.group} ")
        return text.replace("git clone URL", f"git clone --quiet {ROOT}")

    def step(self, number: int, cwd: Path, user: Person | None = None, **variables: str) -> str:
        """Run the commands of a step. What it sets holds for it alone, so users load the module again."""
        load = self.steps[6].splitlines()[0] + "\n" if user is not None and number != 6 else ""
        as_user: dict[str, Any] = {"umask": 0o022} if user is None else user.rights()
        names = {} if user is None else {"HOME": str(user.home), "USER": user.name}
        environment = {**self.running.env, **names, "BASH_ENV": f"{self.folder}/module.sh", **variables}
        environment["PATH"] = f"{self.folder}/bin:{environment['PATH']}"
        return self._said(load + self.steps[number], cwd, environment, as_user)

    def run(self, text: str, cwd: Path, user: Person, **variables: str) -> str:
        """Run a command as a user of the group."""
        environment = {**self.running.env, "HOME": str(user.home), "USER": user.name, **variables}
        return self._said(text, cwd, environment, user.rights())

    @staticmethod
    def _said(text: str, cwd: Path, environment: dict[str, str], as_user: dict[str, Any]) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", text], cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=PATIENCE, check=False, **as_user,
        )  # fmt: skip
        return done.stdout + (f"exit code {done.returncode}" if done.returncode else "")


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_the_page_of_a_groups_installation_is_walked_by_two_users(open_folder: Path) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    if not (ROOT / ".git").exists():
        pytest.skip("the page clones a repository, and this tree is none")
    shared = open_folder / "shared"
    program(shared / "driver", DRIVER)
    program(shared / "bin" / "nemo-ada", PREPARE)  # on the nodes, where there is no hub
    (shared / "setup").write_text(f"export PATH={shared}/bin:$PATH\n")
    program(open_folder / "module.sh", MODULE)
    (open_folder / "settings").write_text(SETTINGS.replace("/shared", str(shared)))
    program(open_folder / "bin" / "editor", f'#!/bin/bash\ncat {open_folder}/settings >>"$1"\n')
    program(open_folder / "bin" / "make", f"#!/bin/bash\nln -s {sys.prefix} .venv\n")
    with accounts(open_folder, "alice", "bob") as people, cluster(open_folder / "c") as running:
        for folder in (open_folder / "c", open_folder / "c" / "munge"):
            folder.chmod(0o711)
        alice, bob = people
        walk = Walk(open_folder, running, alice.group)
        assert sorted(walk.steps) == [1, 2, 3, 4, 5, 6, 7, 8, 12], "no step of the page is left out"
        tree = shared / "nemo_ada"
        for number in (1, 2, 3, 4, 5):
            said = walk.step(number, open_folder if number == 1 else tree, EDITOR="editor")
            assert "exit code" not in said, (number, said)
        for person in people:
            for number, name in ((6, "first"), (7, "second")):
                said = walk.step(number, person.home, person)
                assert "exit code" not in said and "Submitted batch job" in said, said
                over(shared / f"runs/{person.name}/{name}")
        models = shared / "huggingface/hub/models--org--name/blobs"
        assert {path.name for path in models.iterdir()} == {str(one.uid) for one in people}, "both added to one model"
        run = shared / f"runs/{alice.name}/first"
        modes = [(run.with_name(name) / "mode").read_text().strip() for name in ("first", "second")]
        assert modes == ["offline", "online"], "the user's own settings win"
        own = alice.home / "nemo-ada"
        assert (run.with_name("second") / "yaml").read_text() == f"{own}/mine.yaml\n", "that of the working folder"
        read = (own / "train.jsonl").read_text() + (own / "mine.py").read_text()
        assert (run.with_name("second") / "seen").read_text() == read, "the driver stands where its user stood"
        found = [path for path in run.rglob("*") if not path.is_symlink()]
        ours = os.stat(shared / "runs").st_gid
        assert {path.name for path in found if path.stat().st_gid != ours} == set()
        assert {path.name for path in found if not path.stat().st_mode & 0o040} == {"ray-token"}, "the group reads"
        assert not [path for path in found if path.stat().st_mode & 0o022], "only its owner writes"
        moved = walk.run(f"mv {run.parent} {run.parent}.moved", open_folder, bob)
        assert "exit code" in moved and run.exists(), "nobody moves another user's folder away"
        planted = walk.run(f"echo x >{run}/submission || echo x >>{run}/attempts.tsv", open_folder, bob)
        assert planted.count("Permission denied") == 2, planted
        taken = walk.step(6, bob.home, bob, USER=alice.name)
        assert f"{run} belongs to user {alice.uid}, who alone trains in it" in taken and "exit code 2" in taken
        whole = {"PATH": f"{sys.prefix}/bin:{search_path()}", "PYTHONPATH": str(ROOT)}
        shown = walk.step(8, open_folder, NEMO_ADA_SITE=f"{tree}/slurm/site.env", **whole)
        assert all(one.name in shown for one in people) and shown.count("done") >= 4, shown
        stopped = walk.step(12, alice.home, alice)
        assert not stopped, stopped
        program(open_folder / "admin" / "nemo-ada", f"#!{open_folder}/admin/home/python3\n")
        (open_folder / "admin" / "home").mkdir(mode=0o700)
        (open_folder / "admin" / "home" / "python3").symlink_to(sys.executable)
        closed = {"PATH": f"{open_folder}/admin:{search_path()}", "PREFLIGHT": "1", "RUN_DIR": f"{run}-again"}
        said = walk.run(f"{tree}/slurm/train.sh configs/qwen2.5-math-7b.yaml", alice.home, alice, **closed)
        assert f"its interpreter is {open_folder}/admin/home/python3" in said and "NEMO_RL_HOME" not in said, said
    assert not list(tree.rglob("*.log")) and not list((tree / "slurm").rglob("__pycache__"))


def over(run: Path) -> None:
    """Wait until a run is over."""
    deadline = time.monotonic() + PATIENCE
    while not (run / "over").exists():
        assert time.monotonic() < deadline, [path.read_text() for path in run.rglob("*.log")]
        time.sleep(0.3)
