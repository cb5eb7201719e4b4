"""The command `nemo-ada whatif`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nemo_ada.cli.options import Fields, with_options
from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.answer import Options

WIDTH = 180  # columns of the table when the output is not a terminal


@with_options
def whatif(
    logs: Annotated[list[Path], typer.Argument(help="files or folders with rollouts, or with the curves of a run")],
    options: Annotated[Options, Fields("group", "max_responses", "threshold", preset="presets")] = Options(),
    column: Annotated[
        list[str] | None,
        typer.Option(help="name of your own field or metric, as reward=NAME; also prompt, tokens, step, group"),
    ] = None,
    values: Annotated[
        tuple[float, float] | None,
        typer.Option(help="rewards of a wrong and of a right response, for logs of averages", show_default="0 1"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say what adaptive sampling would have changed, from a log that you already have. It needs no GPU.

    Rollouts say most: NeMo-RL's train_data_step*.jsonl, dumps of verl, slime and miles, tables of TRL, traces of
    prime-rl, and any JSON, CSV or Parquet with prompt, reward and tokens.

    Curves are enough: what a run printed (NeMo-RL, verl, TRL, prime-rl, SkyRL, slime, miles, OpenRLHF), TRL's
    trainer_state.json, CSV files of Weights & Biases, event files of TensorBoard, JSON lines of metrics. Say with
    --group how many responses a prompt got.
    """
    from nemo_ada.lab.whatif.answer import answer, read_log
    from nemo_ada.lab.whatif.render import make_table, write_introduction, write_json, write_sentences

    for path in logs:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder; `nemo-ada whatif --help` lists the logs that it reads")
    found = answer(read_log(logs, _columns(column or []), values), options)
    if json:
        typer.echo(write_json(found))
        return
    typer.echo(f"{write_sentences(found)}\n\n{write_introduction(found)}")
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(make_table(found))


def _columns(pairs: list[str]) -> dict[str, str]:
    """Parse the values of --column."""
    from nemo_ada.lab.whatif.names import FIELDS, QUANTITIES

    known = tuple(dict.fromkeys((*FIELDS, *QUANTITIES)))
    found: dict[str, str] = {}
    for pair in pairs:
        what, _, name = pair.partition("=")
        if what not in known or not name:
            raise UserError(
                f"--column={pair[:80]}: write what it is and your name for it, such as reward=my_score; known are "
                f"{', '.join(known)}"
            )
        found[what] = name
    return found
