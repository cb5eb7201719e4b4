"""Exit conditions decide when a prompt has enough responses (algorithm.md section 2; paper, Algorithm 1).

Each rule takes the numbers of correct and of incorrect responses in a prompt's whole pool. P is the number of prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nemo_ada.core.arrays import BoolArray, IntArray


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
