"""Two objects of ours in NeMo-RL's own single controller (nemo_ada/nemo/single_controller/plug_in.py).

At age 0 its rows, pools, advantages and metrics are those of the synchronous path. NeMo-RL's own replay buffer and
checkpoints bring a run back.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import SimpleNamespace

import pytest

from nemo_ada.errors import UserError

pytestmark = [pytest.mark.nemo_rl, pytest.mark.timeout(300)]

BALANCE = {"preset": "ada_seq_balance", "sampling": {"wave_size": 4, "max_responses": 16}}
EVERY = {"balance": BALANCE, "lean": {"preset": "ada_seq_lean"}, "grpo": {"preset": "grpo"}}


@pytest.fixture(scope="module")
def single(harness):
    """nemo_support.controller, where this NeMo-RL's controller masks rows."""
    if importlib.util.find_spec("nemo_rl.algorithms.single_controller") is None:
        pytest.skip("this NeMo-RL has no single controller")
    config = importlib.import_module("nemo_rl.algorithms.single_controller_utils.config")
    if not hasattr(config.AdvantageConfig(), "mask_sample_field"):
        pytest.skip("this NeMo-RL's single controller masks no rows (pull request 3766)")
    return importlib.import_module("nemo_support.controller")


@pytest.fixture
def run(single, tmp_path):
    """run(steps, ada, ...): a run in the test's folder, whose weights never change."""

    def train(steps, ada=BALANCE, *, versions=0, changes=None, **options):
        changes = {"policy__optimizer__kwargs__lr": 0.0} | (changes or {})
        config = single.controller_config(tmp_path / "run", steps, ada, versions=versions, **changes)
        return single.run_controller(tmp_path / "run", config, plugged=True, **options)

    return train


@pytest.mark.parametrize("name", EVERY)
def test_at_age_0_a_step_is_the_synchronous_step(harness, single, run, tmp_path, name):
    hooks, sampled = single.watched()
    overrides = {**harness.OURS, **single.SYNCHRONOUS, "reinforce_ada": EVERY[name]}
    expected = harness.run_grpo(tmp_path / "synchronous", 3, overrides, async_engine=True, hooks=hooks)
    found = run(3, EVERY[name])
    single.assert_synchronous(found, expected, sampled)
