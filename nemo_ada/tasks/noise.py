"""Systematic errors in demonstrations, which spread the base model's pass rates between 0 and 1.

A base model whose training merely stopped early hardly improves under RL. Error rates per *context* work better. In
most contexts the correct answer stays the most likely one, and RL sharpens it. Each data set samples its rates once
from a mixture of uniform bands. The errors of different symbols are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class NoiseBand:
    """Some of the contexts, with error rates from a uniform distribution.

    Attributes:
        share: Share of all contexts.
        low: Lowest error rate.
        high: Upper bound of the error rates, not included.
    """

    share: float
    low: float
    high: float


# Most contexts are reliable, some are doubtful, a few are wrong more often than correct.
SUDOKU_BANDS = (NoiseBand(0.75, 0.0, 0.04), NoiseBand(0.18, 0.1, 0.4), NoiseBand(0.07, 0.5, 0.8))
SPELLING_BANDS = (NoiseBand(0.68, 0.0, 0.03), NoiseBand(0.19, 0.2, 0.6), NoiseBand(0.13, 0.6, 0.85))


def draw_rates(
    bands: Sequence[NoiseBand], shape: tuple[int, ...], rng: np.random.Generator, scale: float = 1.0
) -> NDArray[np.float64]:
    """Return error rates of the given shape. Each band has its rounded share of the contexts, in random places."""
    size = int(np.prod(shape))
    edges = np.rint(np.cumsum([band.share for band in bands]) * size).astype(int)
    counts = np.diff(edges, prepend=0)
    rates = np.concatenate([rng.uniform(b.low, b.high, n) for b, n in zip(bands, counts, strict=True)])
    return scale * rng.permutation(rates).reshape(shape)


def corrupt_blanks(
    digit_RC: NDArray[np.int64], blank_RC: NDArray[np.bool_], rate_CD: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Replace digits in blank cells by another, uniformly random digit. Other cells never change.

    Args:
        digit_RC: Correct digits 0..D-1 of R demonstrations with C cells.
        blank_RC: Whether a cell is blank.
        rate_CD: Probability that blank cell c changes when its correct digit is d.
        rng: Generator of the errors.

    Returns:
        The digits with errors [R, C].
    """
    cells, digits = rate_CD.shape
    wrong_RC = blank_RC & (rng.random(digit_RC.shape) < rate_CD[np.arange(cells), digit_RC])
    shift_RC = rng.integers(1, digits, digit_RC.shape)
    return np.where(wrong_RC, (digit_RC + shift_RC) % digits, digit_RC)


def corrupt_letters(
    letter_RL: NDArray[np.int64], length_R: NDArray[np.int64], rate_AB: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Replace letters by another, uniformly random letter.

    Args:
        letter_RL: Correct letters 0..A-1 of R demonstrations, padded to L letters.
        length_R: Letters of each demonstration. Positions behind it do not change.
        rate_AB: Probability that the correct letter a changes after the *written* letter b, which may be wrong itself,
            as in generation. b = A stands for the start of the output.
        rng: Generator of the errors.

    Returns:
        The letters with errors [R, L].
    """
    letters = rate_AB.shape[0]
    written_RL = letter_RL.copy()
    previous_R = np.full(len(letter_RL), letters, dtype=np.int64)
    for position in range(letter_RL.shape[1]):
        right_R = letter_RL[:, position]
        wrong_R = rng.random(len(right_R)) < rate_AB[right_R, previous_R]
        shift_R = rng.integers(1, letters, len(right_R))
        previous_R = np.where(wrong_R, (right_R + shift_R) % letters, right_R)
        written_RL[:, position] = np.where(position < length_R, previous_R, right_R)
    return written_RL
