"""Two exit rules. One looks at the labels of a pool, the other at its tokens, too, and says so in `reads`.

nemo-ada train CONFIG 'reinforce_ada.sampling.exit={kind: own, name: exit:Mixed}'
"""

from nemo_ada.core.sampling.exits import ExitRule


class Mixed(ExitRule):
    """At least n responses, with both labels among them. Once met, a rule stays met as the pool grows."""

    def __init__(self, n: int, spare: int = 0) -> None:
        self.n = n + spare

    @property
    def smallest_pool(self):
        """The smallest pool that can meet the rule."""
        return max(self.n, 2)

    def met(self, pools):
        """True for each prompt that needs no more responses, by its correct and its incorrect ones."""
        return (pools.pos_P >= 1) & (pools.neg_P >= 1) & (pools.size_P >= self.n)

    def lacking(self, pools):
        """Which pools lack correct responses, and which lack incorrect ones."""
        return pools.pos_P < 1, pools.neg_P < 1


class Frugal(ExitRule):
    """Both labels, or so many tokens that more of this prompt's long answers cost more than they teach."""

    reads = frozenset({"tokens"})  # so `simulate` runs whole steps for it, because labels alone do not say when it ends

    def __init__(self, n: int, tokens: int = 4096) -> None:
        self.n, self.tokens = n, tokens

    @property
    def smallest_pool(self):
        """The smallest pool that can meet the rule."""
        return 1

    def met(self, pools):
        """True for each prompt that needs no more responses: tokens_P are those of its responses together."""
        return (pools.pos_P >= 1) & (pools.neg_P >= 1) | (pools.tokens_P >= self.tokens)
