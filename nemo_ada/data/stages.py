"""The stages of data preparation. Each reads the records that the one before kept and journals one record per input:
the kept one, or {line, reason} where it was left out.

read       a raw line or row becomes a problem
distinct   the first of equal problems (by canonical text) stays
reference  the reference answer itself must pass the verifier
length     the whole prompt, template included, must fit
measure    pass rate of the model, or a measured one from a file
band       the pass rate must lie in the band
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_ada.data.bands import PassRateBand
from nemo_ada.data.journal import Journal
from nemo_ada.data.judge import Judge
from nemo_ada.data.measure import Measurement
from nemo_ada.data.problem import Fields, Problem, excerpt, parse_record, problem_id
from nemo_ada.data.prompting import PromptEncoder
from nemo_ada.data.source import Raw
from nemo_ada.errors import UserError
from nemo_ada.run.files import read_bounded
from nemo_ada.tasks.jsonl import MAX_BYTES, normalised
from nemo_ada.tasks.lines import parse_line
from nemo_ada.tasks.protocol import canonical_text

Record = dict[str, Any]
Watch = Callable[[str, int, int | None], None]
"""Called with (stage, inputs done, inputs in all, where that is known)."""


class Stage(ABC):
    """name: of its journal. chunk: inputs per commit."""

    name: str
    chunk = 256

    @abstractmethod
    def process(self, inputs: Sequence[Any]) -> list[Record]:
        """One record per input, in order."""

    def pass_over(self, inputs: Iterable[Any]) -> None:
        """See inputs again whose records are in the journal already (after a restart)."""
        for _ in inputs:
            pass


def run_stage(stage: Stage, inputs: Iterable[Any], total: int | None, journal: Journal, watch: Watch) -> None:
    """Work off what the journal does not hold yet. total: inputs, where they are known."""
    watch(stage.name, journal.items, total)
    if journal.complete:
        return
    source = iter(inputs)
    stage.pass_over(islice(source, journal.items))
    while chunk := list(islice(source, stage.chunk)):
        records = stage.process(chunk)
        journal.commit(records, len(chunk), sum("reason" not in record for record in records))
        watch(stage.name, journal.items, total)
    journal.finish()


def kept(journal: Journal) -> Iterator[Record]:
    """Records that the stage let through."""
    return (record for record in journal.read() if "reason" not in record)


def left_out(line: int, reason: str, **facts: Any) -> Record:
    """The record of an input that a stage left out; `facts` hold `kind`, a short name of the reason, for counts."""
    return {"line": line, "reason": reason, **facts}


class Read(Stage):
    """Raw records to problems; the refused ones keep an excerpt."""

    name = "read"

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def process(self, inputs: Sequence[tuple[int, Raw]]) -> list[Record]:
        return [self._record(line, raw) for line, raw in inputs]

    def _record(self, line: int, raw: Raw) -> Record:
        try:
            record = parse_line(raw) if isinstance(raw, bytes) else raw
            return parse_record(line, record, self._fields).record()
        except ValueError as problem:
            return left_out(line, str(problem), kind="malformed", excerpt=excerpt(raw))


class Distinct(Stage):
    """The first of equal problems stays. Holds 48 bytes per problem, not its text."""

    name = "distinct"
    chunk = 4096

    def __init__(self) -> None:
        self._first: dict[bytes, tuple[int, bytes]] = {}

    def process(self, inputs: Sequence[Record]) -> list[Record]:
        return [self._record(record) for record in inputs]

    def pass_over(self, inputs: Iterable[Record]) -> None:
        """The first of equal problems may be among them."""
        for record in inputs:
            self._record(record)

    def _record(self, record: Record) -> Record:
        answer = _digest(normalised(record["answer"]))
        key = _digest(canonical_text(record["problem"]))
        line, first = self._first.setdefault(key, (record["line"], answer))
        if line == record["line"]:
            return record
        if answer == first:
            return left_out(record["line"], f"repeats line {line}", kind="repeated")
        return left_out(record["line"], f"repeats line {line} with another answer", kind="conflicting")


class Reference(Stage):
    """The reference answer, written as a response, must get label 1 from the verifier."""

    name = "reference"

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def process(self, inputs: Sequence[Record]) -> list[Record]:
        shown = [(self._judge.shown(record["answer"]), record["answer"], True) for record in inputs]
        found = []
        for record, verdict in zip(inputs, self._judge.verdicts(shown), strict=True):
            why = verdict.cause if verdict.label is None else "the verifier does not accept it as its own answer"
            reason = f"reference answer {record['answer'][:80]!r}: {why}"
            ok = verdict.label == 1.0
            found.append(record if ok else left_out(record["line"], reason, kind="reference"))
        return found


class Length(Stage):
    """Tokens of the whole prompt, at most `limit`."""

    name = "length"

    def __init__(self, encoder: PromptEncoder, limit: int) -> None:
        self._encoder, self._limit = encoder, limit

    def process(self, inputs: Sequence[Record]) -> list[Record]:
        return [self._record(record) for record in inputs]

    def _record(self, record: Record) -> Record:
        try:
            tokens = len(self._encoder.encode(record["problem"]))
        except UserError:  # of the tokenizer itself, not of this problem
            raise
        except ValueError as problem:
            return left_out(record["line"], str(problem), kind="unreadable")
        if tokens > self._limit:
            return left_out(record["line"], f"{tokens} tokens, at most {self._limit} are wanted", kind="overlong")
        return {**record, "prompt_tokens": tokens}


class Measure(Stage):
    """Pass rate over k responses. Its chunks are also what the engine sees at once."""

    name = "measure"

    def __init__(self, measurement: Measurement, chunk: int) -> None:
        self._measurement, self.chunk = measurement, chunk

    def process(self, inputs: Sequence[Record]) -> list[Record]:
        drawn = self._measurement.draw([Problem.of(record) for record in inputs])
        found = []
        for record, responses in zip(inputs, drawn, strict=True):
            rewards = [judged.reward for judged in responses if judged.reward is not None]
            if not rewards:
                found.append(left_out(record["line"], "no response could be judged", kind="unjudged"))
                continue
            facts = {
                "responses": len(rewards),
                "correct": int(sum(rewards)),
                "failed": len(responses) - len(rewards),
                "tokens": sum(judged.response.tokens for judged in responses),
            }
            found.append({**record, **facts, "pass_rate": facts["correct"] / facts["responses"]})
        return found


class Lookup(Stage):
    """Pass rates measured before. Problems that the file does not have are left out."""

    name = "measure"

    def __init__(self, rates: dict[str, Record]) -> None:
        self._rates = rates

    def process(self, inputs: Sequence[Record]) -> list[Record]:
        missing = "the file of pass rates does not have this problem"
        return [
            {**record, **self._rates[record["id"]]}
            if record["id"] in self._rates
            else left_out(record["line"], missing, kind="unmeasured")
            for record in inputs
        ]


class InBand(Stage):
    """The pass rate must lie in the band."""

    name = "band"
    chunk = 4096

    def __init__(self, band: PassRateBand) -> None:
        self._band = band

    def process(self, inputs: Sequence[Record]) -> list[Record]:
        return [
            record
            if self._band.holds(record["pass_rate"])
            else left_out(record["line"], f"pass rate {record['pass_rate']:.4g} is outside {self._band}", kind="band")
            for record in inputs
        ]


def read_pass_rates(path: Path) -> dict[str, Record]:
    """Measured pass rates by problem, from a pass_rates.jsonl of this program or lines with a problem (or id) and
    `pass_rate`, or `correct` of `responses`.
    """
    found: dict[str, Record] = {}
    try:
        lines = read_bounded(path, MAX_BYTES).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as problem:
        raise UserError(f"--pass-rates={path} cannot be read: {problem}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                uid, facts = _measured(parse_line(line))
            except (ValueError, LookupError, TypeError, ArithmeticError) as problem:
                why = f"no {problem}" if isinstance(problem, KeyError) else str(problem)
                raise UserError(
                    f"--pass-rates={path}: line {number} is unusable ({why}); each line needs `problem` or `id`, and "
                    "`pass_rate` or `correct` and `responses`"
                ) from None
            found[uid] = facts
    if not found:
        raise UserError(f"--pass-rates={path} holds no line")
    return found


def _measured(record: Record) -> tuple[str, Record]:
    """Identity and pass rate of a line; raises what damaged values raise."""
    uid = record["id"] if "id" in record else problem_id(record["problem"])
    if not isinstance(uid, str):
        raise ValueError(f"its id is {type(uid).__name__}, not text")
    counted = "correct" in record and "responses" in record
    for key in ("correct", "responses") if counted else ("pass_rate",):
        if isinstance(record[key], bool) or not isinstance(record[key], int if counted else (int, float)):
            raise ValueError(f"its {key} is {str(record[key])[:40]!r}")
    rate = record["correct"] / record["responses"] if counted else float(record["pass_rate"])
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"its pass rate is {rate}, outside [0, 1]")
    counts = {key: record[key] for key in ("responses", "correct")} if counted else {}
    return uid, {**counts, "pass_rate": rate}


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]
