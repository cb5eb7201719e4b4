"""peers.py: what it reads out of two runs' records. TRL itself runs in `make bench-peers` only."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import numpy as np
import pytest

if any(importlib.util.find_spec(name) is None for name in ("megatron", "ray", "vllm")):
    pytest.skip("the CPU back end is not installed", allow_module_level=True)

from nemo_ada.cpu.rollout import HeldoutScores, Rollout
from nemo_ada.cpu.settings import load_run
from nemo_ada.cpu.trainer import compute_evaluation_seed
from nemo_ada.errors import UserError
from tests.lazy import Lazy

recipe = Lazy("peers")


def record(step, sampling, tokens=100, reward=0.0):
    seconds = {"time/step": step, "time/sampling": sampling, "cpu/step": 2 * step, "cpu/sampling": 2 * sampling}
    return seconds | {"ada/tokens_drawn": tokens, "ada/pass_rate": reward}


def cells(table):
    """first cell -> the other cells of each row."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def test_the_first_step_counts_as_start_up():
    timing = recipe.Timing.of([record(9.0, 8.0), record(2.0, 0.5), record(4.0, 1.5)], wall=20.0, peak_mib=300.0)
    assert (timing.step, timing.sampling, timing.update, timing.tokens_per_second) == (3.0, 1.0, 2.0, 100.0)
    assert (timing.processor_step, timing.processor_sampling, timing.processor_update) == (6.0, 2.0, 4.0)
    assert timing.rest == 5.0, "seconds outside of all steps"


def test_one_step_cannot_be_timed():
    with pytest.raises(UserError, match="--steps"):
        recipe.Timing.of([record(9.0, 8.0)], wall=20.0, peak_mib=300.0)


def test_ratios_are_taken_within_pairs():
    """The second pair ran on a machine ten times as slow: the ratio stays 2 to 8, where pooled means give 2.5."""
    pairs = [
        (recipe.Timing(*[float(ours)] * 9), recipe.Timing(*[float(theirs)] * 9)) for ours, theirs in [(1, 8), (10, 20)]
    ]
    rows = cells(recipe.speed_table(pairs))
    assert len(rows) == 9
    assert all(row == ["5.500", "14", "4.00 (2.00 to 8.00)"] for row in rows.values())


def test_curves_are_compared_seed_by_seed():
    curves = {"nemo-ada": [{0: 0.25, 10: 0.3}, {0: 0.25, 10: 0.5}], "TRL": [{0: 0.25, 10: 0.31}, {0: 0.25, 10: 0.51}]}
    rows = cells(recipe.curve_table(curves))
    assert rows["0"][-1] == "+0.000 ±0.000"
    assert rows["10"] == ["0.400", "0.410", "+0.010 ±0.000"], "the seeds differ by .2, the pairs do not"


def test_rewards_are_averaged_over_fourths_of_a_run():
    records = [record(1.0, 1.0, reward=reward) for reward in (0.0, 0.2, 0.4, 0.4, 0.5, 0.5, 1.0, 0.0)]
    assert recipe.reward_curve(records) == pytest.approx({2: 0.1, 4: 0.4, 6: 0.5, 8: 0.5})


class FittingStack:
    """Takes only calls that a rollout would take; every response is correct for the folder named `good`."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def call(self, method, *args):
        bound = inspect.signature(getattr(Rollout, method)).bind(self, *args).arguments
        if method == "open":
            self.good = bound["model_dir"].endswith("good")
            return None
        self.seeds.append(bound["seed"])
        return HeldoutScores(np.full((2, bound["k"]), float(self.good)), np.ones((2, bound["k"]), np.int64))


def test_trls_forward_passes_must_divide_the_rows_of_a_step(tmp_path):
    recipe.Bench(tmp_path, recipe.CONFIG, [], 1, 128)
    with pytest.raises(UserError, match="--trl-rows 96 does not divide the 256 rows"):
        recipe.Bench(tmp_path, recipe.CONFIG, [], 1, 96)


def test_accuracy_on_held_out_problems_is_each_model_s_own(tmp_path):
    path = Path(__file__).parents[2] / "configs" / "cpu" / "mini_sudoku.yaml"
    config, stack = load_run(path, ["validation.responses=3", "grpo.seed=7"]), FittingStack()
    found = recipe.heldout_accuracy(stack, config, {0: tmp_path / "bad", 4: tmp_path / "good"})
    assert found == {0: 0.0, 4: 1.0}
    assert stack.seeds == [compute_evaluation_seed(7, 0), compute_evaluation_seed(7, 4)], (
        "the draws of the trainer's own evaluations"
    )
