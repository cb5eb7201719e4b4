"""The part of the page that compares evaluations: folders that `nemo-ada eval` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.results import Evaluation, compare, results, setting_differences
from nemo_ada.lab.evaluation.statistics import FEW
from nemo_ada.lab.report.run import names_of

RESULTS = "results.json"  # only the folder of an evaluation has it


def is_evaluation(folder: Path) -> bool:
    """Return whether `nemo-ada eval` finished in this folder."""
    return (folder / RESULTS).is_file()


def scores(evaluations: Sequence[Evaluation]) -> pd.DataFrame:
    """Return the scores: a row per evaluation, a column per benchmark and score, as texts."""
    rows = {
        name: {
            column: _interval(score["mean"], score["low"], score["high"])
            for column, score in _scores(evaluation).items()
        }
        for name, evaluation in _named(evaluations).items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").fillna("–").rename_axis("evaluation")


def comparison(evaluations: Sequence[Evaluation]) -> pd.DataFrame | None:
    """Return how each evaluation differs from the first one, None where there is nothing to compare."""
    named = _named(evaluations)
    names = list(named)
    rows = []
    for name in names[1:]:
        try:
            compared = compare(named[names[0]], named[name])
        except UserError:  # they have no problems in common; `warnings` says so
            continue
        rows += [
            {
                "evaluation": name,
                "benchmark": benchmark,
                "problems": str(row["prompts"]),
                "difference": _interval(row["difference"], row["low"], row["high"], "+.3f"),
                "p": _number(row["p_t"], ".3g"),
                "detectable difference": _number(row["detectable"], ".3f"),
            }
            for benchmark, row in compared.items()
        ]
    return pd.DataFrame(rows).set_index("evaluation") if rows else None


def _interval(value: float | None, low: float | None, high: float | None, form: str = ".3f") -> str:
    """Return a value with its interval as text."""
    return f"{_number(value, form)} [{_number(low, form)}, {_number(high, form)}]"


def _number(value: float | None, form: str) -> str:
    """Return a number as text. A value that is not defined, such as one of no problem, is a dash."""
    return "–" if value is None else format(value, form)


def warnings(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return what a reader must know before comparing evaluations."""
    named = _named(evaluations)
    notes = [
        f"{name}, {benchmark}: {len(result.table)} problems are few, so its interval is rough"
        for name, evaluation in named.items()
        for benchmark, result in evaluation.benchmarks.items()
        if len(result.table) < FEW
    ]
    names = list(named)
    for name in names[1:]:
        settings = setting_differences(named[names[0]], named[name])
        if settings:
            notes.append(f"{names[0]} and {name} were made with different settings: {'; '.join(settings[:5])}")
        if not set(named[names[0]].benchmarks) & set(named[name].benchmarks):
            notes.append(f"{names[0]} and {name} have no benchmark in common")
    return notes


def _named(evaluations: Sequence[Evaluation]) -> dict[str, Evaluation]:
    return dict(zip(names_of([evaluation.folder for evaluation in evaluations]), evaluations, strict=True))


def _scores(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """Return mean, low and high of each benchmark's avg@k and pass@k."""
    summaries = results(list(evaluation.benchmarks.values()), evaluation.k)["benchmarks"]
    return {
        f"{benchmark} {score}": values
        for benchmark, summary in summaries.items()
        for score, values in summary.items()
        if score.startswith(("avg@", "pass@", "maj@")) and values["mean"] is not None
    }
