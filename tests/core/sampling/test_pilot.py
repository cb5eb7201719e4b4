"""Pilot, then commit: a group whose first responses have equal labels is given up (exits.PilotExit)."""

import math

import numpy as np
import pytest

from nemo_ada.config.presets import ada_settings
from nemo_ada.core.sampling.exits import FixedExit, PilotExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.state import StepState
from nemo_ada.errors import UserError
from nemo_ada.lab.simulate.engine import DiscreteEventSource, LengthModel, Workload
from nemo_ada.lab.simulate.exact import signal_per_response, summary

GROUP, PILOT = 16, 4


def pools(rate_P, reserve=0):
    plan = ada_settings({"preset": "ada_pilot"}).plan(GROUP, 400)
    source = DiscreteEventSource(Workload(rate_P, LengthModel(), seed=0, step=0).draw)
    session = SamplingSession(StepState(plan, np.arange(len(rate_P)), reserve=reserve), run_seed=0, step=0)
    return run_sampling(session, source)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_its_cost_and_its_zero_signal_share_have_closed_forms(p):
    equal = p**PILOT + (1 - p) ** PILOT
    found = summary(StopRule(PilotExit(GROUP, PILOT), (PILOT, GROUP - PILOT), GROUP), p)
    assert found.expected_samples == pytest.approx(PILOT + (GROUP - PILOT) * (1 - equal))
    assert found.p_zero_signal == pytest.approx(equal)


def test_its_signal_per_response_is_that_of_its_mixed_pilots():
    rate_P = np.array([0.1, 0.4])
    signal = cost = 0.0
    for p in rate_P:
        first_K, rest_M = (binomial(size, p) for size in (PILOT, GROUP - PILOT))
        pos_KM = np.add.outer(np.arange(PILOT + 1), np.arange(GROUP - PILOT + 1))
        signal += (np.outer(first_K, rest_M) * pos_KM * (GROUP - pos_KM) / GROUP)[1:-1].sum()
        cost += PILOT + (GROUP - PILOT) * first_K[1:-1].sum()
    rule = StopRule(PilotExit(GROUP, PILOT), (PILOT, GROUP - PILOT), GROUP)
    assert signal_per_response(rule, GROUP, rate_P) == pytest.approx(signal / cost)
    grpo = signal_per_response(StopRule(FixedExit(GROUP), (GROUP,), GROUP), GROUP, rate_P)
    assert grpo == pytest.approx((GROUP - 1) / GROUP * np.mean(rate_P * (1 - rate_P)))


def binomial(size, p):
    return np.array([math.comb(size, k) * p**k * (1 - p) ** (size - k) for k in range(size + 1)])


def test_a_group_is_whole_exactly_where_the_pilot_has_both_labels():
    found = pools(np.full(256, 0.2))
    both_P = (found.first_pos_P > 0) & (found.first_pos_P < PILOT)
    assert both_P.any() and not both_P.all() and (found.first_size_P == PILOT).all()
    np.testing.assert_array_equal(found.size_P, np.where(both_P, GROUP, PILOT))


def test_reserve_prompts_take_the_place_of_groups_that_were_given_up():
    found = pools(np.r_[np.zeros(8), np.full(24, 0.5)], reserve=24)
    assert (found.size_P[:8] == PILOT).all() and (found.size_P[found.group_G] == GROUP).all()
    assert len(found.group_G) == 8 and (found.group_G >= 8).all()


@pytest.mark.parametrize(
    ("section", "group", "works"),
    [
        ({}, 2, "num_generations_per_prompt to 8"),
        ({"sampling": {"exit": {"kind": "pilot", "pilot": 16}}}, 16, "between 2 and 15"),
        ({"sampling": {"wave_size": 8}}, 16, "leave out"),
        ({"sampling": {"stopping": {"kind": "issue_order"}}}, 16, "stopping.kind=wave"),
        ({"advantage": {"weighting": "objective"}}, 16, "weighting: reference"),
    ],
)
def test_what_has_no_pilot_is_refused(section, group, works):
    with pytest.raises(UserError, match=works):
        ada_settings({"preset": "ada_pilot"} | section).plan(group, 400)
