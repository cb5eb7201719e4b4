"""Random numbers that depend on what they are for, not on when they are drawn.

A generator that is advanced draw by draw ties its numbers to the order of events, and in this project the order of
events is the engine's. So every number here is a hash (the finaliser of splitmix64: Steele, Lea and Flood, 2014) of
(run seed, step, uid of the prompt, index, stream): the same response gets the same seed and the same sort key whatever
finished first, and a resumed run needs no generator state. N is the number of responses asked for.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from nemo_ada.core.arrays import FloatArray, IntArray

BitArray = NDArray[np.uint64]

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MUL_A = 0xBF58476D1CE4E5B9
_MUL_B = 0x94D049BB133111EB
SEED_BITS = 31


class Stream(IntEnum):
    """What a number is used for; two streams never share a number."""

    RESPONSE = 0
    SELECTION = 1
    ALLOCATION = 2
    PRIORITY = 3
    CANDIDATES = 4


def bits64(run_seed: int, step: int, uid_N: IntArray, index_N: IntArray | int, stream: int) -> BitArray:
    """64 hashed bits per (run seed, step, uid, index, stream); the arrays broadcast against each other."""
    state = 0
    for word in (run_seed, step, stream):
        state = _mixed(state ^ (int(word) & _WORD))
    with np.errstate(over="ignore"):
        hashed_N = _mix(_unsigned(uid_N) ^ np.uint64(state))
        return _mix(hashed_N ^ _unsigned(index_N))


def uniform(run_seed: int, step: int, uid_N: IntArray, index_N: IntArray | int, stream: int) -> FloatArray:
    """Uniform numbers in [0, 1), 53 random bits each, from the same hash as `bits64`."""
    return (bits64(run_seed, step, uid_N, index_N, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def response_seed(run_seed: int, step: int, uid_N: IntArray, index_N: IntArray) -> IntArray:
    """Sampling seed of response `index` of each prompt occurrence, in [0, 2**31), which every engine accepts.

    The prompt's hash is the start and a bijection of 31-bit words spreads the indices, so two responses of one prompt
    occurrence never share a seed (31 hashed bits would: 4096 prompts with 128 responses collide in about one step of
    sixty, and a shared seed is a duplicated response). Different prompts may share one; that is harmless.
    """
    low31 = np.uint64((1 << SEED_BITS) - 1)
    with np.errstate(over="ignore"):
        word_N = (bits64(run_seed, step, uid_N, 0, Stream.RESPONSE) + _unsigned(index_N)) & low31
        for multiplier, shift in ((0x7FEB352D, 16), (0x846CA68B, 15), (0x2C1B3C6D, 17)):
            word_N ^= word_N >> np.uint64(shift)
            word_N = (word_N * np.uint64(multiplier)) & low31
        word_N ^= word_N >> np.uint64(16)
    return word_N.astype(np.int64)


def _unsigned(value_N: IntArray | int) -> BitArray:
    return np.atleast_1d(np.asarray(value_N, dtype=np.int64)).view(np.uint64)


def _mix(word_N: BitArray) -> BitArray:
    word_N = word_N + np.uint64(_GAMMA)
    word_N ^= word_N >> np.uint64(30)
    word_N *= np.uint64(_MUL_A)
    word_N ^= word_N >> np.uint64(27)
    word_N *= np.uint64(_MUL_B)
    word_N ^= word_N >> np.uint64(31)
    return word_N


def _mixed(word: int) -> int:
    word = (word + _GAMMA) & _WORD
    word = ((word ^ (word >> 30)) * _MUL_A) & _WORD
    word = ((word ^ (word >> 27)) * _MUL_B) & _WORD
    return word ^ (word >> 31)
