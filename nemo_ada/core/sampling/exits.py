"""Exit conditions decide when a prompt has enough responses (algorithm.md section 2; paper, Algorithm 1).

A rule judges a `PoolView`: the numbers of correct and of incorrect responses in each prompt's whole pool, and what else
the rule says that it reads (`ExitRule.reads`). P is the number of prompts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.errors import UserError

ROUNDING = 1e-9
"""Error of a sum of squares that two equal differences may have."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """What an exit rule sees of pools.

    What costs a pass over the responses is computed when a rule asks for it, because few rules do.

    Attributes:
        pos_P: correct responses.
        neg_P: incorrect responses.
        squares: computes `squares_P`. None where rewards are 0 or 1.
        tokens: computes `tokens_P` of the responses that entered the pool. None where responses have no length.
        waves: computes `wave_P`. None where responses come in no waves.
    """

    pos_P: IntArray
    neg_P: IntArray
    squares: Callable[[], FloatArray] | None = None
    tokens: Callable[[], IntArray] | None = None
    waves: Callable[[], IntArray] | None = None

    @property
    def size_P(self) -> IntArray:
        """Responses of each pool."""
        return self.pos_P + self.neg_P

    @property
    def squares_P(self) -> FloatArray:
        """Sum of the squared deviations of each pool's rewards from their mean. It costs a pass over the responses."""
        if self.squares is not None:
            return self.squares()
        return np.asarray(self.pos_P * self.neg_P / np.maximum(self.size_P, 1), np.float64)

    @property
    def tokens_P(self) -> IntArray:
        """Tokens of each pool's responses together, for a rule whose `reads` has "tokens"."""
        return _compute(self.tokens, "tokens")

    @property
    def wave_P(self) -> IntArray:
        """Number of each pool's last complete wave, 0 for the first one, for a rule whose `reads` has "waves"."""
        return _compute(self.waves, "waves")


def _compute(compute: Callable[[], IntArray] | None, name: str) -> IntArray:
    if compute is None:
        raise UserError(f'an exit rule that reads {name} says so: reads = frozenset({{"{name}"}}) in its class')
    return compute()


class ExitRule(ABC):
    """A condition on a pool. Once met, it stays met as the pool grows.

    Attributes:
        reads: what it looks at besides labels: "rewards", "tokens", "waves". Whoever computes how pools end from labels
            alone refuses a rule that reads tokens, and with "rewards" groups keep their extreme rewards, too.
    """

    __slots__ = ()
    reads: ClassVar[frozenset[str]] = frozenset()

    @property
    @abstractmethod
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""

    @abstractmethod
    def met(self, pools: PoolView) -> BoolArray:
        """Return True for each prompt whose pool needs no more responses."""

    def lacking(self, pools: PoolView) -> tuple[BoolArray, BoolArray]:
        """Return which pools lack correct responses, and which lack incorrect ones. By default none does."""
        return np.zeros(len(pools.pos_P), np.bool_), np.zeros(len(pools.neg_P), np.bool_)


@dataclass(frozen=True)
class PositiveExit(ExitRule):
    """A pool has enough when n_pos >= k_pos (Reinforce-Ada-Seq-pos)."""

    k_pos: int = 1

    @property
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""
        return self.k_pos

    def met(self, pools: PoolView) -> BoolArray:
        """Return True for each prompt whose pool needs no more responses."""
        return pools.pos_P >= self.k_pos

    def lacking(self, pools: PoolView) -> tuple[BoolArray, BoolArray]:
        """Return which pools lack correct responses, and which lack incorrect ones."""
        return pools.pos_P < self.k_pos, np.zeros(len(pools.neg_P), np.bool_)


@dataclass(frozen=True, slots=True)
class BalancedExit(ExitRule):
    """A pool has enough when n_pos >= k_pos and n_neg >= k_neg (Reinforce-Ada-Seq-balance)."""

    k_pos: int
    k_neg: int

    @property
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""
        return self.k_pos + self.k_neg

    def met(self, pools: PoolView) -> BoolArray:
        """Return True for each prompt whose pool needs no more responses."""
        return (pools.pos_P >= self.k_pos) & (pools.neg_P >= self.k_neg)

    def lacking(self, pools: PoolView) -> tuple[BoolArray, BoolArray]:
        """Return which pools lack correct responses, and which lack incorrect ones."""
        return pools.pos_P < self.k_pos, pools.neg_P < self.k_neg


@dataclass(frozen=True, slots=True)
class FixedExit(ExitRule):
    """A pool has enough when n_pos + n_neg >= n. With waves of n this is GRPO."""

    n: int

    @property
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""
        return self.n

    def met(self, pools: PoolView) -> BoolArray:
        """Return True for each prompt whose pool needs no more responses."""
        return pools.size_P >= self.n


@dataclass(frozen=True, slots=True)
class SpreadExit(ExitRule):
    """A pool has enough when its rewards differ enough, for rewards between 0 and 1 (ours).

    The measure is the sum S of the squared deviations from the pool's mean. These deviations are the advantages. So if
    the gradients of log pi of the responses were uncorrelated and equally long, the expected square of the pool's
    gradient would be proportional to S. Two responses whose rewards differ by d have S = d^2 / 2. A further response
    never lowers S. So a pool in which any two rewards differ by `difference` has enough, and many small differences
    together are enough, too. With 0/1 rewards and a difference of 1, the rule is `BalancedExit(1, 1)`.

    Attributes:
        difference: d, in units of the reward.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"rewards"})
    difference: float

    @property
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""
        return 2

    def met(self, pools: PoolView) -> BoolArray:
        """Return True for each prompt whose pool needs no more responses."""
        return np.asarray(pools.squares_P >= self.difference**2 / 2 - ROUNDING)


def sum_squared_deviations(prompt_N: IntArray, reward_N: FloatArray, prompts: int) -> FloatArray:
    """Compute the sum of the squared deviations of each prompt's rewards from their mean, [prompts].

    Args:
        prompt_N: position of each response's prompt.
        reward_N: reward of each response.
        prompts: number of prompts.
    """
    mean_P = np.bincount(prompt_N, reward_N, prompts) / np.maximum(np.bincount(prompt_N, minlength=prompts), 1)
    return np.asarray(np.bincount(prompt_N, (reward_N - mean_P[prompt_N]) ** 2, prompts), np.float64)
