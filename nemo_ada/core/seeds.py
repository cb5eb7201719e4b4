"""Random numbers that depend on their purpose, not on the time at which they are drawn.

A generator that advances draw by draw ties its numbers to the order of events, and here the engine decides that order.
So every number is a hash (the finaliser of splitmix64: Steele, Lea and Flood, 2014) of run seed, step, uid of the
prompt, index and stream. The same response gets the same seed and the same sort key, whatever finished first. A resumed
run needs no generator state. N is the number of responses.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nemo_ada.core.arrays import FloatArray, IntArray

BitArray = NDArray[np.uint64]

_WORD = (1 << 64) - 1
SEED_BITS = 31
SHUFFLE_STREAM = 7  # the stream of `shuffle_rows`, whose numbers do not depend on a uid


class SeedStream(IntEnum):
    """The purpose of a number. Two streams never share a number."""

    RESPONSE = 0
    SELECTION = 1
    ALLOCATION = 2
    PRIORITY = 3  # 4 to 6 were streams that are gone


def hash_bits(run_seed: int, step: int, uid_N: IntArray, index_N: IntArray | int, stream: int) -> BitArray:
    """Compute 64 hashed bits per (run seed, step, uid, index, stream). The arrays broadcast against each other."""
    hashed_N = mix64(_make_unsigned(uid_N) ^ _hash_stream(run_seed, step, int(stream)))
    return mix64(hashed_N ^ _make_unsigned(index_N))


@lru_cache(maxsize=64)
def _hash_stream(run_seed: int, step: int, stream: int) -> BitArray:
    state = np.zeros(1, np.uint64)
    for word in (run_seed, step, stream):
        state = mix64(state ^ np.uint64(int(word) & _WORD))
    return state


def draw_uniform(run_seed: int, step: int, uid_N: IntArray, index_N: IntArray | int, stream: int) -> FloatArray:
    """Compute uniform numbers in [0, 1) with 53 random bits each, from the same hash as `hash_bits`."""
    return (hash_bits(run_seed, step, uid_N, index_N, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def compute_response_seed(run_seed: int, step: int, uid_N: IntArray, index_N: IntArray) -> IntArray:
    """Sampling seed of response `index` of each prompt occurrence, in [0, 2**31), which every engine accepts.

    The prompt's hash is the start, and a bijection of 31-bit words spreads the indices. So two responses of one prompt
    occurrence never share a seed; a shared seed would be a duplicated response. (With 31 hashed bits, 4096 prompts of
    128 responses would collide in about one step of sixty.) Different prompts may share a seed; that is harmless.
    """
    low31 = np.uint64((1 << SEED_BITS) - 1)
    with np.errstate(over="ignore"):
        word_N = (hash_bits(run_seed, step, uid_N, 0, SeedStream.RESPONSE) + _make_unsigned(index_N)) & low31
        for multiplier, shift in ((0x7FEB352D, 16), (0x846CA68B, 15), (0x2C1B3C6D, 17)):
            word_N ^= word_N >> np.uint64(shift)
            word_N = (word_N * np.uint64(multiplier)) & low31
        word_N ^= word_N >> np.uint64(16)
    return word_N.astype(np.int64)


def shuffle_rows(prompt_R: IntArray, run_seed: int, step: int) -> IntArray:
    """Return the numbers of a step's rows R, with the prompts in a seeded order and the rows of a prompt together.

    Both back ends cut rows into updates in this order. In the order in which prompts were chosen or finished, the
    updates of a step would be sorted by difficulty.
    """
    prompts, place_R = np.unique(prompt_R, return_inverse=True)
    rank = np.empty(len(prompts), np.int64)
    rank[np.random.default_rng([run_seed, step, SHUFFLE_STREAM]).permutation(len(prompts))] = np.arange(len(prompts))
    return np.argsort(rank[place_R], kind="stable")


def mix64(word_N: BitArray) -> BitArray:
    """splitmix64's finaliser: each bit of the result depends on every bit of the word."""
    word_N = word_N + np.uint64(0x9E3779B97F4A7C15)
    word_N ^= word_N >> np.uint64(30)
    word_N *= np.uint64(0xBF58476D1CE4E5B9)
    word_N ^= word_N >> np.uint64(27)
    word_N *= np.uint64(0x94D049BB133111EB)
    word_N ^= word_N >> np.uint64(31)
    return word_N


def _make_unsigned(value_N: IntArray | int) -> BitArray:
    return np.atleast_1d(np.asarray(value_N, dtype=np.int64)).view(np.uint64)
