"""Posterior exit probability against quadrature and enumeration (oracles: scipy.stats)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from nemo_ada.core.sampling.priority import exit_probability

CASE = st.tuples(
    st.floats(0.1, 30), st.floats(0.1, 30), st.integers(0, 6), st.integers(0, 6), st.integers(1, 40)
)  # alpha, beta, short_pos, short_neg, size


@given(st.lists(CASE, min_size=1, max_size=6))
def test_equals_the_beta_binomial(cases):
    columns = [np.array(column) for column in zip(*cases, strict=True)]
    expected = [
        betabinom.pmf(np.arange(pos, size - neg + 1), size, alpha, beta).sum() for alpha, beta, pos, neg, size in cases
    ]
    np.testing.assert_allclose(exit_probability(*columns), expected, rtol=1e-9, atol=1e-12)


def test_no_prompts_no_probabilities():
    none = np.zeros(0)
    assert exit_probability(none, none, none.astype(int), none.astype(int), none.astype(int)).shape == (0,)


@pytest.mark.parametrize(("short_pos", "short_neg", "size"), [(3, 0, 2), (2, 2, 3)])
def test_a_wave_that_is_too_small_cannot_meet_the_exit(short_pos, short_neg, size):
    ask = [np.array([value]) for value in (1.0, 1.0, short_pos, short_neg, size)]
    assert exit_probability(*ask).tolist() == [0.0]
