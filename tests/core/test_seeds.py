"""Hashed random numbers: a function of identity, uniform, and without collisions inside a prompt."""

from itertools import pairwise

import numpy as np

from nemo_ada.core.seeds import SeedStream, compute_response_seed, draw_uniform, hash_bits, shuffle_rows
from tests.lazy import Lazy

stats = Lazy("scipy.stats")


def test_the_hashes_are_those_that_saved_runs_depend_on():
    """A change of these numbers changes every pool of every run: they are pinned, from a scalar re-computation."""

    def mix(word):
        word = (word + 0x9E3779B97F4A7C15) % 2**64
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    def spread(word):  # in 31 bits, from the hash of the prompt occurrence on
        for multiplier, shift in ((0x7FEB352D, 16), (0x846CA68B, 15), (0x2C1B3C6D, 17)):
            word = ((word ^ (word >> shift)) * multiplier) & low31
        return word ^ (word >> 16)

    low31, uid = 2**31 - 1, np.array([-4])
    expected = mix(mix(mix(mix(mix(5) ^ 9) ^ 1) ^ (2**64 - 4)) ^ 6)
    assert int(hash_bits(5, 9, uid, np.array([6]), SeedStream.SELECTION)[0]) == expected
    start = int(hash_bits(5, 9, uid, 0, SeedStream.RESPONSE)[0])
    assert compute_response_seed(5, 9, uid, np.arange(6)).tolist() == [spread((start + i) & low31) for i in range(6)]


def test_responses_of_one_prompt_never_share_a_seed_and_seeds_fit_31_bits():
    uid_N, index_N = np.repeat(np.arange(2000) - 1000, 128), np.tile(np.arange(128), 2000)
    seeds = compute_response_seed(3, 17, uid_N, index_N)
    assert seeds.dtype == np.int64
    assert seeds.min() >= 0
    assert seeds.max() < 2**31
    assert all(len(np.unique(group)) == 128 for group in seeds.reshape(2000, 128))


def test_each_part_of_the_identity_changes_the_seed():
    identities = [(1, 2, 3, 4), (99, 2, 3, 4), (1, 99, 3, 4), (1, 2, 99, 4), (1, 2, 3, 99)]
    seeds = [
        compute_response_seed(run, step, np.array([uid]), np.array([index])) for run, step, uid, index in identities
    ]
    assert len(np.unique(seeds)) == len(identities)


def test_numbers_are_uniform_and_uncorrelated_between_neighbours_and_streams():
    many = np.arange(40000)
    spread = compute_response_seed(0, 0, many * 0, many) / 2**31
    samples = [
        draw_uniform(0, 0, uid, index, stream)
        for uid, index in ((many, np.array(0)), (np.array([8]), many))
        for stream in (SeedStream.ALLOCATION, SeedStream.PRIORITY)
    ]
    for sample in (*samples, spread):
        assert stats.kstest(sample, "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(sample[:-1], sample[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(samples)[~np.eye(4, dtype=bool)]).max() < 0.03


def test_a_shuffle_orders_prompts_anew_in_each_step_and_keeps_their_rows_together():
    prompt_R = np.array([7, 7, 2, 9, 2, 2, 9, 4])
    orders = {tuple(prompt_R[shuffle_rows(prompt_R, 3, step)]) for step in range(20)}
    assert len(orders) > 10
    for order in orders:
        assert sorted(order) == sorted(prompt_R)
        assert sum(a != b for a, b in pairwise(order)) == 3  # four prompts, each in one block
    order = shuffle_rows(prompt_R, 3, 5)
    assert order.tolist() == shuffle_rows(prompt_R, 3, 5).tolist()
    assert all(np.all(np.diff(order[prompt_R[order] == prompt]) > 0) for prompt in (2, 4, 7, 9))
