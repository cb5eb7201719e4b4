"""A chain of jobs that slurm/train_7b_ada.sh makes, as the tests see it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import Cluster

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SCRIPT = ROOT / "slurm" / "train_7b_ada.sh"


@dataclass(frozen=True, slots=True)
class Run:
    """A submitted chain of jobs."""

    cluster: Cluster
    folder: Path
    job: int
    name: str = "run"
    printed: str = ""

    @property
    def run_dir(self) -> Path:
        return self.folder / self.name

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("slurm-*.log")))

    def steps(self) -> list[int]:
        path = self.run_dir / "steps.txt"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def attempts(self) -> int:
        path = self.run_dir / "attempts.tsv"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def reasons(self) -> list[str]:
        """Why each attempt ended, in their order; `?` for one that has not written it down."""
        lines = [line.split("\t") for line in (self.run_dir / "attempts.tsv").read_text().splitlines()]
        return [line[6] if len(line) > 6 else "?" for line in lines]

    def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {seconds} s; still there: {self.cluster.processes()}\n{self.log()}")
            time.sleep(0.2)

    def over(self, *reasons: str, seconds: float = PATIENCE) -> None:
        """Wait until this job's chain says that it is over, for one of these reasons, and no job of the run is left."""
        chain = str(self.job)
        self.until(lambda: [line[0] for line in self.ledger(chain)[-1:]] == ["over"] and not self.left(), seconds)
        assert self.ledger(chain)[-1][1] in reasons, self.log()

    def ledger(self, chain: str = "") -> list[list[str]]:
        """The lines of jobs.tsv, of one chain or of all: each job with the one that it follows, and the end."""
        path = self.run_dir / "jobs.tsv"
        lines = [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []
        return [line[1:3] for line in lines if chain in ("", line[0])]

    def left(self) -> set[str]:
        """The jobs of the chain that SLURM still has."""
        there = self.cluster.run("squeue", "-h", "-r", "-o", "%i").split()
        return {job for job, _ in self.ledger()} & set(there)

    def current(self) -> str:
        """The job that trains, or did last."""
        return (self.run_dir / "job").read_text().strip()

    def signal(self) -> None:
        """Send the job that trains the signal that SLURM sends before its end."""
        self.cluster.run("scancel", "--signal=USR1", "--batch", self.current())

    def ends(self, *states: str, seconds: float = PATIENCE) -> None:
        try:
            self.cluster.wait(self.job, *states, seconds=seconds)
        except TimeoutError as error:
            pytest.fail(f"{error}\n{self.log()}")
