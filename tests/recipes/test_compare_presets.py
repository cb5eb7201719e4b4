"""compare_presets.py never takes one comparison's runs for another's, and says so before it trains."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

import pytest

if any(importlib.util.find_spec(name) is None for name in ("megatron", "ray", "vllm")):
    pytest.skip("the CPU back end is not installed", allow_module_level=True)

from nemo_ada.cpu.settings import load_run
from nemo_ada.errors import UserError
from nemo_ada.run.folder import RunDir
from tests.lazy import Lazy

recipe = Lazy("compare_presets")
SUDOKU = Path(__file__).parents[2] / "configs" / "cpu" / "mini_sudoku.yaml"


@pytest.fixture
def made(tmp_path):
    """made(evaluations, overrides...): the configuration of a run whose folder holds evaluations after these steps."""

    def config(evaluated, *overrides):
        first = load_run(SUDOKU, ["grpo.max_num_steps=30", f"run_dir={tmp_path}/run"])
        folder = RunDir(first.folder)
        folder.open(first.model_dump(mode="json"), resume=True)
        folder.close()
        lines = "".join(json.dumps({"step": step}) + "\n" for step in evaluated)
        (first.folder / "evaluations.jsonl").write_text(lines)
        return load_run(SUDOKU, ["grpo.max_num_steps=30", f"run_dir={tmp_path}/run", *overrides])

    return config


@pytest.mark.parametrize(("evaluated", "done"), [([], False), ([0], False), ([0, 25], False), ([0, 25, 30], True)])
def test_a_run_is_finished_when_all_its_evaluations_are_there(made, evaluated, done):
    assert recipe.finished(made(evaluated)) == done


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("grpo.max_num_steps=10", r"after steps \[0, 25, 30\].*after \[0, 10\]: name another --out"),
        ("grpo.val_period=15", r"after \[0, 15, 30\]: name another --out"),
        ("policy.megatron_cfg.optimizer.lr=1e-4", r"optimizer\.lr"),
    ],
)
def test_the_runs_of_another_comparison_are_refused_and_kept(made, override, message):
    config = made([0, 25, 30], override)
    with pytest.raises(UserError, match=message):
        recipe.finished(config)
    assert len((config.folder / "evaluations.jsonl").read_text().splitlines()) == 3


def test_every_method_is_a_valid_run_of_at_least_128_responses():
    for name in recipe.METHODS:
        config = load_run(SUDOKU, recipe.overrides_of(name, 32, 128))
        grpo = config.grpo
        assert grpo.num_prompts_per_step * grpo.num_generations_per_prompt >= 128, name
        assert config.reinforce_ada.plan(grpo.num_generations_per_prompt, 17).group_size, name


@pytest.mark.parametrize(
    ("setting", "method", "given", "expected"),
    [
        ("words", "grpo n=4, eight updates", {}, (1.2e-4, "tuned")),
        ("words", "grpo n=4, eight updates", {"grpo n=4, eight updates": 3e-5}, (3e-5, "given")),
        ("words", "ada_single n=1, running-mean baseline, eight updates", {}, (1.2e-4, "not tuned")),
        ("words", "ada_seq_lean", {}, (2.4e-4, "not tuned")),
        ("plentiful", "ada_seq_lean", {}, (2e-4, "tuned")),
        ("plentiful", "ada_seq_lean, asynchronous", {}, (2e-4, "not tuned")),
    ],
)
def test_a_rate_says_whether_it_was_tuned(setting, method, given, expected):
    assert recipe.learning_rate(setting, method, given) == expected
    config = load_run(SUDOKU, [f"policy.megatron_cfg.optimizer.lr={expected[0]}"])
    assert recipe.rate_note(expected, config) == f"{expected[0]:g} ({expected[1]})"
    assert recipe.rate_note((1.0, "tuned"), config).endswith("(given)")


def test_every_tuned_rate_is_that_of_a_method_in_a_setting():
    assert set(recipe.RATES) <= set(recipe.SETTINGS) == set(recipe.GUESSES)
    assert {method for rates in recipe.RATES.values() for method in rates} <= set(recipe.METHODS)


def test_the_running_mean_and_ema_go_with_eight_updates():
    for name in ("running-mean baseline", "ema"):
        config = load_run(SUDOKU, recipe.overrides_of(f"ada_single n=1, {name}, eight updates", 32, 128))
        assert (config.grpo.num_generations_per_prompt, config.updates_per_step) == (1, 8)
        estimator = config.reinforce_ada.estimator
        assert (estimator.kind, estimator.per_prompt) == ("ema", name == "ema")


def test_a_rate_belongs_to_a_method_that_there_is():
    assert recipe.rate("grpo n=4=1e-4") == ("grpo n=4", 1e-4)
    with pytest.raises(argparse.ArgumentTypeError, match="with a method of METHODS"):
        recipe.rate("grpo n=5=1e-4")
