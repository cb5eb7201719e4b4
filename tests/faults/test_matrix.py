"""The short fault matrix and the short soak: nothing is lost (`make faults` and `make soak` are the long ones)."""

from __future__ import annotations

import pytest

from tests.faults.matrix import DAMAGES, QUICK, play
from tests.faults.soak import soak


@pytest.mark.slow
def test_a_run_survives_one_fault_of_each_kind():
    play(QUICK, list(DAMAGES)[1:2], print)


@pytest.mark.slow
def test_a_minute_of_random_faults_loses_nothing():
    soak(1.0, seed=1, compare=False)
