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

    def ends(self, *states: str, seconds: float = PATIENCE) -> None:
        try:
            self.cluster.wait(self.job, *states, seconds=seconds)
        except TimeoutError as error:
            pytest.fail(f"{error}\n{self.log()}")
