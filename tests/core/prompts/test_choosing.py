"""Which candidates get responses: the probability of a mixed group, the ranking, and what a step makes of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.core.prompts.choosing import best_candidates, mixed_probability
from nemo_ada.core.prompts.estimators import EmaBeta
from tests.core.test_sampler import knowing, sampler

MASS = st.floats(0.05, 50.0)


@given(MASS, MASS, st.integers(1, 16))
def test_the_probability_is_the_beta_distributions_mean_of_signal(a, b, n):
    rng = np.random.default_rng(0)
    p = rng.beta(a, b, 20_000)
    signal = 1.0 - p**n - (1.0 - p) ** n
    (found,) = mixed_probability(np.array([a]), np.array([b]), n)
    assert found == pytest.approx(signal.mean(), abs=5 * signal.std() / len(p) ** 0.5 + 1e-9)


def test_a_known_rate_gives_the_closed_form_and_one_response_never_mixes():
    mass = 1e9
    p = np.array([0.02, 0.1, 0.5, 0.9])
    np.testing.assert_allclose(mixed_probability(mass * p, mass * (1 - p), 8), 1 - p**8 - (1 - p) ** 8, atol=1e-7)
    np.testing.assert_allclose(mixed_probability(p, 1 - p, 1), 0.0, atol=1e-15)


def test_the_likeliest_come_first_and_equal_ones_by_their_tie():
    worth = np.array([0.1, 0.7, 0.4, 0.7])
    assert best_candidates(list("abcd"), worth, np.array([0.0, 0.9, 0.0, 0.1]), 3).tolist() == [3, 1, 2]
    assert best_candidates(list("abcd"), worth, np.array([0.0, 0.1, 0.0, 0.9]), 3).tolist() == [1, 3, 2]


def test_a_prompt_that_is_there_twice_waits_for_all_others():
    worth = np.array([0.9, 0.1, 0.9, 0.5])
    assert best_candidates(list("abac"), worth, np.zeros(4), 4).tolist()[:3] == [0, 3, 1]


def test_a_sampler_takes_prompts_whose_groups_may_mix_before_those_whose_do_not():
    own = sampler(estimator=knowing({"never": 0.0, "always": 1.0, "half": 0.5, "tenth": 0.1}))
    chosen, expected = own.choose(0, ["never", "half", "always", "tenth", "new"], 3)
    assert chosen.tolist() == [1, 4, 3]
    a, b = np.array([11.0, 1.0, 3.0]), np.array([11.0, 1.0, 19.0])
    assert expected == pytest.approx(mixed_probability(a, b, 4).mean())


def test_candidates_nobody_knows_are_drawn_by_lot_anew_each_step_and_run():
    ids = [f"p{i}" for i in range(40)]
    picks = {
        tuple(sorted(sampler(run_seed=run, estimator=EmaBeta()).choose(step, ids, 10)[0].tolist()))
        for run, step in ((0, 0), (0, 1), (1, 0))
    }
    assert len(picks) == 3
    again = [sampler(estimator=EmaBeta()).choose(5, ids, 10)[0].tolist() for _ in range(2)]
    assert again[0] == again[1]
