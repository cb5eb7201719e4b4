"""The part of the page that compares evaluations: folders that `nemo-ada eval` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.results import Evaluation, compare, results, setting_differences
from nemo_ada.lab.evaluation.statistics import FEW
from nemo_ada.lab.report.draw import draw_intervals
from nemo_ada.lab.report.run import names_of
from nemo_ada.lab.report.series import Figure, Panel

RESULTS = "results.json"  # only the folder of an evaluation has it
CAPTION = (
    "Each panel is one benchmark and one score. A marker is the mean over the problems, a bar its 95 % interval. The "
    "interval describes the variation over problems of the same kind. The table of differences pairs the problems, so "
    "it finds smaller differences than two intervals do."
)


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


def figure(evaluations: Sequence[Evaluation]) -> Figure:
    """Return the figure with a panel per benchmark and score."""
    scores_of = {name: _scores(evaluation) for name, evaluation in _named(evaluations).items()}
    names = list(scores_of)
    panels = []
    for column in dict.fromkeys(column for columns in scores_of.values() for column in columns):
        shown = [i for i, name in enumerate(names) if column in scores_of[name]]
        value_R3 = np.array([[scores_of[names[i]][column][key] for key in ("mean", "low", "high")] for i in shown])
        drawing = partial(draw_intervals, names=[names[i] for i in shown], methods=shown, value_R3=value_R3)
        panels.append(Panel(column, "score", f"{len(shown)} evaluations", drawing, rows=len(shown)))
    table = pd.DataFrame(
        [
            {"run": name, "score": column} | {key: score[key] for key in ("mean", "low", "high")}
            for name, columns in scores_of.items()
            for column, score in columns.items()
        ]
    )
    return Figure("scores", "Scores", CAPTION, panels, table)


def warnings(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return what a reader must know before comparing evaluations."""
    named = _named(evaluations)
    notes = [
        f"{name}, {benchmark}: {len(result.ids)} problems are few, so its interval is rough"
        for name, evaluation in named.items()
        for benchmark, result in evaluation.benchmarks.items()
        if len(result.ids) < FEW
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
