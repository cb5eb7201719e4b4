"""Settings of the site come from the environment, else from slurm/site.env, which batch scripts read.

bash reads the file here, too. A second reader would give other values than the jobs get.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from nemo_ada.errors import UserError
from nemo_ada.run.files import read_bounded

CODE = Path(__file__).parents[3]
"""The folder that holds this package: the project's folder, or site-packages."""
HOME_VARIABLE, SITE_VARIABLE = "NEMO_ADA_HOME", "NEMO_ADA_SITE"
READ = 'set -aeuo pipefail; . "$1" >&2; command -p env -0'  # as slurm/lib.sh reads it
READ_SECONDS = 20.0
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

    The environment wins over site.env, as in the batch scripts.

    Raises:
        UserError: bash cannot read site.env, or an editor of Windows wrote it.
    """
    if name in os.environ:
        return os.environ[name]
    path = site_file()
    if not _is_read(path):
        return ""
    try:
        content = read_bounded(path, MAX_BYTES)
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}") from None
    windows = re.search(rb"\r|^\xef\xbb\xbf", content)
    if windows:
        line = content[: windows.start()].count(b"\n") + 1
        raise UserError(
            f"{path}, line {line}, has a line end or mark of Windows, which bash reads as a part of the text; remove it"
        )
    return dict(_read_by_bash(path, content, tuple(sorted(os.environ.items())))).get(name, "")


@lru_cache(maxsize=4)
def _read_by_bash(path: Path, content: bytes, environment: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return all variables after bash has read site.env in this environment. `content` says which file was read."""
    given = {key: value for key, value in environment if key != "BASH_ENV" and not key.startswith("BASH_FUNC_")}
    command = ["bash", "--noprofile", "--norc", "-c", READ, "bash", str(path)]
    try:
        done = subprocess.run(
            command, env=given, stdin=subprocess.DEVNULL, capture_output=True, timeout=READ_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise UserError(f"bash cannot read {path}: {problem}") from None
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())[-300:]
        raise UserError(f"bash cannot read {path} (exit code {done.returncode}): {said or 'it says nothing'}")
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in done.stdout.split(b"\0") if entry)
    return tuple((key, value) for key, _, value in pairs)


def worker_python(kind: str) -> Path | None:
    """Return the interpreter of NeMo-RL's workers of one kind. Its image has one for each kind.

    Args:
        kind: a part of the worker's name, such as megatron; several names with `|` between them.
    """
    venvs = Path(os.environ.get("NEMO_RL_VENV_DIR", "/opt/ray_venvs"))
    pythons = [path for path in sorted(venvs.glob("*/bin/python")) if re.search(kind, path.parts[-3].lower())]
    return pythons[0] if pythons else None
