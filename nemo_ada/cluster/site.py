"""Settings of the site: the environment, else slurm/site.env, which batch scripts read."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"""\s*(?:export\s+)?([A-Za-z_]\w*)=(["']?)([^"'`$#\s\\]*)\2\s*(?:#.*)?""")
MAX_BYTES = 1_000_000


def site_file() -> Path:
    """The file that batch scripts read: NEMO_ADA_SITE, else slurm/site.env of this project."""
    return Path(os.environ.get("NEMO_ADA_SITE") or ROOT / "slurm" / "site.env")


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
