"""Objectives: f' is the derivative of f, and the two shares of a weight multiply to it."""

import numpy as np
import pytest

from nemo_ada.core.learning.objectives import Linear, Log, Power, compute_gradient_weight

RATES = np.array([0.02, 0.1, 0.5, 0.93])


@pytest.mark.parametrize("objective", [Linear(), Log(), Power(a=0.5), Power(a=2.0)], ids=str)
def test_the_weight_is_the_derivative(objective):
    step = 1e-6
    slope = (objective.value(RATES + step) - objective.value(RATES - step)) / (2 * step)
    np.testing.assert_allclose(objective.weight(RATES), slope, rtol=1e-5)


@pytest.mark.parametrize("objective", [Linear(), Log(), Power(a=0.5)], ids=str)
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_sampling_and_gradient_share_multiply_to_the_weight(objective, exponent):
    explicit = compute_gradient_weight(objective, RATES, exponent=exponent, min_pass_rate=1e-3, max_weight=np.inf)
    np.testing.assert_allclose(explicit * RATES**-exponent, objective.weight(RATES), rtol=1e-12)


def test_pass_rates_are_floored_and_weights_clipped():
    edge = np.array([0.0, 0.01, 0.5, 1.0])
    np.testing.assert_allclose(
        compute_gradient_weight(Log(), edge, min_pass_rate=0.05, max_weight=np.inf), [20, 20, 2, 1]
    )
    np.testing.assert_allclose(compute_gradient_weight(Log(), edge, min_pass_rate=0.05, max_weight=8), [8, 8, 2, 1])
    hybrid = compute_gradient_weight(Log(), edge, exponent=0.5, min_pass_rate=0.04, max_weight=np.inf)
    np.testing.assert_allclose(hybrid, np.clip(edge, 0.04, 0.96) ** -0.5)
