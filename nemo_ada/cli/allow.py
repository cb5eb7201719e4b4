"""The command `nemo-ada allow`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nemo_ada import marks as trust
from nemo_ada.errors import UserError
from nemo_ada.run.redaction import printable


def allow(
    files: Annotated[list[Path], typer.Argument(help="a site.env, heldout.yaml, module, package or prompt file")],
) -> None:
    """Let later commands use files that they find, as long as these stay as they are now. Look at them before."""
    for file in files:
        try:
            trust.allow(file)
        except OSError as problem:
            raise UserError(f"{file} cannot be allowed: {problem.strerror or problem}") from None
        typer.echo(printable(f"allowed as it is now: {file.resolve()}"))
