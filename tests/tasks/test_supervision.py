"""Supervised batches: right-padded rows that end, each demonstration once per pass, any step without those before."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.tasks import CharTokenizer, Demonstration, DemonstrationBatches, SupervisedBatch

TOKENIZER = CharTokenizer()
SHOWN = tuple(Demonstration(f"{i}" + "+" * (i % 3) + "=", "ab" * (1 + i % 4)) for i in range(23))


def batches(batch_size: int = 5, seed: int = 0) -> DemonstrationBatches:
    return DemonstrationBatches(SHOWN, TOKENIZER, batch_size, seed)


def texts(batch: SupervisedBatch) -> list[tuple[str, str]]:
    rows = zip(batch.tokens_RT.tolist(), batch.length_R.tolist(), batch.prompt_length_R.tolist(), strict=True)
    return [(TOKENIZER.decode(row[:p]), TOKENIZER.decode(row[p:n])) for row, n, p in rows]


def same(a: SupervisedBatch, b: SupervisedBatch) -> bool:
    return all(np.array_equal(getattr(a, k), getattr(b, k)) for k in ("tokens_RT", "length_R", "prompt_length_R"))


def test_a_row_is_prompt_answer_end_and_padding() -> None:
    batch = batches().batch(0)
    assert batch.tokens_RT.dtype == batch.length_R.dtype == batch.prompt_length_R.dtype == np.int64
    assert batch.tokens_RT.shape == (5, batch.length_R.max())
    for row, length in zip(batch.tokens_RT, batch.length_R, strict=True):
        assert row[length - 1] == TOKENIZER.eos_id
        assert (row[: length - 1] >= 2).all()
        assert (row[length:] == TOKENIZER.pad_id).all()
    assert set(texts(batch)) <= {(d.prompt_text, d.answer_text) for d in SHOWN}


def test_every_pass_shows_each_demonstration_once_in_another_order() -> None:
    source = batches()
    stream = [row for step in range(23) for row in texts(source.batch(step))]  # 115 rows: five passes
    passes = [stream[i : i + 23] for i in range(0, 115, 23)]
    for one in passes:
        assert Counter(one) == Counter((d.prompt_text, d.answer_text) for d in SHOWN)
    assert len({tuple(one) for one in passes}) == 5


def test_a_step_is_the_same_whatever_was_read_before() -> None:
    walked = batches()
    in_order = [walked.batch(step) for step in range(12)]
    for step in (11, 3, 0, 7):
        assert same(batches().batch(step), in_order[step])
        assert same(walked.batch(step), in_order[step])


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(UserError, match="no demonstrations"):
        DemonstrationBatches((), TOKENIZER, 5, 0)
    with pytest.raises(UserError, match="batch size is 0"):
        batches(batch_size=0)
    with pytest.raises(InvariantError, match="-1"):
        batches().batch(-1)
