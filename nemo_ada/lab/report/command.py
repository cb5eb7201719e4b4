"""What `nemo-ada report` does: writes the page and the PNG files, and prints a summary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from nemo_ada.errors import UserError
from nemo_ada.lab.report import summary
from nemo_ada.lab.report.curves import group_by_method
from nemo_ada.lab.report.draw import write_pngs
from nemo_ada.lab.report.figures import make_figures
from nemo_ada.lab.report.page import render_page
from nemo_ada.lab.report.run import clean, read_usable
from nemo_ada.run.files import write_result

TABLE_WIDTH = 200  # where the output is no terminal


def make_report(folders: Sequence[Path], out: Path, *, figures: bool = True) -> None:
    """Write the page to `out`, each figure as PNG beside it, and print a summary.

    Args:
        folders: Run directories.
        out: The page.
        figures: Whether the PNG files are written.

    Raises:
        UserError: No folder holds a step, or a path cannot be written.
    """
    console = Console(highlight=False)
    runs, left_out = read_usable(folders)
    runs = summary.put_baseline_first(runs)
    drawings = make_figures(runs)
    written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    write_result(out, render_page(runs, drawings, written=written, left_out=left_out), "--out")  # which an error names
    for sentence in summary.answer_in_sentences(runs):
        _say(console, clean(sentence))
    wide = console if console.is_terminal else Console(highlight=False, width=TABLE_WIDTH)
    for title, table in summary.make_tables(runs).items():
        wide.print(summary.make_terminal_table(table, title))
    for note in (*left_out, *summary.find_warnings(runs)):
        console.print(Text(f"note: {clean(note)}", "yellow"), soft_wrap=True)
    _say(console, f"page     {out}")
    if figures:
        folder = out.with_name(f"{out.stem}_figures")
        try:
            paths = write_pngs(drawings, list(group_by_method(runs)), folder)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error}") from None
        _say(console, f"figures  {len(paths)} PNG files in {folder}")


def _say(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)
