"""Tell W&B the server that gets its key. By itself it takes the first one that a file near the run names."""

from __future__ import annotations

import configparser
import os
from pathlib import Path

from nemo_ada.trust import read_found

VARIABLE = "WANDB_BASE_URL"
PUBLIC = "https://api.wandb.ai"


def set_wandb_server() -> None:
    """Set WANDB_BASE_URL where nobody did: to the server that `wandb login` has noted in the user's home, else W&B's.

    Raises:
        UserError: the file in the home may be somebody else's.
    """
    if os.environ.get(VARIABLE):
        return
    file = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser() / "settings"
    noted = configparser.ConfigParser(interpolation=None)
    try:
        noted.read_string(read_found(file, f"set {VARIABLE} to your W&B server").decode(errors="replace"))
    except (OSError, configparser.Error):  # it is not there, or is no such file
        noted.clear()
    os.environ[VARIABLE] = noted.get("default", "base_url", fallback=PUBLIC)
