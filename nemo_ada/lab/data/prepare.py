"""Data preparation makes a training set with a card from a source.

    OUT/dataset.jsonl     kept problems, in the order of the source
    OUT/rejected.jsonl    {line, stage, reason} of every other input, in the order of stage and line
    OUT/pass_rates.jsonl  measured pass rates of all problems, to choose another band later (`--pass-rates`)
    OUT/card.json         for programs; OUT/README.md for people
    OUT/work              journal of the measured pass rates; removed at the end

The same command continues a killed preparation and writes the same bytes. One exception: a verifier has a deadline by
the clock, so its timeouts may differ between runs. Such responses are sampled again (see `measure`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from nemo_ada import __version__
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.lab.data.contamination import Contamination, Excluded
from nemo_ada.lab.data.journal import OWN, Journal, claimed, clear, dump
from nemo_ada.lab.data.measure import Measurement, Question
from nemo_ada.lab.data.problem import reference_of
from nemo_ada.lab.data.providers import ResponseProvider
from nemo_ada.lab.data.source import Source, file_identity, pinned
from nemo_ada.lab.data.stages import (
    PassRateBand,
    Record,
    Stage,
    Watch,
    band_stage,
    distinct_stage,
    exclude_stage,
    kept,
    length_stage,
    lookup_stage,
    measure_stage,
    read_pass_rates,
    read_stage,
    reference_stage,
    run_stages,
    silent,
)
from nemo_ada.run.files import json_of, replacing, write_atomically
from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS
from nemo_ada.tasks.prompting import ModelTokenizer, PromptEncoder, PromptFormat
from nemo_ada.verify.audit import counted, told
from nemo_ada.verify.judge import Judge

WORK, MEASURED_FILE = "work", "measure.jsonl"
OUTPUTS = ("dataset.jsonl", "rejected.jsonl", "pass_rates.jsonl", "README.md")
MEASURED = ("responses", "correct", "failed", "pass_rate")
COLUMNS = ("id", "line", "problem", "answer", "responses", "correct", "pass_rate")
Records = Sequence[Record]
BINS = 16  # the published filters count out of 16 responses


@dataclass(frozen=True, slots=True)
class Preparation:
    """The settings of a preparation.

    Pass rates come from `provider` or from the file `pass_rates`. Without both there are none.

    Attributes:
        source: Where the records come from.
        judge: Decides whether an answer is right.
        prompt_fields: The columns of the problem. The first one that a record has is used.
        answer_fields: The columns of the reference answer.
        prompt_format: How a problem becomes a prompt.
        encoder: Counts tokens for `max_prompt_tokens`, and writes the provider's prompts.
        max_prompt_tokens: The longest prompt in tokens, 0 for no limit.
        provider: The model whose pass rates are measured.
        k: The number of responses per problem.
        max_new_tokens: The longest response in tokens.
        seed: The seed of all responses.
        sampling: Temperature and the like, for the card.
        chunk: The number of problems between two commits.
        pass_rates: A file with pass rates that were measured earlier.
        band: The pass rates that are kept.
        exclude: Benchmarks whose problems must not be in the set.
        drop: The kinds of references (`nemo_ada.verify.audit`) that are left out.
    """

    source: Source
    judge: Judge
    prompt_fields: Sequence[str] = PROMPT_FIELDS
    answer_fields: Sequence[str] = ANSWER_FIELDS
    prompt_format: PromptFormat = field(default_factory=PromptFormat)
    encoder: PromptEncoder | None = None
    max_prompt_tokens: int = 0
    provider: ResponseProvider | None = None
    k: int = 16
    max_new_tokens: int = 4096
    seed: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    chunk: int = 32
    pass_rates: Path | None = None
    band: PassRateBand | None = None
    exclude: Sequence[Excluded] = ()
    drop: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.max_prompt_tokens and self.encoder is None:
            raise UserError(
                f"--max-prompt-tokens={self.max_prompt_tokens} needs a tokenizer; give --model or --tokenizer, or use "
                "--max-prompt-tokens 0 to keep prompts of any length"
            )
        if self.provider is not None and self.pass_rates is not None:
            raise UserError(
                "--model and --pass-rates both give pass rates; use one (--tokenizer is enough for the length limit)"
            )
        if self.band is not None and self.provider is None and self.pass_rates is None:
            raise UserError(f"--band={self.band.name} needs pass rates; give --model to measure them, or --pass-rates")
        if self.provider is not None and self.encoder is None:
            raise InvariantError("a provider without an encoder")

    def settings(self) -> dict[str, Any]:
        """Return everything that the result depends on. It identifies the work folder, and the card lists it."""
        provider = self.provider
        drawn = {"k": self.k, "seed": self.seed, "max_new_tokens": self.max_new_tokens, **self.sampling}
        return {
            "source": self.source.identity(),
            "fields": {"prompt": "/".join(self.prompt_fields), "answer": "/".join(self.answer_fields)},
            "exclude": {benchmark.name: benchmark.source.identity() for benchmark in self.exclude} or None,
            "verifier": self.judge.version,
            "drop": list(self.drop) or None,
            "unfinished": self.judge.unfinished,
            "tokenizer": None if self.encoder is None else self.encoder.name,
            "prompt_format": {
                "template": self.prompt_format.template,
                "system": self.prompt_format.system,
                "suffix": self.prompt_format.suffix or None,
                "chat_template_kwargs": self.prompt_format.chat_template_kwargs or None,
            },
            "max_prompt_tokens": self.max_prompt_tokens or None,
            "model": None if provider is None else {"name": provider.name, "fingerprint": provider.fingerprint},
            "responses": None if provider is None else drawn,
            "pass_rates": None if self.pass_rates is None else file_identity(self.pass_rates),
            "band": None if self.band is None else f"{self.band.name} ({self.band})",
            "nemo_ada": __version__,
        }

    def stages(self, excluded: Sequence[Excluded], work: Path, watch: Watch) -> list[Stage]:
        """Return the stages that these settings ask for, in order.

        Args:
            excluded: `exclude` at its commits.
            work: The folder of the journal.
            watch: Called after every chunk of measured problems.
        """
        stages = [read_stage(self.prompt_fields, self.answer_fields, self.judge), distinct_stage(self.judge)]
        if excluded:
            stages.append(exclude_stage(Contamination(excluded)))
        stages.append(reference_stage(self.judge, self.drop))
        if self.encoder is not None and self.max_prompt_tokens:
            stages.append(length_stage(self.encoder, self.max_prompt_tokens))
        if self.provider is not None and self.encoder is not None:
            measurement = Measurement(self.provider, self.k, self.seed, limits_are_wrong=False)
            ask = partial(Question, encoder=self.encoder, judge=self.judge, max_new_tokens=self.max_new_tokens)
            stages.append(measure_stage(measurement, ask, self.chunk, Journal(work / MEASURED_FILE), watch))
        elif self.pass_rates is not None:
            stages.append(lookup_stage(read_pass_rates(self.pass_rates)))
        if self.band is not None:
            stages.append(band_stage(self.band))
        return stages


def prepare(plan: Preparation, out: Path, watch: Watch = silent) -> dict[str, Any]:
    """Make the data set, or continue it. Where it is complete, only its card is read.

    Args:
        plan: The settings.
        out: The folder of the data set.
        watch: Called after every chunk.

    Returns:
        The card.

    Raises:
        UserError: `out` holds another data set, the source cannot be read, or no problem is left.
    """
    settings = plan.settings()
    with claimed(out, settings, inner=lambda _settings: (WORK,), results=("card.json", f"{WORK}/{MEASURED_FILE}")):
        card = out / "card.json"
        if card.exists():
            Outputs(out).forget()
            return read_card(card)
        (out / WORK).mkdir(exist_ok=True)
        outputs = Outputs(out)
        for name in OUTPUTS:
            outputs.check(name)
        sources = pinned(
            out, {"source": plan.source, **{benchmark.name: benchmark.source for benchmark in plan.exclude}}
        )
        commit = sources["source"].commit()
        excluded = [replace(benchmark, source=sources[benchmark.name]) for benchmark in plan.exclude]
        try:
            stages = plan.stages(excluded, out / WORK, watch)
            found = run_stages(stages, list(sources["source"].records()), watch)
        finally:
            plan.judge.close()
            if plan.provider is not None:
                plan.provider.close()
        asked = plan.provider is not None and isinstance(plan.encoder, ModelTokenizer)
        contract = cast(ModelTokenizer, plan.encoder).contract() if asked else None
        return _write(outputs, settings | ({"commit": commit} if commit else {}), found, contract)


class Outputs:
    """Writes the files of a set, and replaces only files that this preparation wrote.

    WORK/written.json lists the SHA-256 of what was written. It is saved before a file appears.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._list = folder / WORK / "written.json"
        self._written: list[str] = []
        if self._list.exists():
            try:
                self._written = list(map(str, json_of(self._list)))
            except (ValueError, TypeError) as problem:
                raise UserError(f"{self._list} is damaged ({problem}); remove {folder} and start again") from None

    def check(self, name: str) -> None:
        """Raise UserError where a file has this name that this preparation did not write."""
        path = self.folder / name
        if path.exists() and (not path.is_file() or file_identity(path)["sha256"] not in self._written):
            raise UserError(f"{path} is not a file of this preparation; move it away and repeat the command")

    def write(self, name: str, lines: Iterable[str]) -> None:
        """Replace a file in one step. The file may be larger than the memory."""
        path = self.folder / name
        self.check(name)
        with replacing(path) as file:
            file.writelines(lines)
            file.flush()
            self._written.append(file_identity(Path(file.name))["sha256"])
            write_atomically(self._list, json.dumps(self._written))

    def forget(self) -> None:
        """Remove the work folder of a complete set."""
        clear(self.folder / WORK, re.compile(rf"{OWN.pattern}|{re.escape(self._list.name)}"))


def read_card(path: Path) -> dict[str, Any]:
    """Read the card of a finished data set. Raises UserError where it is damaged."""
    try:
        card = json_of(path)
        counts = [(int(count["inputs"]), dict(count["left_out"])) for count in card["stages"].values()]
        if isinstance(card["problems"], int) and counts:
            return dict(card)
        raise ValueError("no count of problems")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise UserError(f"{path} is damaged ({problem}); remove {path.parent} and start again") from None


def _write(
    outputs: Outputs, settings: Mapping[str, Any], found: Mapping[str, Records], contract: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Write the files of the set. card.json is the last one, so it shows that all are there."""
    out = outputs.folder
    stages = {name: _count(records) for name, records in found.items()}
    last = list(found.values())[-1]
    problems = list(stages.values())[-1]["kept"]
    if sum(sum(count["left_out"].values()) for count in stages.values()) + problems != stages["read"]["inputs"]:
        raise InvariantError(f"not every input of {stages['read']['inputs']} was kept or left out: {stages}")
    outputs.write("rejected.jsonl", map(dump, _rejected(found)))
    rows = map(_row, kept(last))
    outputs.write("dataset.jsonl", map(dump, rows))
    rates = None
    if "measure" in found:
        measured = found["measure"]
        facts = ({k: r[k] for k in ("id", "line", *MEASURED) if k in r} for r in kept(measured))
        outputs.write("pass_rates.jsonl", map(dump, facts))
        rates = {"measured": _histogram(measured), "kept": _histogram(last)}
    if not problems:
        worst = max(stages, key=lambda name: stages[name]["inputs"] - stages[name]["kept"])
        count = stages[worst]
        raise UserError(
            f"no problem is left; the stage {worst} left out {count['inputs'] - count['kept']} of {count['inputs']} "
            f"({', '.join(count['left_out'])}): see {out / 'rejected.jsonl'}, then remove {out} and change the settings"
        )
    card = {
        "title": out.resolve().name,
        "problems": problems,
        "stages": stages,
        "prompts": contract,
        "layout": _layout(found["read"]),
        "system": _system(last),
        "audit": counted((record["line"], record.get("audit")) for record in kept(found["reference"])),
        "histogram": rates,
        "answers": _answer_lengths(last),
        "settings": dict(settings),
    }
    outputs.write("README.md", [_readme(card)])
    write_atomically(out / "card.json", json.dumps(card, indent=1, ensure_ascii=False) + "\n")
    outputs.forget()
    return card


def _layout(records: Records) -> str:
    """Return where prompts and references stood, in words: the most common layout first, with its count."""
    counts = Counter(record.get("layout") for record in kept(records))
    return "; ".join(f"{layout} in {count} rows" for layout, count in counts.most_common(3))


def _system(records: Records) -> dict[str, Any] | None:
    """Return the most common system message of the rows, and how many have it. None where no row has one."""
    counts = Counter(record.get("columns", {}).get("system") for record in kept(records))
    del counts[None]
    return {"text": counts.most_common(1)[0][0], "rows": counts.most_common(1)[0][1]} if counts else None


def _row(record: Record) -> Record:
    """Return a line of dataset.jsonl: our columns, then those of the source. `source_` marks a name that is taken."""
    row = {name: record[name] for name in COLUMNS if name in record} | {"answer": reference_of(record)}
    for name, value in record.get("columns", {}).items():
        while name in (*COLUMNS, *row):
            name = f"source_{name}"
        row[name] = value
    return row


def _answer_lengths(records: Records) -> dict[str, int]:
    """Return the length of the longest answer in characters, its line, and the length that 99 % do not exceed."""
    counts: Counter[int] = Counter()
    longest, line = 0, 0
    for record in kept(records):
        length = len(record["answer"])
        counts[length] += 1
        if length > longest:
            longest, line = length, record["line"]
    seen = 0
    for length in sorted(counts):
        seen += counts[length]
        if seen >= 0.99 * counts.total():
            return {"longest": longest, "line": line, "p99": length}
    return {"longest": 0, "line": 0, "p99": 0}


def _count(records: Records) -> dict[str, Any]:
    """Return the numbers of inputs of a stage, of kept ones, and of the others by kind of reason."""
    kinds = Counter(record.get("kind") if "reason" in record else None for record in records)
    passed = kinds.pop(None, 0)
    return {"inputs": passed + kinds.total(), "kept": passed, "left_out": dict(sorted(kinds.items()))}


def _rejected(found: Mapping[str, Records]) -> Iterator[Record]:
    for name, records in found.items():
        for record in records:
            if "reason" in record:
                yield {"line": record["line"], "stage": name} | {
                    key: record[key] for key in ("reason", "excerpt") if key in record
                }


def _histogram(records: Records) -> list[int]:
    """Return how many kept problems have pass rates of 0, 1, ..., 16 of 16, rounded to the nearest."""
    counts = Counter(int(record["pass_rate"] * BINS + 0.5) for record in kept(records))
    return [counts[sixteenths] for sixteenths in range(BINS + 1)]


def _readme(card: Mapping[str, Any]) -> str:
    rates = card["histogram"]
    lines = [
        "---",
        "configs:",
        "- config_name: default",
        "  data_files: dataset.jsonl",
        "---",
        f"# {card['title']}",
        "",
        f"{card['problems']} problems. Columns: `problem` (plain text; the trainer applies the chat template), "
        "`answer` (reference), `id`, `line` (of the source)"
        + (", `pass_rate` and its counts" if rates else "")
        + ", and the other columns of the source (with `source_` before a name that is taken).",
        "",
        "Every input is in dataset.jsonl or, with stage and reason, in rejected.jsonl.",
        "",
        "| stage | inputs | kept | left out |",
        "|---|---|---|---|",
    ]
    for name, count in card["stages"].items():
        why = ", ".join(f"{kind} {number}" for kind, number in count["left_out"].items()) or "-"
        lines.append(f"| {name} | {count['inputs']} | {count['kept']} | {why} |")
    lines += [
        "",
        f"Layout of the source: {card['layout']}.",
        *(["", *sentences] if (sentences := told(card["audit"])) else []),
    ]
    if rates:
        lines += ["", "| pass rate (nearest) | measured | kept |", "|---|---|---|"]
        pairs = zip(rates["measured"], rates["kept"], strict=True)
        lines += [f"| {i}/{BINS} | {measured} | {left} |" for i, (measured, left) in enumerate(pairs)]
    lines += ["", "## Settings", ""]
    lines += [f"- {name}: {_shown(value)}" for name, value in card["settings"].items()]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items() if inner is not None)
    return "none" if value is None else str(value)
