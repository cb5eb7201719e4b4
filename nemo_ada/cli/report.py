"""`nemo-ada report`: the page, the figures and a summary on the terminal; --watch keeps the page current.

--watch rewrites the page instead of relying on TensorBoard because the page shows the axes of cost and the sampling
dynamics side by side, needs no server or port (a laptop opens the file over a shared folder) and is the same page that
is kept afterwards. The embedded back end writes TensorBoard events too, for those who have it open anyway.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from nemo_ada.errors import UserError
from nemo_ada.report import summary
from nemo_ada.report.figures import all_figures
from nemo_ada.report.page import render
from nemo_ada.report.plan import predictions
from nemo_ada.report.png import write_figures
from nemo_ada.report.run import Run, clean, read_usable, state_of
from nemo_ada.report.spec import Grid
from nemo_ada.run.files import write_atomically

TABLE_WIDTH = 200  # where the output is no terminal
FILES = ("metrics.jsonl", "evaluations.jsonl", "status.json", "config.yaml", "environment.json", "plan.json")


def report(
    runs: Annotated[list[Path], typer.Argument(help="run directories (run_dir of a training)")],
    out: Annotated[Path, typer.Option(help="the page; figures go beside it")] = Path("report.html"),
    figures: Annotated[bool, typer.Option(help="also write each figure as PNG")] = True,
    watch: Annotated[bool, typer.Option("--watch", help="rewrite the page while a run goes on")] = False,
    every: Annotated[int, typer.Option(min=1, help="seconds between two looks of --watch")] = 30,
) -> None:
    """A page with figures and tables of one or more runs, and a summary here."""
    console = Console(highlight=False)
    if watch:
        _watch(runs, out, every, console)
    found, left_out = read_usable(runs)
    _write(found, out, None, left_out)
    _print(found, console, left_out)
    console.print(Text(f"page     {out}"), soft_wrap=True)
    if figures:
        folder = out.with_name(f"{out.stem}_figures")
        try:
            written = write_figures(all_figures(found), [run.name for run in found], folder)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error}") from None
        console.print(Text(f"figures  {len(written)} PNG files in {folder}"), soft_wrap=True)


def _write(runs: Sequence[Run], out: Path, reload_seconds: int | None, left_out: Sequence[str]) -> None:
    written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    page = render(runs, written=written, reload_seconds=reload_seconds, left_out=left_out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page)
    except OSError as error:
        raise UserError(f"--out={out} cannot be written: {error}") from None


def _print(runs: Sequence[Run], console: Console, left_out: Sequence[str]) -> None:
    wide = console if console.is_terminal else Console(highlight=False, width=TABLE_WIDTH)
    wide.print(summary.terminal_table(summary.overview(runs), "Overview"))
    equal = summary.equal_cost(runs)
    if equal is not None:
        wide.print(summary.terminal_table(equal, "Mean held-out accuracy at equal cost"))
    planned = predictions(runs)
    if planned is not None:
        wide.print(summary.terminal_table(planned, "Plan"))
    different = summary.differences(runs) if len(runs) > 1 else None
    if different is not None and different.rows:
        wide.print(summary.terminal_table(_turned(different), "Settings that differ"))
    for note in (*left_out, *summary.warnings(runs)):
        console.print(Text(f"note: {clean(note)}", "yellow"), soft_wrap=True)


def _turned(grid: Grid) -> Grid:
    """Runs as rows."""
    return Grid(
        ("run", *(row[0] for row in grid.rows)),
        [(name, *(row[i] for row in grid.rows)) for i, name in enumerate(grid.columns) if i],
    )


def _watch(folders: Sequence[Path], out: Path, every: int, console: Console) -> None:
    """Rewrite the page when a file has changed, until no run says that it is running (or Ctrl-C)."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder; name a run directory (run_dir of a training)")
    console.print(Text(f"watching, every {every} s; Ctrl-C ends with a last page"), soft_wrap=True)
    before: object = None
    try:
        while True:
            now = _signature(folders)
            waiting = [folder for folder in folders if not (folder / "metrics.jsonl").exists()]
            if not waiting and now != before and (found := _usable(folders)) is not None:
                runs, left_out = found
                _write(runs, out, every, left_out)
                steps = ", ".join(f"{clean(run.name)} step {run.column('step')[-1]:.0f}" for run in runs)
                console.print(Text(f"{time.strftime('%H:%M:%S')}  {out}: {steps}"), soft_wrap=True)
                before = now
                if all(state_of(folder) != "running" for folder in folders):
                    return
            time.sleep(every)
    except KeyboardInterrupt:
        return


def _usable(folders: Sequence[Path]) -> tuple[list[Run], list[str]] | None:
    """None while there is no whole step yet and a run still writes."""
    try:
        return read_usable(folders)
    except UserError:
        if any(state_of(folder) == "running" for folder in folders):
            return None
        raise


def _signature(folders: Sequence[Path]) -> object:
    """Changes when a file of a run does."""
    stats = []
    for folder in folders:
        for name in FILES:
            try:
                found = (folder / name).stat()
            except OSError:
                stats.append((0, 0))
                continue
            stats.append((found.st_mtime_ns, found.st_size))
    return stats
