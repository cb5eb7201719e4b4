"""The list of settings and the schema are those that the parser takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.config.keys import list_settings
from nemo_ada.config.parsing import MEANT, find_meant
from nemo_ada.cpu.settings import RunConfig, load_run
from nemo_ada.errors import UserError
from nemo_ada.run.folder import RunDir

SUDOKU = Path(__file__).resolve().parents[2] / "configs" / "cpu" / "mini_sudoku.yaml"


def leaves(section, prefix=""):
    for name, value in section.items():
        yield from leaves(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [f"{prefix}{name}"]


def config(*words):
    done = CliRunner().invoke(app, ["config", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


@pytest.mark.parametrize("preset", ["ada_seq_balance", "ada_est_value", "grpo"])
def test_every_value_of_a_run_is_in_the_list_with_a_meaning(preset):
    run = load_run(SUDOKU, [f"reinforce_ada.preset={preset}", "grpo.num_generations_per_prompt=8"])
    listed = {setting.key: setting for setting in list_settings(RunConfig)}
    assert set(leaves(run.model_dump(mode="json"))) <= set(listed)
    nameless = {"backend", "task.name", "task.problems"}
    assert [key for key, one in listed.items() if not one.meaning and key not in nameless and "kind" not in key] == []


def test_the_resolved_yaml_is_a_yaml_that_gives_the_same_run(tmp_path):
    words = ["reinforce_ada.preset=ada_seq_lean", "grpo.seed=7"]
    own = tmp_path / "resolved.yaml"
    own.write_text(config(SUDOKU, *words))
    assert yaml.safe_load(own.read_text())["grpo"]["seed"] == 7
    assert load_run(own) == load_run(SUDOKU, words)


def test_a_difference_names_key_and_both_values(tmp_path):
    assert "grpo.seed: 0 -> 7" in config(SUDOKU, "grpo.seed=7", "--diff", SUDOKU).splitlines()
    assert "resolve to the same" in config(SUDOKU, "--diff", SUDOKU)
    run = load_run(SUDOKU, [f"run_dir={tmp_path}/run"])
    folder = RunDir(tmp_path / "run")
    folder.open(run.model_dump(mode="json"), resume=False)
    folder.close()
    assert "grpo.max_num_steps: 150 -> 5" in config(SUDOKU, "grpo.max_num_steps=5", "--diff", tmp_path / "run")


def test_what_would_be_ignored_is_refused():
    with pytest.raises(UserError, match="does not go with"):
        config("--keys", "--diff", SUDOKU)


def test_keys_are_found_by_their_leaf_and_by_the_names_of_other_frameworks():
    keys = [setting.key for setting in list_settings(RunConfig)]
    assert find_meant("temperature", keys)[0] == "policy.generation.temperature"
    assert find_meant("num_generations", keys) == ["grpo.num_generations_per_prompt"]
    assert all(find_meant(name, keys) for name in MEANT)
    assert "policy.megatron_cfg.optimizer.lr: number > 0, default 0.0001" in config("--keys", "optimizer.lr")
    with pytest.raises(UserError, match="num_generations_per_prompt"):
        config("--keys", "num_generation_per_promt")
