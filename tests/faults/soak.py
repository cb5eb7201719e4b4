"""Hours of training with a fault every minute or two: python -m tests.faults.soak [--minutes 60] [--compare]

Random faults (seeded) strike a run that is started again after each, as a batch script would; the last quarter of the
time passes without one, to see whether memory grows. Prints what happened and checks that every step was made exactly
once, that its responses were counted once, and that nothing is left. --compare also makes the run without faults and
compares the two to the bit (it takes as long as the steps did).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict

import numpy as np
import psutil

from nemo_ada.run.folder import read_lines
from tests.faults.drill import Drill, Fault
from tests.faults.matrix import EXPECTED, PHASES, STALL_SECONDS
from tests.faults.processes import marked

FAULTS = [kind for kind in EXPECTED if kind != "disk full"]
SAVE_PERIOD = 5
SAMPLE_SECONDS = 2.0
WARM_UP = 0.25  # share of a memory record that is left out: caches fill
GROWTH = 0.05  # of the resident memory, over the quiet quarter


class Memory:
    """Resident memory of the run's processes over time, MiB by kind of process."""

    def __init__(self):
        self._next = 0.0
        self.samples: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def __call__(self, mark):
        """Look, at most every SAMPLE_SECONDS."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SAMPLE_SECONDS
        total: Counter[str] = Counter()
        for process in marked(mark):
            try:
                total[_kind(" ".join(process.cmdline()))] += process.memory_info().rss >> 10
            except psutil.Error:
                continue
        for kind, kib in total.items():
            self.samples[kind].append((now, kib / 1024))

    def growth(self):
        """By kind: MiB in the middle of the record, and what a line through it gains from end to end."""
        found = {}
        for kind, samples in self.samples.items():
            at, mib = np.array(samples[int(WARM_UP * len(samples)) :]).T
            if len(at) > 10:
                slope = np.polyfit(at, mib, 1)[0]
                found[kind] = (float(np.median(mib)), float(slope * (at[-1] - at[0])))
        return found


def _kind(command):
    for name, words in {"engine": "ray::Rollout", "learner": "ray::_Rank", "driver": "tests.faults.victim"}.items():
        if words in command:
            return name
    return "ray"


def soak(minutes, seed, *, compare):
    """Run, strike, continue; raises AssertionError when a promise is broken."""
    choose = random.Random(seed)
    began = time.monotonic()
    tally: Counter[str] = Counter()
    ready: list[float] = []
    lost = 0
    settings = ("policy.megatron_cfg.tensor_model_parallel_size=2", "grpo.max_num_steps=1000000")
    with Drill(*settings, "grpo.val_period=20", f"checkpointing.save_period={SAVE_PERIOD}") as drill:
        gap = (60.0, 120.0) if minutes >= 20 else (0.0, 5.0)

        def strike(fault, memory):
            nonlocal lost
            attempt = drill.attempt(fault, f"stall_seconds={STALL_SECONDS * 3}", watch=memory)
            tally[fault.kind] += 1
            ready.append(attempt.ready_s)
            lost += attempt.steps_lost
            assert attempt.exit_code != 0, attempt.output[-2000:]
            assert attempt.steps_lost <= SAVE_PERIOD, attempt
            print(f"{(time.monotonic() - began) / 60:5.1f} min  {fault.name}: exit {attempt.exit_code}, step "
                  f"{attempt.steps}, goes on from {attempt.resumed_at}", flush=True)  # fmt: skip
            return attempt

        while time.monotonic() - began < 0.75 * 60 * minutes:
            phase = choose.choice([phase for phase in PHASES if phase not in ("evaluation", "save")])
            strike(Fault(choose.choice(FAULTS), phase, after=choose.uniform(*gap)), Memory())
        memory = Memory()
        last = strike(Fault("stop file", "sampling", after=0.25 * 60 * minutes), memory)
        records = read_lines(drill.run_dir / "metrics.jsonl")
        drawn = np.cumsum([record["ada/samples_drawn"] for record in records])
        missing = drawn - [record["total/responses"] for record in records]
        assert not missing.any(), "responses were lost or counted twice"
        print(f"\n{last.steps} steps, {sum(tally.values())} faults survived ({dict(tally)}), {lost} steps made again "
              f"(a save every {SAVE_PERIOD}), responses lost or counted twice: {int(abs(missing).sum())}")  # fmt: skip
        print(f"time to the first step of an attempt: median {np.median(ready):.1f} s, longest {max(ready):.1f} s")
        for kind, (mib, grown) in sorted(memory.growth().items()):
            print(f"resident memory, {kind}: {mib:.0f} MiB, {grown:+.1f} MiB in the quiet quarter")
            assert grown <= max(GROWTH * mib, 10.0), f"the {kind} process grows"
        if compare:
            drill.finish(last.steps + 1)
            print("equal to the undisturbed run to the bit")
        drill.check_nothing_is_left()


def main():
    """Parse the arguments and soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", action="store_true", help="make the run without faults too and compare")
    options = parser.parse_args()
    soak(options.minutes, options.seed, compare=options.compare)
    return 0


if __name__ == "__main__":
    sys.exit(main())
