"""The stages of data preparation. Each makes one record per input: the kept one, or {line, reason, kind}.

read       a raw line or row becomes a problem
distinct   keep the first of equal problems (by canonical text), and none where their answers contradict each other
exclude    the problem must not be in a benchmark
reference  the verifier must accept the reference answer itself
length     the whole prompt, template included, must fit
measure    pass rate of the model, or a measured one from a file
band       the pass rate must lie in the band
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.lab.data.contamination import WORDS, Contamination
from nemo_ada.lab.data.journal import Journal
from nemo_ada.lab.data.measure import Judged, Measurement, Question
from nemo_ada.lab.data.problem import Problem, excerpt, parse_record, problem_id, reference_of
from nemo_ada.run.files import read_bounded
from nemo_ada.run.json_lines import Record, parse_line, records
from nemo_ada.tasks.prompting import PromptEncoder
from nemo_ada.tasks.protocol import canonical_text
from nemo_ada.verify.audit import KINDS
from nemo_ada.verify.judge import Judge, normalised

Watch = Callable[[str, int, int | None], None]
"""Called with (stage, inputs done, inputs in all if known)."""
CHUNK = 256  # inputs between two words about the progress
ROUNDING = 1e-9
MAX_BYTES = 2**30  # of a file of pass rates


def silent(_stage: str, _done: int, _total: int | None) -> None:
    """Say nothing: a Watch for callers that want no progress."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a preparation: it makes one record of each input.

    Attributes:
        name: The name of the stage.
        process: Makes the records of some inputs, in their order.
        whole: Whether `process` must see all inputs at once.
    """

    name: str
    process: Callable[[Sequence[Any]], list[Record]]
    whole: bool = False


def run_stages(stages: Sequence[Stage], inputs: Sequence[Any], watch: Watch = silent) -> dict[str, list[Record]]:
    """Run stages one after the other. Each gets what the one before it kept.

    Returns:
        The records of each stage, in the order of its inputs.
    """
    found: dict[str, list[Record]] = {}
    for stage in stages:
        records, size = list[Record](), max(1, len(inputs)) if stage.whole else CHUNK
        watch(stage.name, 0, len(inputs))
        for start in range(0, len(inputs), size):
            records += stage.process(inputs[start : start + size])
            watch(stage.name, len(records), len(inputs))
        found[stage.name] = records
        inputs = list(kept(records))
    return found


def kept(records: Iterable[Record]) -> Iterator[Record]:
    """Return the records that a stage did not leave out."""
    return (record for record in records if "reason" not in record)


def left_out(line: int, reason: str, kind: str, **facts: Any) -> Record:
    """Return the record of an input that a stage left out. `kind` is a short name of the reason, for counts."""
    return {"line": line, "reason": reason, "kind": kind, **facts}


def read_stage(prompt_fields: Sequence[str], answer_fields: Sequence[str], judge: Judge) -> Stage:
    """Read problems from the first of these columns that a record has. Refused records keep an excerpt.

    judge: whether it takes references as the records have them.
    """

    def one(line: int, raw: bytes | Mapping[str, Any]) -> Record:
        try:
            record = parse_line(raw) if isinstance(raw, bytes) else raw
            return parse_record(line, record, prompt_fields, answer_fields, as_it_is=judge.as_it_is).record()
        except ValueError as problem:
            return left_out(line, str(problem), "malformed", excerpt=excerpt(raw))

    return Stage("read", lambda inputs: [one(line, raw) for line, raw in inputs])


def distinct_stage(judge: Judge) -> Stage:
    """Keep the first of equal problems. Where their answers differ, nobody knows which is right, so none stays.

    judge: two answers that are written differently may be equal.
    """

    def process(inputs: Sequence[Record]) -> list[Record]:
        alike: dict[str, list[Record]] = {}
        for record in inputs:
            alike.setdefault(canonical_text(record["problem"]), []).append(record)
        contradicting = {text: same for text, same in alike.items() if len(same) > 1 and not _agree(same, judge)}

        def one(record: Record) -> Record:
            text, line = canonical_text(record["problem"]), record["line"]
            if text in contradicting:
                lines = ", ".join(str(other["line"]) for other in contradicting[text][:10])
                return left_out(line, f"the same problem has different answers in lines {lines}", "conflicting")
            first = alike[text][0]["line"]
            return record if line == first else left_out(line, f"repeats line {first}", "repeated")

        return list(map(one, inputs))

    return Stage("distinct", process, whole=True)


def _agree(same: Sequence[Record], judge: Judge) -> bool:
    """Return whether the answers of equal problems are equal, as texts or to the judge."""
    if len({normalised(record["answer"]) for record in same}) == 1:
        return True
    wanted, *others = map(reference_of, same)
    verdicts = judge.verdicts([(judge.shown(answer), wanted, True) for answer in others])
    return all(verdict.label == 1.0 for verdict in verdicts)


def exclude_stage(contamination: Contamination) -> Stage:
    """Leave out problems that share their words with a benchmark."""

    def one(record: Record) -> Record:
        shared = contamination.of(record["problem"])
        if shared is None:
            return record
        reason = f"shares {WORDS} words in a row, or all its words, with line {shared[1]} of {shared[0]}"
        return left_out(record["line"], reason, f"in {shared[0]}")

    def process(inputs: Sequence[Record]) -> list[Record]:
        contamination.learn(lambda: (record["problem"] for record in inputs))
        return list(map(one, inputs))

    return Stage("exclude", process, whole=True)


def reference_stage(judge: Judge, drop: Collection[str] = ()) -> Stage:
    """Leave out problems whose reference answer, written as a response, does not get label 1.

    The records of the others say of which kind of `verify.audit.KINDS` their reference is. Those of the kinds in `drop`
    are left out, too.
    """

    def process(inputs: Sequence[Record]) -> list[Record]:
        verdicts = judge.verdicts([(judge.shown(one), one, True) for one in map(reference_of, inputs)])
        kinds = judge.audit([record["answer"] for record in inputs])
        records = []
        for record, verdict, kind in zip(inputs, verdicts, kinds, strict=True):
            why = verdict.cause if verdict.label is None else "the verifier does not accept it as its own answer"
            if verdict.label == 1.0 and kind not in drop:
                records.append(record if kind is None else {**record, "audit": kind})
                continue
            if verdict.label == 1.0:
                why = f"it holds {KINDS[str(kind)]}"
            reason = f"reference answer {record['answer'][:80]!r}: {why}"
            records.append(left_out(record["line"], reason, "reference" if verdict.label != 1.0 else str(kind)))
        return records

    return Stage("reference", process)


def length_stage(encoder: PromptEncoder, limit: int) -> Stage:
    """Leave out problems whose whole prompt has more than `limit` tokens."""

    def one(record: Record) -> Record:
        try:
            tokens = len(encoder.encode(record["problem"]))
        except UserError:  # of the tokenizer itself, not of this problem
            raise
        except ValueError as problem:
            return left_out(record["line"], str(problem), "unreadable")
        if tokens > limit:
            return left_out(record["line"], f"{tokens} tokens, above the limit of {limit}", "overlong")
        return {**record, "prompt_tokens": tokens}

    return Stage("length", lambda inputs: list(map(one, inputs)))


def measure_stage(
    measurement: Measurement, question: Callable[[Problem], Question], chunk: int, journal: Journal,
    watch: Watch = silent,
) -> Stage:  # fmt: skip
    """Measure the pass rate over k responses.

    Args:
        measurement: Draws and judges.
        question: Asks for a problem.
        chunk: Problems between two commits.
        journal: Keeps what was measured, so that a killed preparation continues.
        watch: Called after every commit.
    """

    def one(record: Record, responses: Sequence[Judged]) -> Record:
        rewards = [judged.reward for judged in responses if judged.reward is not None]
        if not rewards:
            return left_out(record["line"], "the verifier failed on every response", "unjudged")
        correct = int(sum(rewards))
        facts = {
            "responses": len(rewards),
            "correct": correct,
            "failed": len(responses) - len(rewards),
            "tokens": sum(judged.response.tokens for judged in responses),
            "pass_rate": correct / len(rewards),
        }
        return {**record, **facts}

    def process(inputs: Sequence[Record]) -> list[Record]:
        measured = {record["line"]: record for record in journal.read()}
        missing = [record for record in inputs if record["line"] not in measured]
        fresh: list[Record] = []

        def save() -> None:
            if fresh:
                journal.commit(fresh, len(fresh))
                measured.update((record["line"], record) for record in fresh)
                fresh.clear()
                watch("measure", len(measured), len(inputs))

        drawn = measurement.draw(question(Problem.of(record)) for record in missing)
        try:
            for record, responses in zip(missing, drawn, strict=True):
                fresh.append(one(record, responses))
                if len(fresh) == chunk:
                    save()
        finally:
            save()
        return [measured[record["line"]] for record in inputs]

    return Stage("measure", process, whole=True)


def lookup_stage(rates: Mapping[str, Record]) -> Stage:
    """Look up pass rates that were measured earlier, by problem id."""

    def one(record: Record) -> Record:
        if record["id"] not in rates:
            return left_out(record["line"], "the file of pass rates does not have this problem", "unmeasured")
        return {**record, **rates[record["id"]]}

    return Stage("measure", lambda inputs: list(map(one, inputs)))


@dataclass(frozen=True, slots=True)
class PassRateBand:
    """Pass rates from low to high. Both ends belong to the band, but not `low` where `above` is set."""

    name: str
    low: float
    high: float
    above: bool = True

    def holds(self, rate: float) -> bool:
        """Return whether the band includes this pass rate."""
        return (rate > self.low if self.above else rate >= self.low - ROUNDING) and rate <= self.high + ROUNDING

    def __str__(self) -> str:
        return f"{self.low:g} {'<' if self.above else '<='} pass rate <= {self.high:g}"


# The published filters. The comments say how many of 16 responses are correct.
BANDS = {
    band.name: band
    for band in (
        PassRateBand("v1", 0.0, 1.0),  # 1 to 16
        PassRateBand("v3", 0.0, 0.375),  # 1 to 6
        PassRateBand("easy", 0.0, 0.313),  # 1 to 5
        PassRateBand("hard", 0.0, 0.125),  # 1 or 2
    )
}


def parse_band(text: str) -> PassRateBand:
    """Read a named band, or `low,high` (both included). Raises UserError for anything else."""
    if text in BANDS:
        return BANDS[text]
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        known = "; ".join(f"{name}: {band}" for name, band in BANDS.items())
        raise UserError(f"--band={text}: use a name ({known}) or two numbers such as 0.1,0.9") from None
    if not 0.0 <= low <= high <= 1.0:
        raise UserError(f"--band={text}: use two ordered numbers between 0 and 1, such as 0.1,0.9")
    return PassRateBand(text, low, high, above=False)


def band_stage(band: PassRateBand) -> Stage:
    """Leave out problems whose pass rate lies outside the band."""

    def one(record: Record) -> Record:
        if band.holds(record["pass_rate"]):
            return record
        return left_out(record["line"], f"pass rate {record['pass_rate']:.4g} is outside {band}", "band")

    return Stage("band", lambda inputs: list(map(one, inputs)))


def read_pass_rates(path: Path) -> dict[str, Record]:
    """Read measured pass rates by problem id, from a pass_rates.jsonl of this program or a similar file.

    Each line has `problem` or `id`, and `pass_rate` or `correct` and `responses`.

    Raises:
        UserError: The file cannot be read, or a line cannot be used.
    """

    def refuse(number: int, reason: str) -> None:
        raise UserError(
            f"--pass-rates={path}: line {number} cannot be used ({reason}); each line needs `problem` or `id`, "
            "and `pass_rate` or `correct` and `responses`"
        )

    rates: dict[str, Record] = {}
    try:
        content = read_bounded(path, MAX_BYTES)
    except OSError as problem:
        raise UserError(f"--pass-rates={path} cannot be read: {problem}") from None
    for number, record in records(content, on_damage=refuse):
        try:
            uid, rates_of_problem = _measured(record)
        except (ValueError, LookupError, TypeError, ArithmeticError) as problem:
            refuse(number, f"no {problem}" if isinstance(problem, KeyError) else str(problem))
        else:
            rates[uid] = rates_of_problem
    if not rates:
        raise UserError(f"--pass-rates={path} has no line")
    return rates


def _measured(record: Record) -> tuple[str, Record]:
    """Return id and pass rate of a line."""
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
