"""An objective: f of the pass rate and its derivative. The update follows f'(p) grad p.

    nemo-ada train CONFIG reinforce_ada.preset=ada_seq_log \\
      '++reinforce_ada.advantage.objective={kind: own, name: objective:SoftLog, arguments: {floor: 0.1}}'
"""

import numpy as np


class SoftLog:
    """f(p) = log(p + floor): the log objective, whose weight does not grow beyond 1/floor."""

    def __init__(self, floor: float) -> None:
        self.floor = floor

    def value(self, p_P):
        """f of each pass rate in (0, 1]."""
        return np.log(p_P + self.floor)

    def weight(self, p_P):
        """f' of each pass rate: finite numbers of at least 0."""
        return 1.0 / (p_P + self.floor)
