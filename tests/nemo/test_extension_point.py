"""recipes/upstream/named-parts.patch applies to main, and Reinforce-Ada trains on the result without a hook.

The test of training runs in a process of its own that imports the patched copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nemo_support.compat import why_not_importable

pytestmark = pytest.mark.nemo_rl
ROOT = Path(__file__).parents[2]
PATCH = ROOT / "recipes/upstream/named-parts.patch"


@pytest.fixture
def patched(tmp_path, main):
    """A copy of main with the patch."""
    for folder in ("nemo_rl", "examples/configs", "tests/unit/utils"):
        shutil.copytree(main / folder, tmp_path / folder)
    done = subprocess.run(["git", "apply", "--unidiff-zero", str(PATCH)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_the_patch_applies_and_its_own_tests_pass(patched):
    assert "_rollout_actor_class(master_config)" in (patched / "nemo_rl/algorithms/grpo_sync.py").read_text()
    if reason := why_not_importable():
        pytest.skip(reason)
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-c", os.devnull, "tests/unit/utils/test_named.py"]
    here = ROOT / "tests/nemo"  # its start-up lets Python 3.11 read NeMo-RL's types
    path = os.pathsep.join(map(str, (here / "nemo_support/startup", patched, ROOT, here)))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=patched, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]


def test_reinforce_ada_trains_without_a_hook(patched):
    if reason := why_not_importable():
        pytest.skip(reason)
    environment = {**os.environ, "NEMO_RL_HOME": str(patched), "PYTHONPATH": f"{ROOT}:{patched}"}
    environment.pop("NEMO_ADA_TESTS_UNTIL", None)  # this test has started, so the one that it runs must not be left out
    tests = ["tests/nemo/test_data_plane.py", "-k", "parts_that_a_yaml_names"]
    command = [sys.executable, "-m", "pytest", "-q", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout.splitlines()[-1]
