"""`nemo-ada simulate` prints what it promises, and says what would work for input that cannot be."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from nemo_ada.cli import app
from nemo_ada.errors import UserError


def words(text):
    return text.split()


def run(*arguments):
    return CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)


def test_exact_figures_of_the_papers_rule():
    done = run(
        *[
            "--pass-rate",
            "0.1",
            "--exit",
            "balanced",
            "--k-pos",
            "2",
            "--k-neg",
            "2",
            "--wave",
            "8",
            "--cap",
            "32",
            "--json",
        ]
    )
    found = json.loads(done.stdout)
    assert sum(found["size_distribution"].values()) == pytest.approx(1.0)
    # without signal: all 32 of one label
    assert found["p_zero_signal"] == pytest.approx(0.9**32 + 0.1**32, rel=1e-6)
    assert 16 < found["expected_samples"] < 32


def test_positive_one_in_waves_of_one_costs_1_over_p():
    found = json.loads(
        run(
            *["--pass-rate", "0.25", "--exit", "positive", "--wave", "1", "--cap", "400", "--group", "1", "--json"]
        ).stdout
    )
    assert found["expected_samples"] == pytest.approx(4.0, rel=1e-6)


def test_presets_are_compared_side_by_side_with_a_figure(tmp_path):
    figure = tmp_path / "costs.png"
    two = words("--preset grpo --preset ada_seq_idle --seeds 2 --prompts 32")
    done = run(*two, "--plot", str(figure))
    assert "grpo" in done.stdout
    assert "ada_seq_idle" in done.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pass-rate", "2"], "must lie between 0 and 1"),
        (["--exit", "balanced", "--wave", "x"], "sizes separated by commas"),
        (["--exit", "balance"], "did you mean balanced"),
        (["--preset", "ada_seq_leen"], "did you mean ada_seq_lean"),
        (["--beta", "1"], "two numbers"),
        (["--max-samples", "100", "--preset", "grpo"], "cannot hold the first waves"),
    ],
)
def test_bad_input_says_what_would_work(arguments, message):
    with pytest.raises(UserError, match=message):
        run(*arguments)
