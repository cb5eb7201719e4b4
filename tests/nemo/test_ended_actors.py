"""A test that fails ends the Ray actors that it has started (nemo_support/private_ray.py)."""

import os
from contextlib import suppress

import psutil
import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.nemo_rl


@pytest.mark.parametrize("fails", [False, True])
def test_actors_end_with_the_block(harness, fails):
    import ray
    from nemo_support.private_ray import actors_ended

    class Busy:  # Ray sends a class that is defined here by value
        def process(self):
            return os.getpid()

    kind = ray.remote(num_cpus=0)(Busy)
    before = kind.remote()
    processes = []
    with suppress(ZeroDivisionError), actors_ended():
        started = [kind.options(max_restarts=-1).remote() for _ in range(2)]
        processes += [psutil.Process(ray.get(actor.process.remote())) for actor in started]
        if fails:
            raise ZeroDivisionError
    assert len(processes) == 2
    assert all(process.wait(PATIENCE) is None for process in processes)
    assert ray.get(before.process.remote())  # it is older than the block
