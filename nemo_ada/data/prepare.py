"""Data preparation: from a source to a training set with a card.

    OUT/dataset.jsonl     kept problems in the order of the source
    OUT/rejected.jsonl    {line, stage, reason} of everything that was left out, in the order of stage and line
    OUT/pass_rates.jsonl  measured pass rates of all problems, for another band later (`--pass-rates`)
    OUT/card.json, OUT/README.md
    work/ in OUT          journals of the stages; removed at the end

A killed preparation is continued by the same command and writes the same bytes. (What a verifier judges under a wall
clock deadline, and only that, may differ between two runs; such responses are drawn again, see `measure`.)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_ada import __version__
from nemo_ada.data.bands import PassRateBand
from nemo_ada.data.card import StageCount, histogram, readme
from nemo_ada.data.journal import Journal, dump
from nemo_ada.data.judge import Judge
from nemo_ada.data.measure import Measurement, ResponseProvider
from nemo_ada.data.problem import Fields
from nemo_ada.data.prompting import PromptEncoder, PromptFormat
from nemo_ada.data.source import JsonlFile, Source
from nemo_ada.data.stages import (
    Distinct,
    InBand,
    Length,
    Lookup,
    Measure,
    Read,
    Record,
    Reference,
    Stage,
    Watch,
    kept,
    read_pass_rates,
    run_stage,
)
from nemo_ada.data.workfolder import claim
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.files import write_atomically

WORK = "work"
MEASURED = ("responses", "correct", "failed", "pass_rate")
COLUMNS = ("id", "line", "problem", "answer", "responses", "correct", "pass_rate")


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is to be done. encoder: counts tokens for `max_prompt_tokens` (0: no limit) and writes the prompts of the
    provider. provider, pass_rates: where pass rates come from; neither: they are not measured.
    """

    source: Source
    judge: Judge
    fields: Fields = field(default_factory=Fields)
    prompt_format: PromptFormat = field(default_factory=PromptFormat)
    encoder: PromptEncoder | None = None
    max_prompt_tokens: int = 0
    provider: ResponseProvider | None = None
    k: int = 16
    seed: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    chunk: int = 32
    pass_rates: Path | None = None
    band: PassRateBand | None = None

    def __post_init__(self) -> None:
        if self.max_prompt_tokens and self.encoder is None:
            raise UserError(
                f"--max-prompt-tokens={self.max_prompt_tokens} needs a tokenizer to count with; give --model or "
                "--tokenizer, or --max-prompt-tokens 0 to keep prompts of any length"
            )
        if self.provider is not None and self.pass_rates is not None:
            raise UserError(
                "pass rates come from --model or from --pass-rates, not from both; give one (the length limit can take "
                "its tokenizer from --tokenizer)"
            )
        if self.band is not None and self.provider is None and self.pass_rates is None:
            raise UserError(f"--band={self.band.name} needs pass rates: give --model to measure them or --pass-rates")
        if self.provider is not None and self.encoder is None:
            raise InvariantError("a provider without an encoder")

    def settings(self) -> dict[str, Any]:
        """Everything that the result depends on: the identity of the work folder, and the card's settings."""
        measured = self.provider is not None
        return {
            "source": self.source.identity(),
            "fields": {"prompt": "/".join(self.fields.prompt), "answer": "/".join(self.fields.answer)},
            "verifier": self.judge.version,
            "unfinished": self.judge.unfinished,
            "tokenizer": None if self.encoder is None else self.encoder.name,
            "prompt_format": {
                "template": self.prompt_format.template,
                "system": self.prompt_format.system,
                "suffix": self.prompt_format.suffix or None,
            },
            "max_prompt_tokens": self.max_prompt_tokens or None,
            "model": {"name": self.provider.name, "fingerprint": self.provider.fingerprint}
            if self.provider is not None
            else None,
            "responses": {"k": self.k, "seed": self.seed, "chunk": self.chunk, **self.sampling} if measured else None,
            "pass_rates": None if self.pass_rates is None else JsonlFile(self.pass_rates).identity(),
            "band": None if self.band is None else f"{self.band.name} ({self.band})",
            "nemo_ada": __version__,
        }

    def stages(self) -> list[Stage]:
        """The stages that these settings ask for, in order."""
        found: list[Stage] = [Read(self.fields), Distinct(), Reference(self.judge)]
        if self.encoder is not None and self.max_prompt_tokens:
            found.append(Length(self.encoder, self.max_prompt_tokens))
        if self.provider is not None and self.encoder is not None:
            measurement = Measurement(self.provider, self.encoder, self.judge, self.k, self.seed)
            found.append(Measure(measurement, self.chunk))
        elif self.pass_rates is not None:
            found.append(Lookup(read_pass_rates(self.pass_rates)))
        if self.band is not None:
            found.append(InBand(self.band))
        return found


def prepare(plan: Preparation, out: Path, watch: Watch = lambda _stage, _done, _total: None) -> dict[str, Any]:
    """Make the data set, or continue or (when it is complete) only return its card.

    watch: called after every chunk. Raises UserError where `out` holds another data set, the
    source cannot be read, or no problem is left.
    """
    settings = plan.settings()
    claim(out, settings, cleared=lambda: _cleared(out))
    finished = out / "card.json"
    if finished.exists():
        shutil.rmtree(out / WORK, ignore_errors=True)
        return read_card(finished)
    (out / WORK).mkdir(exist_ok=True)
    journals: dict[str, Journal] = {}
    inputs: Callable[[], Iterable[Any]] = plan.source.records
    total: int | None = None
    try:
        for number, stage in enumerate(plan.stages()):
            journal = Journal(out / WORK / f"{number}-{stage.name}.jsonl")
            run_stage(stage, inputs(), total, journal, watch)
            journals[stage.name] = journal
            inputs, total = _reader(journal), journal.passed
    finally:
        plan.judge.close()
        if plan.provider is not None:
            plan.provider.close()
    return _write(out, settings, journals)


def _cleared(out: Path) -> bool:
    """Remove the journals of a preparation that has measured nothing; False where there is more to keep."""
    measured = any(path.stat().st_size for path in (out / WORK).glob(f"*-{Measure.name}.jsonl"))
    if measured or (out / "card.json").exists() or not (out / WORK).exists():
        return False
    shutil.rmtree(out / WORK)
    return True


def read_card(path: Path) -> dict[str, Any]:
    """The card of a finished data set. Raises UserError where it is damaged."""
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        counts = [(int(count["inputs"]), dict(count["left_out"])) for count in card["stages"].values()]
        if isinstance(card["problems"], int) and counts:
            return dict(card)
        raise ValueError("no count of problems")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise UserError(f"{path} is damaged ({problem}); remove {path.parent} and begin anew") from None


def _reader(journal: Journal) -> Callable[[], Iterable[Record]]:
    return lambda: kept(journal)


def _write(out: Path, settings: Mapping[str, Any], journals: Mapping[str, Journal]) -> dict[str, Any]:
    """The files of `out`; card.json is the last one, and says that all are there."""
    last = list(journals.values())[-1]
    counts = {name: _count(name, journal) for name, journal in journals.items()}
    total = sum(count.inputs - count.kept for count in counts.values()) + next(reversed(counts.values())).kept
    if total != counts["read"].inputs:
        raise InvariantError(f"{counts['read'].inputs} inputs, but {total} were kept or left out")
    _write_lines(out / "rejected.jsonl", (dump(record) for record in _rejected(journals)))
    chosen = ({key: record[key] for key in COLUMNS if key in record} for record in kept(last))
    _write_lines(out / "dataset.jsonl", map(dump, chosen))
    rates = None
    if "measure" in journals:
        measured = journals["measure"]
        rows = ({k: r[k] for k in ("id", "line", *MEASURED) if k in r} for r in kept(measured))
        _write_lines(out / "pass_rates.jsonl", map(dump, rows))
        rates = {
            "measured": histogram(record["pass_rate"] for record in kept(measured)),
            "kept": histogram(record["pass_rate"] for record in kept(last)),
        }
    problems = counts[next(reversed(counts))].kept
    card = {
        "title": out.resolve().name,
        "problems": problems,
        "stages": {name: count.facts() for name, count in counts.items()},
        "histogram": rates,
        "settings": dict(settings),
    }
    if not problems:
        worst = max(counts.values(), key=lambda count: count.inputs - count.kept)
        raise UserError(
            f"no problem is left; the stage {worst.name} left out {worst.inputs - worst.kept} of {worst.inputs} "
            f"({', '.join(worst.left_out)}): see {out / 'rejected.jsonl'}, then remove {out} and change the settings"
        )
    write_atomically(out / "README.md", readme(card))
    write_atomically(out / "card.json", json.dumps(card, indent=1, ensure_ascii=False) + "\n")
    shutil.rmtree(out / WORK)
    return card


def _count(name: str, journal: Journal) -> StageCount:
    count = StageCount(name)
    for record in journal.read():
        count.add(record)
    return count


def _rejected(journals: Mapping[str, Journal]) -> Iterator[Record]:
    for name, journal in journals.items():
        for record in journal.read():
            if "reason" in record:
                yield {"line": record["line"], "stage": name, "reason": record["reason"]} | (
                    {"excerpt": record["excerpt"]} if "excerpt" in record else {}
                )


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    """As `write_atomically`, for files of any size."""
    temporary = path.with_name(f".{path.name}.0")
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
        file.flush()
    temporary.replace(path)
