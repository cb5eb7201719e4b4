"""Bad days of a run that two ordinary accounts see, on a real SLURM: rights and full disks do not bind root.

1. A run folder that cannot be written, and a disk that is full, cost slots and no more.
2. Nobody writes into, trains in or ends another user's run, whatever the umask of site.env and the group of the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from chain import HERE, ROOT, Run
from cluster import Cluster, cluster, why_not

from tests.people import Person, accounts

pytestmark = pytest.mark.slurm

PYTHON = "/usr/bin/python3"  # the tests' own may lie in root's home


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster, two accounts of one group, and a folder that both may enter."""

    cluster: Cluster
    alice: Person
    bob: Person
    folder: Path

    def place(self, name: str, owner: Person) -> Path:
        """Make a folder of an account, in which the group's other members may add files."""
        folder = self.folder / name
        folder.mkdir()
        shutil.chown(folder, owner.name, owner.group)
        folder.chmod(0o2775)
        return folder


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    libraries = f"PYTHONPATH={ROOT}:{sysconfig.get_path('purelib')}"
    if subprocess.run(["env", libraries, PYTHON, "-c", "import nemo_ada.run.job_control"], check=False).returncode:
        pytest.skip(f"{PYTHON} does not run the stand-in")
    folder = Path(tempfile.mkdtemp(prefix="nemo-ada-accounts-"))
    folder.chmod(0o755)
    try:
        with accounts(folder, "alice", "bob") as (alice, bob), cluster(folder / "c", ("n1", "n2")) as running:
            for closed in (folder / "c", folder / "c" / "munge"):
                closed.chmod(0o711)
            yield Site(running, alice, bob, folder)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def train(site: Site, start: Callable[..., Run]) -> Callable[..., Run]:
    """Submit a run of an account in a folder."""

    def submit(who: Person, folder: Path, *words: str, **settings: str) -> Run:
        extra = f"export PYTHONPATH={ROOT}:{sysconfig.get_path('purelib')}"
        own = {"LAUNCH": f"{PYTHON} {HERE / 'standin.py'}", "PYTHON": PYTHON, "extra": extra, **settings}
        return start(site.cluster, *words, user=who, folder=folder, shell={"HOST_PYTHON": PYTHON}, **own)

    return submit


def test_a_run_folder_that_its_owner_cannot_write_for_a_while_costs_slots_and_no_more(
    site: Site, train: Callable[..., Run]
) -> None:
    run = train(site.alice, site.place("unwritable", site.alice), "steps=9", "step_seconds=0.3", "save_each=1")
    run.until(lambda: len(run.steps()) >= 2)
    folders = [run.run_dir, run.run_dir / "attempts"]
    for folder in folders:
        folder.chmod(0o555)
    run.until(lambda: f"{run.run_dir} cannot be written (Permission denied); mend it" in run.log())
    assert run.left("PENDING"), "the others still wait"
    for folder in folders:
        folder.chmod(0o755)
    run.over("done")
    assert sorted(set(run.steps())) == list(range(1, 10)), "no step is lost"


def test_a_disk_that_is_full_for_a_while_costs_slots_and_no_more(site: Site, train: Callable[..., Run]) -> None:
    folder = site.place("full", site.alice)
    disk = folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        shutil.chown(disk, site.alice.name)
        words = ("steps=40", "step_seconds=0.3", "save_each=1")
        run = train(site.alice, folder, *words, RUN_DIR=str(disk / "run"))
        run = Run(run.cluster, folder, run.job, name="disk/run")
        run.until(lambda: len(run.steps()) >= 2)
        subprocess.run(["dd", "if=/dev/zero", f"of={disk}/filler", "bs=4k"], capture_output=True, check=False)
        run.until(lambda: f"no space: {run.run_dir} cannot be written (No space left on device)" in run.log())
        assert run.left("PENDING"), "the others still wait"
        (disk / "filler").unlink()
        run.over("done")
        assert sorted(set(run.steps())) == list(range(1, 41)), "no step is lost"
        run.gone()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_nobody_writes_into_trains_in_or_ends_another_users_run(site: Site, train: Callable[..., Run]) -> None:
    """The folder is the group's, and site.env opens what it makes to the group."""
    folder, mine = site.place("shared", site.alice), site.place("bobs", site.bob)
    words = ("steps=9", "wait_at=2", "step_seconds=0.1")
    run = train(site.alice, folder, *words, extra="umask 002")
    with (folder / "site.env").open("a") as settings:
        settings.write("umask 002\n")
    run.until(lambda: len(run.steps()) >= 2)

    def tries(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], env=site.cluster.env, cwd=mine, capture_output=True, text=True, check=False,
            **site.bob.rights(),
        )  # fmt: skip
        assert done.returncode, command
        return done.stderr

    found = [run.run_dir, *run.run_dir.rglob("*")]
    assert {path.stat().st_uid for path in found} == {site.alice.uid}
    assert not [path for path in found if path.stat().st_mode & 0o022], "only its owner writes"
    for path in found:
        tries(f"echo x >>{path}/x" if path.is_dir() else f"echo x >>{path}")
    tries(f"mv {run.run_dir}/attempts {run.run_dir}/gone")
    assert "Access/permission denied" in tries(f"scancel --verbose {run.job} || (echo $? >&2; exit 1)")
    tries(f"scontrol update JobId={run.job} StartTime=now+9000")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        train(site.bob, mine, *words, RUN_DIR=str(run.run_dir), itself=True)
    assert f"{run.run_dir} belongs to user {site.alice.uid}, who alone trains in it" in refused.value.stdout
    other = train(site.bob, mine, *words, RUN_DIR=str(run.run_dir))
    other.until(lambda: not other.left())
    assert f"{run.run_dir} belongs to user {site.alice.uid}, who alone trains in it" in other.log()
    planted = site.place("planted", site.bob)
    (planted / "run" / "attempts").mkdir(parents=True)
    for path in (planted / "run", planted / "run" / "attempts"):
        os.chown(path, site.bob.uid, -1)
        path.chmod(0o777)
    lured = train(site.alice, planted, *words)
    lured.until(lambda: not lured.left())
    assert "belongs to user" in lured.log() and not lured.steps()
    (run.run_dir / "go").touch()
    run.over("done")
    assert run.steps() == list(range(1, 10)) and run.attempts() == 1
