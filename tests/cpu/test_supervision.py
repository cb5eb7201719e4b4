"""Supervised batches: right-padded rows that end, and each demonstration once per pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from nemo_ada.cpu.learner.batch import TokenRows
from nemo_ada.cpu.supervision import make_demonstration_batches
from nemo_ada.errors import UserError
from nemo_ada.tasks.protocol import Demonstration
from nemo_ada.tasks.tokenizer import CharTokenizer

TOKENIZER = CharTokenizer()
SHOWN = tuple(Demonstration(f"{i}" + "+" * (i % 3) + "=", "ab" * (1 + i % 4)) for i in range(23))


def batches(seed: int = 0) -> Iterator[TokenRows]:
    return make_demonstration_batches(SHOWN, TOKENIZER, 5, seed)


def texts(batch: TokenRows) -> list[tuple[str, str]]:
    rows = zip(batch.tokens_RT.tolist(), batch.length_R.tolist(), batch.prompt_length_R.tolist(), strict=True)
    return [(TOKENIZER.decode(row[:p]), TOKENIZER.decode(row[p:n])) for row, n, p in rows]


def test_a_row_is_prompt_answer_end_and_padding() -> None:
    batch = next(batches())
    assert batch.tokens_RT.dtype == batch.length_R.dtype == batch.prompt_length_R.dtype == np.int64
    assert batch.tokens_RT.shape == (5, batch.length_R.max())
    for row, length in zip(batch.tokens_RT, batch.length_R, strict=True):
        assert row[length - 1] == TOKENIZER.eos_id
        assert (row[: length - 1] >= 2).all()
        assert (row[length:] == TOKENIZER.pad_id).all()
    assert set(texts(batch)) <= {(d.prompt_text, d.answer_text) for d in SHOWN}


def test_every_pass_shows_each_demonstration_once_in_another_order() -> None:
    stream = [row for batch in islice(batches(), 23) for row in texts(batch)]  # 115 rows: five passes
    passes = [stream[i : i + 23] for i in range(0, 115, 23)]
    for one in passes:
        assert Counter(one) == Counter((d.prompt_text, d.answer_text) for d in SHOWN)
    assert len({tuple(one) for one in passes}) == 5


def test_the_order_follows_the_seed() -> None:
    first, again, other = (texts(next(batches(seed))) for seed in (3, 3, 4))
    assert first == again != other


def test_a_task_without_demonstrations_is_refused() -> None:
    with pytest.raises(UserError, match="no demonstrations"):
        next(make_demonstration_batches((), TOKENIZER, 5, 0))
