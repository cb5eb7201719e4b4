"""Data of a rehearsal without the config's own data sets: small sums, and a vocabulary that can answer them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

TRAIN, VALIDATION = "train.jsonl", "validation.jsonl"
VALIDATION_ROWS = 16
PIECES = re.compile(r"\\boxed\{\d\}[ .,;\n]?|\w+|[^\w]")
"""How texts are split into tokens; the same expression is in the tokenizer."""
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
SIZE = 256
ENDINGS = ("", ".", " ", ",", ";", "\n")
ZEROS = 9
"""Between the terms: a prompt then fills a block of the engine's KV cache (shrink.BLOCK_TOKENS)."""


def rows(seed: int = 0) -> list[dict[str, str]]:
    """Problems whose answers are single digits, in a seeded order.

    They differ in digits: transformers reads a Qwen2 folder with a tokenizer class of its own, which drops our words.
    """
    terms = [(a, b, c) for a in range(10) for b in range(10 - a) for c in range(10 - a - b)]
    zeros = " + 0" * ZEROS
    made = [{"problem": f"What is {a}{zeros} + {b}{zeros} + {c}?", "gt": str(a + b + c)} for a, b, c in terms]
    random.Random(seed).shuffle(made)
    return made


def write(folder: Path) -> list[str]:
    """Write both files; all their texts."""
    folder.mkdir(parents=True, exist_ok=True)
    made = rows()
    for name, part in ((TRAIN, made[VALIDATION_ROWS:]), (VALIDATION, made[:VALIDATION_ROWS])):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    return [row["problem"] for row in made]


def vocabulary(texts: Sequence[str]) -> list[str]:
    r"""SIZE tokens: special ones, answers such as `\boxed{3}.`, and the pieces of these texts.

    Small digits have more spellings, so that random weights are right more often where the answer is small.
    """
    answers = [f"\\boxed{{{digit}}}{end}" for digit in range(10) for end in ENDINGS[: max(1, 6 - digit // 2)]]
    pieces = dict.fromkeys(piece for text in texts for piece in PIECES.findall(text))
    tokens = list(dict.fromkeys([*SPECIAL, *answers, *"0123456789", "system", "user", "assistant", "\n", *pieces]))
    tokens = tokens[:SIZE]
    return [*tokens, *(f"<{number}>" for number in range(len(tokens), SIZE))]
