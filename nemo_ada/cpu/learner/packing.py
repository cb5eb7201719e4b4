"""Packed micro-batches: tokens that rows share are computed once, and there is no padding.

The rows of a micro-batch form a tree of tokens. Rows share the nodes of their longest common beginning. So the few-shot
examples of a prompt are computed once per micro-batch, a prompt once per group, and equal responses once. A node
attends to itself and the nodes before it, so every row has the same log-probabilities as alone. Logits are computed
only where a response token follows, which matters with a vocabulary of 49,152.

N nodes, B rows of a micro-batch, R rows of the step, T tokens, E edges. This module needs numpy only, and `micro.py`
runs the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_ada.core.arrays import BoolArray
from nemo_ada.core.arrays import IntArray as Ints
from nemo_ada.cpu.learner.batch import TokenRows


@dataclass(frozen=True, slots=True)
class TokenTree:
    """The tree of some rows. Parents come before their children.

    Attributes:
        token_N: Token id of a node.
        position_N: Position of a node's token in its row.
        node_BT: Node of each row's token, and -1 behind the row's end.
        sees_NN: Whether node i attends to node j.
    """

    token_N: Ints
    position_N: Ints
    node_BT: Ints
    sees_NN: BoolArray

    @classmethod
    def of(cls, rows: TokenRows, row_B: Ints, length_B: Ints) -> TokenTree:
        """Return the tree of the first `length_B` tokens of the given rows. Without rows it has one node."""
        node_BT = np.full((len(row_B), int(length_B.max(initial=1))), -1, np.int64)
        nodes: dict[tuple[int, int], int] = {}  # parent and token -> node
        for b, row in enumerate(row_B):
            node = -1
            for t, token in enumerate(rows.tokens_RT[row, : length_B[b]].tolist()):
                node = node_BT[b, t] = nodes.setdefault((node, token), len(nodes))
        nodes = nodes or {(-1, 0): 0}
        parents = [parent for parent, _ in nodes]
        sees_NN = np.eye(len(nodes), dtype=np.bool_)
        position_N = np.zeros(len(nodes), np.int64)
        for node, parent in enumerate(parents):
            if parent >= 0:
                sees_NN[node] |= sees_NN[parent]
                position_N[node] = position_N[parent] + 1
        return cls(np.array([token for _, token in nodes], np.int64), position_N, node_BT, sees_NN)

    def edges(self, tokens_BT: Ints, wanted_BT: BoolArray) -> tuple[Ints, Ints, Ints]:
        """The different edges that lead to the wanted tokens. An edge leads from a token's predecessor to the token.

        Args:
            tokens_BT: Token ids of the rows.
            wanted_BT: Whether a token's log-probability is wanted.

        Returns:
            The node and the token of each edge, node_E and token_E, and the edge of each wanted token, edge_BT, which
            is 0 elsewhere.
        """
        b, t = np.nonzero(wanted_BT)
        steps = np.stack([self.node_BT[b, t - 1], tokens_BT[b, t]], axis=1)
        edge_E2, edge_of = np.unique(steps, axis=0, return_inverse=True)
        edge_BT = np.zeros(wanted_BT.shape, np.int64)
        edge_BT[b, t] = edge_of.reshape(-1)
        return edge_E2[:, 0], edge_E2[:, 1], edge_BT


def deal_packed(rows: TokenRows, row_R: Ints, ranks: int, packed_tokens: int) -> list[list[Ints]]:
    """Distribute rows over data-parallel ranks and packed micro-batches. Rows of a micro-batch begin alike.

    Args:
        rows: The rows of the step.
        row_R: Numbers of the rows to distribute.
        ranks: Number of data-parallel ranks.
        packed_tokens: Largest number of nodes of a micro-batch, unless it has one row only.

    Returns:
        Row numbers by rank and micro-batch.
    """
    order = sorted(row_R.tolist(), key=lambda row: rows.tokens_RT[row, : rows.length_R[row]].tolist())
    parts: list[list[int]] = []
    used, before = 0, np.empty(0, np.int64)
    for row in order:
        tokens = rows.tokens_RT[row, : rows.length_R[row]]
        new = len(tokens) - _count_common(before, tokens)
        if not parts or used + new > packed_tokens:
            parts.append([])
            used, new = 0, len(tokens)
        parts[-1].append(row)
        used, before = used + new, tokens
    return [[np.array(part, np.int64) for part in parts[rank::ranks]] for rank in range(ranks)]


def _count_common(left: Ints, right: Ints) -> int:
    """Return the number of tokens at the beginning that two rows share."""
    size = min(len(left), len(right))
    differing = np.flatnonzero(left[:size] != right[:size])
    return int(differing[0]) if len(differing) else size
