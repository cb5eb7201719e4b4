"""Exit conditions decide when a prompt has enough responses (algorithm.md section 2; paper, Algorithm 1).

Each rule takes the numbers of correct and of incorrect responses in a prompt's whole pool. `SpreadExit` looks at the
rewards instead, so it gets the sum of their squared deviations. P is the number of prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray

ROUNDING = 1e-9
"""Error of a sum of squares that two equal differences may have."""


class ExitRule(Protocol):
    """A condition on (n_pos, n_neg). Once met, it stays met as the pool grows."""

    @property
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""
        ...

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        """Return True for each prompt whose pool needs no more responses."""
        ...

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        """Return which pools lack correct responses, and which lack incorrect ones."""
        ...


@dataclass(frozen=True)
class PositiveExit:
    """A pool has enough when n_pos >= k_pos (Reinforce-Ada-Seq-pos)."""

    k_pos: int = 1

    @property
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""
        return self.k_pos

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        """Return True for each prompt whose pool needs no more responses."""
        return pos_P >= self.k_pos

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        """Return which pools lack correct responses, and which lack incorrect ones."""
        return pos_P < self.k_pos, np.zeros(len(neg_P), np.bool_)


@dataclass(frozen=True, slots=True)
class BalancedExit:
    """A pool has enough when n_pos >= k_pos and n_neg >= k_neg (Reinforce-Ada-Seq-balance)."""

    k_pos: int
    k_neg: int

    @property
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""
        return self.k_pos + self.k_neg

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        """Return True for each prompt whose pool needs no more responses."""
        return (pos_P >= self.k_pos) & (neg_P >= self.k_neg)

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        """Return which pools lack correct responses, and which lack incorrect ones."""
        return pos_P < self.k_pos, neg_P < self.k_neg


@dataclass(frozen=True, slots=True)
class FixedExit:
    """A pool has enough when n_pos + n_neg >= n. With waves of n this is GRPO."""

    n: int

    @property
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""
        return self.n

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        """Return True for each prompt whose pool needs no more responses."""
        return pos_P + neg_P >= self.n

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        """Return which pools lack correct responses, and which lack incorrect ones."""
        return np.zeros(len(pos_P), np.bool_), np.zeros(len(neg_P), np.bool_)


@dataclass(frozen=True, slots=True)
class PilotExit:
    """A pool has enough at n responses, or at the first k when their labels are equal (Pilot-Commit, arXiv 2605.26606).

    This is the one rule that a pool may meet and then miss. So it is judged only after waves of k and n - k responses.
    """

    n: int
    k: int

    @property
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""
        return self.n

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        """Return True for each prompt whose pool needs no more responses."""
        size_P = pos_P + neg_P
        return np.asarray((size_P >= self.n) | ((size_P >= self.k) & ((pos_P == 0) | (neg_P == 0))))

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        """Return which pools lack correct responses, and which lack incorrect ones."""
        return pos_P == 0, neg_P == 0


@dataclass(frozen=True, slots=True)
class SpreadExit:
    """A pool has enough when its rewards differ enough, for rewards between 0 and 1 (ours).

    The measure is the sum S of the squared deviations from the pool's mean. These deviations are the advantages. So if
    the gradients of log pi of the responses were uncorrelated and equally long, the expected square of the pool's
    gradient would be proportional to S. Two responses whose rewards differ by d have S = d^2 / 2. A further response
    never lowers S. So a pool in which any two rewards differ by `difference` has enough, and many small differences
    together are enough, too. With 0/1 rewards and a difference of 1, the rule is `BalancedExit(1, 1)`.

    Attributes:
        difference: d, in units of the reward.
    """

    difference: float

    @property
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""
        return 2

    def spread(self, squares_P: FloatArray) -> BoolArray:
        """Return True for each prompt with S = `squares_P` that needs no more responses."""
        return np.asarray(squares_P >= self.difference**2 / 2 - ROUNDING)

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        """Return True for each prompt whose pool of 0/1 rewards needs no more responses."""
        return self.spread(pos_P * neg_P / np.maximum(pos_P + neg_P, 1))

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        """Return which pools lack correct responses, and which lack incorrect ones."""
        return np.zeros(len(pos_P), np.bool_), np.zeros(len(neg_P), np.bool_)


@dataclass(frozen=True, slots=True)
class AtLeastExit:
    """A pool has enough when it meets `rule` and has `size` responses. With `issue_order` it then fills its group."""

    rule: ExitRule
    size: int

    @property
    def smallest_pool(self) -> int:
        """The smallest pool that can meet the rule."""
        return max(self.rule.smallest_pool, self.size)

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        """Return True for each prompt whose pool needs no more responses."""
        return self.rule.met(pos_P, neg_P) & (pos_P + neg_P >= self.size)

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        """Return which pools lack correct responses, and which lack incorrect ones."""
        return self.rule.lacking(pos_P, neg_P)


def squared_deviations(prompt_N: IntArray, reward_N: FloatArray, prompts: int) -> FloatArray:
    """Compute the sum of the squared deviations of each prompt's rewards from their mean, [prompts].

    Args:
        prompt_N: position of each response's prompt.
        reward_N: reward of each response.
        prompts: number of prompts.
    """
    mean_P = np.bincount(prompt_N, reward_N, prompts) / np.maximum(np.bincount(prompt_N, minlength=prompts), 1)
    return np.asarray(np.bincount(prompt_N, (reward_N - mean_P[prompt_N]) ** 2, prompts), np.float64)
