"""The run of Weights & Biases that belongs to a run folder. Its curves have the names that NeMo-RL gives them.

So a run on a CPU and one on GPUs share their charts. The package wandb is optional.
"""

from __future__ import annotations

import json
import logging
import netrc
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nemo_ada.errors import UserError
from nemo_ada.run.files import json_of, write_atomically

log = logging.getLogger(__name__)

TRACKING = "tracking.json"  # in the run folder: the id of its run of W&B
SERVER = "https://api.wandb.ai"
WITHOUT_SERVER = ("offline", "disabled", "dryrun")
NAMES = {
    "val/response_length": "validation/avg_length",
    "time/sampling": "timing/train/generation",
    "time/update": "timing/train/policy_training",
    "time/refit": "timing/train/prepare_for_generation/total",
    "time/step": "timing/train/total_step_time",
    "time/evaluation": "timing/validation/total_validation_time",
}
"""A name of metrics.jsonl and evaluations.jsonl -> NeMo-RL's name."""
PREFIXES = {"ada/": "train/ada/", "val/": "validation/"}


def tracking_id(run_dir: Path) -> str:
    """Return the id of the folder's run of W&B, the same for all its attempts. The first one writes it."""
    path = run_dir / TRACKING
    if path.exists():
        return str(json_of(path)["wandb_id"])
    run_id = uuid.uuid4().hex[:8]
    write_atomically(path, json.dumps({"wandb_id": run_id}))
    return run_id


def has_key(mode: str | None) -> bool:
    """Return whether W&B has a key here, or needs none. Without one it would wait for a person to type it.

    Args:
        mode: WANDB_MODE.
    """
    if mode in WITHOUT_SERVER or os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", SERVER)).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def check_tracking() -> None:
    """Raise UserError where W&B cannot record a run: the package or a key is missing."""
    try:
        import wandb  # noqa: F401
    except ImportError:
        raise UserError(
            "logger.wandb_enabled=true needs the package wandb: `pip install wandb`, or logger.wandb_enabled=false"
        ) from None
    if not has_key(os.environ.get("WANDB_MODE")):
        raise UserError(
            "logger.wandb_enabled=true, and W&B has no key here: set WANDB_API_KEY, or run `wandb login`; "
            "WANDB_MODE=offline records without a server, and `wandb sync` uploads later"
        )


def nemo_rl_names(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record under NeMo-RL's names, without its step."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if name == "step" or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        start, slash, rest = name.partition("/")
        found[NAMES.get(name, PREFIXES.get(start + slash, start + slash) + rest)] = float(value)
    if "ada/pass_rate" in record:
        found["train/reward"] = float(record["ada/pass_rate"])
    return found


class Curves:
    """The run of W&B of a run folder. A resumed run goes on in it."""

    def __init__(self, run_dir: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Start or continue it.

        Args:
            run_dir: The run folder.
            settings: What `wandb.init` takes: project, name, entity.
            config: The configuration without secrets, which W&B shows beside the curves.

        Raises:
            UserError: W&B refuses the run, or does not answer.
        """
        import wandb

        self._error = wandb.Error
        try:
            self._run = wandb.init(
                **settings, id=tracking_id(run_dir), resume="allow", dir=str(run_dir), config=dict(config)
            )
        except wandb.Error as error:
            raise UserError(
                f"W&B did not start: {str(error)[:300]}; WANDB_MODE=offline records without a server"
            ) from None

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a record. W&B ignores steps that it has, which a resumed run repeats. Its errors end no training."""
        try:
            self._run.log(nemo_rl_names(record), step=int(record["step"]))
        except (OSError, self._error) as error:
            log.warning("W&B did not take step %s: %s", record["step"], error)

    def close(self, *, failed: bool) -> None:
        """End the run at W&B, after everything is sent or written."""
        self._run.finish(exit_code=int(failed))
