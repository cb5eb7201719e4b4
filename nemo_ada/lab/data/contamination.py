"""Find problems of a training set that are also in a benchmark.

A problem counts as contaminated where WORDS words in a row stand in a problem of the benchmark, too, or where the two
have the same words, or where all words of a benchmark's problem of SHORT to WORDS - 1 words stand in it in a row. Case,
punctuation and LaTeX's signs do not matter. A translated or paraphrased problem is not found.

Prompts often begin or end with an instruction. What many problems of a set have at an end is no part of a problem. It
is left out on both sides first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nemo_ada.errors import UserError
from nemo_ada.lab.data.source import Source
from nemo_ada.run.json_lines import parse_line
from nemo_ada.tasks.lines import PROMPT_FIELDS, prompt_of
from nemo_ada.verify.judge import normalise_text
from nemo_ada.verify.latex import words_in

WORDS = 13  # as in the tables of GPT-3's and later data sets
SHORT = 8  # words of the shortest problem that is found inside another one
LEFT = 4  # words of the shortest rest of a problem that is compared
SEED, SHARE, FEWEST = 5, 0.05, 10
"""An instruction has at least SEED words, in at least SHARE of the problems, and FEWEST of them."""
ALIKE, SAMPLES = 0.8, 200
"""It goes on while ALIKE of up to SAMPLES of these problems have the same next word."""

Words = tuple[str, ...]


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
        self._problems: list[tuple[str, int, Words]] = []
        self._heads: list[Words] = []
        self._tails: list[Words] = []
        for benchmark in benchmarks:
            found: list[tuple[str, int, Words]] = []
            for line, raw in benchmark.source.records():
                try:
                    record = parse_line(raw) if isinstance(raw, bytes) else raw
                    words = list_words(prompt_of(record, benchmark.prompt_fields))
                    found.append((benchmark.name, line, words))
                except ValueError:
                    continue
            if not found:
                fields = ", ".join(benchmark.prompt_fields)
                raise UserError(f"--exclude={benchmark.name}: no problem can be read from its columns {fields}")
            self._problems += found
            self._add_instructions([words for _, _, words in found])
        self._build_index()

    def learn(self, texts: Iterable[str]) -> None:
        """Find the instructions of the training set, which has these problems."""
        self._add_instructions(list(map(list_words, texts)))
        self._build_index()

    def find_overlap(self, text: str) -> tuple[str, int] | None:
        """Return benchmark and line of a problem that shares words with this text, or None."""
        core = self._strip_instructions(list_words(text))
        places = map(self._place_of_run.get, self._compute_digests(core, self._lengths))
        return next((place for place in places if place is not None), None)

    def _build_index(self) -> None:
        cores = [(name, line, self._strip_instructions(words)) for name, line, words in self._problems]
        short = {len(core) for _, _, core in cores if SHORT <= len(core) < WORDS}
        self._lengths: Sequence[int] = sorted(short)
        self._place_of_run: dict[bytes, tuple[str, int]] = {}
        for name, line, core in cores:
            for run in self._compute_digests(core, [len(core)] if len(core) in short else []):
                self._place_of_run.setdefault(run, (name, line))

    def _add_instructions(self, problems: Sequence[Words]) -> None:
        self._heads = sorted({*self._heads, *find_instructions(problems)}, key=len, reverse=True)
        tails = [words[::-1] for words in find_instructions([words[::-1] for words in problems])]
        self._tails = sorted({*self._tails, *tails}, key=len, reverse=True)

    def _strip_instructions(self, words: Words) -> Words:
        """Return a problem without an instruction at its start and one at its end, unless too little is left."""
        head = next((h for h in self._heads if words[: len(h)] == h), ())
        tail = next((t for t in self._tails if words[-len(t) :] == t), ())
        core = words[len(head) : len(words) - len(tail)]
        return core if len(core) >= LEFT else words

    @staticmethod
    def _compute_digests(words: Words, lengths: Sequence[int]) -> Iterator[bytes]:
        """Yield a digest of all words, of WORDS words in a row, and of runs of the lengths of short problems."""
        if words:
            yield _compute_digest(("=", *words))
        for length in (*lengths, WORDS):
            for start in range(len(words) - length + 1):
                yield _compute_digest(words[start : start + length])


def list_words(text: str) -> Words:
    """Return the words of a text, without case, punctuation and signs."""
    return tuple(words_in(normalise_text(text)))


def find_instructions(problems: Sequence[Words]) -> list[Words]:
    """Return what many problems of a set begin with.

    Returns:
        Each start of SEED or more words that a share of at least SHARE of the problems has, as long as they are alike.
    """
    groups: dict[Words, list[Words]] = {}
    for words in problems:
        if len(words) > SEED:
            groups.setdefault(words[:SEED], []).append(words)
    least = max(FEWEST, SHARE * len(problems))
    return [_find_common_start(seed, group[:SAMPLES]) for seed, group in groups.items() if len(group) >= least]


def _find_common_start(start: Words, group: Sequence[Words]) -> Words:
    """Return the longest start that ALIKE of the group have."""
    least = ALIKE * len(group)
    while True:
        after = Counter(words[len(start)] for words in group if len(words) > len(start))
        word, count = after.most_common(1)[0] if after else ("", 0)
        if count < least:
            return start
        start = (*start, word)
        group = [words for words in group if words[: len(start)] == start]


def _compute_digest(words: Sequence[str]) -> bytes:
    return hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
