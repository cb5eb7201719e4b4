"""What presets teach: the simulation through the sampler agrees with the exact factor, and Est has an error."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.core.learning.factor import SHOWN_P, compute_factors
from nemo_ada.errors import UserError
from nemo_ada.lab.simulate import objective

pytestmark = pytest.mark.long


def test_the_simulation_is_the_exact_factor(monkeypatch):
    monkeypatch.setattr(objective, "STEPS", 60)
    ada = parse_ada_settings({"preset": "ada_seq_lean"})
    factor_P, error_P = objective._simulate_factors(ada, 4, None)
    exact_P = compute_factors(ada.sampler(4, 1, run_seed=0).rows, SHOWN_P)
    # the mass per row is that of prompts with rows, so the factors agree up to a common scale
    scale = float((factor_P / exact_P).mean())
    assert scale == pytest.approx(1.0, abs=0.1)
    assert (np.abs(factor_P / scale - exact_P) < 4.5 * error_P + 0.03 * exact_P).all()


def test_what_an_estimate_decides_has_an_error_and_the_rest_has_none(monkeypatch):
    monkeypatch.setattr(objective, "STEPS", 20)
    est = objective.compute_taught("est", parse_ada_settings({"preset": "ada_est_ema"}), 8)
    grpo = objective.compute_taught("grpo", parse_ada_settings({"preset": "grpo"}), 4)
    assert all(error > 0 for error in est.error_P)
    assert grpo.error_P == (0.0,) * len(SHOWN_P) and grpo.relative_P == pytest.approx((1.0,) * len(SHOWN_P))
    assert est.relative_P[0] > 2.0  # hard prompts get more responses and larger weights


def test_the_command_prints_presets_and_names_what_does_not_fit():
    shown = CliRunner().invoke(app, ["simulate", "--objective", "--preset", "ada_seq_log", "--json"])
    (row,) = json.loads(shown.stdout)["presets"]
    assert (row["declared"], row["error_P"][0]) == ("log", 0.0) and row["missed"] < 0.1
    for words in (["--preset", "ada_est_ema"], ["--preset", "grpo", "--seeds", "3"]):
        with pytest.raises(UserError):
            CliRunner().invoke(app, ["simulate", "--objective", *words], catch_exceptions=False)


def test_a_cap_of_a_step_makes_hard_prompts_weigh_less(monkeypatch):
    """At eight responses per prompt, prompts of pass rate .05 lose most of their weight. At 32 they lose nothing."""
    monkeypatch.setattr(objective, "STEPS", 30)
    words = ["simulate", "--objective", "--preset", "ada_seq_log", "--json", "--prompts", "10"]
    few, many = (
        json.loads(CliRunner().invoke(app, [*words, "--max-samples", samples], catch_exceptions=False).stdout)
        for samples in ("80", "320")
    )
    (few,), (many,) = few["presets"], many["presets"]
    at = SHOWN_P.tolist().index(0.05)
    assert few["relative_P"][at] < 0.5 < 0.8 < many["relative_P"][at]
    assert few["missed"] > 0.5 and few["error_P"][at] > 0
    grpo = objective.compute_taught("grpo", parse_ada_settings({"preset": "grpo"}), 4, 8.0)
    assert grpo.error_P == (0.0,) * len(SHOWN_P), "a fixed pool is not cut"
    with pytest.raises(UserError, match="--prompts has no effect with --objective"):
        CliRunner().invoke(app, words, catch_exceptions=False)
