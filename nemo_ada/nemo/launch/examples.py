"""What the scripts in NeMo-RL's `examples/` call around its set-up, which differs from version to version.

Each function calls what the NeMo-RL that is there has, and nothing where it has none.
"""

from __future__ import annotations

import importlib
import inspect
from contextlib import suppress
from typing import Any

from nemo_ada.config.values import Values

BEFORE_RAY = (
    ("nemo_rl.data_plane.factory", "maybe_configure_data_plane_env", "data_plane"),
    ("nemo_rl.models.generation", "maybe_configure_engine_reaping_env", "async_rl.generation_fleet_health"),
)
"""Module, function and section of what newer examples of NeMo-RL call before Ray starts."""
TELEMETRY = "nemo_rl.telemetry.setup"
DRAFT = "nemo_rl.models.policy.draft_config"


def configure_processes(values: Values) -> None:
    """Let NeMo-RL set the environment variables of all processes, where it has the functions for that."""
    for module, name, section in BEFORE_RAY:
        function, given = getattr(importlib.import_module(module), name, None), values.get(section)
        if function is not None and given is not None:  # a later engine's function takes the switch alone
            switch = "enabled" in inspect.signature(function).parameters
            function(values.get(f"{section}.enabled", False) if switch else given)


def start_telemetry(master_config: Any) -> None:
    """Start the driver's telemetry (pull request 3655). Ray must not run: its processes inherit what this sets."""
    if (telemetry := _import_module(TELEMETRY)) is not None:
        telemetry.init_telemetry_driver(master_config, algorithm="grpo")


def end_telemetry() -> None:
    """Send what telemetry still holds. The engine must have ended, and Ray must still run."""
    with suppress(Exception):  # an error here must not hide the error of the run
        if (telemetry := _import_module(TELEMETRY)) is not None:
            telemetry.shutdown_telemetry()


def configure_generation(master_config: Any, tokenizer: Any) -> None:
    """Complete the section `policy.generation`, and say which weights beside the policy's a refit brings."""
    from nemo_rl.models.generation import configure_generation_config

    values = Values(master_config)
    master_config.policy["generation"] = configure_generation_config(
        master_config.policy["generation"],
        tokenizer,
        has_refit_draft_weights=_refits_draft(values),
        trains_mtp=bool(values.get("policy.megatron_cfg.mtp_num_layers")),
    )


def _refits_draft(values: Values) -> bool:
    """Whether a refit brings weights of a draft model. Newer versions know by the section's type (3701)."""
    draft, section = _import_module(DRAFT), values.get("policy.draft")
    if draft is None or isinstance(section, dict):
        return bool(values.get("policy.draft.enabled", False))
    return bool(draft.draft_refit_enabled(section))


def _import_module(name: str) -> Any:
    """Import a module of NeMo-RL. None where this NeMo-RL has none of this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("nemo_rl"):
            raise
        return None
