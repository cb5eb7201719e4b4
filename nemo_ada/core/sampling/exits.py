"""Exit conditions: when does a prompt have enough responses? (algorithm.md section 2; paper, Algorithm 1)

Each rule looks at the counts (correct, incorrect) of a prompt's whole pool. P is the number of prompts.
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
        """True for each prompt whose pool needs no more responses."""
        ...

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        """Which pools lack correct responses, and which lack incorrect ones."""
        ...


@dataclass(frozen=True)
class PositiveExit:
    """`positive(k_pos)`: n_pos >= k_pos (Reinforce-Ada-Seq-pos)."""

    k_pos: int = 1

    @property
    def smallest_pool(self) -> int:
        return self.k_pos

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        return pos_P >= self.k_pos

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        return pos_P < self.k_pos, np.zeros(len(neg_P), np.bool_)


@dataclass(frozen=True, slots=True)
class BalancedExit:
    """`balanced(k_pos, k_neg)`: n_pos >= k_pos and n_neg >= k_neg (Reinforce-Ada-Seq-balance)."""

    k_pos: int
    k_neg: int

    @property
    def smallest_pool(self) -> int:
        return self.k_pos + self.k_neg

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        return (pos_P >= self.k_pos) & (neg_P >= self.k_neg)

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        return pos_P < self.k_pos, neg_P < self.k_neg


@dataclass(frozen=True, slots=True)
class FixedExit:
    """`fixed(n)`: n_pos + n_neg >= n. With waves of n this is GRPO."""

    n: int

    @property
    def smallest_pool(self) -> int:
        return self.n

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        return pos_P + neg_P >= self.n

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        return np.zeros(len(pos_P), np.bool_), np.zeros(len(neg_P), np.bool_)


@dataclass(frozen=True, slots=True)
class PilotExit:
    """`pilot(n, k)`: n responses, or the first k when their labels are equal (Pilot-Commit, arXiv 2605.26606).

    The one rule that a pool may meet and then miss, so it is judged only after waves of k and n - k responses.
    """

    n: int
    k: int

    @property
    def smallest_pool(self) -> int:
        return self.n

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        size_P = pos_P + neg_P
        return np.asarray((size_P >= self.n) | ((size_P >= self.k) & ((pos_P == 0) | (neg_P == 0))))

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        return pos_P == 0, neg_P == 0


@dataclass(frozen=True, slots=True)
class AtLeastExit:
    """Another rule, for pools of at least `size` responses. With `issue_order` each pool then fills its group."""

    rule: ExitRule
    size: int

    @property
    def smallest_pool(self) -> int:
        return max(self.rule.smallest_pool, self.size)

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        return self.rule.met(pos_P, neg_P) & (pos_P + neg_P >= self.size)

    def lacking(self, pos_P: IntArray, neg_P: IntArray) -> tuple[BoolArray, BoolArray]:
        return self.rule.lacking(pos_P, neg_P)
