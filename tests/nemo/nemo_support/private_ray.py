"""One Ray instance that belongs to this process alone; as a program, one that lives until its standard input ends.

NeMo-RL's ``MemoryTracker`` asks for the memory of *the* running Ray and raises ``ConnectionError: Found multiple
active Ray instances`` where another one runs on the host. ``RAY_ADDRESS=local`` does not help it; the address of our
own control store (GCS) does.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray


@contextmanager
def private_ray(num_cpus: int = 8) -> Iterator[str]:
    """Start a Ray instance, point ``RAY_ADDRESS`` at it, and take both away at the end. Yields the address.

    Where this process has one already (a session's of pytest), that one is taken and stays: a process has one Ray.

    The temporary folder has a short path because the paths of Ray's sockets are limited to 107 bytes. ``num_cpus`` is
    only Ray's bookkeeping: small actors must not wait for each other.
    """
    if ray.is_initialized():
        yield ray.get_runtime_context().gcs_address
        return
    before = os.environ.get("RAY_ADDRESS")
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    try:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            _temp_dir=folder,
            log_to_driver=False,
            object_store_memory=200 * 2**20,
        )
        address = ray.get_runtime_context().gcs_address
        os.environ["RAY_ADDRESS"] = address
        yield address
    finally:
        ray.shutdown()
        if before is None:
            os.environ.pop("RAY_ADDRESS", None)
        else:
            os.environ["RAY_ADDRESS"] = before
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def actors_ended() -> Iterator[None]:
    """End every actor that this process has started within the block, however the block ends.

    NeMo-RL's asynchronous loop ends its collector and its buffer where it ends itself. A test that stops it elsewhere
    would leave both at work, each with its memory and a part of a core, beside the tests that follow.
    """
    started = []
    remote = ray.actor.ActorClass._remote

    @functools.wraps(remote)
    def noted(*args: Any, **kwargs: Any) -> Any:
        started.append(remote(*args, **kwargs))
        return started[-1]

    ray.actor.ActorClass._remote = noted
    try:
        yield
    finally:
        ray.actor.ActorClass._remote = remote
        for actor in started if ray.is_initialized() else ():
            ray.kill(actor)  # one that has ended stays as it is


if __name__ == "__main__":
    with private_ray() as own_address:
        print(own_address, flush=True)
        sys.stdin.read()
