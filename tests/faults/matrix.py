"""Every fault in every phase, one after another in one run: python -m tests.faults.matrix [--quick] [--out FILE]

The run of `victim` is struck, looked at and continued, then compared to the bit with the same run without faults. The
full matrix takes about twenty minutes on two quiet cores, --quick (one fault of each sort) three.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nemo_ada.run.folder import RunDir
from nemo_ada.run.job_control import EXIT_FAILED, EXIT_LOST, EXIT_STALLED, EXIT_STOPPED
from tests.faults.drill import Attempt, Drill, Fault
from tests.faults.victim import FILLER

PHASES = ("sampling", "update", "refit", "evaluation", "save")
STALL_SECONDS = 20
DISK_BYTES = 16 << 20  # holds those that are kept, the one that is written and those set aside, of 0.9 MB each

QUICK = [
    Fault("driver killed", "save", 0.05),
    Fault("engine killed", "sampling"),
    Fault("learner rank stalls", "update"),
    Fault("SIGTERM", "sampling", 0.1),
    Fault("disk full", "save"),
]
FULL = [
    *(Fault(kind, phase) for kind in ("driver killed", "engine killed", "learner rank killed") for phase in PHASES),
    Fault("driver killed", "sampling", 0.2),
    *(Fault("driver killed", "save", delay) for delay in (0.02, 0.05, 0.1)),
    *(Fault(kind, phase) for kind in ("Ray head killed", "Ray node killed") for phase in PHASES),
    *(Fault("engine stalls", phase) for phase in ("sampling", "refit", "evaluation")),
    *(Fault("learner rank stalls", phase) for phase in ("update", "refit", "save")),
    *(Fault("stop file", phase) for phase in PHASES),
    *(Fault(kind, phase, 0.1 if phase == "sampling" else 0.0) for kind in ("SIGTERM", "SIGINT")
      for phase in ("sampling", "update", "save")),
    Fault("disk full", "save"),
]  # fmt: skip


def truncate(folder):
    """Cut the weights in half."""
    path = folder / "learner" / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(folder):
    """Change one bit of Adam's moments."""
    path = folder / "learner" / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def drop_manifest(folder):
    """Remove the checksums."""
    (folder / "manifest.json").unlink()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "newest checkpoint truncated": truncate,
    "newest checkpoint: a bit flipped": flip_a_bit,
    "newest checkpoint: no manifest": drop_manifest,
}
EXPECTED = {  # exit code and status; None: the process may end in any way but well
    "driver killed": (-9, "running"),
    "engine killed": (EXIT_LOST, "interrupted"),
    "learner rank killed": (EXIT_LOST, "interrupted"),
    "Ray head killed": None,
    "Ray node killed": None,
    "engine stalls": (EXIT_STALLED, "interrupted"),
    "learner rank stalls": (EXIT_STALLED, "interrupted"),
    "stop file": (EXIT_STOPPED, "stopped"),
    "SIGTERM": (EXIT_STOPPED, "stopped"),
    "SIGINT": (EXIT_STOPPED, "stopped"),
    "disk full": (EXIT_FAILED, "failed"),
}


def check(attempt, run_dir):
    """What every fault must lead to; raises AssertionError."""
    kind, told = attempt.fault.kind, attempt.output[-2000:]
    expected = EXPECTED[kind]
    if expected is None:
        assert attempt.exit_code != 0 and attempt.status in ("running", "interrupted"), (attempt.exit_code, told)
    else:
        assert (attempt.exit_code, attempt.status) == expected, (attempt.fault.name, attempt.exit_code, told)
    assert attempt.steps_lost <= (0 if kind in ("stop file", "SIGTERM", "SIGINT") else 1), attempt
    if kind != "driver killed" and expected is not None:
        assert "Traceback" not in attempt.output, told
    if kind.endswith("stalls"):
        assert list((run_dir / "stacks").glob("*.txt")), "no stacks were written"


@contextmanager
def small_disk(folder):
    """A file system of DISK_BYTES at `folder`; False where this user may not mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


@dataclass(frozen=True, slots=True)
class Row:
    """An injection: what struck in which phase, what came of it, and the seconds to the next attempt's first step."""

    kind: str
    phase: str
    struck: Attempt
    next_ready_s: float

    @property
    def lost(self):
        """Complete steps that were made again; a damaged checkpoint costs one more than the kill that goes with it."""
        return self.struck.steps_lost + (self.kind in DAMAGES)


def play(faults, damages, say):
    """Strike one run with all faults and compare it with an undisturbed one; raises AssertionError."""
    with Drill("policy.megatron_cfg.tensor_model_parallel_size=2", "grpo.max_num_steps=10000") as drill:
        checkpoints = drill.run_dir / "checkpoints"
        rows: list[Row] = []
        waiting: list[tuple[str, str, Attempt]] = []  # an injection whose cost the next attempt's first step will tell

        def settle(following):
            for injection in waiting:
                rows.append(Row(*injection, following.ready_s))
                say(one_line(rows[-1]))
            waiting.clear()

        with small_disk(checkpoints) as has_small_disk:
            say("| fault | outcome | complete steps lost | noticed, s | all gone, s | next first step, s |")
            say("|---|---|---|---|---|---|")
            for fault in faults:
                if fault.kind == "disk full" and not has_small_disk:
                    say(f"| {fault.name} | not run: needs the right to mount a file system | | | | |")
                    continue
                stall = STALL_SECONDS if fault.kind.endswith("stalls") else 300
                attempt = drill.attempt(fault, f"stall_seconds={stall}")
                (checkpoints / FILLER).unlink(missing_ok=True)
                check(attempt, drill.run_dir)
                settle(attempt)
                waiting.append((fault.kind, fault.phase, attempt))
            for name in damages:
                attempt = drill.attempt(Fault("driver killed", "update"), "stall_seconds=300")
                settle(attempt)
                newest = RunDir(drill.run_dir).find_newest_checkpoint()
                assert newest is not None
                DAMAGES[name](newest)
                waiting.append((name, "between two attempts", attempt))
            settle(drill.finish(waiting[-1][2].steps + 2))
            aside = list(checkpoints.glob("damaged-*"))
            assert len(aside) == len(damages), aside
    for line in by_kind(rows):
        say(line)
    say(
        f"\n{len(rows)} injections; the run equals the undisturbed one to the bit: metrics, evaluations, weights, Adam."
    )


def one_line(row):
    """A row of the long table."""
    struck, name = row.struck, row.kind if row.kind in DAMAGES else row.struck.fault.name
    seconds = " | ".join(f"{value:.1f}" for value in (struck.noticed_s, struck.clean_s, row.next_ready_s))
    return f"| {name} | exit {struck.exit_code}, {struck.status} | {row.lost} | {seconds} |"


def by_kind(rows):
    """The short table, as the README shows it: a row per kind of fault."""
    measured = "steps made again | noticed after, s | next first step after, s"
    yield f"\n| fault (number) | phases | how the attempt ends | {measured} |"
    yield "|---|---|---|---|---|---|"
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        named = dict.fromkeys(row.phase for row in mine)
        phases = "all" if set(named) == set(PHASES) else ", ".join(named)
        ends = {("killed" if row.struck.exit_code == -signal.SIGKILL else f"exit {row.struck.exit_code}, "
                 f"{row.struck.status}"): None for row in mine}  # fmt: skip
        lost = sorted({row.lost for row in mine})
        again = f"{lost[0]} to {lost[-1]}" if len(lost) > 1 else str(lost[0])
        noticed = f"at most {max(row.struck.noticed_s for row in mine):.1f}"
        ready = [row.next_ready_s for row in mine]
        outcome, seen = " or ".join(ends), noticed
        if kind in DAMAGES:
            outcome, seen = "the save before it is used", "at the next start"
        next_first = f"{statistics.median(ready):.0f}" + (f" (at most {max(ready):.0f})" if len(ready) > 1 else "")
        yield f"| {kind} ({len(mine)}) | {phases} | {outcome} | {again} | {seen} | {next_first} |"


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one fault of each kind")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    options = parser.parse_args()
    lines: list[str] = []

    def say(line):
        print(line, flush=True)
        lines.append(line)

    play(QUICK if options.quick else FULL, list(DAMAGES)[1:2] if options.quick else list(DAMAGES), say)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
