"""Data of a rehearsal, which does not need the config's data sets: small sums and a vocabulary that can answer them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_ada.run.files import write_atomically

TRAIN, VALIDATION = "train.jsonl", "validation.jsonl"
VALIDATION_ROWS = 16
PIECES = re.compile(r"<tool_call>.*?</tool_call>[ .,;\n]?|\\boxed\{\d\}[ .,;\n]?|\w+|[^\w]")
"""This expression splits texts into tokens, here and in the tokenizer. An answer and a call of a tool are one token."""
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
SIZE = 256
LARGEST = 9
"""The largest answer. The benchmark of learning lowers it, so that random weights are right more often."""
ENDINGS = ("", ".", " ", ",", ";", "\n")
ZEROS = 9
"""Number of zeros after each term. A prompt then fills a block of the engine's KV cache (shrink.BLOCK_TOKENS)."""


def make_problems(seed: int = 0, least: int = 0) -> list[dict[str, str]]:
    """Problems in a seeded order. Their answers are single digits, unless `least` asks for more problems than these.

    Two problems differ in digits and not in words. transformers reads a Qwen2 folder with a tokenizer class of its own,
    which drops our words.
    """
    count = LARGEST + 1
    terms: list[tuple[int, ...]] = [
        (a, b, c) for a in range(count) for b in range(count - a) for c in range(count - a - b)
    ]
    while len(terms) < least:
        terms = [(*some, one) for some in terms for one in range(10)]
    zeros = " + 0" * ZEROS
    problems = [
        {"problem": f"What is {a}{zeros} + {b}{zeros} + {' + '.join(map(str, rest))}?", "gt": str(a + b + sum(rest))}
        for a, b, *rest in terms
    ]
    random.Random(seed).shuffle(problems)
    return problems


def write_problems(folder: Path, least: int = 0) -> list[str]:
    """Write the files for training and validation. Returns the texts of all problems.

    Args:
        folder: Folder of the files.
        least: Problems that training needs at least.
    """
    problems = make_problems(least=least + VALIDATION_ROWS)
    write_rows(folder, problems)
    return [row["problem"] for row in problems]


def write_rows(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the first VALIDATION_ROWS for validation, and the others for training."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in ((TRAIN, rows[VALIDATION_ROWS:]), (VALIDATION, rows[:VALIDATION_ROWS])):
        write_atomically(folder / name, "".join(json.dumps(row) + "\n" for row in part))


def make_vocabulary(texts: Sequence[str], size: int = SIZE) -> list[str]:
    r"""`size` tokens: the special ones, answers such as `\boxed{3}.`, and the pieces of these texts.

    Small digits have more spellings. So random weights are right more often where the answer is small, and pass rates
    differ between prompts.
    """
    answers = [f"\\boxed{{{digit}}}{end}" for digit in range(10) for end in ENDINGS[: max(1, 6 - digit // 2)]]
    pieces = dict.fromkeys(piece for text in texts for piece in PIECES.findall(text))
    tokens = list(dict.fromkeys([*SPECIAL, *answers, *"0123456789", "system", "user", "assistant", "\n", *pieces]))
    tokens = tokens[:size]
    return [*tokens, *(f"<{number}>" for number in range(len(tokens), size))]
