"""`baseline: shrunk`: unbiased, with less variance than leave-one-out, and alive where labels are all equal.

The oracle draws labels and scores with numpy alone: in a two-outcome policy with logit theta, grad log pi(correct) is
1 - p and grad log pi(incorrect) is -p, so grad p = p (1 - p).
"""

import numpy as np
import pytest

from nemo_ada.errors import UserError
from tests.core.scripted import advantages_of

PROMPTS, GROUP = 40_000, 4


def updates(p, group=GROUP, **options):
    """Per-prompt gradient estimates, divided by the rows, and the advantages."""
    rng = np.random.default_rng(7)
    rate_P = np.broadcast_to(np.asarray(p, np.float64), PROMPTS)
    positive_PN = rng.random((PROMPTS, group)) < rate_P[:, None]
    score_PN = np.where(positive_PN, 1.0 - rate_P[:, None], -rate_P[:, None])
    row_PR, prompt_N = np.arange(PROMPTS * group).reshape(PROMPTS, group), np.repeat(np.arange(PROMPTS), group)
    positive_N, ones_P = positive_PN.ravel(), np.ones(PROMPTS)
    advantage_PR = advantages_of(
        positive_N.astype(float), positive_N, prompt_N, row_PR, np.ones((PROMPTS, group)), weight_P=ones_P, **options
    )
    return (advantage_PR * score_PN).mean(axis=1), advantage_PR


def prior(a, b):
    return np.full(PROMPTS, a), np.full(PROMPTS, b)


@pytest.mark.parametrize("group", [1, 2, GROUP])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("ab", [(1.0, 1.0), (0.6, 1.5), (8.0, 2.0)])
def test_its_mean_is_the_gradient_whatever_the_prior_and_the_group(p, ab, group):
    ours, _ = updates(p, group, prior_P=prior(*ab))
    error = ours.std() / np.sqrt(PROMPTS)
    assert abs(ours.mean() - p * (1 - p)) < 4.5 * error


def test_with_the_right_prior_it_has_less_variance_than_leave_one_out():
    rates = np.random.default_rng(0).beta(0.6, 1.5, PROMPTS)
    ours, _ = updates(rates, prior_P=prior(0.6, 1.5))
    plain, _ = updates(rates)
    others = plain * GROUP / (GROUP - 1)  # the mean of the other responses as baseline
    gradient = rates * (1 - rates)
    assert (ours - gradient).var() < 0.97 * (others - gradient).var()


def test_a_graded_reward_is_compared_with_the_mean_of_the_others_and_the_prior():
    row, reward = np.arange(4), np.array([0.0, 1.0, 0.5, 0.25])
    found = advantages_of(
        reward, row > 1, np.zeros(4, int), row, np.ones(4),
        weight_P=np.ones(1), prior_P=(np.ones(1), np.ones(1)),
    )  # fmt: skip
    np.testing.assert_allclose(found, reward - (reward.sum() - reward + 1.0) / (3 + 2))


def test_rewards_outside_of_0_and_1_are_refused():
    row = np.arange(4)
    with pytest.raises(UserError, match="baseline: pool"):
        advantages_of(
            np.array([0.0, 1.0, 1.5, 1.0]), row > 0, np.zeros(4, int), row, np.ones(4),
            weight_P=np.ones(1), prior_P=(np.ones(1), np.ones(1)),
        )  # fmt: skip
