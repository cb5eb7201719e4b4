"""Exit conditions: when does a prompt have enough responses? (algorithm.md section 2; paper, Algorithm 1)

All rules look at the counts (correct, incorrect) of one prompt's whole pool. The array forms serve the session, which
judges many prompts at once; P is the number of prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nemo_ada.core.arrays import BoolArray, IntArray


class ExitRule(Protocol):
    """A condition on (n_pos, n_neg) that, once met, stays met as the pool grows."""

    @property
    def smallest_pool(self) -> int:
        """The fewest responses with which the rule can be met."""
        ...

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        """True for each prompt whose pool needs no more responses."""
        ...

    def shortfall(self, pos_P: IntArray, neg_P: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """How many (correct, incorrect, any) responses each pool still lacks; "any" counts whatever their labels."""
        ...


@dataclass(frozen=True, slots=True)
class PositiveExit:
    """`positive(k_pos)`: n_pos >= k_pos (Reinforce-Ada-Seq-pos)."""

    k_pos: int = 1

    @property
    def smallest_pool(self) -> int:
        return self.k_pos

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        return pos_P >= self.k_pos

    def shortfall(self, pos_P: IntArray, neg_P: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        return np.maximum(self.k_pos - pos_P, 0), np.zeros_like(neg_P), np.zeros_like(neg_P)


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

    def shortfall(self, pos_P: IntArray, neg_P: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        return np.maximum(self.k_pos - pos_P, 0), np.maximum(self.k_neg - neg_P, 0), np.zeros_like(pos_P)


@dataclass(frozen=True, slots=True)
class FixedExit:
    """`fixed(n)`: n_pos + n_neg >= n. With waves of n this is GRPO, on the same code path as everything else."""

    n: int

    @property
    def smallest_pool(self) -> int:
        return self.n

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        return pos_P + neg_P >= self.n

    def shortfall(self, pos_P: IntArray, neg_P: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        missing = np.maximum(self.n - pos_P - neg_P, 0)
        return np.zeros_like(missing), np.zeros_like(missing), missing


@dataclass(frozen=True, slots=True)
class AtLeastExit:
    """Another rule on pools of at least `size` responses: with `issue_order` no pool is smaller than its group."""

    rule: ExitRule
    size: int

    @property
    def smallest_pool(self) -> int:
        return max(self.rule.smallest_pool, self.size)

    def met(self, pos_P: IntArray, neg_P: IntArray) -> BoolArray:
        return self.rule.met(pos_P, neg_P) & (pos_P + neg_P >= self.size)

    def shortfall(self, pos_P: IntArray, neg_P: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        short_pos, short_neg, short = self.rule.shortfall(pos_P, neg_P)
        return short_pos, short_neg, np.maximum(short, self.size - pos_P - neg_P)
