"""`nemo-ada simulate` prints what it promises, and says what would work for input that cannot be."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.errors import UserError


def words(text):
    return text.split()


def run(*arguments):
    return CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)


def test_exact_figures_of_the_papers_rules():
    rule = words("sampling.exit.k_pos=2 sampling.exit.k_neg=2 sampling.wave_size=[8] sampling.max_responses=32")
    found = json.loads(run(*words("--pass-rate .1 --json"), *rule).stdout)
    assert sum(found["size_distribution"].values()) == pytest.approx(1.0)
    # without signal: all 32 of one label
    assert found["p_zero_signal"] == pytest.approx(0.9**32 + 0.1**32, rel=1e-6)
    assert 16 < found["expected_samples"] < 32
    rule = words("sampling.exit.k_pos=1 sampling.wave_size=[1] sampling.max_responses=400 advantage.baseline=shrunk")
    found = json.loads(run(*words("--pass-rate .25 --preset ada_seq_positive --group 1 --json"), *rule).stdout)
    assert found["expected_samples"] == pytest.approx(4.0, rel=1e-6), "1 / p"


def test_presets_are_compared_side_by_side():
    done = run(*words("--preset grpo --preset ada_seq_lean --seeds 2 --prompts 32"))
    assert "grpo" in done.stdout
    assert "ada_seq_lean" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (words("--pass-rate 2"), "must lie between 0 and 1"),
        (words("sampling.wave_size=x"), "sampling.wave_size"),
        (words("sampling.max_respones=16"), "did you mean"),
        (words("=4"), "reinforce_ada|key=value"),
        (["--preset", "ada_seq_leen"], "did you mean ada_seq_lean"),
        (["--beta", "1"], "two numbers"),
        (words("--max-samples 100 --preset grpo"), "cannot hold the first waves"),
        (words("--max-tokens 2000 --preset ada_seq_balance"), "64 prompts x 8 responses x 30 tokens"),
        (words("--pass-rate .1 --max-samples 9 --beta 1,2"), "--beta, --max-samples has no effect with --pass-rate"),
        (words("--preset ada_seq_positive sampling.exit.k_neg=2"), "k_neg"),
        (words("--pass-rate .1 --preset grpo --preset ada_seq_lean"), "takes one preset, not 2"),
        (words("--pass-rate .1 --preset ada_est_ema --group 8"), "depends on the others of its step"),
        (words("--objective --preset ada_est_ema --group 65"), "at most 64"),
    ],
)
def test_bad_input_says_what_would_work(arguments, message):
    with pytest.raises(UserError, match=message):
        run(*arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("--preset grpo", 4.0), ("--preset grpo --group 16", 16.0), ("--preset ada_seq_lean", 6.62)],
)
def test_exact_costs_are_those_of_the_rule_that_was_named(arguments, expected):
    found = json.loads(run("--pass-rate", "0.1", *words(arguments), "--json").stdout)
    assert found["expected_samples"] == pytest.approx(expected, abs=0.005)


def test_settings_over_a_preset_are_those_of_a_yaml():
    base = words("sampling.exit.k_pos=1 sampling.exit.k_neg=1 sampling.wave_size=[4] --seeds 3 --prompts 32 --json")

    def row(arguments=""):
        return json.loads(run(*base, *words(arguments)).stdout)[0]

    free = row()
    assert row("sampling.scheduler=rounds")["engine_steps"]["value"] > free["engine_steps"]["value"]
    assert row("sampling.scheduler=rounds")["responses"] == free["responses"]
    capped = row("--max-steps 60")
    assert capped["budget_hits"]["value"] > 0.5
    assert capped["responses"]["value"] < free["responses"]["value"]


def test_presets_that_do_not_fit_a_group_are_left_out_with_the_reason():
    done = run(*words("--group 8 --seeds 1 --prompts 8 --json"))
    names = [row["name"] for row in json.loads(done.stdout)]
    assert "grpo (n=8)" in names
    assert "ada_est_ema (n=8, pass rates known)" in names
    assert "ada_seq_lean (n=8)" in names
    assert done.stderr == ""
    alone = run(*words("--group 1 --seeds 1 --prompts 8 --json"))
    assert not any(row["name"].startswith("grpo") for row in json.loads(alone.stdout))
    assert "left out: grpo: set num_generations_per_prompt to at least 2, or" in alone.stderr


def test_in_large_groups_the_published_rule_draws_more_than_grpo():
    """It was capped at 32 responses: at n = 32 it drew what GRPO draws, without a word."""
    names = "--preset grpo --preset ada_seq_balance --preset ada_seq_lean"
    grpo, balance, lean = json.loads(run(*words(f"{names} --group 32 --seeds 1 --prompts 16 --json")).stdout)
    assert balance["responses"]["value"] > 2 * grpo["responses"]["value"]
    assert balance["zero_signal"]["value"] < grpo["zero_signal"]["value"]
    assert grpo["responses"]["value"] < lean["responses"]["value"] <= 2 * grpo["responses"]["value"]


def test_single_stream_has_groups_of_one_and_as_many_responses_as_grpo():
    """A share of groups without signal means nothing there: every row has an advantage of its own."""
    both = words("--preset grpo --preset ada_single --seeds 2 --prompts 16 --group 4")
    grpo, single = json.loads(run(*both, "--json").stdout)
    assert single["name"].startswith("ada_single (n=1")
    assert single["responses"]["value"] == grpo["responses"]["value"] == 64
    assert single["zero_signal"]["value"] is None and grpo["zero_signal"]["value"] > 0
    assert "n/a" in run(*both).stdout
