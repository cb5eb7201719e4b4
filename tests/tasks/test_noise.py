"""Demonstration errors occur at the rates asked, where they may occur, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_ada.tasks.noise import SPELLING_BANDS, SUDOKU_BANDS, NoiseBand, corrupt_blanks, corrupt_letters, draw_rates


@pytest.mark.parametrize(
    ("bands", "shape", "expected"),
    [
        # 64 contexts: 75 %, 18 % and 7 % of them; edges .04/.1, .4/.5, .8
        (SUDOKU_BANDS, (16, 4), [48, 12, 4]),
        # 702 contexts: 68 %, 19 % and 13 %
        (SPELLING_BANDS, (26, 27), [477, 134, 91]),
    ],
)
def test_every_band_holds_its_share_of_the_contexts(
    bands: tuple[NoiseBand, ...], shape: tuple[int, ...], expected: list[int]
) -> None:
    rates = draw_rates(bands, shape, np.random.default_rng(5))
    assert rates.shape == shape
    counts = [int(((rates >= band.low) & (rates < band.high)).sum()) for band in bands]
    assert counts == expected


def test_blanks_go_wrong_at_their_own_rate_and_givens_never() -> None:
    rng = np.random.default_rng(11)
    rate_CD = rng.uniform(0, 0.8, (16, 4))
    digit_RC = rng.integers(0, 4, (40_000, 16))
    blank_RC = rng.random((40_000, 16)) < 0.5
    noisy_RC = corrupt_blanks(digit_RC, blank_RC, rate_CD, rng)
    wrong_RC = noisy_RC != digit_RC
    assert not wrong_RC[~blank_RC].any()
    assert set(np.unique(noisy_RC)) == {0, 1, 2, 3}
    for cell in range(16):
        for digit in range(4):
            here_R = blank_RC[:, cell] & (digit_RC[:, cell] == digit)
            rate, n = rate_CD[cell, digit], here_R.sum()
            assert abs(wrong_RC[here_R, cell].mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / n) + 1e-9
    others = np.bincount(noisy_RC[wrong_RC & (digit_RC == 2)], minlength=4)[[0, 1, 3]]
    assert np.abs(others / others.sum() - 1 / 3).max() < 5 * np.sqrt(2 / 9 / others.sum()), "any other one, evenly"


def test_letters_go_wrong_at_the_rate_of_the_letter_and_the_one_written_before_it() -> None:
    rng = np.random.default_rng(13)
    rate_AB = rng.uniform(0, 0.8, (3, 4))
    letter_RL = rng.integers(0, 3, (60_000, 6))
    length_R = rng.integers(1, 7, 60_000)
    noisy_RL = corrupt_letters(letter_RL, length_R, rate_AB, rng)
    start_R = np.full((60_000, 1), 3)
    written_RL = np.concatenate([start_R, noisy_RL[:, :-1]], axis=1)
    inside_RL = np.arange(6) < length_R[:, None]
    assert (noisy_RL == letter_RL)[~inside_RL].all()
    for letter in range(3):
        for before in range(4):
            here_RL = inside_RL & (letter_RL == letter) & (written_RL == before)
            rate, n = rate_AB[letter, before], here_RL.sum()
            assert n > 1000
            wrong = (noisy_RL != letter_RL)[here_RL].mean()
            assert abs(wrong - rate) < 5 * np.sqrt(rate * (1 - rate) / n)
