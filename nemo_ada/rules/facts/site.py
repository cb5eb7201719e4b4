"""Settings of the site come from the environment, else from slurm/site.env, which batch scripts read.

bash reads the file here, too. A second reader would give other values than the jobs get.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from nemo_ada.errors import UserError
from nemo_ada.run.files import read_bounded
from nemo_ada.run.start import TimeoutExpired, run
from nemo_ada.standing import get_users_folder, get_whole_path
from nemo_ada.trust import read_found

CODE = Path(__file__).resolve().parents[3]
"""The folder that holds this package: the project's folder, or site-packages."""
SITE = Path("slurm") / "site.env"
HOME_VARIABLE, SITE_VARIABLE = "NEMO_ADA_HOME", "NEMO_ADA_SITE"
READ = "set -aeuo pipefail; . /dev/stdin >&2; command -p env -0"  # as slurm/lib.sh reads it
READ_SECONDS = 20.0
MAX_BYTES = 1_000_000
WORKS = f"take ownership of it, or name a copy with {SITE_VARIABLE}=FILE"


def find_project() -> Path:
    """Return the project's folder: NEMO_ADA_HOME, else the one that holds this package.

    `pip install` without --editable copies the package elsewhere. A site.env near the working folder is not looked
    for: bash runs it, and a download may hold one.
    """
    named = os.environ.get(HOME_VARIABLE)
    return get_whole_path(Path(named)) if named else CODE


def find_site_file() -> Path:
    """Return the file that batch scripts read: NEMO_ADA_SITE, else slurm/site.env in the project's folder."""
    named = os.environ.get(SITE_VARIABLE)
    return get_whole_path(Path(named)) if named else find_project() / SITE


def describe_site() -> str:
    """Return a text for people that says which site.env is read."""
    path = find_site_file()
    if path.is_file():
        return str(path)
    users = get_users_folder()
    found = next((folder / SITE for folder in (users, *users.parents) if (folder / SITE).is_file()), None)
    other = "" if found is None else f"; {found} is nobody's settings until {SITE_VARIABLE}={found} names it"
    return f"{path} is not there; {SITE_VARIABLE}=FILE names another{other}"


def read_site_setting(name: str) -> str:
    """Return the value of a variable, empty where nobody set it.

    The environment wins over site.env, as in the batch scripts.

    Raises:
        UserError: bash cannot read site.env, or an editor of Windows wrote it.
    """
    if name in os.environ:
        return os.environ[name]
    path = find_site_file()
    if not path.is_file():
        return ""
    try:
        named = SITE_VARIABLE in os.environ
        content = read_bounded(path, MAX_BYTES) if named else read_found(path, WORKS, MAX_BYTES)
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
    """Return all variables after bash has read the content of site.env in this environment."""
    given = {key: value for key, value in environment if key != "BASH_ENV" and not key.startswith("BASH_FUNC_")}
    command = ["bash", "--noprofile", "--norc", "-c", READ]
    try:
        done = run(command, env=given, input=content, capture_output=True, timeout=READ_SECONDS)
    except (OSError, TimeoutExpired) as problem:
        raise UserError(f"bash cannot read {path}: {problem}") from None
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())[-300:]
        raise UserError(f"bash cannot read {path} (exit code {done.returncode}): {said or 'it says nothing'}")
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in done.stdout.split(b"\0") if entry)
    return tuple((key, value) for key, _, value in pairs)


def find_worker_python(kind: str) -> Path | None:
    """Return the interpreter of NeMo-RL's workers of one kind. Its image has one for each kind.

    Args:
        kind: a part of the worker's name, such as megatron; several names with `|` between them.
    """
    venvs = Path(os.environ.get("NEMO_RL_VENV_DIR", "/opt/ray_venvs"))
    pythons = [path for path in sorted(venvs.glob("*/bin/python")) if re.search(kind, path.parts[-3].lower())]
    return pythons[0] if pythons else None
