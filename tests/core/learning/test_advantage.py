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


@pytest.mark.parametrize("normalize", ["none", "std"])
def test_the_others_are_the_baseline_and_their_spread_divides(normalize):
    """Row by row, from the other five alone. The last group has equal rewards."""
    expected = []
    for group in REWARD.reshape(3, 6):
        for place, reward in enumerate(group):
            others = np.delete(group, place)
            spread = others.std(ddof=1)
            expected.append((reward - others.mean()) / (spread + 1e-6 if normalize == "std" and spread > 0 else 1.0))
    ours = advantages_of(
        REWARD, POSITIVE, PROMPT, ALL, np.ones(18), weight_P=ONES, normalize=normalize, baseline="leave_one_out"
    )
    np.testing.assert_allclose(ours, expected, atol=1e-12)
    lone = advantages_of(
        np.ones(1), np.ones(1, bool), np.zeros(1, int), np.zeros(1, int), np.ones(1), weight_P=np.ones(1),
        normalize=normalize, baseline="leave_one_out",
    )  # fmt: skip
    np.testing.assert_array_equal(lone, [0.0])


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
