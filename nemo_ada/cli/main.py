"""The command line `nemo-ada`. Exit codes: see job_control.py."""

from __future__ import annotations

import errno
import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from nemo_ada import __version__
from nemo_ada.errors import FailedResponsesError, InvariantError, ProcessLostError, StallError, UserError
from nemo_ada.run.files import private_folder
from nemo_ada.run.job_control import EXIT_FAILED, EXIT_LOST, EXIT_STALLED, EXIT_USER_ERROR
from nemo_ada.run.redaction import Redacted, hide, make_printable
from nemo_ada.standing import LONGEST, stand_in, with_whole_paths

# Command -> the line that `nemo-ada --help` shows. Each is the module and the name of its function (or `app`).
COMMANDS = {
    "train": "Train with the back end that the YAML names.",
    "status": "Say how runs and their slots stand.",
    "simulate": "Try a sampling plan on known pass rates.",
    "whatif": "Say what adaptive sampling would have changed in rollouts that you have.",
    "data": "Make training sets: clean, measure, filter, describe.",
    "eval": "Estimate avg@k and pass@k of a model; compare two.",
    "check": "Check a configuration before a job starts.",
    "config": "Show what a configuration resolves to, and every setting.",
    "prepare": "Fetch model and data sets for nodes without internet.",
    "plan": "Predict step times, job slots, and caps.",
    "rehearse": "Run a cluster config on this machine's CPU, or spend the first GPU hour.",
    "export": "Write a checkpoint as a Hugging Face folder.",
    "report": "Write a page with figures and tables of runs.",
}
EXAMPLES = {
    "train": "train configs/cpu/mini_sudoku.yaml",
    "whatif": "whatif runs/grpo/logs",
    "check": "check configs/cpu/mini_sudoku.yaml",
    "prepare": "prepare configs/qwen2.5-math-7b.yaml",
    "plan": "plan configs/qwen2.5-math-7b.yaml",
    "rehearse": "rehearse configs/qwen2.5-math-7b.yaml",
    "eval": "eval runs/first/hf/step_20 --data my.jsonl --out runs/eval",
    "export": "export runs/first",
    "report": "report runs/first",
}
"""What a command that lacks an argument could have been."""
MODULES = {"eval": "evaluate"}  # the module's name where it is not the command's
USERS_PATHS = (
    errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS,
    errno.EINVAL,  # a pipe or a device in the place of a file (run/files.py)
    errno.ENXIO,  # a socket there
)  # fmt: skip
"""Errors of paths that a user can mend. A full or broken disk is a failure instead."""


class LazyCommand(TyperCommand):
    """A command whose module is imported when it runs, not when `--help` lists it."""

    def load(self) -> Any:
        """Return the command itself."""
        module = importlib.import_module(f"nemo_ada.cli.{MODULES.get(str(self.name), self.name)}")
        group = getattr(module, "app", None)
        if group is None:
            group = typer.Typer(add_completion=False)
            group.command(name=self.name)(with_whole_paths(getattr(module, str(self.name))))
        return typer.main.get_command(group)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Build the context of the command. An unknown option gets the advice to write key=value."""
        command = self.load()
        try:
            return command.make_context(info_name, args, parent, **extra)
        except Exception as error:  # typer has a click of its own, or uses click: the class has two homes
            if type(error).__name__ != "NoSuchOption" or all(option.name != "overrides" for option in command.params):
                raise
            name = str(getattr(error, "option_name", ""))
            setting = "resume=auto" if name == "--resume" else "grpo.max_num_steps=5"
            raise UserError(
                f"{name}: `nemo-ada {info_name}` has no such option; a setting of the YAML is written as key=value, "
                f"such as {setting}, and `nemo-ada {info_name} --help` lists the options"
            ) from None


class _Commands(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, line in COMMANDS.items():
            self.add_command(LazyCommand(name, help=line))

    def invoke(self, ctx: Any) -> Any:
        """Run a command. The error of one that lacks something has a whole line that works."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            name = str(ctx.invoked_subcommand)
            if type(error).__name__ != "MissingParameter" or name not in EXAMPLES:
                raise
            what = next(iter(getattr(getattr(error, "param", None), "opts", ())), "an argument")
            raise UserError(
                f"`nemo-ada {name}` needs {what}, such as in `nemo-ada {EXAMPLES[name]}`; `nemo-ada {name} --help` "
                "says more"
            ) from None


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="log what the parts do")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Reinforce-Ada on NVIDIA NeMo-RL, and the same stack on a CPU."""
    from rich.console import Console
    from rich.logging import RichHandler

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be UTF-8
    level = logging.INFO if verbose else logging.WARNING
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    handler.addFilter(Redacted())
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])


def run_guarded(command: Callable[[], object]) -> int:
    """Run a command. Turn known errors into one line and an exit code."""
    try:
        command()
    except UserError as error:
        return _say("error", error, EXIT_USER_ERROR)
    except StallError as error:
        return _say("interrupted", f"{error}; resume=auto continues from the last save", EXIT_STALLED)
    except ProcessLostError as error:
        return _say("interrupted", f"{error}; resume=auto continues from the last save", EXIT_LOST)
    except (FailedResponsesError, InvariantError) as error:
        return _say("failed", error, EXIT_FAILED)
    except OSError as error:
        if error.errno not in USERS_PATHS:
            return _say("failed", error, EXIT_FAILED)
        name = "" if error.filename is None else f": {os.fsdecode(error.filename)[:200]}"
        return _say("error", f"{error.strerror}{name}{_name_owner(error)}", EXIT_USER_ERROR)
    except Exception as error:  # noqa: BLE001 - the last boundary: our own defects, without secrets
        sys.stderr.write(make_printable(hide("".join(traceback.format_exception(error)))))
        return EXIT_FAILED
    return 0


def _name_owner(error: OSError) -> str:
    """Say whose file or folder refused this process, as the end of a message. Empty for another error."""
    if error.errno not in (errno.EACCES, errno.EPERM) or error.filename is None:
        return ""
    place = os.path.abspath(os.fsdecode(error.filename))
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return f"; this process is user {os.getuid()}, and {place} belongs to user {os.stat(place).st_uid}"


def _say(kind: str, error: object, code: int) -> int:
    """Print one line without secrets, terminal control characters and rich's markup; the exit code."""
    from rich.console import Console
    from rich.markup import escape

    Console(stderr=True).print(
        f"[bold red]{kind}:[/] {escape(make_printable(hide(str(error))))}", highlight=False, soft_wrap=True
    )
    return code


def main() -> None:
    """Entry point of `nemo-ada`. What it runs stands in a private folder (standing.py)."""
    sys.exit(run_guarded(_run))


def _run() -> None:
    with private_folder(LONGEST) as folder, stand_in(folder):
        app()


if __name__ == "__main__":
    main()
