"""What `nemo-ada report` does: writes the page and the PNG files, prints a summary, and follows runs (--watch).

--watch rewrites the page, so it needs no server and no port. A laptop opens the file over a shared folder, and the
same page is kept afterwards. The embedded back end writes TensorBoard events too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from nemo_ada.errors import UserError
from nemo_ada.report import summary
from nemo_ada.report.draw import write_pngs
from nemo_ada.report.figures import all_figures
from nemo_ada.report.page import render
from nemo_ada.report.run import Run, clean, read_usable, state_of
from nemo_ada.run.files import write_atomically

TABLE_WIDTH = 200  # where the output is no terminal
FILES = ("metrics.jsonl", "evaluations.jsonl", "status.json", "config.yaml", "environment.json", "plan.json")


def make_report(folders: Sequence[Path], out: Path, *, figures: bool = True) -> None:
    """Write the page to `out`, each figure as PNG beside it, and print a summary.

    Raises UserError where no folder holds a step, and for paths that cannot be written.
    """
    console = Console(highlight=False)
    runs, left_out = read_usable(folders)
    write_page(runs, out, None, left_out)
    _print_summary(runs, console, left_out)
    _say(console, f"page     {out}")
    if figures:
        folder = out.with_name(f"{out.stem}_figures")
        try:
            written = write_pngs(all_figures(runs), [run.name for run in runs], folder)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error}") from None
        _say(console, f"figures  {len(written)} PNG files in {folder}")


def watch(folders: Sequence[Path], out: Path, every: int) -> None:
    """Rewrite the page when a file has changed, until no run says that it is running (or Ctrl-C).

    every: seconds between two looks. Raises UserError for a name that is no folder.
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
                runs, left_out = usable
                write_page(runs, out, every, left_out)
                steps = ", ".join(f"{clean(run.name)} step {run.column('step')[-1]:.0f}" for run in runs)
                _say(console, f"{time.strftime('%H:%M:%S')}  {out}: {steps}")
                before = now
                if all(state_of(folder) != "running" for folder in folders):
                    return
            time.sleep(every)
    except KeyboardInterrupt:
        return


def write_page(runs: Sequence[Run], out: Path, reload_seconds: int | None, left_out: Sequence[str]) -> None:
    """The page of these runs as the file `out`; raises UserError where that cannot be written."""
    written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    page = render(runs, written=written, reload_seconds=reload_seconds, left_out=left_out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page)
    except OSError as error:
        raise UserError(f"--out={out} cannot be written: {error}") from None


def _say(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)


def _print_summary(runs: Sequence[Run], console: Console, left_out: Sequence[str]) -> None:
    wide = console if console.is_terminal else Console(highlight=False, width=TABLE_WIDTH)
    different = summary.differences(runs) if len(runs) > 1 else None
    for title, grid in (
        ("Overview", summary.overview(runs)),
        ("Mean held-out accuracy at equal cost", summary.equal_cost(runs)),
        ("Plan", summary.predictions(runs)),
        ("Settings that differ", different.turned() if different and different.rows else None),
    ):
        if grid is not None:
            wide.print(summary.terminal_table(grid, title))
    for note in (*left_out, *summary.warnings(runs)):
        console.print(Text(f"note: {clean(note)}", "yellow"), soft_wrap=True)


def _read_if_ready(folders: Sequence[Path]) -> tuple[list[Run], list[str]] | None:
    """The usable runs; None while a run still writes its first step."""
    if not all((folder / FILES[0]).exists() for folder in folders):
        return None
    try:
        return read_usable(folders)
    except UserError:
        if any(state_of(folder) == "running" for folder in folders):
            return None
        raise


def _signature(folders: Sequence[Path]) -> list[tuple[int, int]]:
    """Changes when a file of a run does."""
    stats = []
    for path in (folder / name for folder in folders for name in FILES):
        try:
            stat = path.stat()
        except OSError:
            stats.append((0, 0))
        else:
            stats.append((stat.st_mtime_ns, stat.st_size))
    return stats
