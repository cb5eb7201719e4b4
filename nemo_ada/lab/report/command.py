"""What `nemo-ada report` does: writes the page and the PNG files, and prints a summary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.results import Evaluation
from nemo_ada.lab.report import evaluations, summary
from nemo_ada.lab.report.curves import by_method
from nemo_ada.lab.report.draw import write_pngs
from nemo_ada.lab.report.evaluations import is_evaluation
from nemo_ada.lab.report.figures import all_figures
from nemo_ada.lab.report.page import render
from nemo_ada.lab.report.run import Run, clean, read_usable
from nemo_ada.run.files import write_result

TABLE_WIDTH = 200  # where the output is no terminal


def make_report(folders: Sequence[Path], out: Path, *, figures: bool = True) -> None:
    """Write the page to `out`, each figure as PNG beside it, and print a summary.

    Args:
        folders: Run directories, and folders of evaluations.
        out: The page.
        figures: Whether the PNG files are written.

    Raises:
        UserError: No folder holds a step or an evaluation, or a path cannot be written.
    """
    console = Console(highlight=False)
    scored = [Evaluation.read(folder) for folder in folders if is_evaluation(folder)]
    trained = [folder for folder in folders if not is_evaluation(folder)]
    runs, left_out = read_usable(trained) if trained or not scored else ([], [])
    runs = summary.baseline_first(runs)
    written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    write_result(out, render(runs, written=written, scored=scored, left_out=left_out), "--out")
    _print_summary(runs, scored, console, left_out)
    _say(console, f"page     {out}")
    if figures and runs:
        folder = out.with_name(f"{out.stem}_figures")
        try:
            drawn = write_pngs(all_figures(runs), list(by_method(runs)), folder)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error}") from None
        _say(console, f"figures  {len(drawn)} PNG files in {folder}")


def _say(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)


def _print_summary(
    runs: Sequence[Run], scored: Sequence[Evaluation], console: Console, left_out: Sequence[str]
) -> None:
    for sentence in summary.answer(runs):
        _say(console, clean(sentence))
    wide = console if console.is_terminal else Console(highlight=False, width=TABLE_WIDTH)
    different = summary.differences(runs)
    for title, table in (
        ("Overview", summary.overview(runs) if runs else None),
        ("Mean held-out accuracy at equal cost", summary.equal_cost(runs)),
        ("Plan", summary.predictions(runs)),
        ("Settings that differ", different.T.rename_axis("run") if len(different) else None),
        ("Evaluations", evaluations.scores(scored) if scored else None),
    ):
        if table is not None:
            wide.print(summary.terminal_table(table, title))
    for note in (*left_out, *summary.warnings(runs), *evaluations.warnings(scored)):
        console.print(Text(f"note: {clean(note)}", "yellow"), soft_wrap=True)
