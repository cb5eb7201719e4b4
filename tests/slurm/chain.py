"""A run of slots that slurm/train_7b_ada.sh submits, as the tests see it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SCRIPT = ROOT / "slurm" / "train_7b_ada.sh"


@dataclass(frozen=True, slots=True)
class Run:
    """A submitted run: an array of slots. `job` is its id."""

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
                queue = self.cluster.run("squeue", "-r", "-o", "%i %T %r %S")
                pytest.fail(f"not within {seconds} s; still there: {self.cluster.processes()}\n{queue}\n{self.log()}")
            time.sleep(0.2)

    def over(self, *reasons: str, seconds: float = PATIENCE) -> None:
        """Wait until this run says that it is over, for one of these reasons, and SLURM has no slot of it."""
        self.until(lambda: self.said_over()[:1] == [str(self.job)] and not self.left(), seconds)
        assert self.said_over()[2] in reasons, self.log()

    def said_over(self) -> list[str]:
        """The file `over`: array, time, reason, detail."""
        path = self.run_dir / "over"
        return path.read_text().rstrip("\n").split("\t") if path.exists() else []

    def left(self, *states: str) -> list[str]:
        """The slots that SLURM still has, in one of these states."""
        said = self.cluster.run("squeue", "-h", "-r", "-j", f"{self.job},{self.job}", "-o", "%i|%T")
        slots = [line.split("|") for line in said.split()]
        return [slot for slot, state in slots if not states or state in states]

    def current(self) -> str:
        """The slot that trains, or did last."""
        return (self.run_dir / "job").read_text().strip()

    def signal(self) -> None:
        """Send the slot that trains the signal that SLURM sends before its end."""
        job = self.cluster.run("squeue", "-h", "-t", "R", "-j", f"{self.job},{self.job}", "-o", "%A").split()[0]
        with suppress(subprocess.CalledProcessError):  # SLURM 22.05 ends with 229 for a slot, and has sent it
            self.cluster.run("scancel", "--signal=USR1", "--batch", job)

    def gone(self, seconds: float = PATIENCE) -> None:
        """Wait until SLURM has no slot of this run, and no process of it is left."""
        self.until(lambda: not self.left() and not self.cluster.processes(), seconds)

    def status(self) -> dict[str, Any]:
        """What `nemo-ada status` says of this run."""
        tool = str(Path(sys.executable).parent / "nemo-ada")
        command = [tool, "status", str(self.run_dir), "--json"]
        shown = subprocess.run(command, env=self.cluster.env, capture_output=True, text=True, check=True).stdout
        found: dict[str, Any] = json.loads(shown)[0]
        return found
