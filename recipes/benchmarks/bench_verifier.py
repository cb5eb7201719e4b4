"""What the safe verifier costs: answers per second of `MathVerifier` beside the plain math-verify call.

    python recipes/benchmarks/bench_verifier.py              # about 4 minutes
    python recipes/benchmarks/bench_verifier.py --hanging    # 10,000 answers, 1 % of which hang: about 7 minutes
    python recipes/benchmarks/bench_verifier.py --load       # 2, 16, 96 workers on one core beside eight busy loops

The first compares in one run, pool and plain call in turns on fresh answers, and prints the ratio of every pair of
runs and their spread. The second predicts the time (hanging answers x deadline, twice, / workers + the rest at the
measured rate) and then takes it. The third judges 400 answers, three of which hang, and compares the verdicts with
those of an idle machine: a busy one changes none.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter

from measure import measure

from nemo_ada.verify.pool import MathVerifier, VerifierLimits
from nemo_ada.verify.verdict import TIMEOUT, Verdict

HANGING = (r"\boxed{9^{9^{9^{9}}}}", "1")
KILL_S = 0.2  # noticing the deadline and forking a replacement, per hanging answer


def mixed_answers(count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Responses with the usual kinds of answer, about half of them right, no two alike in their numbers."""
    pairs = []
    for _ in range(count):
        a, b, c = (rng.randint(2, 9999) for _ in range(3))
        off = rng.choice((0, 1))
        response, reference = rng.choice(
            (
                (f"{a + off}", f"{a}"),
                (rf"\frac{{{a + off}}}{{{b}}}", f"{a}/{b}"),
                (f"{a + off}.5", rf"\frac{{{2 * a + 1}}}{{2}}"),
                (rf"{a + off}\sqrt{{2}}", rf"{a}\sqrt{{2}}"),
                (f"({a + off},{b})", f"({a},{b})"),
                (rf"\{{{b},{a + off},{c}\}}", rf"\{{{a},{b},{c}\}}"),
                (f"x={a + off}", f"{a}"),
                (f"{a}x+{b + off}", f"{b}+{a}x"),
            )
        )
        pairs.append((rf"Therefore the answer is \boxed{{{response}}}.", reference))
    return pairs


def plain_call(pairs: list[tuple[str, str]]) -> list[float]:
    """The same judgement in this process, without deadline."""
    from nemo_ada.verify.boxed import last_boxed
    from nemo_ada.verify.scoring import score_math

    return [score_math(last_boxed(response) or "", reference) for response, reference in pairs]


def throughput(verifier: MathVerifier, count: int, repeats: int) -> None:
    """Pool and plain call in turns; the labels must agree."""
    plain_call(mixed_answers(200, random.Random(-1)))
    verifier.verify_many(mixed_answers(200, random.Random(-2)))
    ratios = []
    for repeat in range(repeats):
        pairs = mixed_answers(count, random.Random(repeat))
        begin = time.perf_counter()
        plain = plain_call(pairs)
        plain_s = time.perf_counter() - begin
        begin = time.perf_counter()
        pooled = verifier.verify_many(pairs)
        pool_s = time.perf_counter() - begin
        if pooled != [Verdict(label) for label in plain]:
            raise SystemExit("the pool's labels differ from the plain call's")
        ratios.append(plain_s / pool_s)
        print(
            f"run {repeat + 1}: plain call {count / plain_s:6.0f} answers/s, "
            f"pool {count / pool_s:6.0f} answers/s, ratio {ratios[-1]:.2f}"
        )
    spread = f"sd {statistics.stdev(ratios):.2f}, " if len(ratios) > 1 else ""
    print(
        f"pool / plain call with {verifier.limits.processes} workers: mean {statistics.mean(ratios):.2f}, "
        f"{spread}range {min(ratios):.2f} to {max(ratios):.2f}; all labels equal"
    )


def with_hanging(verifier: MathVerifier, count: int) -> None:
    """`count` answers, every hundredth of which hangs; exits with an error where a verdict is not as known."""
    rng = random.Random(0)
    pairs = mixed_answers(count, rng)
    begin = time.perf_counter()
    verifier.verify_many(mixed_answers(1000, random.Random(1)))
    rate = 1000 / (time.perf_counter() - begin)
    for position in range(0, count, 100):
        pairs[position] = HANGING
    hanging, workers = len(range(0, count, 100)), verifier.limits.processes
    expected = 2 * hanging * (verifier.limits.deadline_s + KILL_S) / workers + count / rate  # each is asked twice
    print(
        f"{count} answers, {hanging} hang, deadline {verifier.limits.deadline_s} s, {workers} workers: "
        f"expected {expected:.0f} s"
    )
    begin = time.perf_counter()
    verdicts = verifier.verify_many(pairs)
    took = time.perf_counter() - begin
    print(f"took {took:.1f} s; {dict(Counter(v.cause or f'label {v.label:.0f}' for v in verdicts))}")
    wrong = [i for i, v in enumerate(verdicts) if (v.cause == TIMEOUT) != (i % 100 == 0)]
    if wrong:
        raise SystemExit(f"{len(wrong)} answers have a verdict that is not theirs, the first at {wrong[0]}")


def under_load(count: int, deadline_s: float, several: list[int]) -> None:
    """Judge `count` answers alone, and then with more and more workers on one busy core."""
    pairs = mixed_answers(count, random.Random(3))
    for position in (0, count // 2, count - 1):
        pairs[position] = HANGING

    def judged(workers: int) -> list[Verdict]:
        begin = time.perf_counter()
        with MathVerifier(VerifierLimits(deadline_s, workers), self_test=False) as verifier:
            verdicts = verifier.verify_many(pairs)
        causes = dict(Counter(v.cause or f"label {v.label:.0f}" for v in verdicts))
        print(f"{workers:3} workers: {time.perf_counter() - begin:6.1f} s; {causes}", flush=True)
        return verdicts

    alone = judged(2)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        changed = {w: sum(a != b for a, b in zip(alone, judged(w), strict=True)) for w in several}
    finally:
        for loop in loops:
            loop.kill()
    if any(changed.values()):
        raise SystemExit(f"verdicts that the load changed, by workers: {changed}")
    print(f"one core, eight busy loops: the same {count} verdicts with {', '.join(map(str, several))} workers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hanging", action="store_true", help="the run with 1 %% hanging answers")
    parser.add_argument("--load", action="store_true", help="the runs on one busy core")
    parser.add_argument("--answers", type=int, help="answers per run (2000; 10000 with --hanging, 400 with --load)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, help="default: one per core; with --load 2, 16 and 96")
    parser.add_argument("--deadline", type=float, default=2.0, help="CPU seconds per answer")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if arguments.load:
        several = [arguments.workers] if arguments.workers else [2, 16, 96]
        return under_load(arguments.answers or 400, arguments.deadline, several)
    with MathVerifier(VerifierLimits(deadline_s=arguments.deadline, workers=arguments.workers)) as verifier:
        if arguments.hanging:
            with_hanging(verifier, arguments.answers or 10_000)
        else:
            throughput(verifier, arguments.answers or 2000, arguments.repeats)


if __name__ == "__main__":
    measure(main)
