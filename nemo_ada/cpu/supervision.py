"""Batches of demonstrations for the training of a base model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice

import numpy as np

from nemo_ada.cpu.learner.batch import TokenRows
from nemo_ada.errors import UserError
from nemo_ada.tasks.protocol import Demonstration, Tokenizer


def make_demonstration_batches(
    demonstrations: Sequence[Demonstration], tokenizer: Tokenizer, batch_size: int, seed: int
) -> Iterator[TokenRows]:
    """Endless shuffled passes over the demonstrations.

    Pass e over the data is a permutation from (seed, e), and shows every demonstration once. A batch may span two
    passes. N demonstrations, R rows of a batch, T tokens.

    Args:
        demonstrations: Prompts with their answers.
        tokenizer: Encodes both.
        batch_size: Rows of a batch.
        seed: Seed of the order.

    Yields:
        Rows of prompt, answer and end of sequence, right-padded to the longest row of the batch.

    Raises:
        UserError: There is no demonstration.
    """
    if not demonstrations:
        raise UserError("the task has no demonstrations to train a base model; use a larger supervision share")
    prompts = [tokenizer.encode(demonstration.prompt_text) for demonstration in demonstrations]
    answers = [tokenizer.encode(demonstration.answer_text) for demonstration in demonstrations]
    rows = [prompt + answer + [tokenizer.eos_id] for prompt, answer in zip(prompts, answers, strict=True)]
    prompt_length_N = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    length_N = np.array([len(row) for row in rows], dtype=np.int64)
    tokens_NT = np.full((len(rows), int(length_N.max())), tokenizer.pad_id, dtype=np.int64)
    for index, row in enumerate(rows):
        tokens_NT[index, : len(row)] = row
    order = (index for number in count() for index in np.random.default_rng([seed, number]).permutation(len(rows)))
    while True:
        index_R = np.array(list(islice(order, batch_size)))
        length_R = length_N[index_R]
        yield TokenRows(tokens_NT[index_R, : int(length_R.max())], length_R, prompt_length_N[index_R])
