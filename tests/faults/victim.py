"""A training run that one fault happens to: python -m tests.faults.victim FAULT KEY=VALUE...

FAULT is JSON: {"kind": ..., "phase": ..., "delay": seconds after the phase began, "after": seconds of this process}.
It strikes the first time that phase begins after a complete step and `after` seconds of this process, so that every
attempt makes progress. "none" never strikes. Exit codes are the command line's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nemo_ada.cli.main import run_guarded
from nemo_ada.cpu.settings import load_run
from nemo_ada.cpu.trainer import train
from nemo_ada.run.observer import Observer
from tests.faults.processes import ROOT, descendants

CONFIG = ROOT / "configs" / "cpu" / "jsonl.yaml"
FILLER = "placeholder row"


def strike_at(name, number):
    """Send a signal to the youngest process with this name."""
    return lambda _run_dir: descendants(name)[-1].send_signal(number)


def fill_disk(run_dir):
    """Leave no byte in the checkpoints' file system."""
    with (run_dir / "checkpoints" / FILLER).open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


ROLLOUT, RANK = "ray::Rollout", "ray::_Rank"
KINDS: dict[str, Callable[[Path], None]] = {
    "none": lambda _run_dir: None,
    "driver killed": lambda _run_dir: os.kill(os.getpid(), signal.SIGKILL),
    "engine killed": strike_at(ROLLOUT, signal.SIGKILL),
    "learner rank killed": strike_at(RANK, signal.SIGKILL),
    "Ray head killed": strike_at("gcs_server", signal.SIGKILL),
    "Ray node killed": strike_at("raylet/raylet", signal.SIGKILL),
    "engine stalls": strike_at(ROLLOUT, signal.SIGSTOP),
    "learner rank stalls": strike_at(RANK, signal.SIGSTOP),
    "stop file": lambda run_dir: (run_dir / "STOP").touch(),
    "SIGTERM": lambda _run_dir: os.kill(os.getpid(), signal.SIGTERM),
    "SIGINT": lambda _run_dir: os.kill(os.getpid(), signal.SIGINT),
    "disk full": fill_disk,
}


@dataclass
class Trigger:
    """Strikes once, when the chosen phase begins after a step of this process."""

    kind: str
    phase: str
    delay: float
    after: float
    run_dir: Path
    first_step: int | None = None
    struck: bool = False
    began: float = field(default_factory=time.monotonic)

    def __call__(self, step, phase):
        """Hear of a phase; note where the run was when the fault struck."""
        if self.first_step is None:
            self.first_step = step
        early = step <= self.first_step or time.monotonic() - self.began < self.after
        if self.struck or self.kind == "none" or phase != self.phase or early:
            return
        self.struck = True
        if self.delay:
            threading.Thread(target=self._strike, args=(step, phase), daemon=True).start()
        else:
            self._strike(step, phase)

    def _strike(self, step, phase):
        time.sleep(self.delay)
        (self.run_dir / "struck.json").write_text(json.dumps({"step": step, "phase": phase, "time": time.time()}))
        KINDS[self.kind](self.run_dir)


def main(fault, *overrides):
    """Run with one fault; the exit code of the command line."""
    config = load_run(CONFIG, list(overrides))
    trigger = Trigger(**json.loads(fault), run_dir=config.folder)
    code = [0]

    def run():
        code[0] = train(config, Observer(on_phase=trigger, on_message=print)).exit_code

    return run_guarded(run) or code[0]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
