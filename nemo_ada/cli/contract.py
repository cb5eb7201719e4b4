"""The command `nemo-ada contract`. Exit codes: 0 nothing differs, 3 something differs, 2 user error."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def contract(
    checkouts: Annotated[list[Path], typer.Argument(help="[OLD] NEW: two checkouts of NeMo-RL; OLD is NEMO_RL_HOME's")],
    uses: Annotated[Path | None, typer.Option(help="YAML list of the names that your own program touches")] = None,
    run: Annotated[Path | None, typer.Option(help="a cluster config to rehearse with both, in the short form")] = None,
    json: Annotated[Path | None, typer.Option(help="file for the differences")] = None,
) -> None:
    """Compare two checkouts of NeMo-RL in every name, returned value, key and metric that we touch.

    Both are read as source, so neither must be importable. `--run` needs the environments of `make rehearsal-env`.
    """
    from nemo_ada.errors import UserError
    from nemo_ada.rehearsal.contract.command import contract as compare
    from nemo_ada.rehearsal.contract.command import default_checkout

    if len(checkouts) > 2:
        raise UserError("more than two checkouts were given; write `nemo-ada contract [OLD] NEW`")
    old, new = checkouts if len(checkouts) == 2 else [default_checkout(), checkouts[0]]
    raise typer.Exit(compare(old, new, uses=uses, run=run, out=json, say=typer.echo))
