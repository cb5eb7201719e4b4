"""The report of a rehearsal: phases, measurements with their bounds, the resumed run, and what a CPU cannot show.

`Events` are what the processes of a run noted. `measure_run` and `compare_resumed` make measurements of them, each with
the bound under which it passes, and `Report` collects these and writes report.md and report.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from nemo_ada.rehearsal.shrink import ConfigChange, Layout
from nemo_ada.rehearsal.standins.replacing import Replacements
from nemo_ada.rules.finding import Finding
from nemo_ada.run.files import write_atomically
from nemo_ada.run.json_lines import read_records
from nemo_ada.run.redaction import hide

SERVERS = "servers"
"""Phase in which NeMo-Gym's servers start. The table has it only where they do."""
PHASES = (
    "check", "set-up", SERVERS, "conversion", "refit", "generate", "score", "log-probs", "update", "validate", "save",
    "export", "resume",
)  # fmt: skip
CANNOT_SHOW = (
    "CUDA kernels, CUDA graphs and fusions",
    "Transformer Engine, FP8 and BF16 arithmetic",
    "NCCL, NVLink and the network between nodes",
    "GPU memory, sleep mode and out-of-memory errors",
    "vLLM's CUDA build, tensor parallelism inside an engine",
    "context parallelism",
    "the model's real weights, tokenizer and lengths, unless they were on this machine",
    "how long anything takes",
)

TOKENS_IN_LOSS = "global_valid_toks"
"""NeMo-RL's metric of a step: the tokens of all its updates that were in the loss."""
NEWEST = "ada/newest_prob_error"
"""The metric that stands for NeMo-RL's in asynchronous training (`measure_run`)."""
MAX_LOGPROB_DIFFERENCE = 1e-3
MAX_NORM_DIFFERENCE = 1e-3
EQUAL = {"loss": 1e-4, "lr": 1e-12, "grad_norm": MAX_NORM_DIFFERENCE}
"""Metric -> the largest difference between a step and the same step of a resumed run."""
Alike = Literal["rows", "prompts", "steps"]


EXACT = {
    "token_mult_prob_error": 1.01,
    "gen_kl_error": 1e-3,
    "engine": MAX_LOGPROB_DIFFERENCE,
    "norm": MAX_NORM_DIFFERENCE,
}
"""The largest differences that pass in float32 on a CPU: two metrics of NeMo-RL, log-probabilities of the engine, nats,
and the packed gradient norm against the unpacked one, relative."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A value from the real path that must not be above its bound.

    Attributes:
        name: What was measured, with its unit.
        value: The measured value.
        bound: The largest value that passes.
    """

    name: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the value is finite and within its bound."""
        return math.isfinite(self.value) and self.value <= self.bound


@dataclass
class Events:
    """The events of one run.

    Attributes:
        lines: What observe.py noted, in order.
    """

    lines: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Events:
        """Return the events of a file. A file that does not exist has none."""
        if not path.exists():
            return cls([])
        return cls([record for _, record in read_records(path)])

    def runs(self) -> dict[str, Events]:
        """The events of each run of a driver, by its name, in order."""
        found: dict[str, Events] = {}
        for line in self.lines:
            if line["event"] == "run":
                found[str(line["name"])] = Events([])
            elif found:
                found[next(reversed(found))].lines.append(line)
        return found

    def memory_by_phase(self) -> dict[str, int]:
        """Return the largest memory of the GPU that was in use while a phase ran, of all processes, in bytes."""
        largest: dict[str, int] = {}
        open_phases: list[str] = []
        now = 0
        for line in self.lines:
            if line["event"] == "begin":
                open_phases.append(line["phase"])
            elif line["event"] == "used":
                now = int(line["bytes"])
            for phase in open_phases:
                largest[phase] = max(largest.get(phase, 0), now)
            if line["event"] in ("end", "error") and line["phase"] in open_phases:
                open_phases.remove(line["phase"])
        return largest

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return all events of a kind."""
        return [line for line in self.lines if line["event"] == event]

    def seconds(self, phase: str) -> tuple[int, float]:
        """Return how often a phase ended without an error, and how many seconds these took together."""
        ended = [line["seconds"] for line in self.of("end") if line["phase"] == phase]
        return len(ended), sum(ended)

    def failure(self) -> tuple[str, str] | None:
        """Phase and cause of the first error without secrets, or None for a run that ended well."""
        last = [line for line in self.lines if line["event"] in ("refused", "failed")]
        if not last:
            return None
        errors = self.of("error")
        if not errors:
            return "set-up", hide(f"{last[0]['kind']}: {last[0]['message']}")
        first = errors[0]
        cause, kind = hide(_remove_traceback(first["message"]) or str(last[0]["message"])), first["kind"]
        has_name = cause.startswith(kind) or kind.startswith("RayTaskError")  # Ray's message has the remote error's
        return first["phase"], cause if has_name else f"{kind}: {cause}"

    def steps(self, prefix: str = "train") -> dict[int, dict[str, float]]:
        """Training metrics per step. With prefix `timing/train`, seconds."""
        steps: dict[int, dict[str, float]] = {}
        for line in self.of("metrics"):
            if line["prefix"] == prefix:
                steps.setdefault(int(line["step"]), {}).update(line["numbers"])
        return steps

    def prompts(self, last: float) -> list[str]:
        """Ids of the prompts that the steps up to `last` trained on. Only asynchronous Reinforce-Ada records them."""
        return [prompt for line in self.of("prompts") if line["step"] <= last for prompt in line["prompts"]]

    def rows(self, what: str = "rows") -> list[list[str]]:
        """Hashes of the training rows, step by step, or sorted hashes of their prompts."""
        lines = [line.get(what, []) for line in self.of("rows")]
        return [sorted(hashes) for hashes in lines] if what == "prompts" else lines


def _remove_traceback(message: str) -> str:
    """Return a message without the remote traceback before it, which the log has."""
    lines = message.rstrip().splitlines()
    first = max((number for number, line in enumerate(lines) if line.startswith("  ")), default=-1) + 1
    return "\n".join(lines[first:])


def measure_run(events: Events, *, ahead: bool = False, largest: Mapping[str, float] = EXACT) -> list[Deviation]:
    """The measurements of the undisturbed run.

    Args:
        events: Events of the run.
        ahead: Whether it trained asynchronously. NeMo-RL's metrics of a step compare weights of different age
            then, so another metric takes their place.
        largest: The largest differences that pass.
    """
    both = {name: largest[name] for name in ("token_mult_prob_error", "gen_kl_error")}
    bounds = {NEWEST: largest["token_mult_prob_error"]} if ahead else both
    results = [
        Deviation(f"step {step}: {name}", abs(metrics[name]), bound)
        for step, metrics in sorted(events.steps().items())
        for name, bound in bounds.items()
        if name in metrics and has_tokens(metrics)
    ]
    results += _measure_gradients(events)
    for event in events.of("log-probs"):
        results.append(Deviation("|log-prob - Hugging Face's|, nats", event["difference"], MAX_LOGPROB_DIFFERENCE))
    if ahead:
        differences = [event["difference"] for event in events.of("engine log-probs")] or [math.inf]
        name = "after the last refit: |engine's log-prob - learner's|, nats"
        results.append(Deviation(name, differences[0], largest["engine"]))
        results += _count_repeated(events.prompts(math.inf))
    for norms in events.of("gradient norms"):
        if "packed" not in norms:
            continue
        packed, unpacked = norms["packed"], norms["unpacked"]
        difference = abs(packed - unpacked) / unpacked if unpacked else math.inf  # two zeros would prove nothing
        results.append(Deviation("packed against unpacked gradient norm, relative", difference, largest["norm"]))
    return results


def has_tokens(metrics: Mapping[str, float]) -> bool:
    """Return whether a step had a token in the loss. Without one its loss and errors are 0 or 0/0: nothing measured."""
    return metrics.get(TOKENS_IN_LOSS, math.nan) != 0.0


def _measure_gradients(events: Events) -> list[Deviation]:
    """Return in how many steps the last update had no gradient. NeMo-RL reports the norm of that update alone.

    Where none had one, the probe's norm of the newest update that had something to learn stands for them. The row fails
    where there was something to learn and no gradient was seen, because a comparison of zeros proves nothing.
    """
    steps = events.steps()
    norms = {step: metrics["grad_norm"] for step, metrics in steps.items() if "grad_norm" in metrics}
    idle = [step for step, norm in norms.items() if not norm > 0]
    probed = max((event["unpacked"] for event in events.of("gradient norms")), default=0.0)
    learns = [line["learns"] for line in events.of("rows") if "learns" in line]
    could = any(map(any, learns)) if learns else any(has_tokens(steps[step]) for step in norms)
    empty = sum(not has_tokens(steps[step]) for step in idle)
    reasons = [f"{empty} had no token in the loss"] if empty else []
    if idle and probed > 0:
        reasons.append(f"an update that had an advantage has the norm {probed:.2g}")
    name = f"steps whose last update had no gradient, of {len(norms)}" + (f" ({'; '.join(reasons)})" if reasons else "")
    return [Deviation(name, len(idle), len(norms) - (could and not probed > 0))] if norms else []


def _count_repeated(prompts: Sequence[str]) -> list[Deviation]:
    """Return how many prompts were trained on twice.

    There may be none, because a rehearsal is shorter than one epoch. The list is empty without Reinforce-Ada, whose
    hooks record the prompt ids.
    """
    return [Deviation("prompts trained on twice", len(prompts) - len(set(prompts)), 0.0)] if prompts else []


def compare_resumed(before: Events, continued: Events, after: int, last: int, alike: Alike) -> list[Deviation]:
    """Compare a resumed run with the run that saved its checkpoint. No step may be missing.

    Args:
        before: Events of the run that saved the checkpoint.
        continued: Events of the run that continued from it.
        after: Step of the checkpoint.
        last: Last step of the run.
        alike: `rows` where the engine repeats its responses: loss, learning rate, gradient norm and rows must be
            equal. `prompts` where it does not: learning rates and prompts must be equal, losses finite. `steps` where
            the clock says which weights generate a response (asynchronous training): no prompt comes twice.
    """
    expected, actual = before.steps(), continued.steps()
    differ = set(actual) ^ set(range(after + 1, last + 1))
    results = [Deviation(f"resumed steps {after + 1} to {last}: missing or repeated", len(differ), 0.0)]
    if alike == "steps":
        return [*results, *_count_repeated([*before.prompts(after), *continued.prompts(last)])]
    bounds = EQUAL if alike == "rows" else {"lr": EQUAL["lr"]}
    for step in sorted(step for step in expected if step > after and step in actual):
        measured = has_tokens(expected[step]) or has_tokens(actual[step])
        for name, bound in (bounds if measured else {"lr": EQUAL["lr"]}).items():
            difference = abs(expected[step].get(name, math.inf) - actual[step].get(name, math.inf))
            results.append(Deviation(f"resumed step {step}: |{name} difference|", difference, bound))
        if alike == "prompts" and measured:
            results.append(Deviation(f"resumed step {step}: loss", actual[step].get("loss", math.nan), math.inf))
    # Behind the rows of the last step come those of the probes.
    for position, rows in enumerate(before.rows(alike)[after:last]):
        again = [*continued.rows(alike), *[[]] * last][position]
        wrong = sum(a != b for a, b in zip(rows, again, strict=False)) + abs(len(rows) - len(again))
        name = f"resumed step {after + 1 + position}: {alike} that differ of {len(rows)}"
        results.append(Deviation(name, wrong, 0.0))
    return results


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the report.

    Attributes:
        title: What it shows.
        head: Names of the columns.
        rows: Cells, one tuple per row.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> list[str]:
        """Return the lines of the table under its title."""
        cells = ([cell.replace("|", "\\|") for cell in row] for row in self.rows)
        rows = (f"| {' | '.join(row)} |" for row in cells)
        return ["", f"## {self.title}", "", f"| {' | '.join(self.head)} |", f"|{'---|' * len(self.head)}", *rows]


@dataclass
class Report:
    """The results of one rehearsal.

    Attributes:
        config: Path of the config.
        command: Command line that repeats the rehearsal.
        layout: Processes of a run.
        changes: Changes of the config.
        stand_ins: Replacements of the GPU's libraries.
        seconds: Duration of the whole rehearsal.
        failure: Phase and cause of the failure, or None.
        phases: Phase -> how often it ran, and its seconds in all.
        measurements: Every measured value with its bound.
        absent: Phase -> why it did not run.
        warnings: Warnings of `nemo-ada check`.
        title: What the report is.
        machine: Where the runs took place.
        cannot_show: What it cannot show, where there are stand-ins.
        tables: More tables, each with its title, its head and its rows.
        notes: Sentences at the end.
    """

    config: str
    command: str
    layout: Layout
    changes: Sequence[ConfigChange]
    stand_ins: Sequence[Replacements]
    seconds: float = 0.0
    failure: tuple[str, str] | None = None
    phases: dict[str, tuple[int, float]] = field(default_factory=dict)
    measurements: list[Deviation] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    title: str = "Rehearsal"
    machine: str = "this machine's CPU"
    cannot_show: Sequence[str] = CANNOT_SHOW
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing failed, something was measured, and every measurement is within its bound."""
        within = all(measurement.passed for measurement in self.measurements)
        return self.failure is None and bool(self.measurements) and within

    def take_phases(self, *runs: Events) -> None:
        """Count and time the phases of these runs."""
        for phase in PHASES:
            parts = [events.seconds(phase) for events in runs]
            self.phases[phase] = (sum(count for count, _ in parts), sum(seconds for _, seconds in parts))

    def take_findings(self, findings: Iterable[Finding]) -> None:
        """Take the warnings of `nemo-ada check`. With an error of it the rehearsal has failed."""
        said = [(finding.level, f"{finding.key}: {finding.message}") for finding in findings]
        self.warnings = [text for level, text in said if level == "warning"]
        if errors := [text for level, text in said if level == "error"]:
            self.failure = ("check", "\n".join(errors))

    def write(self, folder: Path) -> None:
        """Write report.md and report.json."""
        write_atomically(folder / "report.md", self.markdown())
        write_atomically(folder / "report.json", json.dumps(self.as_dict(), indent=1, default=str))

    def all_tables(self) -> Iterator[Table]:
        """All tables, those of every rehearsal and `tables`."""
        rows = []
        for phase in PHASES:
            count, seconds = self.phases.get(phase, (0, 0.0))
            if phase != SERVERS or count:
                failed = self.failure is not None and self.failure[0] == phase
                ran = "FAILED" if failed else f"{count} x" if count else self.absent.get(phase, "no")
                rows.append((phase, ran, f"{seconds:.1f}" if count else ""))
        yield Table("Phases", ("phase", "ran", "seconds"), tuple(rows))
        numbers = (
            (m.name, f"{m.value:.3g}", f"{m.bound:.3g}", "" if m.passed else "FAILED") for m in self.measurements
        )
        yield Table("Numbers", ("number", "value", "at most", ""), tuple(numbers))
        yield from self.tables
        changes = ((change.key, _shorten(change.old), _shorten(change.new), change.why) for change in self.changes)
        yield Table("Changes of the config", ("key", "was", "is", "because"), tuple(changes))
        yield Table("Stand-ins", ("for", "by"), tuple((group.title, group.by) for group in self.stand_ins))

    def markdown(self) -> str:
        """Return the report as Markdown."""
        verdict = "passed" if self.passed else "failed"
        lines = [f"# {self.title} of {self.config}", "", f"`{self.command}`", ""]
        lines += [f"{verdict} in {self.seconds:.0f} s, {self.layout.text} on {self.machine}."]
        if self.failure is not None:
            lines += ["", f"Failed in phase **{self.failure[0]}**: {self.failure[1]}"]
        for table in self.all_tables():
            lines += table.markdown() if table.rows else []
        cannot_show = self.cannot_show if self.stand_ins else ()
        for title, items in (
            ("Warnings of `nemo-ada check`", self.warnings),
            ("What this cannot show", cannot_show),
            ("Notes", self.notes),
        ):
            lines += ["", f"## {title}", "", *(f"- {item}" for item in items)] if items else []
        return "\n".join([*lines, ""])

    def as_dict(self) -> Mapping[str, Any]:
        """Return the content of report.json."""
        return {
            "config": self.config, "command": self.command, "passed": self.passed, "seconds": self.seconds,
            "layout": self.layout.text, "failure": self.failure, "phases": self.phases,
            "numbers": [{**asdict(number), "passed": number.passed} for number in self.measurements],
            "changes": [asdict(change) for change in self.changes],
            "cannot_show": self.cannot_show if self.stand_ins else (),
            "tables": [asdict(table) for table in self.tables],
            "notes": self.notes,
        }  # fmt: skip


def _shorten(value: Any) -> str:
    """Return a value in at most 24 characters."""
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return text if len(text) <= 24 else "..." + text[-16:]
