"""Nothing that was only found is trusted.

A command finds files that nobody named: the held-out problems above a model, a site's settings, a module that a YAML
names, a prompt file, a configuration inside a run. Another user or the author of a download can have put them there,
and a download belongs to its user. So owner and mode show nothing. Such a file is used only in these cases:

* The command line names it, or a variable of the environment does.
* It came with this package.
* The user has allowed it once: this path with this content. `nemo-ada allow FILE` does that, and so does the command
  that writes such a file for this user. A file that changes is allowed no longer.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from nemo_ada.errors import UserError
from nemo_ada.run.files import MAX_TEXT, read_bounded, write_atomically

PACKAGE = Path(__file__).resolve().parent
REWARD = "NEMO_ADA_REWARD"  # the variable that names a reward, or other code


def _store() -> Path:
    """Return the folder of what the user has allowed: one file for each, which holds its path."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(home) / "nemo_ada" / "allowed"


def _mark(path: Path) -> Path:
    """Return the file that says that this path with this content is allowed. Raises OSError."""
    try:
        place = path.resolve()
    except RuntimeError as problem:  # a link that leads to itself
        raise OSError(errno.ELOOP, "it is a link that leads to itself", str(path)) from problem
    digest = hashlib.sha256(os.fsencode(place) + b"\0")
    for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        content = hashlib.sha256(read_bounded(file, MAX_TEXT)).digest()
        digest.update(os.fsencode(file) + b"\0" + content)
    return _store() / digest.hexdigest()


def allow(path: Path) -> None:
    """Let later commands use a file, or a package of Python, as it is now. Raises OSError where that fails."""
    mark = _mark(path)
    mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(mark, f"{path.resolve()}\n")


def allow_ours(path: Path) -> None:
    """`allow` a file that this command has written. A home that cannot be written makes the user name it later."""
    try:
        allow(path)
    except OSError:
        return


def allowed(path: Path) -> bool:
    """Return whether the user has allowed this file as it is now."""
    try:
        status = _store().stat()
        ours = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return ours and _mark(path).is_file()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a name that no file can have
        return False


def within(path: Path, folders: Iterable[Path]) -> bool:
    """Return whether a file lies in one of these folders or below, after all links."""
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)


def named(name: str, words: Iterable[str]) -> bool:
    """Return whether one of these words of a command line has this name, which ends where another one would begin."""
    whole = re.compile(rf"(?<![\w.:/-]){re.escape(name)}(?![\w.:/-])")
    return any(whole.search(word) for word in words)


def refusal(what: str, path: Path, naming: str) -> UserError:
    """Return the error for something that was found and that nobody named or allowed.

    Args:
        what: what names it.
        path: the file.
        naming: how a command line names it.
    """
    return UserError(
        f"{what}: {path} was found and not named, and it may be anybody's; name it with {naming}, or look at it and "
        f"allow it once with `nemo-ada allow {path}`"
    )


def check_wandb(run_dir: Path) -> None:
    """Refuse settings of W&B that were found: they name the server that gets the key. W&B reads them by itself.

    Args:
        run_dir: the folder of the run.

    Raises:
        UserError: there are such settings, in the working folder, in WANDB_DIR or in the run's folder, and no variable
            names the server.
    """
    for folder in (Path(), Path(os.environ.get("WANDB_DIR") or "."), run_dir):
        file = folder / "wandb" / "settings"
        if os.path.exists(file) and not allowed(file) and not os.environ.get("WANDB_BASE_URL"):
            raise refusal("logger.wandb_enabled=true", file, "WANDB_BASE_URL=SERVER, which wins over it,")


def check_code(key: str, name: str, words: Iterable[str], naming: str) -> None:
    """Refuse code that a file names and nobody else. Whoever wrote the file could choose any function of the machine.

    Args:
        key: the setting.
        name: `package.module:name`.
        words: the words of the command line.
        naming: how a command line names it.

    Raises:
        UserError: the code was only found.
    """
    if named(name, [*words, os.environ.get(REWARD, "")]):
        return
    place = code_of(name)
    if place is not None and not allowed(place):
        raise refusal(f"{key}={name!r}", place, f"{naming} or {REWARD}={name}")


def code_of(name: str) -> Path | None:
    """Return the file of the module of `package.module:name`, or the folder of its package. None where there is none.

    Nothing of it runs.
    """
    from nemo_ada.by_name import search_working_folder  # loads numpy

    search_working_folder()
    try:
        found = find_spec(name.partition(":")[0].partition(".")[0])  # for a module in a package this would import both
    except (ImportError, ValueError):
        return None
    if found is None:
        return None
    origin = Path(found.origin or os.devnull)
    return origin.parent if found.submodule_search_locations else origin
