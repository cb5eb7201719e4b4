"""Groups with a session each and one budget for their step.

1. Whatever ends first, caps hold, every group ends, and with a cap on samples each group's pool is the same.
2. Budget is served in the order of start; a later group waits, and goes on when the earlier one has ended.
3. A group that takes too long keeps its complete waves and wedges nobody.
4. Merged, the groups are the step that one session would have returned, to the bit.
5. Budget and pools of groups that were finished survive a restart; none counts twice.
"""

from dataclasses import fields, replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from nemo_ada.core.learning.rows import Selection
from nemo_ada.core.learning.settings import AdvantageSettings, RowSettings
from nemo_ada.core.prompts.estimators import EmaBeta
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit, PoolView, PositiveExit
from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.source import Outcomes
from nemo_ada.core.sampling.summary import summarise
from nemo_ada.errors import FailedResponsesError, InvariantError
from tests.core.scripted import Script, ScriptedSource

PLAN = SamplingPlan(StopRule(BalancedExit(2, 2), (4,), 16), 4, 40)


def sampler(plan=PLAN, baseline="pool", **options):
    stop = plan.stop
    rows = RowSettings(plan.group_size, stop, AdvantageSettings(baseline=baseline))
    return AdaSampler(plan, rows, run_seed=7, **options)


class Group:
    """One group in flight."""

    def __init__(self, own, ledger, number, script, order=0):
        one = Script(script.reward_PI[number : number + 1], script.tokens_PI[number : number + 1])
        self.number, self.own = number, own
        self.source = ScriptedSource(one, np.random.default_rng([order, number]))
        self.ledger = ledger.start()
        assert self.ledger.number == number
        self.session = own.group_session(3, self.ledger)
        self.result = None
        self.ask()

    def ask(self):
        ids = self.session.take_aborts()
        if len(ids):
            self.session.record_aborted(ids, self.source.abort(ids), self.source.now)
        requests = self.session.next_requests(self.source.now)
        if len(requests):
            self.source.submit(requests)
        if self.result is None and self.session.finished:
            self.result = self.session.result()
            self.ledger.end()

    def poll(self):
        self.session.record(self.source.poll(), self.source.now)

    @property
    def pool(self):
        versions = np.full(len(self.result.response_id_N), 3)
        return GroupPool(3, f"p{self.number}", self.result, versions)


def settle(groups):
    """Let every group ask until none moves: one that ends may free another."""
    before = None
    while before != (before := [(group.result is None, len(group.source.issued)) for group in groups]):
        for group in groups:
            group.ask()


def race(own, script, seed, groups=None, ledger=None):
    """Run all groups at once; `seed` decides when they start and what ends first."""
    rng = np.random.default_rng(seed)
    total = len(script.reward_PI)
    numbers = list(range(total)) if groups is None else list(groups)
    ledger = own.step_ledger(total) if ledger is None else ledger
    started = []
    while len(started) < len(numbers) or any(group.result is None for group in started):
        running = [group for group in started if group.source.running]
        if len(started) < len(numbers) and (not running or rng.random() < 0.3):
            started.append(Group(own, ledger, numbers[len(started)], script, seed))
        else:
            assert running, "groups wait for each other"
            running[rng.integers(len(running))].poll()
        settle([started[i] for i in rng.permutation(len(started)).tolist()])
        caps = own.plan.budget
        assert caps.max_samples is None or ledger.use.samples <= caps.max_samples
        assert caps.max_tokens is None or ledger.use.tokens <= caps.max_tokens
        assert ledger.use.samples == sum(len(group.source.issued) for group in started)
    assert ledger.tokens_reserved == 0
    return started, ledger


def greedy(plan, script):
    """Pool sizes when extra waves go to groups in the order of their start: an oracle in plain Python."""
    prompts, first = len(script.reward_PI), plan.stop.wave_sizes[0]
    left = plan.budget.max_samples - prompts * first
    sizes = []
    for prompt in range(prompts):
        size = first
        while size < plan.stop.cap:
            labels = script.reward_PI[prompt, :size] > 0.5
            if plan.stop.exit.met(PoolView(labels.sum(), (~labels).sum())):
                break
            wave = min(plan.stop.wave_sizes[-1], plan.stop.cap - size)
            if wave > left:
                break
            size, left = size + wave, left - wave
        sizes.append(size)
    return sizes


@pytest.mark.parametrize("seed", range(12))
def test_samples_go_to_groups_in_the_order_of_their_start_whatever_ends_first(seed):
    script = Script.random(seed, np.random.default_rng(seed).random(9), longest=40)
    plan = replace(PLAN, budget=Budget(max_samples=36 + 4 * seed))
    own = sampler(plan)
    expected = greedy(plan, script)
    for order in range(5):
        started, _ = race(own, script, 10 * seed + order)
        assert [int(group.result.size_P[0]) for group in started] == expected


@pytest.mark.parametrize("seed", range(8))
def test_caps_on_tokens_hold_and_every_group_ends(seed):
    script = Script.random(seed, np.random.default_rng(seed).random(8), longest=40, failed=0.05)
    first = 8 * 4 * 40
    plan = replace(PLAN, budget=Budget(max_tokens=first + 200 * seed, token_reservation="worst_case"))
    started, _ = race(sampler(plan), script, seed)
    assert all(group.result is not None for group in started)


def test_a_group_waits_for_those_before_it_and_goes_on_when_they_have_ended():
    script = Script.of("----", "----", "+-+-")
    own = sampler(replace(PLAN, stop=replace(PLAN.stop, cap=8), budget=Budget(max_samples=16)))
    ledger = own.step_ledger(3)
    groups = [Group(own, ledger, number, script) for number in range(3)]
    late = groups[1]
    while late.source.running:
        late.poll()
    late.ask()
    assert not late.source.running and late.result is None  # the first group may still want the four samples
    while groups[0].source.running:
        groups[0].poll()
    groups[0].ask()
    late.ask()
    assert len(groups[0].source.running) == 4
    assert late.result is not None and late.result.cut_P[0]


def test_a_straggler_is_given_up_with_its_complete_waves_and_frees_those_behind_it():
    script = Script.of("----", "----")
    own = sampler(replace(PLAN, stop=replace(PLAN.stop, cap=8), budget=Budget(max_samples=12)))
    ledger = own.step_ledger(2)
    straggler, late = Group(own, ledger, 0, script), Group(own, ledger, 1, script)
    while late.source.running:
        late.poll()
    late.ask()
    straggler.session.give_up()
    straggler.ask()
    assert straggler.result.size_P[0] == 0 and summarise(straggler.result)["samples_dropped"] == 4
    late.ask()
    assert len(late.source.running) == 4
    while late.source.running:
        late.poll()
    late.session.give_up()
    late.ask()
    assert late.result.size_P[0] == 8


def test_the_driver_keeps_complete_waves_of_a_group_whose_engine_is_silent():
    class Silent(ScriptedSource):
        def poll(self):
            waves = self.submitted[-1][1].wave_N
            return super().poll() if waves[0] == 0 else Outcomes(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))

    own, polls = sampler(), []
    source = Silent(Script.of("----"), np.random.default_rng(0))

    def late():
        polls.append(None)
        return "give_up" if len(polls) > 20 else None

    result = run_sampling(own.group_session(3, own.step_ledger(1).start()), source, stop_check=late, wait=pytest.fail)
    assert (result.size_P[0], summarise(result)["samples_dropped"]) == (4, 4)


def selected(own, groups):
    """The rows that each group chooses by itself, as they travel with it."""
    chosen = [own.select(3, group.result) for group in groups]
    rank_R, weight_R = (np.concatenate([getattr(rows, name) for rows in chosen]) for name in ("pool_R", "weight_R"))
    return Selection.of_groups([len(group.result.response_id_N) for group in groups], rank_R, weight_R)


@pytest.mark.parametrize("baseline", ["pool", "shrunk"])
@pytest.mark.parametrize("exit_rule", [BalancedExit(2, 2), PositiveExit(1), FixedExit(4)])
def test_merged_groups_are_the_step_of_one_session_to_the_bit(exit_rule, baseline):
    script = Script.random(5, [0.1, 0.9, 0.5, 0.02, 0.3], failed=0.02)
    plan = replace(PLAN, stop=replace(PLAN.stop, exit=exit_rule))
    ids = [f"p{number}" for number in range(5)]
    alone, together = (sampler(plan, baseline, estimator=EmaBeta()) for _ in range(2))
    step = together.run_step(3, ids, ScriptedSource(script, np.random.default_rng(0)))
    started, _ = race(alone, script, 1)
    merged = alone.finish_step([group.pool for group in started], selected(alone, started))
    for field in fields(step.result):
        if field.name not in ("seconds", "utilisation", "failures", "response_id_N"):
            assert_array_equal(getattr(step.result, field.name), getattr(merged.result, field.name), field.name)
    for name in ("prompt_R", "pool_R", "weight_R", "advantage_R", "weight_P"):
        assert_array_equal(getattr(step.rows, name), getattr(merged.rows, name), name)
    timed = {"sampling_seconds", "engine_utilisation"}
    same = {name: value for name, value in step.metrics.items() if name.removeprefix("ada/") not in timed}
    assert {name: merged.metrics[name] for name in same} == pytest.approx(same)
    assert together.estimator.state_dict()["pos"].tolist() == alone.estimator.state_dict()["pos"].tolist()


def test_pools_say_which_weights_drew_them():
    started, _ = race(sampler(), Script.of("++--", "----", "+-+-"), 0)
    pools = [group.pool for group in started]
    size = len(pools[1].version_N)
    pools[1] = replace(pools[1], version_N=np.array([1] * 4 + [2] * (size - 4)), given_up=True, redrawn=True)
    stats = sampler().finish_step(pools).sampling_metrics
    assert stats["pools_mixed_versions"] == pytest.approx(1 / 3)
    assert stats["response_age"] == pytest.approx((2 * 4 + (size - 4)) / (8 + size))
    assert (stats["groups_given_up"], stats["groups_redrawn"]) == (1, 1)


def test_failures_are_judged_over_the_step_and_not_over_a_group():
    failing = "x-x-+x-+x-+-+"
    bad, mostly_good = Script.of(failing), Script.of(*["++--"] * 40, failing)
    own = sampler()
    few, _ = race(own, mostly_good, 0)
    own.finish_step([group.pool for group in few])
    many, _ = race(own, bad, 0)
    with pytest.raises(FailedResponsesError, match="p0"):
        own.finish_step([group.pool for group in many])


@pytest.mark.parametrize("seed", range(6))
def test_after_a_restart_the_step_goes_on_with_the_budget_that_is_left(seed):
    script = Script.random(seed, np.random.default_rng(seed).random(8))
    own = sampler(replace(PLAN, budget=Budget(max_samples=52)))
    whole, spent = race(own, script, seed)
    done = [group for group in whole if group.number < 3]
    ledger = own.step_ledger(8)
    for group in done:
        kept = GroupPool.from_dict(group.pool.as_dict())
        ledger.restore(group.number, kept.result.use)
    again, ledger = race_after(own, script, seed + 1, ledger)
    assert [int(g.result.size_P[0]) for g in done + again] == [int(g.result.size_P[0]) for g in whole]
    assert (ledger.use.samples, ledger.use.tokens) == (spent.use.samples, spent.use.tokens)
    with pytest.raises(InvariantError):
        ledger.start()


def race_after(own, script, seed, ledger):
    """The groups from the fourth on; those before are in the ledger."""
    rng, groups = np.random.default_rng(seed), []
    for number in range(3, 8):
        groups.append(Group(own, ledger, number, script, seed))
    while any(group.result is None for group in groups):
        running = [group for group in groups if group.source.running]
        running[rng.integers(len(running))].poll()
        settle(groups)
    return groups, ledger


def test_groups_of_two_steps_are_refused():
    started, _ = race(sampler(), Script.of("++--", "+-+-"), 0)
    pools = [group.pool for group in started]
    with pytest.raises(InvariantError):
        sampler().finish_step([pools[0], replace(pools[1], step=4)])


def test_an_allocation_needs_the_whole_step():
    shared = sampler(estimator=EmaBeta(), allocation=object())
    with pytest.raises(InvariantError, match="whole step"):
        shared.group_session(0, sampler().step_ledger(1).start())


def test_a_row_that_its_pool_does_not_have_is_refused():
    for rank_R in ([0, 1, 2, 0], [0, 1, -2, 0], [0, 1, 0]):
        with pytest.raises(InvariantError, match="do not have"):
            Selection.of_groups([2, 2], np.array(rank_R), np.ones(len(rank_R)))
