"""An exit rule: it looks at the labels of a pool and says when a prompt has enough responses.

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
