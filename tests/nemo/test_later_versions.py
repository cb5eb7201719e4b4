"""The hooks on what NeMo-RL v0.8.0 changed after main of August 2026, emulated edit by edit (nemo_support/later.py).

The edits are made to the tree of v0.8.0 (recipes/upstream/release_tree.py) where NEMO_RL_HOME names it, else to main.
The tests of training run once more, in a process of their own that imports the edited copy: every preset, dynamic
sampling, resume, and the update without Reinforce-Ada; rollouts over NeMo-Gym; asynchronous training and its resume.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nemo_support.compat import why_not_importable
from nemo_support.later import later

from nemo_ada.rules import rulebook
from nemo_ada.rules.facts.config_file import load_config, load_upstream_part
from nemo_ada.rules.facts.version import read_version

pytestmark = pytest.mark.nemo_rl
ROOT = Path(__file__).parents[2]
SYNCHRONOUS = (
    "tests/nemo/test_training.py",
    "test_every_preset_trains",
    "test_grpo_by_our_code_path_is_grpo_without_normalisation",
    "test_without_the_section_nothing_changes_bit_for_bit",
    "test_a_killed_run_resumes_as_if_nothing_happened",
    "test_dapo_filtering_leaves_no_group_without_signal",
)
ASYNCHRONOUS = (
    "tests/nemo/test_async_training.py",
    "test_steps_train_on_adaptive_groups_within_their_caps",
    "test_a_resumed_run_trains_on_every_prompt_once",
)


GYM = ("tests/nemo/test_gym.py", "test_")


@pytest.fixture
def newest(request):
    """The newest checkout that this interpreter can import."""
    here = Path(os.environ.get("NEMO_RL_HOME") or "missing")
    return here if (here / "nemo_rl").is_dir() and read_version(here).masks_rows else request.getfixturevalue("main")


@pytest.fixture
def run(tmp_path, newest):
    """run(file, tests): run these tests of a file on the edited copy."""
    if reason := why_not_importable():
        pytest.skip(reason)
    copy = later(newest, tmp_path)
    environment = {**os.environ, "NEMO_RL_HOME": str(copy), "PYTHONPATH": f"{ROOT}:{copy}"}
    environment.pop("NEMO_ADA_TESTS_UNTIL", None)  # this test has started, so those that it runs must not be left out

    def run(file, *tests):
        command = [sys.executable, "-m", "pytest", "-q", file, "-k", " or ".join(tests)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:]
        assert " skipped" not in done.stdout.splitlines()[-1] and " passed" in done.stdout.splitlines()[-1]

    return run


def test_every_preset_trains_and_resumes_with_the_changes_of_v0_8_0(run):
    run(*SYNCHRONOUS)


@pytest.mark.slow
def test_rollouts_over_gym_with_the_changes_of_v0_8_0(run):
    """The loop says the rows per prompt, the environment is a set of shards, and a row comes with its agent."""
    run(*GYM)


@pytest.mark.slow
def test_asynchronous_training_resumes_with_the_changes_of_v0_8_0(run):
    run(*ASYNCHRONOUS)


def refused(home, monkeypatch):
    """Our configs that `check` refuses in a checkout -> the keys of the errors."""
    monkeypatch.setenv("NEMO_RL_HOME", str(home))
    found = {}
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        if "gym" not in path.name:  # their data comes with Gym's checkout
            findings = rulebook.apply_rules(load_config(path), load_upstream_part(path, []))
            found[path.name] = {one.key for one in findings if one.level == "error"}
    return {name: keys for name, keys in found.items() if keys}


def test_every_config_of_ours_that_passes_on_main_passes_with_the_changes_of_v0_8_0(tmp_path, newest, monkeypatch):
    copy = later(newest, tmp_path)
    before, after = refused(newest, monkeypatch), refused(copy, monkeypatch)
    assert after == before
