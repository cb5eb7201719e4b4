"""Data preparation makes a training set with a card from a source.

    OUT/dataset.jsonl     kept problems, in the order of the source
    OUT/rejected.jsonl    {line, stage, kind, reason} of every other input, in the order of stage and line
    OUT/responses.jsonl   every measured response without its text; it grows while the model is asked
    OUT/pass_rates.jsonl  measured pass rates of all problems, to choose another band later (`--pass-rates`)
    OUT/card.json         counts and settings; written last

The same command continues a killed preparation: it draws only the responses that are missing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nemo_ada import __version__
from nemo_ada.errors import UserError
from nemo_ada.lab.data.contamination import Contamination, Excluded
from nemo_ada.lab.data.kept import RESPONSES, Responses, begin_or_continue, dump
from nemo_ada.lab.data.measure import Measurement, Question, SamplingSpec, Watch, watch_nothing
from nemo_ada.lab.data.problem import Problem
from nemo_ada.lab.data.providers import ResponseProvider
from nemo_ada.lab.data.source import Source, identify_file
from nemo_ada.lab.data.stages import PassRateBand, Selection, read_pass_rates
from nemo_ada.lab.evaluation.benchmark import Benchmark
from nemo_ada.run.files import claim_folder, write_atomically
from nemo_ada.run.json_lines import Record
from nemo_ada.tasks.prompting import ModelTokenizer
from nemo_ada.verify.judge import Judge

CARD = "card.json"
OUTPUTS = ("rejected.jsonl", "pass_rates.jsonl", "dataset.jsonl")
COLUMNS = ("id", "line", "problem", "answer", "responses", "correct", "pass_rate")


@dataclass(frozen=True, slots=True)
class Preparation:
    """The settings of a preparation.

    Pass rates come from `provider` or from the file `pass_rates`. Without both there are none.

    Attributes:
        problems: The source, how its problems are read, asked and judged, and the limits of prompts and responses.
        encoder: Counts tokens of prompts, and writes the provider's. Without it prompts may have any length.
        provider: The model whose pass rates are measured.
        drawing: The responses per problem, and their seed.
        pass_rates: A file with pass rates that were measured earlier.
        band: The pass rates that are kept.
        exclude: Benchmarks whose problems must not be in the set.
    """

    problems: Benchmark
    encoder: ModelTokenizer | None = None
    provider: ResponseProvider | None = None
    drawing: SamplingSpec = field(default_factory=partial(SamplingSpec, 16))
    pass_rates: Path | None = None
    band: PassRateBand | None = None
    exclude: Sequence[Excluded] = ()

    def __post_init__(self) -> None:
        if self.provider is not None and self.pass_rates is not None:
            raise UserError(
                "--model and --pass-rates both give pass rates; use one (--tokenizer is enough for the length limit)"
            )
        if self.band is not None and self.provider is None and self.pass_rates is None:
            raise UserError(f"--band={self.band.name} needs pass rates; give --model to measure them, or --pass-rates")

    def settings(self, source: Source, judge: Judge) -> dict[str, Any]:
        """Return everything that the result depends on. The folder belongs to it, and the card lists it."""
        provider = self.provider
        origin = {"name", "source", "split", "subset", "revision", "group_by"}
        return {
            "source": source.identity,
            "problems": self.problems.model_dump(mode="json", exclude=origin),
            "judged_by": judge.version,
            "exclude": {benchmark.name: benchmark.source.identity for benchmark in self.exclude} or None,
            "tokenizer": None if self.encoder is None else self.encoder.name,
            "model": None if provider is None else {"name": provider.name, "fingerprint": provider.fingerprint},
            "responses": None if provider is None else {
                "k": self.drawing.k, "seed": self.drawing.seed,
                "temperature": provider.limits.temperature, "top_p": provider.limits.top_p,
            },
            "pass_rates": None if self.pass_rates is None else identify_file(self.pass_rates),
            "band": None if self.band is None else f"{self.band.name} ({self.band})",
            "nemo_ada": __version__,
        }  # fmt: skip


def prepare(plan: Preparation, out: Path, watch: Watch = watch_nothing) -> dict[str, Any]:
    """Make the data set, or continue it. Where it is complete, only its card is read.

    Args:
        plan: The settings.
        out: The folder of the data set.
        watch: Called after every part of the responses.

    Returns:
        The card.

    Raises:
        UserError: `out` holds something else, the source cannot be read, or no problem is left.
    """
    source, judge = plan.problems.open_problems("source"), plan.problems.judge()
    settings = plan.settings(source, judge)
    with closing(claim_folder(out, "data prepare", "--out")), closing(judge):
        card = begin_or_continue(out, settings, CARD)
        if card is not None:
            return card
        for path in (out / name for name in OUTPUTS if (out / name).exists()):
            raise UserError(
                f"{path} is there, and the set is not complete; a killed command has left this file, or it is yours; "
                "move it away and repeat the command"
            )
        selection = Selection(source.records(), plan.problems.prompt_fields, plan.problems.answer_fields, judge)
        layouts = Counter(
            problem.layout + (", system message in `system`" if "system" in problem.columns else "")
            for problem in selection.problems
        )
        selection.keep_distinct()
        if plan.exclude:
            selection.leave_out_contaminated(Contamination(plan.exclude))
        audit = selection.keep_judgeable()
        if plan.encoder is not None:
            selection.keep_short_enough(plan.encoder, plan.problems.max_prompt_tokens)
        rates = _measure_or_read_rates(plan, selection.problems, judge, out, watch)
        if rates is not None:
            selection.keep_measured(rates)
            measured = (
                {"id": problem.uid, "line": problem.line, **rates[problem.uid]} for problem in selection.problems
            )
            write_atomically(out / "pass_rates.jsonl", dump(measured))
            if plan.band is not None:
                selection.keep_in_band(rates, plan.band)
        write_atomically(out / "rejected.jsonl", dump(selection.left_out))
        if not selection.problems:
            raise UserError(
                f"no problem is left of {selection.counts['read']['inputs']}; {out / 'rejected.jsonl'} has the "
                "reasons; change the settings, and name another --out"
            )
        rows = (_make_row(problem, (rates or {}).get(problem.uid, {})) for problem in selection.problems)
        write_atomically(out / "dataset.jsonl", dump(rows))
        card = {
            "problems": len(selection.problems),
            "stages": selection.counts,
            "prompts": plan.encoder.make_contract()
            if plan.provider and isinstance(plan.encoder, ModelTokenizer)
            else None,
            "layout": "; ".join(f"{layout} in {count} rows" for layout, count in layouts.most_common(3)),
            "audit": audit,
            "settings": settings,
        }
        write_atomically(out / CARD, json.dumps(card, indent=1, ensure_ascii=False) + "\n")
        return card


def _measure_or_read_rates(
    plan: Preparation, problems: Sequence[Problem], judge: Judge, out: Path, watch: Watch
) -> dict[str, Record] | None:
    """Return the pass rates by problem, measured now or read from a file, None where nobody asks for them."""
    if plan.pass_rates is not None:
        return read_pass_rates(plan.pass_rates)
    if plan.provider is None or plan.encoder is None:
        return None
    kept = Responses(out / RESPONSES, texts=False)
    questions = [Question(problem, plan.encoder, judge, plan.problems.max_new_tokens, kept) for problem in problems]
    Measurement(plan.provider, plan.drawing, limits_are_wrong=False).draw(questions, watch)
    judged: dict[str, list[float | None]] = {}
    for response in kept.read():
        judged.setdefault(response["id"], []).append(response["reward"])
    rates: dict[str, Record] = {}
    for uid, rewards in judged.items():
        labels = [reward for reward in rewards if reward is not None]
        counts = {"responses": len(labels), "correct": int(sum(labels)), "failed": len(rewards) - len(labels)}
        if labels:
            rates[uid] = {**counts, "pass_rate": counts["correct"] / len(labels)}
    return rates


def _make_row(problem: Problem, rate: Record) -> Record:
    """Return a line of dataset.jsonl: our columns, then those of the source. `source_` marks a name that is taken."""
    row = {"id": problem.uid, "line": problem.line, "problem": problem.text, "answer": problem.reference}
    row |= {name: value for name, value in rate.items() if name in COLUMNS}
    for name, value in problem.columns.items():
        while name in (*COLUMNS, *row):
            name = f"source_{name}"
        row[name] = value
    return row
