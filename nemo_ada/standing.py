"""Where the user stands, and where this process stands: somewhere else. This is the one place that knows both.

Libraries look for files in the working folder: settings of W&B, `matplotlibrc`, `.env`, modules, folders with the name
of a model. Whoever can write there would decide what they do, and next year they look for another name. So a command
notes the folder in which the user started it, and leaves for a private folder that is empty. What it starts stands
there, too. A path that the user wrote means the user's folder, so `get_whole_path` makes it absolute where it is read.

Temporary files have the same fault: libraries keep compiled code, locks and sockets in /tmp under names that anyone can
guess, such as torchinductor_USER, and load what they find there. So TMPDIR is a folder in the private one.

Python code that calls this package by itself, such as a notebook, stands where its user has put it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from nemo_ada.errors import UserError

PLACES = ("_HOME", "_DIR", "_PATH", "_ROOT", "_CACHE", "_SITE", "_PYTHON", "_FILE", "_PREFIX")
"""Ends of the names of variables that hold a path; lists with `:` between are paths, too."""
MORE_PLACES = ("PYTHONPATH", "PATH", "HOME", "TMPDIR", "VIRTUAL_ENV", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
TO_MAKE = ("_HOME", "_DIR", "_ROOT", "_CACHE")
"""Those of the ends whose folder a library makes, so it need not be there: a download to HF_HOME=cache stays."""
FLAGS = ("0", "1", "true", "false", "on", "off", "yes", "no")  # of variables such as VLLM_DISABLE_COMPILE_CACHE=1
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")  # owner/name of the hub
_Path = TypeVar("_Path", str, Path)
TMPDIR = "TMPDIR"
LONGEST = 70 - len("/t")
"""Bytes of the private folder's path, which cli/main.py makes no longer: a socket of vLLM below TMPDIR has 37 more, and
the kernel takes 107."""
_user: list[str] = []  # the folder of the user, once this process has left it
_temporary: list[str | None] = []  # TMPDIR of the user, once this process has another


def get_users_folder() -> Path:
    """Return the folder in which the user started the command."""
    return Path(_user[-1] if _user else os.getcwd())


def get_whole_path(path: _Path) -> _Path:
    """Return a path that the user wrote as one that this process can open, with `~` as the user's home.

    It stays as it is where this process stands in the user's folder.
    """
    home = os.path.expanduser(path)
    return type(path)(os.path.normpath(os.path.join(_user[-1], home)) if _user and home else home)


def with_whole_paths(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that gets the paths of its command line as whole paths, also those in lists."""

    @wraps(command)
    def run(*words: Any, **given: Any) -> Any:
        return command(*map(_make_whole, words), **{name: _make_whole(value) for name, value in given.items()})

    return run


def _make_whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_make_whole(one) for one in value]
    return get_whole_path(value) if isinstance(value, Path) else value


def show_path(path: Path) -> Path:
    """Return a path for messages: below the user's folder as the user would write it."""
    below = _user and path != get_users_folder() and path.is_relative_to(_user[-1])
    return path.relative_to(_user[-1]) if below else path


def get_users_temporary() -> Path:
    """Return the folder for temporary files that stay. Python itself takes another one where it cannot be written."""
    return Path((_temporary[-1] if _temporary else os.environ.get(TMPDIR)) or "/tmp")


def share_temporary() -> None:
    """Give the processes of a cluster the user's TMPDIR: ours is on this machine only. This process keeps ours.

    The batch script has made the user's one private on every node (slurm/node.sh).
    """
    tempfile.gettempdir()  # Python asks the variable once
    if _temporary:
        _set_temporary(_temporary[-1])


def _set_temporary(folder: str | None) -> None:
    if folder is None:
        os.environ.pop(TMPDIR, None)
    else:
        os.environ[TMPDIR] = folder


@contextmanager
def stand_in(folder: Path) -> Iterator[None]:
    """Stand in a private folder within the block, with temporary files in it.

    The variables of the environment that hold paths are made absolute, because a library would look for them from the
    private folder. They stay so after the block: an absolute path means the same in the user's folder.
    """
    try:
        before = os.getcwd()
    except FileNotFoundError:
        raise UserError("the working folder was deleted; change into another one, such as with cd ~") from None
    for name, value in os.environ.items():
        if (name.endswith(PLACES) or name in MORE_PLACES) and "://" not in value:
            os.environ[name] = os.pathsep.join(_make_absolute(name, part, before) for part in value.split(os.pathsep))
    _user.append(before)
    _temporary.append(os.environ.get(TMPDIR))
    os.chdir(folder)
    (folder / "t").mkdir(mode=0o700, exist_ok=True)
    _set_temporary(str(folder / "t"))
    cached, tempfile.tempdir = tempfile.tempdir, None
    try:
        yield
    finally:
        tempfile.tempdir = cached
        _set_temporary(_temporary.pop())
        _user.pop()
        os.chdir(before)


def _make_absolute(name: str, path: str, folder: str) -> str:
    """Return an entry of a variable as an absolute path, where it is one. A name of a program and a flag stay.

    So does a repository of the hub in a variable for a model: a folder of that name may be in the way, and the
    configuration that takes the variable says so (config/paths.py).
    """
    if not path or path.startswith("~") or path.lower() in FLAGS or ("MODEL" in name and REPOSITORY.fullmatch(path)):
        return path
    whole = os.path.join(folder, path)
    return whole if name.endswith(TO_MAKE) or os.path.exists(whole) else path
