"""The command `nemo-ada prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def prepare(
    config: Annotated[Path, typer.Argument(help="a YAML in configs/")],
    overrides: Annotated[list[str] | None, typer.Argument(help="overlays of configs/methods and key=value")] = None,
) -> None:
    """Fetch model, tokenizer and data sets into HF_HOME, and prove that they load without a network.

    HF_HOME is taken from the environment, else from slurm/site.env. For a YAML of configs/cpu, write its model.
    """
    from nemo_ada.config.load import backend_of
    from nemo_ada.rules.facts.config_file import load_config

    loaded = load_config(config, overrides or [])
    if backend_of(loaded) == "embedded":
        from nemo_ada.cpu.smollm2 import prepare_model

        prepare_model((loaded.get("policy") or {}).get("model_name"), typer.echo)
        return
    from nemo_ada.nemo.launch.prepare import prepare as run

    run(config, overrides or [], say=typer.echo)
