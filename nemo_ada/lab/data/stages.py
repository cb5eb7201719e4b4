"""Which inputs become the problems of a set, and why the others do not.

read       a raw line or row becomes a problem
distinct   keep the first of equal problems (by canonical text), and none where their answers contradict each other
exclude    the problem must not be in a benchmark
reference  the verifier must accept the reference answer itself
length     the whole prompt, template included, must fit
measure    the pass rate of the problem must be known
band       the pass rate must lie in the band

A stage has a reason for each problem that it leaves out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.lab.data.contamination import WORDS, Contamination
from nemo_ada.lab.data.problem import Problem, compute_problem_id, make_excerpt, parse_record
from nemo_ada.run.data_files import Raw
from nemo_ada.run.json_lines import Record, parse_line, read_records
from nemo_ada.tasks.prompting import ModelTokenizer
from nemo_ada.tasks.protocol import make_canonical
from nemo_ada.verify.judge import Judge, normalise_text

Reason = tuple[str, str]
"""Why a problem is left out: a short kind, for counts, and a text for its author."""
ROUNDING = 1e-9


class Selection:
    """The problems of a source that no stage has left out so far.

    Attributes:
        problems: The problems, in the order of the source.
        left_out: A record {line, stage, kind, reason} of every other input.
        counts: The number of inputs of each stage, of kept ones, and of the others by kind.
    """

    def __init__(
        self, rows: Iterable[tuple[int, Raw]], prompt_fields: Sequence[str], answer_fields: Sequence[str], judge: Judge
    ) -> None:
        """Read problems from the first of these columns that a record has. Refused records keep an excerpt."""
        self.problems: list[Problem] = []
        self.left_out: list[Record] = []
        self.counts: dict[str, Record] = {}
        self._judge = judge
        for line, raw in rows:
            try:
                record = parse_line(raw) if isinstance(raw, bytes) else raw
                problem = parse_record(line, record, prompt_fields, answer_fields, judge)
            except ValueError as refusal:
                facts = {"line": line, "stage": "read", "kind": "malformed"}
                self.left_out.append({**facts, "reason": str(refusal), "excerpt": make_excerpt(raw)})
            else:
                self.problems.append(problem)
        refused = {"malformed": len(self.left_out)} if self.left_out else {}
        inputs = len(self.problems) + len(self.left_out)
        self.counts["read"] = {"inputs": inputs, "kept": len(self.problems), "left_out": refused}

    def keep_distinct(self) -> None:
        """Keep the first of equal problems. Where their answers differ, nobody knows which is right, so none stays."""
        alike: dict[str, list[Problem]] = {}
        for problem in self.problems:
            alike.setdefault(make_canonical(problem.text), []).append(problem)
        contradicting = {text for text, same in alike.items() if len(same) > 1 and not self._have_one_answer(same)}

        def find_reason(problem: Problem) -> Reason | None:
            same = alike[text := make_canonical(problem.text)]
            if text in contradicting:
                lines = ", ".join(str(other.line) for other in same[:10])
                return "conflicting", f"the same problem has different answers in lines {lines}"
            return None if problem is same[0] else ("repeated", f"repeats line {same[0].line}")

        self._leave_out("distinct", find_reason)

    def leave_out_contaminated(self, benchmarks: Contamination) -> None:
        """Leave out problems that share their words with a benchmark."""
        benchmarks.learn(problem.text for problem in self.problems)

        def find_reason(problem: Problem) -> Reason | None:
            overlap = benchmarks.find_overlap(problem.text)
            if overlap is None:
                return None
            name, line = overlap
            return f"in {name}", f"shares {WORDS} words in a row, or all its words, with line {line} of {name}"

        self._leave_out("exclude", find_reason)

    def keep_judgeable(self) -> dict[str, dict[str, int]]:
        """Leave out problems whose reference answer, written as a response, does not get label 1.

        Returns:
            How many references of each kind (`verify.audit.KINDS`) are kept, and the first line.
        """
        judge, before = self._judge, self.problems
        verdicts = judge.verdicts(
            [(judge.write_right(problem.reference), problem.reference, True, problem.text) for problem in before]
        )
        verdict_of = {problem.line: verdict for problem, verdict in zip(before, verdicts, strict=True)}

        def find_reason(problem: Problem) -> Reason | None:
            verdict = verdict_of[problem.line]
            if verdict.label == 1.0:
                return None
            cause = verdict.cause if verdict.label is None else "the verifier does not accept it as its own answer"
            return "reference", f"reference answer {problem.answer[:80]!r}: {cause}"

        self._leave_out("reference", find_reason)
        return judge.audit((problem.line, problem.reference) for problem in self.problems)

    def keep_short_enough(self, encoder: ModelTokenizer, limit: int) -> None:
        """Leave out problems whose whole prompt has more than `limit` tokens."""

        def find_reason(problem: Problem) -> Reason | None:
            try:
                tokens = len(encoder.encode(problem.text))
            except UserError:  # of the tokenizer itself, not of this problem
                raise
            except ValueError as refusal:
                return "unreadable", str(refusal)
            return ("overlong", f"{tokens} tokens, above the limit of {limit}") if tokens > limit else None

        self._leave_out("length", find_reason)

    def keep_measured(self, rates: Mapping[str, Record]) -> None:
        """Leave out problems that have no pass rate."""
        unknown = "unmeasured", "no response has a label, or the file of pass rates does not have this problem"
        self._leave_out("measure", lambda problem: None if problem.uid in rates else unknown)

    def keep_in_band(self, rates: Mapping[str, Record], band: PassRateBand) -> None:
        """Leave out problems whose pass rate lies outside the band."""

        def find_reason(problem: Problem) -> Reason | None:
            rate = float(rates[problem.uid]["pass_rate"])
            return None if band.holds(rate) else ("band", f"pass rate {rate:.4g} is outside {band}")

        self._leave_out("band", find_reason)

    def _have_one_answer(self, same: Sequence[Problem]) -> bool:
        """Return whether the answers of equal problems are equal, as texts or to the judge."""
        if len({normalise_text(problem.answer) for problem in same}) == 1:
            return True
        wanted, *others = (problem.reference for problem in same)
        text = same[0].text
        verdicts = self._judge.verdicts([(self._judge.write_right(other), wanted, True, text) for other in others])
        return all(verdict.label == 1.0 for verdict in verdicts)

    def _leave_out(self, stage: str, find_reason: Callable[[Problem], Reason | None]) -> None:
        reasons = [(problem, find_reason(problem)) for problem in self.problems]
        gone = [(problem.line, *reason) for problem, reason in reasons if reason is not None]
        self.problems = [problem for problem, reason in reasons if reason is None]
        kinds = dict(sorted(Counter(kind for _, kind, _ in gone).items()))
        self.counts[stage] = {"inputs": len(reasons), "kept": len(self.problems), "left_out": kinds}
        self.left_out += [{"line": line, "stage": stage, "kind": kind, "reason": text} for line, kind, text in gone]


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
        low, high = 1.0, 0.0
    if not 0.0 <= low <= high <= 1.0:
        known = "; ".join(f"{name}: {band}" for name, band in BANDS.items())
        raise UserError(f"--band={text}: use a name ({known}) or two ordered numbers in [0, 1] such as 0.1,0.9")
    return PassRateBand(text, low, high, above=False)


def read_pass_rates(path: Path) -> dict[str, Record]:
    """Read measured pass rates by problem id, from a pass_rates.jsonl of this program or a similar file.

    Each line has `problem` or `id`, and `pass_rate`.

    Raises:
        UserError: The file cannot be read, or a line cannot be used.
    """
    rates: dict[str, Record] = {}
    line = 0
    try:
        for line, record in read_records(path):  # noqa: B007 - the message names it
            uid: Any = record["id"] if "id" in record else compute_problem_id(record["problem"])
            if isinstance(record["pass_rate"], bool) or not 0.0 <= record["pass_rate"] <= 1.0:
                raise ValueError("its pass rate is outside [0, 1]")
            rates[uid] = {key: record[key] for key in ("responses", "correct", "pass_rate") if key in record}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as problem:
        raise UserError(
            f"--pass-rates={path} cannot be used, from line {line} on: {problem!r}; each line needs `problem` or "
            "`id`, and `pass_rate`"
        ) from None
    return rates
