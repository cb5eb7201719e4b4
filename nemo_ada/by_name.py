"""Parts of a run that a user writes: a function or class that the settings name as `package.module:name`.

Rewards, exit rules, objectives and tasks are found here, on every back end. The working folder is searched last.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from nemo_ada.errors import UserError

CHOICES = 8  # names of a module that a message lists
LIBRARIES = (
    str(Path(__file__).parent) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def search_working_folder() -> None:
    """Let Python find modules in the working folder, behind all others. A console script does not look there."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)


def load(key: str, name: str) -> Callable[..., Any]:
    """Import what the settings name.

    Args:
        key: The setting, for messages.
        name: `package.module:name`.

    Raises:
        UserError: There is no such module or name, or importing it ended with an error, whose file and line are named.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise UserError(f"{key}={name!r} must be package.module:name, for example my_rewards:exact")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise UserError(
            f"{key}={name!r}: {module_name} is Python's own, and nothing in it is meant for this; write a module of "
            "your own, for example my_rewards.py beside the YAML, and name my_rewards:NAME"
        )
    search_working_folder()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - the user's module may raise anything
        missing = isinstance(problem, ModuleNotFoundError) and problem.name == module_name
        raise UserError(
            f"{key}={name!r}: importing {module_name} ended with {type(problem).__name__}: {problem}"
            + ("" if missing else f" ({place_of(problem)})")
            + f"; its folder must be on Python's import path, as with PYTHONPATH={os.getcwd()} for this folder"
        ) from None
    found = getattr(module, attribute, None)
    if callable(found):
        return cast(Callable[..., Any], found)
    names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    what = "has no such name" if found is None else f"has a {type(found).__name__} of that name, not a function"
    raise UserError(f"{key}={name!r}: {module.__file__} {what}; it has {', '.join(names[:CHOICES]) or 'no function'}")


def made(key: str, name: str, *arguments: Any, **named: Any) -> Any:
    """Call what `load` finds. Raises UserError with the user's file and line where the call fails."""
    maker = load(key, name)
    return _tried(f"{key}={name!r}: calling it", lambda: maker(*arguments, **named))


def checked(key: str, name: str, call: Callable[[], Any], kind: type, length: int | None = None) -> Any:
    """Try a part of the user's class.

    Args:
        key: The setting, for messages.
        name: The class, for messages.
        call: Calls the part.
        kind: bool, int or float.
        length: Number of values that an array must have. None for a number.

    Raises:
        UserError: The call failed, or gave something else.
    """
    value = _tried(f"{key}={name!r}: trying it", call)
    wanted = f"an array of {length} of {kind.__name__}" if length is not None else f"a {kind.__name__}"
    array = np.asarray(value)
    fits = array.shape == (() if length is None else (length,)) and np.can_cast(array.dtype, kind, "same_kind")
    if not fits or (kind is bool and array.dtype != np.bool_):
        raise UserError(f"{key}={name!r}: a method gave {str(value)[:60]!r} in place of {wanted} (see recipes/extend)")
    return value


def _tried(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - the user's code may raise anything
        raise UserError(f"{what} ended with {type(problem).__name__}: {problem} ({place_of(problem)})") from None


def place_of(problem: BaseException, without: str = __file__) -> str:
    """Return file and line of the user's last frame of an error: in no library and not in the file `without`."""
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename != without]
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "?"
