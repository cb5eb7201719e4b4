"""Dealing rows to ranks and micro-batches, and the checks on what a learner is given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.cpu.learner.batch import TokenRows, TrainBatch, deal
from nemo_ada.errors import InvariantError


@given(
    lengths=st.lists(st.integers(1, 40), max_size=30), ranks=st.integers(1, 4), size=st.integers(1, 9), data=st.data()
)
def test_every_asked_row_is_dealt_once(lengths: list[int], ranks: int, size: int, data: st.DataObject) -> None:
    length_R = np.array(lengths, dtype=np.int64)
    keep = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    row_R = np.flatnonzero(np.array(keep, dtype=bool))
    dealt = deal(length_R, row_R, ranks, size)
    assert len(dealt) == ranks
    assert sorted(int(row) for mine in dealt for micro in mine for row in micro) == row_R.tolist()
    assert all(1 <= len(micro) <= size for mine in dealt for micro in mine)
    counts = [sum(len(micro) for micro in mine) for mine in dealt]
    assert max(counts) - min(counts) <= 1


def test_rows_of_one_length_share_a_micro_batch() -> None:
    length_R = np.array([9, 2, 9, 2, 9, 2, 2, 9])
    (mine,) = deal(length_R, np.arange(8), 1, 4)
    assert [set(length_R[micro]) for micro in mine] == [{9}, {2}]


@pytest.mark.parametrize(
    ("prompt", "length"), [(0, 3), (4, 3), (1, 6)], ids=["no prompt", "prompt over length", "length over width"]
)
def test_rows_that_cannot_be_read_are_refused(prompt: int, length: int) -> None:
    with pytest.raises(InvariantError, match="row 1"):
        TokenRows(np.zeros((2, 5), np.int64), np.array([3, length]), np.array([1, prompt]))


def _batch(**changes: object) -> TrainBatch:
    parts: dict[str, object] = {
        "tokens_RT": np.zeros((2, 5), np.int64),
        "length_R": np.array([3, 4]),
        "prompt_length_R": np.array([1, 2]),
        "advantage_R": np.ones(2, np.float32),
        "weight_R": np.ones(2, np.float32),
        "old_logprob_RT": np.zeros((2, 5), np.float32),
        "denominator": 4.0,
    }
    return TrainBatch(**(parts | changes))  # type: ignore[arg-type]


def test_response_tokens_are_counted() -> None:
    assert _batch().response_tokens == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"denominator": 0.0},
        {"advantage_R": np.array([np.nan, 1], np.float32)},
        {"weight_R": np.ones(3, np.float32)},
        {"old_logprob_RT": np.zeros((2, 4), np.float32)},
    ],
)
def test_batches_that_do_not_fit_together_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvariantError):
        _batch(**changes)


def test_an_advantage_that_does_not_count_may_be_missing() -> None:
    _batch(advantage_R=np.array([np.nan, 1], np.float32), weight_R=np.array([0, 1], np.float32))
