"""Settings of the site come from the environment, else from slurm/site.env, which batch scripts read.

python-dotenv does not read the file as bash does. It turns a backslash and an n in double quotes into a line break,
expands ${NAME} but not $NAME, and accepts spaces around the equals sign. A value that bash reads otherwise would
mislead, so only lines that have one reading are used.
"""

from __future__ import annotations

import os
import re
import stat
from itertools import takewhile
from pathlib import Path

from nemo_ada.run.files import read_bounded

CODE = Path(__file__).parents[3]
"""The folder that holds this package: the project's folder, or site-packages."""
HOME_VARIABLE, SITE_VARIABLE = "NEMO_ADA_HOME", "NEMO_ADA_SITE"
LINE = re.compile(r"""\s*(?:export\s+)?([A-Za-z_]\w*)=(["']?)([^"'`$#\s\\]*)\2\s*(?:#.*)?""")
MAX_BYTES = 1_000_000


def project() -> Path:
    """Return the project's folder.

    It is NEMO_ADA_HOME, else the working folder or the nearest one above it that has slurm/lib.sh. Else it is the
    folder that holds this package. `pip install` without --editable copies the package there. The search ends at the
    first folder that another user owns or can change, because site.env and interpreters are read from the project.
    """
    named = os.environ.get(HOME_VARIABLE)
    if named:
        return Path(named)
    here = Path.cwd()
    for folder in takewhile(_trusted, (here, *here.parents)):
        if all(map(_trusted, (folder / "slurm", folder / "slurm" / "lib.sh"))):
            return folder
    return CODE


def _trusted(path: Path) -> bool:
    """Return whether only this user, root or the owner of this package's code can change what is there."""
    try:
        own, target = path.lstat(), path.stat()
    except OSError:
        return False
    owners = {os.getuid(), 0, Path(__file__).stat().st_uid}
    return {own.st_uid, target.st_uid} <= owners and not target.st_mode & stat.S_IWOTH


def site_file() -> Path:
    """Return the file that batch scripts read: NEMO_ADA_SITE, else slurm/site.env in the project's folder."""
    return Path(os.environ.get(SITE_VARIABLE) or project() / "slurm" / "site.env")


def _is_read(path: Path) -> bool:
    """Whether settings come from this site.env: it is there, and the user named it or nobody else can change it."""
    named = SITE_VARIABLE in os.environ or HOME_VARIABLE in os.environ
    return path.is_file() and (named or all(map(_trusted, (path.parent, path))))


def site_said() -> str:
    """Return a text for people that says which site.env is read."""
    path = site_file()
    if _is_read(path):
        return str(path)
    why = "can be changed by another user, so it is not read" if path.is_file() else "is not there"
    return f"{path} {why}; {SITE_VARIABLE}=FILE names another"


def site_setting(name: str) -> str:
    """Return the value of a variable, empty where nobody set it.

    The environment wins over site.env, as in the batch scripts. Of site.env only lines NAME=value without shell
    expansions are read.
    """
    if name in os.environ:
        return os.environ[name]
    path = site_file()
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8") if _is_read(path) else ""
    except (OSError, ValueError):
        return ""
    value = ""
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        if match is not None and match[1] == name:
            value = match[3]
    return value


def worker_python(kind: str) -> Path | None:
    """Return the interpreter of NeMo-RL's workers of one kind. Its image has one for each kind.

    Args:
        kind: a part of the worker's name, such as megatron; several names with `|` between them.
    """
    venvs = Path(os.environ.get("NEMO_RL_VENV_DIR", "/opt/ray_venvs"))
    pythons = [path for path in sorted(venvs.glob("*/bin/python")) if re.search(kind, path.parts[-3].lower())]
    return pythons[0] if pythons else None
