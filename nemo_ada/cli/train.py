"""The command `nemo-ada train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nemo_ada.errors import UserError


def train(
    config: Annotated[Path, typer.Argument(help="a YAML in configs/")],
    overrides: Annotated[list[str] | None, typer.Argument(help="overlays of configs/methods and key=value")] = None,
) -> None:
    """Train with the back end that the YAML names; resume=auto continues from the newest checkpoint."""
    from nemo_ada.cli.progress import unfailing_output
    from nemo_ada.config.load import backend_of
    from nemo_ada.rules.facts.nemo_config import load_config

    loaded = load_config(config, overrides or [])
    if backend_of(loaded) == "nemo_rl":
        try:
            from nemo_ada.nemo.launch.command import run as run_nemo_rl
        except ImportError as error:
            raise UserError(
                f"this configuration trains with NeMo-RL, whose environment is not here ({error}); run it in NeMo-RL's "
                "container, `nemo-ada rehearse` it on a CPU, or take a YAML of configs/cpu"
            ) from None
        with unfailing_output():
            code = run_nemo_rl(config, overrides or [])
        raise typer.Exit(code)
    from nemo_ada.cli.progress import observer
    from nemo_ada.config.parsing import parse
    from nemo_ada.cpu.settings import RunConfig
    from nemo_ada.cpu.trainer import train as run

    checked = parse(RunConfig, loaded)
    with unfailing_output(), observer(checked) as watching:
        outcome = run(checked, watching)
    raise typer.Exit(outcome.exit_code)
