"""A session driven by arbitrary sequences of calls: what holds at every moment, whatever the engine does.

The machine submits, ends, fails and aborts responses in any order and lets time pass; it may stop the session.
Invariants: caps hold with worst-case reservation, the session's books equal the machine's, rows are issued once,
budget that is no longer needed is given back, and the session can always be brought to its end.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nemo_ada.core.sampling.budget import Budget
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit, PositiveExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.summary import summarise
from nemo_ada.core.sampling.table import DONE
from tests.core.scripted import Script, ScriptedSource

LONGEST = 20


class SessionMachine(RuleBasedStateMachine):
    @initialize(
        prompts=st.integers(1, 5),
        reserve=st.integers(0, 2),
        exit_rule=st.sampled_from([PositiveExit(1), BalancedExit(1, 1), BalancedExit(2, 2), FixedExit(4)]),
        scheduler=st.sampled_from(["rounds", "continuous"]),
        allocated=st.one_of(st.none(), st.lists(st.integers(1, 9), min_size=7, max_size=7)),
        reservation=st.sampled_from(["worst_case", "worst_case", "expected"]),
        spare=st.tuples(*[st.one_of(st.none(), st.integers(0, 30))] * 2),
        seconds=st.one_of(st.none(), st.floats(1, 60)),
        seed=st.integers(0, 10**6),
    )
    def begin(
        self, prompts, reserve, exit_rule, scheduler, allocated, reservation, spare, seconds, seed
    ):  # fmt: skip
        if allocated is not None:  # the estimation variant
            exit_rule, reserve = FixedExit(1), 0
        first_wave = None if allocated is None else np.array(allocated[:prompts])
        first = prompts * 3 if first_wave is None else int(first_wave.sum())
        samples, tokens = spare
        budget = Budget(
            None if samples is None else first + samples,
            None if tokens is None else (first + tokens) * LONGEST,
            seconds,
            token_reservation=reservation,
        )
        plan = SamplingPlan(
            StopRule(exit_rule, (3, 2), 12), 4, LONGEST, scheduler=scheduler, budget=budget, max_failed_share=1.0,
        )  # fmt: skip
        self.worst_case = reservation == "worst_case"
        latency = LatencyModel()
        latency.observe(np.arange(1, 20), 1.2 * np.arange(1, 20), np.full(19, 4.0))
        rates = ([0.0, 0.4, 0.9, 1.0, 0.2] * 2)[: prompts + reserve]
        self.source = ScriptedSource(
            Script.random(seed, rates, failed=0.15, longest=LONGEST), np.random.default_rng(seed)
        )
        state = StepState(plan, np.arange(prompts + reserve), reserve=reserve, first_wave_P=first_wave)
        self.session = SamplingSession(state, run_seed=seed, step=0, latency=latency)
        self.calls_to_end = 0

    def flush_aborts(self):
        rows = self.session.take_aborts()
        if len(rows):
            self.session.record_aborted(rows, self.source.abort(rows), self.source.clock())

    @rule()
    def ask(self):
        self.flush_aborts()
        requests = self.session.next_requests(self.source.clock())
        if len(requests):
            self.source.submit(requests)
        self.flush_aborts()

    @precondition(lambda self: self.source.running)
    @rule(data=st.data())
    def some_end(self, data):
        rows = data.draw(st.lists(st.sampled_from(sorted(self.source.running)), min_size=1, unique=True))
        self.session.record(self.source.end(rows), self.source.clock())
        self.flush_aborts()

    @rule(seconds=st.one_of(st.floats(0, 5), st.sampled_from([-3600.0, -1.0, 3600.0])))  # the clock may jump
    def time_passes(self, seconds):
        self.source.now += seconds

    @rule(drain=st.booleans(), chance=st.integers(0, 9))
    def stopped(self, drain, chance):
        if chance == 0:
            self.session.stop(drain=drain)
            self.flush_aborts()

    @invariant()
    def books_agree(self):
        if not hasattr(self, "session"):
            return
        state, ledger, caps = self.session.state, self.session.ledger, self.session.plan.budget
        assert state.in_flight == len(self.source.running) == state.in_flight_P.sum()
        assert ledger.use.samples == len(self.source.issued)
        assert ledger.use.tokens - ledger.tokens_reserved == self.source.tokens
        assert caps.max_samples is None or ledger.use.samples <= caps.max_samples
        if self.worst_case:
            assert ledger.tokens_reserved == LONGEST * len(self.source.running)
            assert caps.max_tokens is None or ledger.use.tokens <= caps.max_tokens
        assert not state.want_P[~state.active_P].any()
        accepted = np.flatnonzero(state.table.accepted[: state.table.n])
        assert (state.table.state[accepted] == DONE).all()

    def teardown(self):
        if not hasattr(self, "session"):
            return
        for _ in range(10_000):
            self.ask()
            if self.session.finished:
                break
            assert self.source.running, "nothing runs, nothing is issued, and the session does not end"
            self.session.record(self.source.poll(), self.source.clock())
        result = self.session.result()
        assert (result.size_P == np.bincount(result.prompt_N, minlength=len(result.uid_P))).all()
        assert (result.pos_P == np.bincount(result.prompt_N, result.positive_N, len(result.uid_P))).all()
        assert np.isfinite(result.reward_N).all()
        assert self.session.ledger.tokens_reserved == 0
        assert summarise(result)["tokens_drawn"] == self.source.tokens
        assert not self.worst_case or summarise(result, self.session.plan.budget)["tokens_overshoot"] == 0


SessionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestSession = SessionMachine.TestCase
