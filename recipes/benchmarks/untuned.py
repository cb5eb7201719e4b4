"""A task of the leaderboard on which nothing was tuned: sums of two numbers, with errors in the demonstrations.

Methods run on it at the learning rates that sudoku chose. Its base models answer some digits wrong at some places, as
those of the other tasks do, so that their pass rates lie between 0 and 1.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from nemo_ada.tasks.noise import SUDOKU_BANDS, corrupt_blanks, draw_rates
from nemo_ada.tasks.protocol import Demonstration, Prompt, Splits, Tokenizer, make_content_id
from nemo_ada.tasks.tokenizer import CharTokenizer
from nemo_ada.verify.verdict import Verdict

NUMBERS, DIGITS = 100, 3  # addends are below 100, so a sum has at most three digits
TRAIN, HELDOUT = 4096, 256


class Sums:
    """Sums of two numbers below 100: `37+85=` and its answer `122`, always in three digits.

    Args:
        tokenizer: the model's. A base model of this package has one per character.
        seed: decides the order of the problems and the errors.
    """

    name, max_prompt_tokens, max_new_tokens = "sums", 6, 4

    def __init__(self, tokenizer: Tokenizer | None, seed: int = 0) -> None:
        self.tokenizer = tokenizer or CharTokenizer()
        self._seed = seed

    def splits(self) -> Splits:
        """Return 4,096 prompts for training, 256 held-out ones, and the others as demonstrations."""
        return self._splits

    @cached_property
    def _splits(self) -> Splits:
        order_R = np.random.default_rng([self._seed, 0]).permutation(NUMBERS**2)
        pairs = [divmod(int(index), NUMBERS) for index in order_R]
        texts = [(f"{first}+{second}=", f"{first + second:0{DIGITS}}") for first, second in pairs]
        shown = [answer for _, answer in texts[TRAIN + HELDOUT :]]
        digit_RC = np.array([list(answer) for answer in shown]).astype(np.int64)
        rates, errors = (np.random.default_rng([self._seed, number]) for number in (1, 2))
        rate_CD = draw_rates(SUDOKU_BANDS, (DIGITS, 10), rates)
        noisy_RC = corrupt_blanks(digit_RC, np.ones_like(digit_RC, bool), rate_CD, errors)
        written = ["".join(row) for row in noisy_RC.astype(str).tolist()]
        prompts = [
            Prompt(make_content_id(self.name, text), text, answer, {}) for text, answer in texts[: TRAIN + HELDOUT]
        ]
        demonstrations = [
            Demonstration(text, answer) for (text, _), answer in zip(texts[TRAIN + HELDOUT :], written, strict=True)
        ]
        return Splits(tuple(prompts[:TRAIN]), tuple(prompts[TRAIN:]), tuple(demonstrations))

    def submit(self, prompt: Prompt, text: str, finished: bool) -> Verdict:
        """Label one response 1.0 when it ended by itself and is the sum, else 0.0."""
        return Verdict(float(finished and text == prompt.answer))

    def close(self) -> None:
        """Do nothing: there are no processes."""
