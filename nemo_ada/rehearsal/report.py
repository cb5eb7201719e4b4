"""What a rehearsal says at its end: phases, numbers with thresholds, the resumed run, what a CPU cannot show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_ada.rehearsal.shrink import Layout, Shrunk
from nemo_ada.rehearsal.standins.replacing import Replacements

PHASES = (
    "check", "set-up", "conversion", "refit", "generate", "score", "log-probs", "update", "validate", "save", "export",
    "resume",
)  # fmt: skip
COLUMNS = ("phase", "ran", "seconds", "shrunk", "replaced", "not exercised")
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

NEWEST = "ada/newest_prob_error"
MAX_PROBABILITY_ERROR = 1.01
MAX_KL = 1e-3
MAX_LOGPROB_DIFFERENCE = 1e-3
MAX_NORM_DIFFERENCE = 1e-3
MAX_LOSS_DIFFERENCE = 1e-4


@dataclass(frozen=True, slots=True)
class Number:
    """A number from the real path. bound: it fails above this."""

    name: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the value is finite and within its bound."""
        return math.isfinite(self.value) and self.value <= self.bound


@dataclass
class Events:
    """The events of one run (observe.py)."""

    lines: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Events:
        """Of a file; none where it does not exist."""
        if not path.exists():
            return cls([])
        return cls([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line])

    def of(self, event: str) -> list[dict[str, Any]]:
        """All events of a kind."""
        return [line for line in self.lines if line["event"] == event]

    def seconds(self, phase: str) -> tuple[int, float]:
        """How often a phase ended without an error, and its seconds in all."""
        ended = [line["seconds"] for line in self.of("end") if line["phase"] == phase]
        return len(ended), sum(ended)

    def failure(self) -> tuple[str, str] | None:
        """Phase and cause of the first error; None for a run that ended well."""
        last = [line for line in self.lines if line["event"] in ("refused", "failed")]
        if not last:
            return None
        errors = self.of("error")
        if not errors:
            return "set-up", f"{last[0]['kind']}: {last[0]['message']}"
        first = errors[0]
        cause, kind = _cause(first["message"]) or str(last[0]["message"]), first["kind"]
        named = cause.startswith(kind) or kind.startswith("RayTaskError")  # Ray's message has the remote error's name
        return first["phase"], cause if named else f"{kind}: {cause}"

    def steps(self) -> dict[int, dict[str, float]]:
        """Training metrics per step."""
        made: dict[int, dict[str, float]] = {}
        for line in self.of("metrics"):
            if line["prefix"] == "train":
                made.setdefault(int(line["step"]), {}).update(line["numbers"])
        return made

    def prompts(self, last: float) -> list[str]:
        """Ids of the prompts trained on in the steps up to `last`, in asynchronous Reinforce-Ada."""
        return [prompt for line in self.of("prompts") if line["step"] <= last for prompt in line["prompts"]]

    def rows(self) -> list[list[str]]:
        """Hashes of the training rows, step by step."""
        return [line["rows"] for line in self.of("rows")]


def _cause(message: str) -> str:
    """The last paragraph of a message; the lines before it are a remote traceback, which the log has."""
    lines = message.rstrip().splitlines()
    first = max((number for number, line in enumerate(lines) if line.startswith("  ")), default=-1) + 1
    return "\n".join(lines[first:])


def numbers(events: Events, *, ahead: bool = False) -> list[Number]:
    """Numbers of the undisturbed run, each with its bound. ahead: asynchronous training, where the metrics of a step
    compare weights of different age."""
    made = []
    for step, metrics in sorted(events.steps().items()) if not ahead else ():
        if "token_mult_prob_error" in metrics:
            made.append(Number(f"step {step}: token_mult_prob_error", metrics["token_mult_prob_error"],
                               MAX_PROBABILITY_ERROR))  # fmt: skip
        if "gen_kl_error" in metrics:
            made.append(Number(f"step {step}: gen_kl_error", abs(metrics["gen_kl_error"]), MAX_KL))
    for step, metrics in sorted(events.steps().items()) if ahead else ():
        if NEWEST in metrics:
            made.append(Number(f"step {step}: {NEWEST}", metrics[NEWEST], MAX_PROBABILITY_ERROR))
    for told in events.of("log-probs"):
        made.append(Number("|log-prob - Hugging Face's|, nats", told["difference"], MAX_LOGPROB_DIFFERENCE))
    if ahead:
        after = [told["difference"] for told in events.of("engine log-probs")] or [math.inf]
        made.append(
            Number("after the last refit: |engine's log-prob - learner's|, nats", after[0], MAX_LOGPROB_DIFFERENCE)
        )
        made += _repeated(events.prompts(math.inf))
    for norms in events.of("gradient norms"):
        packed, unpacked = norms["packed"], norms["unpacked"]
        difference = abs(packed - unpacked) / unpacked if unpacked else math.inf  # two zeros would prove nothing
        made.append(Number("packed against unpacked gradient norm, relative", difference, MAX_NORM_DIFFERENCE))
    return made


def _repeated(prompts: Sequence[str]) -> list[Number]:
    """Within an epoch every prompt is trained on once, and a rehearsal is shorter than one. Nothing without
    Reinforce-Ada, which tells the prompts."""
    return [Number("prompts trained on twice", len(prompts) - len(set(prompts)), 0.0)] if prompts else []


def resumed_ahead(before: Events, continued: Events, after: int, last: int) -> list[Number]:
    """The steps after `after` until `last` of a run in asynchronous training that was continued. before: the run that
    made the checkpoint of step `after`.

    Which weights draw a response depends on the clock there, so no two runs are alike; no step may be left out and no
    prompt may be trained on twice.
    """
    differ = set(continued.steps()) ^ set(range(after + 1, last + 1))
    prompts = [*before.prompts(after), *continued.prompts(last)]
    return [Number(f"resumed steps {after + 1} to {last}: missing or repeated", len(differ), 0.0), *_repeated(prompts)]


def resumed(undisturbed: Events, continued: Events, after: int) -> list[Number]:
    """The steps after `after` of a resumed run against those of the undisturbed one."""
    made = []
    expected, actual = undisturbed.steps(), continued.steps()
    for step in sorted(step for step in expected if step > after):
        if step not in actual:
            made.append(Number(f"resumed step {step}: missing", math.inf, 0.0))
            continue
        for name, bound in (("loss", MAX_LOSS_DIFFERENCE), ("lr", 1e-12), ("grad_norm", MAX_NORM_DIFFERENCE)):
            if name in expected[step]:
                difference = abs(expected[step][name] - actual[step].get(name, math.inf))
                made.append(Number(f"resumed step {step}: |{name} difference|", difference, bound))
    rows, again = undisturbed.rows()[after : max(expected, default=0)], continued.rows()  # then the probes' rows
    for number, row in enumerate(rows):
        other = again[number] if number < len(again) else []
        differ = sum(a != b for a, b in zip(row, other, strict=False)) + abs(len(row) - len(other))
        made.append(Number(f"resumed step {after + 1 + number}: rows that differ of {len(row)}", differ, 0.0))
    return made


@dataclass
class Report:
    """Everything of one rehearsal. failure: phase and cause."""

    config: str
    command: str
    layout: Layout
    changes: Sequence[Shrunk]
    stand_ins: Sequence[Replacements]
    seconds: float = 0.0
    failure: tuple[str, str] | None = None
    phases: dict[str, tuple[int, float]] = field(default_factory=dict)
    numbers: list[Number] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every phase ran that the config has, and every number is within its bound."""
        return self.failure is None and bool(self.numbers) and all(number.passed for number in self.numbers)

    def take_phases(self, *runs: Events) -> None:
        """Count and time the phases of these runs."""
        for phase in PHASES:
            parts = [events.seconds(phase) for events in runs]
            self.phases[phase] = (sum(count for count, _ in parts), sum(seconds for _, seconds in parts))

    def table(self) -> list[tuple[str, ...]]:
        """Rows of COLUMNS."""
        made = []
        for phase in PHASES:
            count, seconds = self.phases.get(phase, (0, 0.0))
            failed = self.failure is not None and self.failure[0] == phase
            ran = "FAILED" if failed else f"{count} x" if count else self.absent.get(phase, "no")
            cells = [", ".join(_told(c) for c in self.changes if c.phase == phase and c.kind == kind)
                     for kind in ("shrunk", "replaced", "off")]  # fmt: skip
            made.append((phase, ran, f"{seconds:.1f}" if count else "", *cells))
        return made

    def markdown(self) -> str:
        """The whole report."""
        lines = [f"# Rehearsal of {self.config}", "", f"`{self.command}`", ""]
        verdict = "passed" if self.passed else "failed"
        lines += [f"{verdict} in {self.seconds:.0f} s, {self.layout.text} on this machine's CPU.", ""]
        if self.failure is not None:
            lines += [f"Failed in phase **{self.failure[0]}**: {self.failure[1]}", ""]
        lines += _markdown_table(COLUMNS, self.table())
        if self.numbers:
            cells = [(n.name, f"{n.value:.3g}", f"{n.bound:.3g}", "" if n.passed else "FAILED") for n in self.numbers]
            lines += ["", *_markdown_table(("number", "value", "at most", ""), cells)]
        if self.warnings:
            lines += ["", "Warnings of `nemo-ada check`:", "", *(f"- {warning}" for warning in self.warnings)]
        lines += ["", "Stand-ins:", ""]
        lines += [f"- {stand_in.title}: {stand_in.by}" for stand_in in self.stand_ins]
        lines += ["", "A CPU cannot show:", "", *(f"- {item}" for item in CANNOT_SHOW), ""]
        return "\n".join(lines)

    def as_dict(self) -> Mapping[str, Any]:
        """For report.json."""
        return {
            "config": self.config, "command": self.command, "passed": self.passed, "seconds": self.seconds,
            "layout": self.layout.text, "failure": self.failure, "phases": self.phases,
            "numbers": [{"name": n.name, "value": n.value, "bound": n.bound, "passed": n.passed} for n in self.numbers],
            "changes": [{"kind": c.kind, "phase": c.phase, "key": c.key, "old": c.old, "new": c.new, "why": c.why}
                        for c in self.changes],
            "cannot_show": CANNOT_SHOW,
        }  # fmt: skip


def _told(change: Shrunk) -> str:
    name = change.key.rpartition(".")[2]
    if change.kind == "off":
        return name
    return f"{name} {_short(change.old)} -> {_short(change.new)}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return text if len(text) <= 24 else "..." + text[-16:]


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
