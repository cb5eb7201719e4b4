"""The command line `nemo-ada`. Exit codes: see jobcontrol.py."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from nemo_ada.cli.check import check
from nemo_ada.cli.data import app as data_commands
from nemo_ada.cli.evaluate import app as eval_commands
from nemo_ada.cli.plan import plan
from nemo_ada.cli.report import report
from nemo_ada.cli.simulate import simulate
from nemo_ada.config.load import apply_overrides, backend_of, load_yaml, plain
from nemo_ada.errors import FailedResponsesError, InvariantError, ProcessLostError, StallError, UserError
from nemo_ada.run.job_control import EXIT_FAILED, EXIT_LOST, EXIT_STALLED, EXIT_USER_ERROR
from nemo_ada.run.redaction import Redacted, hide

USERS_PATHS = (
    errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS,
)  # fmt: skip
"""What the system says of a path that its user can mend; a full disk or a broken one is a failure."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
errors = Console(stderr=True)

ConfigPath = Annotated[Path, typer.Argument(help="a YAML in configs/")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value, in hydra's grammar")]


@app.callback()
def _options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="log what the parts do")] = False,
) -> None:
    """Reinforce-Ada on NVIDIA NeMo-RL, and the same stack on a CPU."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    level = logging.INFO if verbose else logging.WARNING
    handler = RichHandler(console=errors, show_path=False)
    handler.addFilter(Redacted())
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])


@app.command(context_settings={"allow_interspersed_args": True})
def train(config: ConfigPath, overrides: Overrides = None) -> None:
    """Train with the back end that the YAML names; resume=auto continues from the newest checkpoint."""
    loaded = apply_overrides(load_yaml(config), overrides or [])
    if backend_of(loaded) == "nemo_rl":
        try:
            from nemo_ada.nemo.launch import run as run_nemo_rl
        except ImportError as error:
            raise UserError(
                f"backend=nemo_rl needs NeMo-RL's environment, which is not here ({error}); use backend=embedded"
            ) from None
        raise typer.Exit(run_nemo_rl(config, overrides or []))
    from nemo_ada.cli.progress import observer
    from nemo_ada.config.run import RunConfig
    from nemo_ada.config.strict import parse
    from nemo_ada.embedded.trainer import train as run

    checked = parse(RunConfig, plain(loaded))
    with observer(checked) as watching:
        outcome = run(checked, watching)
    raise typer.Exit(outcome.exit_code)


app.command(name="simulate")(simulate)
app.add_typer(data_commands, name="data")
app.add_typer(eval_commands, name="eval")
app.command(name="check")(check)
app.command(name="plan")(plan)
app.command(name="report")(report)


def guarded(command: Callable[[], object]) -> int:
    """Run a command and turn the project's own errors, and the disk's, into one line and an exit code."""
    try:
        command()
    except UserError as error:
        errors.print(f"[bold red]error:[/] {_plain(error)}", highlight=False, soft_wrap=True)
        return EXIT_USER_ERROR
    except (ProcessLostError, StallError) as error:
        hint = "resume=auto goes on from the last save"
        errors.print(f"[bold red]interrupted:[/] {_plain(error)}; {hint}", highlight=False, soft_wrap=True)
        return EXIT_STALLED if isinstance(error, StallError) else EXIT_LOST
    except (FailedResponsesError, InvariantError) as error:
        errors.print(f"[bold red]failed:[/] {_plain(error)}", highlight=False, soft_wrap=True)
        return EXIT_FAILED
    except OSError as error:
        name = "" if error.filename is None else f": {os.fsdecode(error.filename)[:200]}"
        if error.errno in USERS_PATHS:
            errors.print(f"[bold red]error:[/] {_plain(f'{error.strerror}{name}')}", highlight=False, soft_wrap=True)
            return EXIT_USER_ERROR
        errors.print(f"[bold red]failed:[/] {_plain(error)}", highlight=False, soft_wrap=True)
        return EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - the last boundary: a defect of ours, told in full but for secrets
        sys.stderr.write(hide("".join(traceback.format_exception(error))))
        return EXIT_FAILED
    return 0


def _plain(error: object) -> str:
    """The message without secrets, without characters that a terminal would obey, and without rich's markup."""
    shown = (letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in hide(str(error)))
    return escape("".join(shown))


def main() -> None:
    """Entry point of `nemo-ada`."""
    sys.exit(guarded(app))
