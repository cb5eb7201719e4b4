"""An objective: f of the pass rate and its derivative. The update follows f'(p) grad p.

    nemo-ada train CONFIG reinforce_ada.preset=ada_seq_log \\
      '++reinforce_ada.advantage.objective={kind: own, name: objective:PassAtK, arguments: {k: 4}}'
"""


class PassAtK:
    """f(p) = 1 - (1-p)^k: the chance that at least one of k responses is correct."""

    def __init__(self, k: int) -> None:
        self.k = k

    def value(self, p_P):
        """f of each pass rate in (0, 1]."""
        return 1.0 - (1.0 - p_P) ** self.k

    def weight(self, p_P):
        """f' of each pass rate."""
        return self.k * (1.0 - p_P) ** (self.k - 1)
