"""Set-up and end of a run over NeMo-Gym, in the order of NeMo-RL's examples/nemo_gym/run_grpo_nemo_gym.py."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

import ray

from nemo_ada.config.values import Values
from nemo_ada.nemo.gym.actor import ENVIRONMENT, list_actors

END_SECONDS = 30.0  # Gym ends its servers within seconds


def configure_for_gym(master_config: Any, tokenizer: Any) -> None:
    """Change the configuration as NeMo-RL's example does.

    Args:
        master_config: NeMo-RL's configuration.
        tokenizer: tokenizer of the policy.
    """
    from nemo_rl.environments.nemo_gym import setup_nemo_gym_config

    setup_nemo_gym_config(master_config, tokenizer)
    section = Values(master_config).get(f"env.{ENVIRONMENT}")
    if isinstance(section, MutableMapping):
        section.pop("is_trajectory_collection", None)  # of NeMo-RL's script, not of Gym; a rule refuses true


def prepare_for_gym(master_config: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Change the configuration as NeMo-RL's example does, and load the data.

    A validation has all rows of its set, and one response to each.

    Args:
        master_config: NeMo-RL's configuration. It is changed.
        tokenizer: tokenizer of the policy.

    Returns:
        The training set and the validation set, which may be None.
    """
    from nemo_rl.data.utils import setup_response_data

    configure_for_gym(master_config, tokenizer)
    # None: Gym's environments are servers, which NeMo-RL's set-up starts later, so no data set brings one.
    data, val_data = setup_response_data(tokenizer, master_config.data, env_configs=None)
    if val_data is not None:
        for name in ("max_val_samples", "val_batch_size"):
            Values(master_config).assign(f"grpo.{name}", len(val_data))
    return data, val_data


def end_servers(environment: Any) -> None:
    """End Gym's servers, which are processes of their own."""
    if environment is not None:
        with suppress(Exception):  # an error here must not hide the error of the run
            ray.get([actor.shutdown.remote() for actor in list_actors(environment)], timeout=END_SECONDS)
