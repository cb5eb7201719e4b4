"""Reinforce-Ada inside the real single controller of NeMo-RL main (nemo_support/controller.py).

1. At age 0 rows, pools and advantages are those of the synchronous path, to the bit.
"""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from nemo_ada.core.sampling.result import joined
from nemo_ada.nemo import reinforce_ada

pytestmark = [pytest.mark.nemo_rl, pytest.mark.timeout(300)]

BALANCE = {"preset": "ada_seq_balance", "sampling": {"wave_size": 4, "max_responses": 16}}
FROZEN = {"policy.optimizer.kwargs.lr": 0.0}


@pytest.fixture(scope="module")
def single(harness):
    """nemo_support.controller, where this NeMo-RL has a single controller."""
    if importlib.util.find_spec("nemo_rl.algorithms.single_controller") is None:
        pytest.skip("this NeMo-RL has no single controller")
    return importlib.import_module("nemo_support.controller")


@pytest.mark.parametrize("ada", [BALANCE, {"preset": "ada_seq_lean"}, {"preset": "grpo"}], ids=["balance", "lean", "grpo"])
def test_at_age_0_a_step_is_the_synchronous_step(harness, single, tmp_path, ada):
    sampled = []

    def hooks(parts):
        context = reinforce_ada(parts.master_config, checkpointer=parts.checkpointer)

        class Watching:
            def __enter__(self):
                own = context.__enter__()
                run = own.sampler.run_step
                own.sampler.run_step = lambda *args, **kw: (sampled.append(run(*args, **kw)), sampled[-1])[1]
                return own

            def __exit__(self, *error):
                return context.__exit__(*error)

        return Watching()

    overrides = {**harness.OURS, **FROZEN, "reinforce_ada": ada, "data.shuffle": False, "grpo.val_period": 0,
                 "grpo.val_at_start": False}  # fmt: skip
    expected = harness.run_grpo(tmp_path / "synchronous", 3, overrides, async_engine=True, hooks=hooks)
    changes = {name.replace(".", "__"): value for name, value in FROZEN.items()}
    found = single.run_controller(
        tmp_path / "controller", single.controller_config(tmp_path / "controller", 3, ada, **changes)
    )
    assert len(found.batches) == len(expected.batches) == 3
    for ours, theirs in zip(found.batches, expected.batches, strict=True):
        assert single.rows_of(ours) == single.rows_of(theirs)
    for pools, step in zip(found.pools, sampled, strict=True):
        assert single.columns_of(joined([pool.result for pool in pools])) == single.columns_of(step.result)
    for step in (1, 2, 3):
        theirs = {name: value for name, value in expected.metrics[step].items() if name.startswith("train/ada/")}
        ours = found.metrics[step]
        clock = ("seconds", "utilisation", "engine_steps", "rollout_calls", "estimated", "too_long")
        for name, value in theirs.items():
            if not any(word in name for word in clock):
                assert ours[name] == pytest.approx(value), name
