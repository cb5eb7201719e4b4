"""Batches of demonstrations. They depend only on (seed, step), so training resumes without a stored position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.tasks.protocol import Demonstration, Tokenizer


@dataclass(frozen=True, slots=True)
class SupervisedBatch:
    """R rows of T tokens, right-padded: prompt, answer, end of sequence. The loss is on [prompt_length_R, length_R)."""

    tokens_RT: NDArray[np.int64]
    length_R: NDArray[np.int64]
    prompt_length_R: NDArray[np.int64]


class DemonstrationBatches:
    """Endless shuffled passes over the demonstrations, `batch_size` rows at a time.

    Row k of step s has number s * batch_size + k in the endless sequence. Pass e over the data is a permutation from
    (seed, e). So a batch may span two passes, and each pass shows every demonstration once.
    """

    def __init__(
        self, demonstrations: Sequence[Demonstration], tokenizer: Tokenizer, batch_size: int, seed: int
    ) -> None:
        """Raises UserError where there is no demonstration or `batch_size` is below 1."""
        if not demonstrations:
            raise UserError("the task has no demonstrations to train a base model; use a larger supervision share")
        if batch_size < 1:
            raise UserError(f"the supervised batch size is {batch_size}; use 1 or more")
        self._batch_size = batch_size
        self._seed = seed
        prompts = [tokenizer.encode(d.prompt_text) for d in demonstrations]
        rows = [
            p + tokenizer.encode(d.answer_text) + [tokenizer.eos_id]
            for p, d in zip(prompts, demonstrations, strict=True)
        ]
        self._prompt_length_N = np.array([len(p) for p in prompts], dtype=np.int64)
        self._length_N = np.array([len(row) for row in rows], dtype=np.int64)
        self._tokens_NT = np.full((len(rows), int(self._length_N.max())), tokenizer.pad_id, dtype=np.int64)
        for index, row in enumerate(rows):
            self._tokens_NT[index, : len(row)] = row
        self._pass: tuple[int, NDArray[np.int64]] = (0, self._permutation(0))

    def batch(self, step: int) -> SupervisedBatch:
        """The rows of one step (0, 1, 2, ...), padded to the longest row of the batch."""
        if step < 0:
            raise InvariantError(f"supervised step {step} is negative")
        first = step * self._batch_size
        response_id_R = np.array([self._row(position) for position in range(first, first + self._batch_size)])
        length_R = self._length_N[response_id_R]
        return SupervisedBatch(
            self._tokens_NT[response_id_R, : int(length_R.max())], length_R, self._prompt_length_N[response_id_R]
        )

    def _row(self, position: int) -> int:
        number, offset = divmod(position, len(self._length_N))
        if self._pass[0] != number:
            self._pass = (number, self._permutation(number))
        return int(self._pass[1][offset])

    def _permutation(self, number: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, number]).permutation(len(self._length_N))
