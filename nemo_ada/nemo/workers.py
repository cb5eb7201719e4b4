"""Functions of ours in the workers of NeMo-RL's learner.

NeMo-RL takes a worker class of ours (`Policy(worker_extension_cls_fqn=...)`), but it then builds a Python environment
of that name on each node (nemo_rl/utils/venvs.py). So the workers that are there are called, by Ray.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def call_each(policy: Any, function: Callable[[Any], Any], seconds: float | None = None) -> list[Any]:
    """Call a function with each worker of a NeMo-RL policy, in the worker's process.

    Args:
        policy: NeMo-RL's Policy. A stand-in without workers is left alone.
        function: made within another function. Ray sends such a one by value, so the worker's Python environment need
            not have this package.
        seconds: after which workers that do not answer are an error of Ray's.

    Returns:
        What it returned in each worker.
    """
    workers = getattr(getattr(policy, "worker_group", None), "workers", [])
    if not workers:
        return []
    import ray

    results: list[Any] = ray.get([worker.__ray_call__.remote(function) for worker in workers], timeout=seconds)
    return results
