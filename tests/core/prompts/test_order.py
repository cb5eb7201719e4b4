"""Prompt order: every epoch shows each prompt once, from any position, without state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.core.prompts.order import PromptOrder
from nemo_ada.errors import UserError


@given(count=st.integers(1, 40), seed=st.integers(0, 5), cuts=st.lists(st.integers(1, 17), min_size=1, max_size=12))
def test_any_cutting_into_batches_gives_the_same_epochs(count, seed, cuts):
    order = PromptOrder(count, seed)
    position, pieces = 0, []
    for n in cuts:
        pieces.append(order.at(position, n))
        position += n
    together = np.concatenate(pieces)
    assert (together == PromptOrder(count, seed).at(0, position)).all()
    for epoch in range(position // count):
        assert sorted(together[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_epochs_and_seeds_differ():
    order = PromptOrder(50, 0)
    assert (order.at(0, 50) != order.at(50, 50)).any()
    assert (order.at(0, 50) != PromptOrder(50, 1).at(0, 50)).any()


def test_an_empty_data_set_is_a_user_error():
    with pytest.raises(UserError, match="no prompt to train on"):
        PromptOrder(0, 0, "task.path")
