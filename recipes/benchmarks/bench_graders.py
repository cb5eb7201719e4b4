"""Graders side by side on labelled pairs: wrong answers that they pay, right ones that they refuse, and what one costs.

    python recipes/benchmarks/bench_graders.py                              # ours and plain math-verify: about a minute
    python recipes/benchmarks/bench_graders.py --earlier CHECKOUT           # and ours at another commit
    python recipes/benchmarks/bench_graders.py --qwen PYTHON FOLDER         # and Qwen2.5-Math's, from its evaluation/
    python recipes/benchmarks/bench_graders.py --outputs math_cot_100.jsonl # on published outputs, where graders differ

The pairs are those of tests/verify/pairs.jsonl. Every grader judges them in a process of its own. Plain math-verify is
called as the authors of Reinforce-Ada call it: the reference by LaTeX only, the answer also by its last number. A
grader that takes more than 5 s says "wrong".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from measure import measure

from nemo_ada.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
PAIRS = ROOT / "tests" / "verify" / "pairs.jsonl"
OURS = "from nemo_ada.verify.scoring import score_math as grade"
PLAIN = r"""
from math_verify.metric import math_metric
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig
judge = math_metric((LatexExtractionConfig(),), (ExprExtractionConfig(), LatexExtractionConfig()))
def grade(answer, reference):
    return judge(["\\boxed{" + reference + "}"], ["\\boxed{" + answer + "}"])[0]
"""
QWEN = """
from grader import math_equal
from parser import strip_string
def grade(answer, reference):
    return math_equal(strip_string(answer), strip_string(reference))
"""
CHILD = r"""
import json, signal, sys, time, io, contextlib
def late(*_): raise TimeoutError
signal.signal(signal.SIGALRM, late)
given = json.load(sys.stdin)
with contextlib.redirect_stdout(io.StringIO()):
    exec(given["grader"])
    results = []
    for answer, reference in given["pairs"]:
        begin = time.perf_counter()
        signal.alarm(5)
        try:
            label = float(grade(answer, reference)) >= 1
        except BaseException:
            label = False
        finally:
            signal.alarm(0)
        results.append((label, time.perf_counter() - begin))
print(json.dumps(results))
"""


def judged(python: str, grader: str, folders: list[Path], pairs: list[tuple[str, str]]) -> list[tuple[bool, float]]:
    """The verdicts and seconds of one grader, in a process of its own."""
    given = json.dumps({"grader": grader, "pairs": pairs})
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [python, "-P", "-c", CHILD]  # -P: only the folders, not this checkout
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"a grader in {folders} ended with an error: {done.stderr.strip().splitlines()[-1:]}")
    return [(label, seconds) for label, seconds in json.loads(done.stdout)]


def table(pairs: list[dict[str, Any]], verdicts: dict[str, list[tuple[bool, float]]], misses: bool) -> None:
    """Print counts per grader, and the pairs that it misjudges."""
    wrong, right = ([i for i, pair in enumerate(pairs) if pair["value"] == value] for value in (0, 1))
    print(f"{len(pairs)} pairs: {len(right)} right, {len(wrong)} wrong\n")
    print("| grader | wrong ones paid | right ones refused | median ms | mean ms | slowest ms |")
    print("|---|---|---|---|---|---|")
    for name, results in verdicts.items():
        paid, refused = [i for i in wrong if results[i][0]], [i for i in right if not results[i][0]]
        ms = [1e3 * seconds for _, seconds in results]
        shares = len(paid) / max(1, len(wrong)), len(refused) / max(1, len(right))
        print(
            f"| {name} | {len(paid)} ({shares[0]:.1%}) | {len(refused)} ({shares[1]:.1%}) "
            f"| {statistics.median(ms):.2f} | {statistics.mean(ms):.1f} | {max(ms):.0f} |"
        )
    for name, results in verdicts.items() if misses else ():
        print(f"\n{name}:")
        for pair, (label, _) in zip(pairs, results, strict=True):
            if label != bool(pair["value"]):
                verdict = "paid   " if label else "refused"
                print(f"  {verdict} {pair['answer']!r} for {pair['reference']!r} ({pair['source']})")


def outputs(path: Path) -> list[dict[str, Any]]:
    """Pairs of published outputs (fields `pred`, `gt` and `score` of each line), with the label of their own grader."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        {"answer": answer, "reference": row["gt"], "value": int(score), "source": path.name}
        for row in rows
        for answer, score in zip(row["pred"], row["score"], strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=Path, default=PAIRS)
    parser.add_argument("--outputs", type=Path, help="a file of published outputs in place of the pairs")
    parser.add_argument("--earlier", type=Path, help="another checkout of this repository")
    parser.add_argument(
        "--qwen", nargs=2, metavar=("PYTHON", "FOLDER"), help="a Python with its needs, and evaluation/"
    )
    parser.add_argument("--first", type=int, help="only so many pairs")
    parser.add_argument("--misses", action="store_true", help="print every pair that a grader misjudges")
    arguments = parser.parse_args()
    if arguments.outputs:
        pairs = outputs(arguments.outputs)
    else:
        pairs = [json.loads(line) for line in arguments.pairs.read_text(encoding="utf-8").splitlines()]
    pairs = pairs[: arguments.first]
    texts = [(pair["answer"], pair["reference"]) for pair in pairs]
    verdicts = {"this grader": judged(sys.executable, OURS, [ROOT], texts)}
    if arguments.earlier:
        verdicts["this grader, earlier"] = judged(sys.executable, OURS, [arguments.earlier.resolve()], texts)
    verdicts["plain math-verify"] = judged(sys.executable, PLAIN, [], texts)
    if arguments.qwen:
        folder = Path(arguments.qwen[1]).resolve()
        verdicts["Qwen2.5-Math"] = judged(arguments.qwen[0], QWEN, [folder, folder / "latex2sympy"], texts)
    table(pairs, verdicts, arguments.misses)
    differing = Counter(tuple(results[i][0] for results in verdicts.values()) for i in range(len(pairs)))
    print("\nverdicts of " + ", ".join(verdicts) + ":")
    for labels, count in differing.most_common():
        print(f"  {count:5d}  " + ", ".join("right" if label else "wrong" for label in labels))


if __name__ == "__main__":
    measure(main)
