"""How many copies does `data prepare --exclude` find, and how many innocent problems does it flag? About a minute.

    python recipes/benchmarks/contamination.py [--problems 2000] [--copies 500]

The problems are random words (Zipf's law over 3,000 of them), of 4 to 60 words, so that a copy is a copy and an
innocent problem is none. A row says which instruction stands in the prompts of the training set, and of the benchmark.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from measure import measure
from tables import markdown_table

from nemo_ada.lab.data.contamination import Contamination, Excluded
from nemo_ada.lab.data.source import Source

VOCABULARY, FEWEST, MOST = 3000, 4, 60
ASK = "Let's think step by step and output the final answer within \\boxed{}."
LONG = "Solve the following math problem efficiently and clearly, and put the final answer of your work in a box."
BEFORE = "You are a helpful assistant that answers questions about mathematics with great care. Question:"
Ask = Callable[[int, str], str]
ASKED: dict[str, Ask] = {
    "none": lambda _n, text: text,
    "behind": lambda _n, text: f"{text} {ASK}",
    "long, behind": lambda _n, text: f"{text} {LONG}",
    "in front": lambda _n, text: f"{BEFORE} {text}",
    "both ends": lambda _n, text: f"{BEFORE} {text} {LONG}",
    "behind one in 50": lambda n, text: f"{text} {ASK}" if n % 50 == 0 else text,
    "three kinds": lambda n, text: [f"{text} {ASK}", f"{text} {LONG}", f"{BEFORE} {text}"][n % 3],
}
PAIRS = [(train, bench) for train in ASKED for bench in ("none", "long, behind")]


def problems(rng: np.random.Generator, count: int) -> list[str]:
    """Texts of random words."""
    share = 1.0 / np.arange(1, VOCABULARY + 1)
    lengths = rng.integers(FEWEST, MOST + 1, count)
    return [" ".join(f"w{i}" for i in rng.choice(VOCABULARY, n, p=share / share.sum())) for n in lengths]


def row(train: str, bench: str, innocent: list[str], copied: list[str]) -> dict[str, object]:
    """Copies that were missed and innocent problems that were flagged, for one pair of instructions."""
    rows = [(n, {"problem": ASKED[bench](n, text)}) for n, text in enumerate(copied)]
    contamination = Contamination([Excluded("bench", Source({}, lambda: iter(rows)))])
    asked = [ASKED[train](n, text) for n, text in enumerate([*copied, *innocent])]
    contamination.learn(asked)
    flagged = [contamination.find_overlap(text) is not None for text in asked]
    return {
        "training set": train,
        "benchmark": bench,
        f"missed of {len(copied)}": len(copied) - sum(flagged[: len(copied)]),
        f"flagged of {len(innocent)}": sum(flagged[len(copied) :]),
    }


def main(say: Callable[[str], None] = print) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=2000, help="innocent problems")
    parser.add_argument("--copies", type=int, default=500, help="problems of the benchmark, which are all in the set")
    arguments = parser.parse_args()
    texts = problems(np.random.default_rng(0), arguments.problems + arguments.copies)
    copied, innocent = texts[: arguments.copies], texts[arguments.copies :]
    say(markdown_table([row(train, bench, innocent, copied) for train, bench in PAIRS]))


if __name__ == "__main__":
    measure(main)
