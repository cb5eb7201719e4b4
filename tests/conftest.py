"""Settings for all tests: no deadline per case, one worker for all that share the CPU stack, skips in brief."""

import atexit
import faulthandler
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test asks the real hub
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="allowed-")  # what tests allow, the user has not
atexit.register(shutil.rmtree, os.environ["XDG_DATA_HOME"], ignore_errors=True)
# As in the Makefile: without bytecode, pytest and each process that a test starts compile all their imports again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Behind all others: recipes/benchmarks/coverage.py must not hide the library of that name.
PROGRAMS = "recipes recipes/benchmarks recipes/guide recipes/upstream tests/lab/report tests/rules/check"
sys.path += [str(Path(__file__).parents[1] / folder) for folder in PROGRAMS.split()]

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.hookimpl(optionalhook=True)  # without xdist there is no such hook
def pytest_xdist_make_scheduler(config, log):
    """Deal whole files to workers, and tests/cpu as if it were one file: its stack costs 25 CPU seconds."""
    from xdist.scheduler import LoadFileScheduling

    class LoadRoomScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            own_process = nodeid.startswith("tests/cpu/engine")  # an engine in the test's own process
            return "stack" if nodeid.startswith("tests/cpu/") and not own_process else super()._split_scope(nodeid)

    return LoadRoomScheduling(config, log) if config.getoption("dist") == "loadfile" else None


UNTIL = float(os.environ.get("NEMO_ADA_TESTS_UNTIL", "inf"))
"""Seconds since 1970 after which no test starts. `.ci/run` has a limit of time, and says what did not run."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip what would start too late."""
    if time.time() > UNTIL:
        pytest.skip("NEMO_ADA_TESTS_UNTIL is over")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    """End a process that a thread keeps alive after the last test, and show what its threads do."""
    faulthandler.dump_traceback_later(300, exit=True)


def pytest_terminal_summary(terminalreporter):
    """One line per reason to skip; reasons that differ only in a path are one."""
    reasons = (report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", []))
    counts = Counter(re.sub(r"\S*/\S*[^\s,;:)]", "PATH", " ".join(reason.split()))[:160] for reason in reasons)
    for reason, count in counts.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
