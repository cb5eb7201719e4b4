"""Ray: a private cluster with the layout's GPUs, which a CPU pretends to have, and an interpreter per worker class."""

from __future__ import annotations

import os
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("GPU nodes under Ray", "a private Ray on this machine")

GPUS, CPUS = "NEMO_ADA_REHEARSAL_GPUS", 16
POLICY, ENGINE, GYM = "NEMO_ADA_POLICY_PYTHON", "NEMO_ADA_VLLM_PYTHON", "NEMO_ADA_GYM_PYTHON"
OBJECT_STORE_BYTES = 400 * 2**20
ON_GPU_BYTES = 2 * 2**30
ATTEMPTS = 3  # Ray gives its node 30 s to start, which a busy machine misses


@REPLACEMENTS.after(
    "nemo_rl.distributed.virtual_cluster",
    "init_ray",
    why="It would join any Ray of this machine, and a machine without GPUs has none to offer.",
)
def _use_private_cluster(names: Names) -> None:
    names.put("init_ray", lambda log_dir=None: start_private_ray())


@REPLACEMENTS.after(
    "nemo_rl.distributed.ray_actor_environment_registry",
    "ACTOR_ENVIRONMENT_REGISTRY",
    why="NeMo-RL starts each worker class with uv in an environment of its own; the CPU has an interpreter per kind.",
)
def _choose_interpreters(names: Names) -> None:
    registry: dict[str, str] = names.get("ACTOR_ENVIRONMENT_REGISTRY")
    if POLICY not in os.environ:  # NeMo-RL's own container has an environment per kind
        return
    for worker in registry:
        kind = ENGINE if "vllm" in worker.lower() else GYM if "nemo_gym" in worker else POLICY
        registry[worker] = os.environ.get(kind, os.environ[POLICY])


def start_private_ray() -> None:
    """Start a private Ray, whose workers get this process's environment. A process with a Ray keeps that."""
    import ray

    if ray.is_initialized():
        return
    environment: dict[str, Any] = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    for attempt in range(ATTEMPTS):
        try:
            ray.init(
                address="local",
                num_cpus=CPUS,
                num_gpus=int(os.environ[GPUS]),
                include_dashboard=False,
                object_store_memory=ON_GPU_BYTES if os.environ.get("NEMO_ADA_REHEARSAL_ON_GPU") else OBJECT_STORE_BYTES,
                _temp_dir=os.environ.get("NEMO_ADA_REHEARSAL_RAY"),
                _node_ip_address="127.0.0.1",
                runtime_env={"env_vars": environment},
            )
            break
        except Exception as error:
            if "timed out during startup" not in str(error) or attempt == ATTEMPTS - 1:
                raise
            ray.shutdown()
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
