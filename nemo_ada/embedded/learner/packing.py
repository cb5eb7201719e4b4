"""Packed micro-batches: tokens that rows have in common are computed once, and there is no padding.

The rows of a micro-batch form a tree of tokens: rows share the nodes of their longest common beginning. So the few-shot
examples of a prompt count once per micro-batch, a prompt once per group, and equal responses once. A node sees itself
and the nodes before it, so every row gets the log-probabilities that it gets alone. Logits are computed only where a
response token follows, which matters with a vocabulary of 49,152.

N nodes, B rows of a micro-batch, R rows of the step, T tokens, E edges. numpy only; `micro.py` computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_ada.core.arrays import BoolArray
from nemo_ada.core.arrays import IntArray as Ints
from nemo_ada.embedded.learner.batch import TokenRows


@dataclass(frozen=True, slots=True)
class TokenTree:
    """The nodes of some rows, parents first.

    node_BT[b, t]: the node of row b's token t, -1 behind its end. position_N: a node's place in its row.
    sees_NN[i, j]: whether node i sees node j.
    """

    token_N: Ints
    position_N: Ints
    node_BT: Ints
    sees_NN: BoolArray

    @classmethod
    def of(cls, rows: TokenRows, row_B: Ints, length_B: Ints) -> TokenTree:
        """The tree of the first `length_B` tokens of the given rows; one node where there are no rows."""
        node_BT = np.full((len(row_B), int(length_B.max(initial=1))), -1, np.int64)
        found: dict[tuple[int, int], int] = {}
        for b, row in enumerate(row_B):
            node = -1
            for t, token in enumerate(rows.tokens_RT[row, : length_B[b]].tolist()):
                node = node_BT[b, t] = found.setdefault((node, token), len(found))
        found = found or {(-1, 0): 0}
        parents = [parent for parent, _ in found]
        sees_NN = np.eye(len(found), dtype=np.bool_)
        position_N = np.zeros(len(found), np.int64)
        for node, parent in enumerate(parents):
            if parent >= 0:
                sees_NN[node] |= sees_NN[parent]
                position_N[node] = position_N[parent] + 1
        return cls(np.array([token for _, token in found], np.int64), position_N, node_BT, sees_NN)

    def edges(self, tokens_BT: Ints, asked_BT: BoolArray) -> tuple[Ints, Ints, Ints]:
        """The different steps from a node to a token at the asked places: node_E, token_E, and edge_BT.

        edge_BT: the edge of each asked place, 0 elsewhere. A token is asked for behind its predecessor's node.
        """
        b, t = np.nonzero(asked_BT)
        steps = np.stack([self.node_BT[b, t - 1], tokens_BT[b, t]], axis=1)
        edge_E2, edge_of = np.unique(steps, axis=0, return_inverse=True)
        edge_BT = np.zeros(asked_BT.shape, np.int64)
        edge_BT[b, t] = edge_of.reshape(-1)
        return edge_E2[:, 0], edge_E2[:, 1], edge_BT


def deal_packed(rows: TokenRows, row_R: Ints, ranks: int, packed_tokens: int) -> list[list[Ints]]:
    """Deal rows to data-parallel ranks and packed micro-batches: `[rank][micro-batch]` -> row numbers.

    A micro-batch holds rows that begin alike, with at most `packed_tokens` different tokens (but one row at least).
    """
    order = sorted(row_R.tolist(), key=lambda row: rows.tokens_RT[row, : rows.length_R[row]].tolist())
    parts: list[list[int]] = []
    used, before = 0, np.empty(0, np.int64)
    for row in order:
        tokens = rows.tokens_RT[row, : rows.length_R[row]]
        new = len(tokens) - _common(before, tokens)
        if not parts or used + new > packed_tokens:
            parts.append([])
            used, new = 0, len(tokens)
        parts[-1].append(row)
        used, before = used + new, tokens
    return [[np.array(part, np.int64) for part in parts[rank::ranks]] for rank in range(ranks)]


def _common(left: Ints, right: Ints) -> int:
    """How many tokens two rows have in common at their beginning."""
    size = min(len(left), len(right))
    differing = np.flatnonzero(left[:size] != right[:size])
    return int(differing[0]) if len(differing) else size
