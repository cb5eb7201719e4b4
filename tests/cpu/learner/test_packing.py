"""Packed micro-batches: which tokens are computed, what they see, and which rows go together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.cpu.learner.batch import TokenRows
from nemo_ada.cpu.learner.packing import TokenTree, deal_packed

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=9)


def token_rows(rows: list[list[int]]) -> TokenRows:
    tokens = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, values in zip(tokens, rows, strict=True):
        row[: len(values)] = values
    return TokenRows(tokens, np.array([len(row) for row in rows]), np.ones(len(rows), np.int64))


@given(ROWS)
def test_a_node_is_a_beginning_that_rows_share_and_sees_what_is_before_it(rows):
    packed = token_rows(rows)
    tree = TokenTree.of(packed, np.arange(len(rows)), packed.length_R)
    beginnings = {tuple(row[: t + 1]) for row in rows for t in range(len(row))}
    assert len(tree.token_N) == len(beginnings)
    for b, row in enumerate(rows):
        path = tree.node_BT[b, : len(row)]
        assert tree.token_N[path].tolist() == row
        assert tree.position_N[path].tolist() == list(range(len(row)))
        assert np.flatnonzero(tree.sees_NN[path[-1]]).tolist() == sorted(path.tolist())
        assert (tree.node_BT[b, len(row) :] == -1).all()


@given(ROWS)
def test_an_edge_leads_from_a_node_to_the_token_behind_it(rows):
    packed = token_rows(rows)
    tree = TokenTree.of(packed, np.arange(len(rows)), packed.length_R)
    asked = np.arange(packed.tokens_RT.shape[1]) < packed.length_R[:, None]
    asked[:, 0] = False
    node_E, token_E, edge_BT = tree.edges(packed.tokens_RT, asked)
    assert len({*zip(node_E.tolist(), token_E.tolist(), strict=True)}) == len(node_E)
    for b, t in zip(*np.nonzero(asked), strict=True):
        assert token_E[edge_BT[b, t]] == rows[b][t]
        assert node_E[edge_BT[b, t]] == tree.node_BT[b, t - 1]


@given(ROWS, st.integers(1, 3), st.integers(1, 12))
def test_every_row_goes_to_one_micro_batch_that_holds_no_more_tokens_than_asked(rows, ranks, most):
    packed = token_rows(rows)
    chosen = np.arange(0, len(rows), 2)
    dealt = deal_packed(packed, chosen, ranks, most)
    assert len(dealt) == ranks
    parts = [part for mine in dealt for part in mine]
    assert sorted(row for part in parts for row in part.tolist()) == chosen.tolist()
    for part in parts:
        size = len(TokenTree.of(packed, part, packed.length_R[part]).token_N)
        assert size <= most or len(part) == 1


def test_no_rows_make_one_node():
    tree = TokenTree.of(token_rows([[1, 2]]), np.empty(0, np.int64), np.empty(0, np.int64))
    assert tree.token_N.tolist() == [0] and tree.sees_NN.all() and tree.node_BT.shape == (0, 1)
