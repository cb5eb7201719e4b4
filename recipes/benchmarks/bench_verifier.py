"""What the safe verifier costs: answers per second of `MathVerifier` beside the plain math-verify call.

    python recipes/benchmarks/bench_verifier.py              # about 4 minutes
    python recipes/benchmarks/bench_verifier.py --hanging    # 10,000 answers, 1 % of which hang: about 4 minutes

The first compares in one run, pool and plain call in turns on fresh answers, and prints the ratio of every pair of
runs and their spread. The second predicts the time (hanging answers x deadline / workers + the rest at the measured
rate) and then takes it.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
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
    expected = hanging * (verifier.limits.deadline_s + KILL_S) / workers + count / rate
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hanging", action="store_true", help="the run with 1 %% hanging answers")
    parser.add_argument("--answers", type=int, help="answers per run (2000; 10000 with --hanging)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, help="default: one per core")
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds per answer")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with MathVerifier(VerifierLimits(deadline_s=arguments.deadline, workers=arguments.workers)) as verifier:
        if arguments.hanging:
            with_hanging(verifier, arguments.answers or 10_000)
        else:
            throughput(verifier, arguments.answers or 2000, arguments.repeats)


if __name__ == "__main__":
    measure(main)
