"""Training rows for a learner, and their distribution over ranks and micro-batches.

R rows, T tokens (right-padded). The driver builds these without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_ada.core.arrays import BoolArray
from nemo_ada.core.arrays import IntArray as Ints
from nemo_ada.errors import InvariantError

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Prompts with their responses.

    Attributes:
        tokens_RT: Token ids of prompt and response.
        length_R: Tokens of each row without padding.
        prompt_length_R: Tokens of each prompt. The response begins behind them.

    Raises:
        InvariantError: Shapes do not agree, or a row has no prompt. Its first token would have no log-probability.
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
        """Number of response tokens in all rows together."""
        return int((self.length_R - self.prompt_length_R).sum())


@dataclass(frozen=True, slots=True)
class Rows(TokenRows):
    """Training rows, from the rollout to the learner.

    Attributes:
        advantage_R: Advantage of the row's response.
        weight_R: Factor on the loss of the row's tokens. 0 marks a placeholder row, which is not computed.
        old_logprob_RT: Log-probability of each token under the policy that generated it. Only those of the response are
            read.

    Raises:
        InvariantError: Shapes do not agree, or a number is not finite.
    """

    advantage_R: Floats
    weight_R: Floats
    old_logprob_RT: Floats

    def __post_init__(self) -> None:
        TokenRows.__post_init__(self)
        rows = self.tokens_RT.shape[0]
        for name, values, wanted in (
            ("advantage_R", self.advantage_R, (rows,)),
            ("weight_R", self.weight_R, (rows,)),
            ("old_logprob_RT", self.old_logprob_RT, self.tokens_RT.shape),
        ):
            if values.shape != wanted:
                raise InvariantError(f"{name} has shape {values.shape} instead of {wanted}")
        live = self.weight_R != 0
        if not (np.isfinite(self.weight_R).all() and np.isfinite(self.advantage_R[live]).all()):
            raise InvariantError("an advantage or a row weight is not finite")

    def columns(self, row_R: Ints) -> dict[str, Any]:
        """Return the columns of the rows `row_R`, as wide as the longest of them."""
        width = int(self.length_R[row_R].max(initial=1))
        values = {field.name: getattr(self, field.name)[row_R] for field in fields(Rows)}
        return {name: value[:, :width] if value.ndim == 2 else value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class TrainBatch(Rows):
    """One optimizer step's rows.

    Attributes:
        denominator: tokens by which the loss's sum over tokens is divided. It may count rows that were left out because
            they have no gradient.
        first_half_R: whether a row belongs to the first of two halves whose gradients are compared. None compares none.
    """

    denominator: float
    first_half_R: BoolArray | None = None

    def __post_init__(self) -> None:
        Rows.__post_init__(self)
        if not self.denominator > 0:
            raise InvariantError(f"denominator={self.denominator} must be positive")
        if self.first_half_R is not None and self.first_half_R.shape != self.length_R.shape:
            raise InvariantError(f"first_half_R has shape {self.first_half_R.shape} for {len(self.length_R)} rows")


def deal(length_R: Ints, row_R: Ints, ranks: int, micro_batch_size: int) -> list[list[Ints]]:
    """Distribute rows over data-parallel ranks and micro-batches.

    Rows of similar length share a micro-batch, because it is as wide as its longest row. The numbers of rows of each
    length differ by one at most between ranks. A rank without rows has no micro-batch. The result depends on the
    lengths only, so every rank computes it for itself.

    Args:
        length_R: Tokens of each row.
        row_R: Numbers of the rows to distribute.
        ranks: Number of data-parallel ranks.
        micro_batch_size: Largest number of rows of a micro-batch.

    Returns:
        Row numbers by rank and micro-batch.
    """
    ordered = row_R[np.argsort(-length_R[row_R], kind="stable")]
    by_rank = []
    for rank in range(ranks):
        mine = ordered[rank::ranks]
        parts = -(-len(mine) // micro_batch_size)
        by_rank.append(np.array_split(mine, parts) if parts else [])
    return by_rank
