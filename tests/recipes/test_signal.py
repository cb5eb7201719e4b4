"""signal_per_response.py against closed forms: GRPO's group with k of n correct has signal k (n - k) / n."""

from __future__ import annotations

import numpy as np
import pytest
import signal_per_response as recipe

from nemo_ada.lab.simulate.engine import draw_beta_rates

RATES = draw_beta_rates(4000, 0.3, 0.9, seed=1)
NOTHING = np.full(len(RATES), 0.3), np.full(len(RATES), 0.9)
EXACT = recipe.CERTAIN * RATES, recipe.CERTAIN * (1.0 - RATES)
SPREAD = float((RATES * (1.0 - RATES)).mean())


@pytest.mark.parametrize("n", [2, 4, 8])
def test_grpos_signal_is_the_variance_of_its_labels(n):
    worth = recipe.trained({"preset": "grpo"}, n, RATES, NOTHING)
    assert worth.responses == n * len(RATES)
    assert worth.signal / worth.responses == pytest.approx((n - 1) / n * SPREAD, rel=0.05)
    assert worth.noise == pytest.approx(worth.signal, rel=0.05)


def test_a_baseline_that_knows_the_pass_rate_loses_nothing_to_the_groups_size():
    worth = recipe.trained(recipe.SHRUNK, 4, RATES, EXACT)
    assert worth.signal / worth.responses == pytest.approx(SPREAD, rel=0.05)
    assert worth.noise / worth.responses == pytest.approx(SPREAD, rel=0.05)


def test_refilling_alone_changes_nothing_per_response():
    plain = recipe.trained({"preset": "grpo"}, 4, RATES, NOTHING)
    replaced = recipe.trained({"preset": "grpo"}, 4, RATES, NOTHING, reserve=len(RATES) // 2)
    assert replaced.responses > 2 * len(RATES)
    assert replaced.per_response == pytest.approx(plain.per_response, rel=0.05)
    assert replaced.zero_signal < plain.zero_signal


def test_re_sampling_by_gain_draws_again_where_that_pays_and_gains_little():
    half = np.full(4000, 0.5)
    known = recipe.CERTAIN * half, recipe.CERTAIN * half
    again = recipe.resampled_by_gain(4, half, known)
    assert again.responses > 4 * 4000  # after equal labels 4 more mix with 1 - 1/16, a new prompt with 1 - 1/8
    plain = recipe.trained({"preset": "grpo"}, 4, RATES, NOTHING)
    for knowledge in (NOTHING, EXACT):
        assert 0.97 < recipe.resampled_by_gain(4, RATES, knowledge).per_response / plain.per_response < 1.2
