"""What the doctor says of a step, and when it ends a run."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_ada.core.learning.settings import RowSettings
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.exits import BalancedExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.errors import UserError

LONGEST = 20


class Source:
    """Gives each response the next of these rewards and this many tokens."""

    def __init__(self, rewards, tokens=5):
        self.rewards, self.tokens, self.waiting, self.time = rewards, tokens, [], 0.0

    def submit(self, requests: Requests) -> None:
        self.waiting += requests.response_id_N.tolist()

    def poll(self) -> Outcomes:
        ids, self.waiting, self.time = np.array(self.waiting), [], self.time + 1.0
        rewards = np.array([self.rewards[i % len(self.rewards)] for i in ids.tolist()], np.float64)
        return Outcomes(ids, rewards, np.full(len(ids), self.tokens))

    def abort(self, response_id_N):
        return np.zeros(len(response_id_N), np.int64)

    def clock(self) -> float:
        return self.time


def sampler(threshold=0.7, **options):
    plan = SamplingPlan(StopRule(BalancedExit(1, 1), (4,), 8), 4, LONGEST, positive_threshold=threshold)
    rows = RowSettings(4, plan.stop)
    return AdaSampler(plan, rows, run_seed=0, **options)


def said(own, step, source, **options):
    sampled = own.run_step(step, ["a", "b"], source, **options)
    return sampled.warnings, sampled.metrics


def test_a_live_step_says_nothing_and_counts_cut_responses():
    warnings, metrics = said(sampler(), 1, Source([0.0, 1.0]))
    assert warnings == () and metrics["ada/truncated"] == 0.0
    own = sampler()
    warnings, metrics = said(own, 1, Source([0.0, 1.0], LONGEST))
    assert metrics["ada/truncated"] == 1.0 and f"8 of 8 were cut at {LONGEST} tokens" in warnings[0]
    assert said(own, 2, Source([0.0, 1.0], LONGEST))[0] == (), "once is enough where steps teach"


def test_a_dead_step_names_its_causes():
    (sentence,), _ = said(sampler(), 1, Source([0.0], LONGEST), seen=lambda: {"no_box": 0.5})
    for part in ("step 1 taught nothing: of 16 responses", "16 of 16 were cut", "50 % have no", "every reward is 0"):
        assert part in sentence


def test_graded_rewards_on_one_side_of_the_threshold_are_named_although_they_teach():
    own = sampler(0.7)
    (sentence,), _ = said(own, 1, Source([0.1, 0.6]))
    assert "rewards lie from 0.1 to 0.6, all at or below reinforce_ada.positive_threshold=0.7" in sentence


def test_failures_are_named_with_their_details_and_counted_by_cause():
    class Failing(Source):
        def poll(self):
            outcomes = super().poll()
            return Outcomes(
                outcomes.response_id_N, outcomes.reward_N, outcomes.tokens_N,
                {i: "reward_error my.py:3 KeyError" for i in outcomes.response_id_N.tolist() if i == 0},
            )  # fmt: skip

    (sentence,), metrics = said(sampler(), 1, Failing([0.0]))
    assert "1 reward_error my.py:3 KeyError" in sentence and metrics["ada/failed/reward_error"] == 1.0


def test_dead_steps_are_said_less_and_less_often_and_end_a_run_that_asks_for_it():
    own = sampler()
    assert [step for step in range(1, 10) if said(own, step, Source([0.0]))[0]] == [1, 2, 4, 8]
    own = sampler(stop_after=3)
    for step, rewards in enumerate([[0.0], [0.0], [0.0, 1.0], [0.0], [0.0]], start=1):
        said(own, step, Source(rewards))
    with pytest.raises(UserError, match=r"3 such step.*stop_after_dead_steps=3 ends the run"):
        said(own, 6, Source([0.0]))
