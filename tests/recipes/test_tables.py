"""Tables of the benches: differences between methods over seeds, and what runs reached."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import make_run
from tables import ALL_AXES, FINAL, HALFWAY, against, comparison_rows, markdown_table

from nemo_ada.lab.report.run import Run


def test_methods_are_compared_in_pairs_of_seeds_at_their_common_cost(tmp_path):
    ada = [Run.read(make_run(tmp_path / f"ada{i}", 30, lift=0.1 + 0.02 * i), "ada") for i in range(3)]
    base = [Run.read(make_run(tmp_path / f"grpo{i}", 60, lift=0.02 * i), "grpo") for i in range(3)]
    gains = against({"ada": ada, "grpo": base}, "grpo")["ada"]
    for axis in ALL_AXES:
        assert (gains[axis].mean, gains[axis].half_width) == pytest.approx((0.1, 0.0), abs=1e-9)
    behind = 0.4 * (np.exp(-30 / 40) - np.exp(-60 / 40))  # the curve from 30 to 60 steps
    assert gains[HALFWAY].mean == pytest.approx(0.1 - behind) and np.isnan(gains[FINAL].mean)
    assert against({"ada": ada, "grpo": ada}, "grpo")["ada"][FINAL].mean == 0.0
    table = markdown_table(comparison_rows([ada[0], base[0]])).splitlines()
    assert len(table) == 4 and len({line.count("|") for line in table}) == 1
