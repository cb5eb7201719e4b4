"""Downsampling to n rows: the rule, uniform on each side, whatever the order of prompts and responses."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core.learning.rows import select_step


def expected_kept(pos, neg, n):
    """The rule, one row at a time."""
    keep_pos = keep_neg = 0
    while keep_pos + keep_neg < min(n, pos + neg):
        pos_open, neg_open = keep_pos < pos, keep_neg < neg
        if pos_open and (keep_pos < n // 2 or not neg_open or keep_neg >= n - n // 2):
            keep_pos += 1
        else:
            keep_neg += 1
    return keep_pos, keep_neg


@settings(max_examples=150)
@given(st.lists(st.lists(st.booleans(), max_size=20), min_size=1, max_size=8), st.integers(1, 9), st.randoms())
def test_a_step_keeps_the_rule_per_prompt_in_any_order(pools, n, random):
    prompt_N = np.array([p for p, pool in enumerate(pools) for _ in pool], np.int64)
    index_N = np.array([i for pool in pools for i, _ in enumerate(pool)], np.int64)
    positive_N = np.array([label for pool in pools for label in pool], bool)
    uid_P = np.arange(len(pools)) * 11 - 3
    kept = select_step(prompt_N, index_N, positive_N, uid_P, n, run_seed=4, step=1)

    def identities(selection, prompts, indices, uids):
        row_PR, weight_PR = selection
        real = row_PR[weight_PR == 1.0]
        return {(int(uids[prompts[row]]), int(indices[row])) for row in real}

    for p, pool in enumerate(pools):
        rows = kept[0][p][kept[1][p] == 1.0]
        assert len(set(rows.tolist())) == len(rows) == min(n, len(pool))
        assert (prompt_N[rows] == p).all()
        assert (np.diff(index_N[rows]) > 0).all()
        counts = (int(positive_N[rows].sum()), int((~positive_N[rows]).sum()))
        assert counts == expected_kept(sum(pool), len(pool) - sum(pool), n)

    shuffle = np.array(random.sample(range(len(prompt_N)), len(prompt_N)), np.int64)
    places = np.array(random.sample(range(len(pools)), len(pools)), np.int64)
    moved_uid = np.empty_like(uid_P)
    moved_uid[places] = uid_P
    moved = select_step(
        places[prompt_N[shuffle]], index_N[shuffle], positive_N[shuffle], moved_uid, n, run_seed=4, step=1
    )
    assert identities(kept, prompt_N, index_N, uid_P) == identities(
        moved, places[prompt_N[shuffle]], index_N[shuffle], moved_uid
    )


def test_every_response_of_a_side_is_kept_equally_often():
    """20 000 equal pools (3 correct, 5 incorrect of 8), n = 4: a correct one is kept 2/3, an incorrect one 2/5."""
    num_prompts, labels = 20000, np.array([1, 0, 0, 1, 0, 0, 1, 0], bool)
    prompt_N, index_N = np.repeat(np.arange(num_prompts), 8), np.tile(np.arange(8), num_prompts)
    chosen = select_step(prompt_N, index_N, np.tile(labels, num_prompts), prompt_N[::8] + 5, 4, run_seed=1, step=3)
    share = np.bincount(index_N[chosen[0].ravel()], minlength=8) / num_prompts
    expected = np.where(labels, 2 / 3, 2 / 5)
    assert np.abs(share - expected).max() < 5 * np.sqrt(0.25 / num_prompts)
