"""What `nemo-ada report` does: writes the page and the PNG files, prints a summary, and follows runs (--watch).

--watch rewrites the page, so it needs no server and no port. A laptop opens the file over a shared folder, and the
same page is kept afterwards. The CPU back end writes TensorBoard events too.
"""

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
from nemo_ada.run.status import state_of

TABLE_WIDTH = 200  # where the output is no terminal
FILES = ("metrics.jsonl", "evaluations.jsonl", "status.json", "config.yaml", "environment.json", "plan.json")


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
    write_page(runs, out, None, left_out, scored)
    _print_summary(runs, scored, console, left_out)
    _say(console, f"page     {out}")
    if figures and runs:
        folder = out.with_name(f"{out.stem}_figures")
        try:
            written = write_pngs(all_figures(runs), list(by_method(runs)), folder)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error}") from None
        _say(console, f"figures  {len(written)} PNG files in {folder}")


def watch(folders: Sequence[Path], out: Path, every: int) -> None:
    """Rewrite the page when a file has changed, until no run says that it is running (or Ctrl-C).

    Args:
        folders: Run directories.
        out: The page.
        every: Seconds between two looks at the files.

    Raises:
        UserError: A name is not that of a folder.
    """
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder; name a run directory (run_dir of a training)")
    console = Console(highlight=False)
    _say(console, f"watching, every {every} s; Ctrl-C ends with a last page")
    before: object = None
    try:
        while True:
            now = _signature(folders)
            usable = _read_if_ready(folders) if now != before else None
            if usable is not None:
                runs, left_out = summary.baseline_first(usable[0]), usable[1]
                write_page(runs, out, every, left_out)
                steps = ", ".join(f"{clean(run.name)} step {run.column('step')[-1]:.0f}" for run in runs)
                _say(console, f"{time.strftime('%H:%M:%S')}  {out}: {steps}")
                before = now
            if before is not None and all(state_of(folder) != "running" for folder in folders):
                return
            time.sleep(every)
    except KeyboardInterrupt:
        return


def write_page(
    runs: Sequence[Run],
    out: Path,
    reload_seconds: int | None,
    left_out: Sequence[str],
    scored: Sequence[Evaluation] = (),
) -> None:
    """Write the page of these runs and evaluations to `out`. Raises UserError where that fails."""
    written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    page = render(runs, written=written, scored=scored, reload_seconds=reload_seconds, left_out=left_out)
    write_result(out, page, "--out")


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


def _read_if_ready(folders: Sequence[Path]) -> tuple[list[Run], list[str]] | None:
    """Return the usable runs, or None while a run still writes its first step."""
    running = any(state_of(folder) == "running" for folder in folders)
    if running and not all((folder / FILES[0]).exists() for folder in folders):
        return None
    try:
        return read_usable(folders)
    except UserError:
        if running:
            return None
        raise


def _signature(folders: Sequence[Path]) -> list[tuple[int, int]]:
    """Return what changes when a file of a run does."""
    stats = []
    for path in (folder / name for folder in folders for name in FILES):
        try:
            stat = path.stat()
        except OSError:
            stats.append((0, 0))
        else:
            stats.append((stat.st_mtime_ns, stat.st_size))
    return stats
