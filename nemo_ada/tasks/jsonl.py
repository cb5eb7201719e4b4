"""A task from any local JSONL file of prompts and answers.

Lines that cannot be used are skipped, counted and named by line number; a file without a usable line is an error.
The split orders prompts by a hash of (seed, prompt), so it does not depend on the order of the lines. The answers
of the supervision share are its demonstrations (in a box for `math`, which reads nothing else); no noise is added.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nemo_ada.errors import UserError
from nemo_ada.run.files import read_bounded
from nemo_ada.tasks.lines import parse_line, text_field
from nemo_ada.tasks.protocol import Demonstration, Prompt, ScoringFailedError, Splits, canonical_text, content_id
from nemo_ada.tasks.settings import JsonlSettings
from nemo_ada.tasks.tokenizer import CharTokenizer
from nemo_ada.verify.ondemand import MathOnDemand
from nemo_ada.verify.verdict import Verdict

log = logging.getLogger(__name__)
NAMED_LINES = 5
MAX_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class JsonlReport:
    """What a file held: usable rows, then the numbers (from 1) of the lines that were left out, with the reason."""

    path: Path
    rows: int
    malformed: tuple[tuple[int, str], ...]
    repeated: tuple[int, ...]
    conflicting: tuple[int, ...]
    overlong: tuple[int, ...]

    def warnings(self) -> list[str]:
        """One sentence for each kind of line that was left out."""
        found = [f"{len(self.malformed)} malformed line(s): {_some([f'line {n}: {why}' for n, why in self.malformed])}"]
        for lines, what in (
            (self.repeated, "line(s) repeat an earlier prompt with the same answer"),
            (self.conflicting, "line(s) repeat an earlier prompt with another answer (the first one is kept)"),
            (self.overlong, "line(s) hold a prompt above max_prompt_tokens"),
        ):
            found.append(f"{len(lines)} {what}: {_some([f'line {n}' for n in lines])}")
        return [f"{self.path}: {text}" for text in found if not text.startswith("0 ")]


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    text: str
    answer: str


def normalised(answer: str) -> str:
    """An answer as `exact` compares it: Unicode NFKC, case folded, runs of white space made one space, trimmed."""
    return " ".join(unicodedata.normalize("NFKC", answer).casefold().split())


class JsonlTask:
    """Reads the file at once. Raises UserError where it is missing, empty, has no usable line or too few prompts
    to split.
    """

    name = "jsonl"

    def __init__(self, settings: JsonlSettings, where: str = "task") -> None:
        self.settings = settings
        self._math = MathOnDemand()
        self._where = where
        path = Path(os.path.expanduser(settings.path))
        rows, malformed = self._read(path)
        self.tokenizer = CharTokenizer.covering(text for row in rows for text in (row.text, self._shown(row.answer)))
        self._rows, self.report = self._distinct(path, rows, malformed)
        for warning in self.report.warnings():
            log.warning("%s", warning)
        self.max_prompt_tokens = max(len(row.text) for row in self._rows)
        self.max_new_tokens = settings.max_new_tokens or max(len(self._shown(r.answer)) for r in self._rows) + 1

    def splits(self) -> Splits:
        """Held-out, supervision and train shares, at least one prompt each (no supervision at a fraction of 0)."""
        return self._splits

    def score(self, prompt: Prompt, text: str, finished: bool) -> float:
        """1.0 where the response ended by itself and the verifier accepts it, else 0.0.

        Raises ScoringFailedError where math-verify could not judge it.
        """
        (verdict,) = self.score_many([(prompt, text, finished)])
        if verdict.label is None:
            raise ScoringFailedError(str(verdict.cause))
        return verdict.label

    def score_many(self, responses: Sequence[tuple[Prompt, str, bool]]) -> list[Verdict]:
        """Labels of (prompt, text, finished) triples, or the verifier's cause; `math` judges them in parallel."""
        if self.settings.verifier == "exact":
            return [Verdict(float(end and normalised(text) == normalised(p.answer))) for p, text, end in responses]
        judged = iter(self._math.verify_many([(text, prompt.answer) for prompt, text, end in responses if end]))
        return [_full_or_none(next(judged)) if end else Verdict(0.0) for _, _, end in responses]

    def close(self) -> None:
        """End math-verify's processes, if they were started; a later score starts them again."""
        self._math.close()

    def _shown(self, answer: str) -> str:
        """The answer as a demonstration writes it: `math` reads the last box of a response only."""
        return f"\\boxed{{{answer}}}" if self.settings.verifier == "math" else answer

    @cached_property
    def _splits(self) -> Splits:
        prompts = [
            Prompt(content_id(self.name, row.text), row.text, row.answer, {"line": row.line, "answer": row.answer})
            for row in self._rows
        ]
        prompts.sort(key=lambda p: hashlib.sha256(f"{self.settings.seed}:{p.prompt_id}".encode()).digest())
        heldout, supervision = (
            max(1, round(len(prompts) * share)) if share else 0
            for share in (self.settings.heldout_fraction, self.settings.supervision_fraction)
        )
        if len(prompts) <= heldout + supervision:
            raise UserError(
                f"{self._where}.path: {self.report.path} has {len(prompts)} different prompts, too few for "
                f"{heldout} held-out, {supervision} supervision and any train ones; add lines or lower "
                f"{self._where}.supervision_fraction"
            )
        taught = tuple(Demonstration(p.text, self._shown(p.answer)) for p in prompts[heldout : heldout + supervision])
        return Splits(tuple(prompts[heldout + supervision :]), tuple(prompts[:heldout]), taught)

    def _read(self, path: Path) -> tuple[list[_Row], list[tuple[int, str]]]:
        try:
            data = read_bounded(path, MAX_BYTES)
        except OSError as problem:
            raise UserError(
                f"{self._where}.path: cannot read {str(path)!r} ({problem.strerror}, from {str(Path.cwd())!r}); "
                "give a file with one JSON object per line"
            ) from None
        rows: list[_Row] = []
        malformed: list[tuple[int, str]] = []
        for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                rows.append(self._row(number, line))
            except ValueError as problem:
                malformed.append((number, str(problem)))
        if not rows:
            bad = f"has no line that can be used ({_some([f'line {n}: {why}' for n, why in malformed])})"
            bad = bad if malformed else "is empty"
            example = json.dumps({self.settings.prompt_fields[0]: "2+3=", self.settings.answer_fields[0]: "5"})
            raise UserError(
                f"{self._where}.path: {str(path)!r} {bad}; each line must be a JSON object such as {example}; "
                f"other names of the fields go into {self._where}.prompt_fields and answer_fields"
            )
        return rows, malformed

    def _row(self, number: int, line: bytes) -> _Row:
        """One usable line; a ValueError says why it is not."""
        record = parse_line(line)
        text = text_field(record, self.settings.prompt_fields, "prompt")
        return _Row(
            number, text + self.settings.prompt_suffix, text_field(record, self.settings.answer_fields, "answer")
        )

    def _distinct(
        self, path: Path, rows: list[_Row], malformed: list[tuple[int, str]]
    ) -> tuple[list[_Row], JsonlReport]:
        kept: dict[str, _Row] = {}
        repeated: list[int] = []
        conflicting: list[int] = []
        overlong: list[int] = []
        for row in rows:
            first = kept.get(key := canonical_text(row.text))
            if len(row.text) > self.settings.max_prompt_tokens:
                overlong.append(row.line)
            elif first is None:
                kept[key] = row
            else:
                (repeated if normalised(first.answer) == normalised(row.answer) else conflicting).append(row.line)
        if not kept:
            raise UserError(
                f"{self._where}.max_prompt_tokens={self.settings.max_prompt_tokens} leaves out every prompt of "
                f"{str(path)!r}; the shortest has {min(len(row.text) for row in rows)} tokens, raise it to that or more"
            )
        return list(kept.values()), JsonlReport(
            path, len(kept), tuple(malformed), tuple(repeated), tuple(conflicting), tuple(overlong)
        )


def _full_or_none(verdict: Verdict) -> Verdict:
    """Part of a point counts as none."""
    return verdict if verdict.label is None else Verdict(float(verdict.label >= 1.0))


def _some(items: list[str]) -> str:
    more = len(items) - NAMED_LINES
    return "; ".join(items[:NAMED_LINES]) + (f"; and {more} more" if more > 0 else "")
