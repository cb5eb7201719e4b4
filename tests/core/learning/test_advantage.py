"""Advantages, row by row: GRPO as a special case, real rewards, placeholder rows.

Expectations (what the rows do to the policy) are in test_bandit.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from nemo_ada.core.learning.advantage import advantages
from nemo_ada.core.learning.objectives import Log, gradient_weight
from nemo_ada.core.sampling.pass_rate import pool
from nemo_ada.errors import InvariantError

ONES = np.ones(3)
PROMPT = np.repeat(np.arange(3), 6)
REWARD = np.array([1, 0, 0, 1, 0, 1] + [0.9, 0.1, -1.0, 0.3, 2.0, 0.8] + [0] * 6, float)
POSITIVE = REWARD > 0.7
ALL = np.arange(18)
TOTAL = np.bincount(PROMPT)
POS = np.bincount(PROMPT, POSITIVE).astype(int)


def test_fixed_groups_in_reference_mode_are_plain_grpo() -> None:
    groups = REWARD.reshape(3, 6)
    centred = groups - groups.mean(axis=1, keepdims=True)
    ours = advantages(REWARD, POSITIVE, PROMPT, ALL.reshape(3, 6), np.ones((3, 6)), weight_P=ONES)
    np.testing.assert_allclose(ours, centred, atol=1e-12)
    scaled = advantages(REWARD, POSITIVE, PROMPT, ALL.reshape(3, 6), np.ones((3, 6)), weight_P=ONES, normalize="std")
    np.testing.assert_allclose(scaled, centred / (groups.std(axis=1, keepdims=True) + 1e-6), atol=1e-12)


def test_objective_weighting_of_whole_fixed_pools_changes_nothing() -> None:
    ours = advantages(
        REWARD, POSITIVE, PROMPT, ALL, np.ones(18), weight_P=ONES, rate_P=pool(POS, TOTAL), weighting="objective"
    )
    np.testing.assert_allclose(ours, REWARD - np.repeat([REWARD[:6].mean(), REWARD[6:12].mean(), 0], 6), atol=1e-12)


def test_kept_rows_carry_the_inverse_of_the_design() -> None:
    """Prompt 0: 3 of 6 correct, kept 1 correct and 3 incorrect: row weights q / (1/4) and (1-q) / (3/4), b = q."""
    rows = np.array([[0, 1, 2, 4], [6, 7, 10, 11], [12, 13, 14, 15]])
    rates = pool(np.array([3, 3, 0]), TOTAL)
    ours = advantages(
        REWARD,
        POSITIVE,
        PROMPT,
        rows,
        np.ones((3, 4)),
        weight_P=np.array([2.0, 1, 1]),
        rate_P=rates,
        weighting="objective",
    )
    np.testing.assert_allclose(ours[0], 2 * np.array([2 * 0.5, -2 / 3 * 0.5, -2 / 3 * 0.5, -2 / 3 * 0.5]))
    mean = 0.5 * np.mean([0.9, 2.0, 0.8]) + 0.5 * np.mean([0.1, -1.0, 0.3])
    np.testing.assert_allclose(ours[1], np.array([2 / 3, 2, 2 / 3, 2 / 3]) * (REWARD[rows[1]] - mean))
    assert not ours[2].any()


def test_the_baseline_is_the_pools_and_not_the_kept_rows() -> None:
    ours = advantages(REWARD, POSITIVE, PROMPT, np.array([[0, 3], [6, 7], [12, 13]]), np.ones((3, 2)), weight_P=ONES)
    np.testing.assert_allclose(ours[0], [0.5, 0.5])


def test_fillers_and_missing_rows_get_nothing_and_move_nobody_else() -> None:
    rows = np.array([[0, 1, 0, 0], [6, 7, 8, 6], [-1, -1, -1, -1]])
    weight = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]], float)
    for weighting in ("reference", "objective"):
        ours = advantages(
            REWARD,
            POSITIVE,
            PROMPT,
            rows,
            weight,
            weight_P=ONES,
            rate_P=pool(POS, TOTAL),
            weighting=weighting,  # type: ignore[arg-type]
        )
        assert not ours[weight == 0].any()
        assert ours[0, 0] > 0 > ours[0, 1]
    nothing = advantages(REWARD, POSITIVE, PROMPT, rows, np.zeros((3, 4)), weight_P=ONES)
    assert nothing.shape == (3, 4)
    assert not nothing.any()


def test_one_label_with_real_rewards_still_has_contrast() -> None:
    reward = np.array([0.1, 0.3, 0.5])
    for weighting in ("reference", "objective"):
        ours = advantages(
            reward,
            reward > 0.7,
            np.zeros(3, int),
            np.arange(3),
            np.ones(3),
            weight_P=np.ones(1),
            rate_P=pool(np.array([0]), np.array([3])),
            weighting=weighting,  # type: ignore[arg-type]
        )
        np.testing.assert_allclose(ours, [-0.2, 0, 0.2], atol=1e-12)


def test_prompts_without_rows_do_not_change_the_others() -> None:
    """Standby prompts and groups that were replaced are in the pools, but not in the batch."""
    rows, weight = np.arange(12).reshape(2, 6), np.ones((2, 6))
    few = advantages(
        REWARD[:12],
        POSITIVE[:12],
        PROMPT[:12],
        rows,
        weight,
        weight_P=np.ones(2),
        rate_P=pool(POS[:2], TOTAL[:2]),
        weighting="objective",
    )
    many = advantages(
        REWARD, POSITIVE, PROMPT, rows, weight, weight_P=ONES, rate_P=pool(POS, TOTAL), weighting="objective"
    )
    np.testing.assert_array_equal(few, many)


@pytest.mark.parametrize("normalize", ["none", "std"])
def test_equal_rewards_are_exactly_dead_whatever_their_mean_rounds_to(normalize: str) -> None:
    reward = np.full(7, 0.1)
    assert reward.sum() / 7 != 0.1
    ours = advantages(
        reward,
        reward > 0.7,
        np.zeros(7, int),
        np.arange(7),
        np.ones(7),
        weight_P=np.full(1, 50.0),
        normalize=normalize,  # type: ignore[arg-type]
    )
    assert not ours.any()


def test_a_prompts_weight_scales_its_rows() -> None:
    weight = gradient_weight(Log(), np.array([0.5, 0.1, 0.9]), min_pass_rate=0.01, max_weight=100.0)
    base = advantages(REWARD, POSITIVE, PROMPT, ALL, np.ones(18), weight_P=ONES)
    ours = advantages(REWARD, POSITIVE, PROMPT, ALL, np.ones(18), weight_P=weight)
    np.testing.assert_allclose(ours, base * weight[PROMPT])


def test_silly_combinations_are_refused() -> None:
    with pytest.raises(InvariantError):
        advantages(REWARD, POSITIVE, PROMPT, ALL, np.ones(18), weight_P=ONES, weighting="objective")
    with pytest.raises(InvariantError):
        advantages(
            REWARD,
            POSITIVE,
            PROMPT,
            ALL,
            np.ones(18),
            weight_P=ONES,
            rate_P=pool(POS, TOTAL),
            weighting="objective",
            normalize="std",
        )
