"""`keep_fraction`: fewer rows, the same mean update."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.core.learning.rows import thin

ADVANTAGES = st.lists(st.floats(-2.0, 2.0, allow_subnormal=False).map(lambda a: round(a, 6)), min_size=1, max_size=60)


@given(ADVANTAGES, st.floats(0.01, 1.0), st.integers(0, 99))
def test_the_number_of_rows_is_exact_and_no_row_changes_its_sign(advantages, share, step):
    before = np.array(advantages)
    after = thin(before, share, run_seed=1, step=step)
    wanted = max(round(share * len(before)), 1)
    assert np.count_nonzero(after) == min(wanted, np.count_nonzero(before))
    kept = after != 0.0
    assert (np.sign(after[kept]) == np.sign(before[kept])).all()
    assert (np.abs(after[kept]) >= np.abs(before[kept]) * (1 - 1e-9)).all()


def test_the_mean_update_is_that_of_all_rows():
    """Over many steps, against gradients that have nothing to do with the advantages. Plain dropping fails."""
    rng = np.random.default_rng(0)
    advantage, gradient = rng.normal(size=24) * rng.choice([0.0, 0.02, 1.0], 24), rng.normal(size=(24, 3))
    whole = advantage @ gradient
    draws = np.stack([thin(advantage, 0.25, run_seed=5, step=step) for step in range(3_000)])
    updates = draws @ gradient
    error = updates.std(axis=0) / np.sqrt(len(updates))
    assert (np.abs(updates.mean(axis=0) - whole) < 4.5 * error).all()
    unweighted = np.where(draws != 0.0, advantage, 0.0) @ gradient
    assert (np.abs(unweighted.mean(axis=0) - whole) > 4.5 * error).any()


def test_rows_of_larger_advantage_are_kept_more_often():
    advantage = np.array([1.0, -0.5, 0.25, 0.001])
    kept = np.stack([thin(advantage, 0.5, run_seed=0, step=step) != 0.0 for step in range(2000)]).mean(axis=0)
    assert kept[0] == 1.0  # 2 rows are kept, and 1 / (1 + .5 + .25 + .044) of 2 is above 1
    assert kept[1] == pytest.approx(2 * kept[2], rel=0.1) and 0.0 < kept[3] < kept[2]
