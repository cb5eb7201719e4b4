"""Pilot, then commit (after Pilot-Commit, arXiv 2605.26606): a group whose first k labels are equal is given up.

nemo-ada train CONFIG grpo.num_generations_per_prompt=16 'reinforce_ada={preset: grpo, sampling: {
  exit: {kind: own, name: pilot:Pilot, arguments: {k: 4}}, wave_size: [4, 12]}}'

A group that is given up keeps placeholder rows. On the CPU back end, reserve_prompts puts other prompts in its place.
"""

from nemo_ada.core.sampling.exits import ExitRule


class Pilot(ExitRule):
    """At n responses a pool has enough, and at the first k when their labels are equal.

    A pool may meet this rule and then miss it. So it is right only with waves of k and n - k responses.
    """

    def __init__(self, n: int, k: int = 4) -> None:
        self.n, self.k = n, k

    @property
    def smallest_pool(self):
        """The smallest pool that can fill a group. One that is given up fills none."""
        return self.n

    def met(self, pools):
        """True for each prompt that needs no more responses, by its correct and its incorrect ones."""
        one_sided = (pools.pos_P == 0) | (pools.neg_P == 0)
        return (pools.size_P >= self.n) | ((pools.size_P >= self.k) & one_sided)

    def lacking(self, pools):
        """Which pools lack correct responses, and which lack incorrect ones."""
        return pools.pos_P == 0, pools.neg_P == 0
