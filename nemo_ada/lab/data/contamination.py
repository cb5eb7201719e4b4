"""Find problems of a training set that are also in a benchmark.

A problem counts as contaminated where WORDS words in a row stand in a problem of the benchmark, too, or where the two
have the same words. Case, punctuation and LaTeX's signs do not matter. A benchmark's problem with fewer words is found
only as a whole. A translated or paraphrased problem is not found.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nemo_ada.errors import UserError
from nemo_ada.lab.data.source import Source
from nemo_ada.run.json_lines import parse_line
from nemo_ada.tasks.lines import PROMPT_FIELDS, text_field
from nemo_ada.verify.judge import normalised

WORDS = 13  # as in the tables of GPT-3's and later data sets
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Excluded:
    """A benchmark whose problems must not be in the training set.

    Attributes:
        name: The name of the benchmark.
        source: Where its problems come from.
        prompt_fields: The columns of the problem.
    """

    name: str
    source: Source
    prompt_fields: Sequence[str] = PROMPT_FIELDS


class Contamination:
    """An index of the benchmarks. It has 8 bytes for each run of WORDS words."""

    def __init__(self, benchmarks: Sequence[Excluded]) -> None:
        """Read the benchmarks. Raises UserError where one has no problem that can be read."""
        self._found: dict[bytes, tuple[str, int]] = {}
        for benchmark in benchmarks:
            count = 0
            for line, raw in benchmark.source.records():
                try:
                    record = parse_line(raw) if isinstance(raw, bytes) else raw
                    text = text_field(record, benchmark.prompt_fields, "prompt")
                except ValueError:
                    continue
                count += 1
                for run in _runs(text):
                    self._found.setdefault(run, (benchmark.name, line))
            if not count:
                fields = ", ".join(benchmark.prompt_fields)
                raise UserError(f"--exclude={benchmark.name}: no problem can be read from its columns {fields}")

    def of(self, text: str) -> tuple[str, int] | None:
        """Return benchmark and line of a problem that shares words with this text, or None."""
        return next((self._found[run] for run in _runs(text) if run in self._found), None)


def _runs(text: str) -> Iterator[bytes]:
    """Yield a digest of all words, and of each WORDS words in a row."""
    words = _WORD.findall(normalised(text))
    if words:
        yield _digest(["=", *words])
    for start in range(len(words) - WORDS + 1):
        yield _digest(words[start : start + WORDS])


def _digest(words: Sequence[str]) -> bytes:
    return hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
