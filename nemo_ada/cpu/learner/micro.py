"""A micro-batch on one rank: padded rows, or a tree of the tokens that its rows share.

Both give the log-probabilities of the response tokens as [B, T - 1]. Column t has that of token t + 1.
B rows, T tokens of the longest row, H hidden width. See `packing.py` for the tree, its N nodes and its E edges.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from nemo_ada.core.arrays import BoolArray
from nemo_ada.cpu.learner.batch import Ints, TokenRows
from nemo_ada.cpu.learner.loss import compute_logprob_and_entropy
from nemo_ada.cpu.learner.packing import TokenTree

Pair = tuple[torch.Tensor, torch.Tensor]


def _mask_responses(rows: TokenRows, row_B: Ints, width: int) -> BoolArray:
    """Return whether a token belongs to a response [B, width]."""
    at = np.arange(width)
    return (at >= rows.prompt_length_R[row_B, None]) & (at < rows.length_R[row_B, None])


class PaddedMicro:
    """Rows padded to the longest one. Without rows there is one empty row.

    Attributes:
        mask_BT: Whether a token belongs to a response [B, T - 1], from the second token on.
    """

    def __init__(self, rows: TokenRows, row_B: Ints) -> None:
        width = max(2, int(rows.length_R[row_B].max(initial=0)))
        self._tokens = torch.zeros((max(1, len(row_B)), width), dtype=torch.int64)
        mask = torch.zeros(self._tokens.shape, dtype=torch.bool)
        if len(row_B):
            self._tokens[:, : rows.tokens_RT.shape[1]] = torch.from_numpy(rows.tokens_RT[row_B, :width])
            mask = torch.from_numpy(_mask_responses(rows, row_B, width))
        self.mask_BT = mask[:, 1:]
        self._length_B = torch.from_numpy(rows.length_R[row_B])

    def run(self, model: torch.nn.Module, _module: torch.nn.Module) -> Any:
        """Run the model. Returns logits on the last stage and hidden states on the others."""
        position = torch.arange(self._tokens.shape[1]).expand_as(self._tokens)
        return model(self._tokens, position, None)

    def logprobs(self, logits: torch.Tensor, group: dist.ProcessGroup | None) -> Pair:
        """Log-probability and entropy at every token but the first. Both are [B, T - 1]."""
        return compute_logprob_and_entropy(logits[:, :-1], self._tokens[:, 1:], group)

    def row_means(self, hidden_TBH: torch.Tensor) -> torch.Tensor:
        """Mean hidden state over each row's tokens [B, H]."""
        inside_TB = torch.arange(len(hidden_TBH))[:, None] < self._length_B
        return torch.where(inside_TB[..., None], hidden_TBH, 0.0).sum(dim=0) / self._length_B[:, None]


class PackedMicro:
    """One sequence that consists of the nodes of the rows' tree. The model must have `megatron.TreeAttention`.

    The last token of a response is not an input, because nothing follows it.

    Attributes:
        mask_BT: Whether a token belongs to a response [B, T - 1], from the second token on.
    """

    def __init__(self, rows: TokenRows, row_B: Ints) -> None:
        length_B, prompt_B = rows.length_R[row_B], rows.prompt_length_R[row_B]
        self._length_B = torch.from_numpy(length_B)
        tree = TokenTree.of(rows, row_B, np.maximum(length_B - 1, prompt_B))
        width = max(2, int(length_B.max(initial=0)))
        response_BT = _mask_responses(rows, row_B, width)
        node_E, token_E, edge_BT = tree.edges(rows.tokens_RT[row_B, :width], response_BT)
        self.mask_BT = torch.from_numpy(response_BT[:, 1:])
        self._edge_BT = torch.from_numpy(edge_BT[:, 1:])
        self._node_E, self._token_E = torch.from_numpy(node_E), torch.from_numpy(token_E)
        self._token_N, self._position_N = torch.from_numpy(tree.token_N), torch.from_numpy(tree.position_N)
        self._sees_NN, self._node_BT = torch.from_numpy(tree.sees_NN), torch.from_numpy(tree.node_BT)

    def run(self, model: torch.nn.Module, module: torch.nn.Module) -> Any:
        """Run the model. Returns logits of the edges on the last stage and hidden states on the others.

        Args:
            model: The model in its wrappers.
            module: The model without wrappers.
        """
        with ExitStack() as hooks:
            # Megatron numbers the tokens of a sequence, and a node has the position that it has in its rows.
            rotary = module.rotary_pos_emb.register_forward_hook(lambda _m, _args, angles: angles[self._position_N])
            hooks.callback(rotary.remove)
            if hasattr(module, "output_layer"):  # the logits are the largest part, and most nodes need none
                chosen = module.output_layer.register_forward_pre_hook(
                    lambda _m, args: (args[0][self._node_E], *args[1:])
                )
                hooks.callback(chosen.remove)
            return model(self._token_N[None], self._position_N[None], self._sees_NN)

    def logprobs(self, logits: torch.Tensor, group: dist.ProcessGroup | None) -> Pair:
        """Log-probability and entropy at the response tokens. Both are [B, T - 1] and arbitrary elsewhere."""
        logprob, entropy = compute_logprob_and_entropy(logits[0], self._token_E, group)
        if not len(self._token_E):  # zeros that depend on the model, because every rank runs backward
            zeros = torch.zeros(self._edge_BT.shape)
            return zeros + logprob.sum(), zeros + entropy.sum()
        return logprob[self._edge_BT], entropy[self._edge_BT]

    def row_means(self, hidden_N1H: torch.Tensor) -> torch.Tensor:
        """Mean hidden state over each row's tokens [B, H]."""
        inside = self._node_BT >= 0
        states = hidden_N1H[self._node_BT.clamp(min=0), 0]
        return torch.where(inside[..., None], states, 0.0).sum(dim=1) / self._length_B[:, None]
