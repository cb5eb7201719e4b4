"""The command `nemo-ada train`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from nemo_ada.errors import UserError


def train(
    config: Annotated[Path, typer.Argument(help="a YAML in configs/")],
    overrides: Annotated[list[str] | None, typer.Argument(help="overlays of configs/methods and key=value")] = None,
) -> None:
    """Train with the back end that the YAML names; resume=auto continues from the newest checkpoint."""
    from nemo_ada.run.job_control import EXIT_STOPPED, JobControl, StoppedEarly, handle_signals, stop_early

    folder: list[Path] = []
    with handle_signals(stop_early):
        try:
            _train(config, overrides or [], folder)
        except StoppedEarly as signal:
            code, message = (
                JobControl(folder[0], 0).report_early_end(str(signal)) if folder else (EXIT_STOPPED, str(signal))
            )
            typer.echo(message, err=True)
            raise typer.Exit(code) from None


def _train(config: Path, overrides: list[str], folder: list[Path]) -> None:
    """Train, and put the run's folder into `folder` once it is known to be the run's."""
    from nemo_ada.cli.progress import ignore_closed_output
    from nemo_ada.config.load import backend_of
    from nemo_ada.rules.facts.config_file import load_config

    os.umask(os.umask(0o022) | 0o022)  # a run goes on only from files that nobody else may write
    loaded = load_config(config, overrides)
    if backend_of(loaded) == "nemo_rl":
        try:
            from nemo_ada.nemo.launch.command import run as run_nemo_rl
        except ImportError as error:
            raise UserError(
                f"this configuration trains with NeMo-RL, whose environment is not here ({error}); run it in NeMo-RL's "
                "container, `nemo-ada rehearse` it on a CPU, or take a YAML of configs/cpu"
            ) from None
        with ignore_closed_output():
            code = run_nemo_rl(config, overrides)
        raise typer.Exit(code)
    from nemo_ada.cli.progress import make_observer
    from nemo_ada.config.parsing import parse
    from nemo_ada.cpu.settings import RunConfig
    from nemo_ada.run.folder import RunDir

    checked = parse(RunConfig, loaded)
    RunDir(checked.folder).check(checked.model_dump(mode="json"), resume=checked.resume == "auto")
    folder.append(checked.folder)
    from nemo_ada.cpu.trainer import train as run  # loads Ray and torch, which takes seconds

    with ignore_closed_output():
        outcome = run(checked, make_observer())
    raise typer.Exit(outcome.exit_code)
