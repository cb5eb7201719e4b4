"""Training rows for a learner, and how they are dealt to ranks and micro-batches.

R rows, T tokens (right-padded). The driver builds these without torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_ada.core.arrays import IntArray as Ints
from nemo_ada.errors import InvariantError

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Prompts with their responses: row r is `tokens_RT[r, :length_R[r]]`, its response starts at `prompt_length_R[r]`.

    Raises `InvariantError` for shapes that do not agree, and for a row without a prompt: a first token has no
    log-probability.
    """

    tokens_RT: Ints
    length_R: Ints
    prompt_length_R: Ints

    def __post_init__(self) -> None:
        if self.tokens_RT.ndim != 2:
            raise InvariantError(f"tokens_RT has {self.tokens_RT.ndim} dimensions instead of 2")
        rows, width = self.tokens_RT.shape
        for name, values in (("length_R", self.length_R), ("prompt_length_R", self.prompt_length_R)):
            if values.shape != (rows,):
                raise InvariantError(f"{name} has shape {values.shape} for {rows} rows")
        bad = (self.prompt_length_R < 1) | (self.prompt_length_R > self.length_R) | (self.length_R > width)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InvariantError(
                f"row {row}: 1 <= prompt_length {self.prompt_length_R[row]} <= length {self.length_R[row]} <= {width} "
                "does not hold"
            )

    @property
    def response_tokens(self) -> int:
        """How many response tokens the rows hold together."""
        return int((self.length_R - self.prompt_length_R).sum())


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """One optimizer step's rows.

    row_weight_R: factor on the loss of the row's tokens; 0 marks a placeholder row, which is not computed.
    old_logprob_RT[r, t]: log-probability of token t under the policy that drew it; only the response's are read.
    denominator: the caller's count of tokens, by which the sum over tokens is divided. It may count rows that were left
    out because they have no gradient.
    """

    tokens_RT: Ints
    length_R: Ints
    prompt_length_R: Ints
    advantage_R: Floats
    row_weight_R: Floats
    old_logprob_RT: Floats
    denominator: float

    def __post_init__(self) -> None:
        rows = self.rows.tokens_RT.shape[0]
        for name, values, wanted in (
            ("advantage_R", self.advantage_R, (rows,)),
            ("row_weight_R", self.row_weight_R, (rows,)),
            ("old_logprob_RT", self.old_logprob_RT, self.tokens_RT.shape),
        ):
            if values.shape != wanted:
                raise InvariantError(f"{name} has shape {values.shape} instead of {wanted}")
        live = self.row_weight_R != 0
        if not (np.isfinite(self.row_weight_R).all() and np.isfinite(self.advantage_R[live]).all()):
            raise InvariantError("an advantage or a row weight is not finite")
        if not self.denominator > 0:
            raise InvariantError(f"denominator={self.denominator} must be positive")

    @property
    def rows(self) -> TokenRows:
        """The tokens alone (checked)."""
        return TokenRows(self.tokens_RT, self.length_R, self.prompt_length_R)


def deal(length_R: Ints, row_R: Ints, ranks: int, micro_batch_size: int) -> list[list[Ints]]:
    """Deal rows to data-parallel ranks and micro-batches: `[rank][micro-batch]` -> row numbers.

    Rows of similar length share a micro-batch, because each is as wide as its longest row. Ranks get equal numbers of
    rows of each length, give or take one. A rank without rows gets no micro-batch. The result depends on the lengths
    only, so every rank computes it for itself.
    """
    ordered = row_R[np.argsort(-length_R[row_R], kind="stable")]
    dealt = []
    for rank in range(ranks):
        mine = ordered[rank::ranks]
        parts = -(-len(mine) // micro_batch_size)
        dealt.append(np.array_split(mine, parts) if parts else [])
    return dealt
