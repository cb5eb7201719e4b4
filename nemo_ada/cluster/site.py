"""Settings of the site: the environment, else slurm/site.env, which batch scripts read."""

from __future__ import annotations

import os
import re
from pathlib import Path

CODE = Path(__file__).parents[2]
"""The folder that holds this package: the project's folder, or site-packages."""
HOME_VARIABLE, SITE_VARIABLE = "NEMO_ADA_HOME", "NEMO_ADA_SITE"
LINE = re.compile(r"""\s*(?:export\s+)?([A-Za-z_]\w*)=(["']?)([^"'`$#\s\\]*)\2\s*(?:#.*)?""")
MAX_BYTES = 1_000_000


def project() -> Path:
    """The project's folder: NEMO_ADA_HOME, else the working folder or the nearest one above it that has slurm/lib.sh.

    Where none has it, it is the folder that holds this package, which `pip install` without --editable copies.
    """
    named = os.environ.get(HOME_VARIABLE)
    if named:
        return Path(named)
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "slurm" / "lib.sh").is_file()), CODE)


def site_file() -> Path:
    """The file that batch scripts read: NEMO_ADA_SITE, else slurm/site.env in the project's folder."""
    return Path(os.environ.get(SITE_VARIABLE) or project() / "slurm" / "site.env")


def site_said() -> str:
    """Which site.env is read, for people."""
    path = site_file()
    return str(path) if path.is_file() else f"{path} is not there; {SITE_VARIABLE}=FILE names another"


def site_setting(name: str) -> str:
    """The value of a variable, empty where nobody set it. Of site.env, lines NAME=value without shell expansions are
    understood; the environment wins, as in the batch scripts."""
    if name in os.environ:
        return os.environ[name]
    try:
        with site_file().open(encoding="utf-8") as file:
            text = file.read(MAX_BYTES)
    except (OSError, ValueError):
        return ""
    found = ""
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        if match is not None and match[1] == name:
            found = match[3]
    return found


def worker_python(kind: str) -> Path | None:
    """The interpreter of NeMo-RL's workers of this kind (megatron, dtensor): in its image each kind has its own."""
    venvs = Path(os.environ.get("NEMO_RL_VENV_DIR", "/opt/ray_venvs"))
    found = [path for path in sorted(venvs.glob("*/bin/python")) if kind in path.parts[-3].lower()]
    return found[0] if found else None
