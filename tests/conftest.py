"""Settings for all tests: no deadline per hypothesis case, and one worker for all that share the embedded stack."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test asks the real hub

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.hookimpl(optionalhook=True)  # without xdist there is no such hook
def pytest_xdist_make_scheduler(config, log):
    """Deal whole files to workers, and tests/embedded as if it were one file: its stack costs 25 CPU seconds."""
    from xdist.scheduler import LoadFileScheduling

    class LoadRoomScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            own_process = nodeid.startswith("tests/embedded/engine")  # an engine in the test's own process
            return "stack" if nodeid.startswith("tests/embedded/") and not own_process else super()._split_scope(nodeid)

    return LoadRoomScheduling(config, log) if config.getoption("dist") == "loadfile" else None
