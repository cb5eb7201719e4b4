"""Differential test: the authors' sequential rule and ours on identical streams of rewards.

The rule, from the paper's algorithm box and algorithm.md sections 2 and 4, in plain Python (`authors_loop`):
1. Every prompt starts active. A round draws M responses for each active prompt; no prompt is judged before all are in.
2. A response is correct when its reward is above 0.7. A prompt leaves after the round in which its whole pool has k_pos
   correct (and, balanced, k_neg incorrect) ones, or after the last of the rounds.
3. It keeps n // 2 of its correct and n - n // 2 of its incorrect responses, a short side filled from the other; also
   when it never mixed.
4. The advantage of a kept response is its reward minus the mean reward of everything drawn for the prompt.
Compared: who leaves in which round, pool counts, kept counts, advantages by reward. Which responses of a side are kept
differs on purpose (they take the first of a list, we draw), and is covered by test_selection.py.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core.learning.advantage import compute_advantages
from nemo_ada.core.learning.rows import select_step
from nemo_ada.core.learning.settings import RowSettings
from nemo_ada.core.sampling.exits import BalancedExit, PositiveExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from tests.core.scripted import Script, collect

THRESHOLD = 0.7


class Group(NamedTuple):
    """What the authors' loop leaves of one prompt."""

    left_in_round: int
    pool: list
    kept: list
    mean: float


def authors_loop(streams, mode, n, wave, rounds):
    k_pos, k_neg = (1, 0) if mode == "positive" else (n // 2, n - n // 2)
    pools = [[] for _ in streams]
    left = {}
    for number in range(1, rounds + 1):
        active = [prompt for prompt in range(len(streams)) if prompt not in left]
        for prompt in active:
            start = len(pools[prompt])
            pools[prompt] += streams[prompt][start : start + wave]
        for prompt in active:
            correct = sum(reward > THRESHOLD for reward in pools[prompt])
            if (correct >= k_pos and len(pools[prompt]) - correct >= k_neg) or number == rounds:
                left[prompt] = number
    groups = []
    for prompt, pool in enumerate(pools):
        correct = [reward for reward in pool if reward > THRESHOLD]
        incorrect = [reward for reward in pool if reward <= THRESHOLD]
        kept = correct[: n // 2] + incorrect[: n - n // 2]
        spare = correct[n // 2 :] + incorrect[n - n // 2 :]
        groups.append(Group(left[prompt], pool, kept + spare[: n - len(kept)], sum(pool) / len(pool)))
    return groups


def ours(streams, mode, n, wave, rounds, scheduler):
    rule = PositiveExit(1) if mode == "positive" else BalancedExit(n // 2, n - n // 2)
    plan = SamplingPlan(
        StopRule(rule, (wave,), wave * rounds), n, 64, positive_threshold=THRESHOLD, scheduler=scheduler
    )
    reward_PI = np.array(streams)
    result, _ = collect(plan, Script(reward_PI, np.full(reward_PI.shape, 3, np.int64)))
    row_PR, weight_PR = select_step(
        result.prompt_N, result.index_N, result.positive_N, result.uid_P, n, run_seed=1, step=2
    )
    assert weight_PR.all()
    rows = RowSettings(n, StopRule(rule, (wave,), wave * rounds))
    advantage_PR = compute_advantages(result, row_PR, weight_PR, rows, weight_N=np.ones(len(result.prompt_N)))
    groups = []
    for prompt in range(len(streams)):
        mine = result.prompt_N == prompt
        kept = result.reward_N[row_PR[prompt]]
        mean = kept - advantage_PR[prompt]
        assert np.ptp(mean) < 1e-9
        left, pool = int(result.wave_N[mine].max()) + 1, result.reward_N[mine].tolist()
        groups.append(Group(left, pool, kept.tolist(), float(mean[0])))
    return groups


@pytest.mark.parametrize("scheduler", ["rounds", "continuous"])
@settings(max_examples=100)
@given(
    mode=st.sampled_from(["positive", "balanced"]),
    n=st.integers(2, 8),
    wave=st.integers(2, 8),
    rounds=st.integers(1, 4),
    rates=st.lists(st.sampled_from([0.0, 0.03, 0.2, 0.5, 0.9, 1.0]), min_size=1, max_size=12),
    seed=st.integers(0, 10**6),
)
def test_the_same_stream_gives_the_authors_groups(scheduler, mode, n, wave, rounds, rates, seed):
    wave = max(wave, n)  # with fewer responses than rows ours repeats rows without weight, theirs has no rule
    rng = np.random.default_rng(seed)
    good, bad = np.array([0.71, 1.0]), np.array([-0.5, 0.0, 0.3, 0.7])
    streams = [np.where(rng.random(64) < rate, rng.choice(good, 64), rng.choice(bad, 64)).tolist() for rate in rates]
    theirs = authors_loop(streams, mode, n, wave, rounds)
    for group, expected in zip(ours(streams, mode, n, wave, rounds, scheduler), theirs, strict=True):
        assert group.left_in_round == expected.left_in_round
        assert group.pool == expected.pool
        kept, kept_expected = (Counter(r > THRESHOLD for r in found.kept) for found in (group, expected))
        assert kept == kept_expected
        assert group.mean == pytest.approx(expected.mean, abs=1e-9)


def test_the_published_settings_on_a_worked_example():
    """n = 4, M = 8, 4 rounds, by hand: mixed at once, mixed in round 2, never correct, only one incorrect."""
    streams = [
        [1.0, 0.0, 1.0, 0.0] * 16,
        [0.0] * 8 + [1.0] + [0.0] * 5 + [1.0] * 50,
        [0.0] * 64,
        [1.0] * 9 + [0.0] + [1.0] * 54,
    ]
    for found in (authors_loop(streams, "balanced", 4, 8, 4), ours(streams, "balanced", 4, 8, 4, "rounds")):
        assert [group.left_in_round for group in found] == [1, 2, 4, 4]
        assert [len(group.pool) for group in found] == [8, 16, 32, 32]
        assert [sum(group.kept) for group in found] == [2, 2, 0, 3]
        assert [group.mean for group in found] == pytest.approx([0.5, 3 / 16, 0.0, 31 / 32])
