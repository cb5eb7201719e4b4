"""Advantages, row by row: GRPO as a special case, real rewards, placeholder rows.

Expectations (what the rows do to the policy) are in test_bandit.py.
"""

import numpy as np
import pytest

from tests.core.scripted import advantages_of

ONES = np.ones(3)
PROMPT = np.repeat(np.arange(3), 6)
REWARD = np.array([1, 0, 0, 1, 0, 1] + [0.9, 0.1, -1.0, 0.3, 2.0, 0.8] + [0] * 6, float)
POSITIVE = REWARD > 0.7
ALL = np.arange(18)


def test_fixed_groups_in_reference_mode_are_plain_grpo():
    groups = REWARD.reshape(3, 6)
    centred = groups - groups.mean(axis=1, keepdims=True)
    ours = advantages_of(REWARD, POSITIVE, PROMPT, ALL.reshape(3, 6), np.ones((3, 6)), weight_P=ONES)
    np.testing.assert_allclose(ours, centred, atol=1e-12)
    scaled = advantages_of(REWARD, POSITIVE, PROMPT, ALL.reshape(3, 6), np.ones((3, 6)), weight_P=ONES, normalize="std")
    np.testing.assert_allclose(scaled, centred / (groups.std(axis=1, keepdims=True) + 1e-6), atol=1e-12)


def test_one_label_with_real_rewards_still_has_contrast():
    reward = np.array([0.1, 0.3, 0.5])
    for weighting in ("reference", "objective"):
        ours = advantages_of(
            reward,
            reward > 0.7,
            np.zeros(3, int),
            np.arange(3),
            np.ones(3),
            weight_P=np.ones(1),
            weighting=weighting,
        )
        np.testing.assert_allclose(ours, [-0.2, 0, 0.2], atol=1e-12)


def test_prompts_without_rows_do_not_change_the_others():
    """Standby prompts and groups that were replaced are in the pools, but not in the batch."""
    rows, weight = np.arange(12).reshape(2, 6), np.ones((2, 6))
    few = advantages_of(
        REWARD[:12],
        POSITIVE[:12],
        PROMPT[:12],
        rows,
        weight,
        weight_P=np.ones(2),
        weighting="objective",
    )
    many = advantages_of(REWARD, POSITIVE, PROMPT, rows, weight, weight_P=ONES, weighting="objective")
    np.testing.assert_array_equal(few, many)


@pytest.mark.parametrize("normalize", ["none", "std"])
def test_equal_rewards_are_exactly_dead_whatever_their_mean_rounds_to(normalize):
    reward = np.full(7, 0.1)
    assert reward.sum() / 7 != 0.1
    ours = advantages_of(
        reward, reward > 0.7, np.zeros(7, int), np.arange(7), np.ones(7), weight_P=np.full(1, 50.0), normalize=normalize
    )
    assert not ours.any()
