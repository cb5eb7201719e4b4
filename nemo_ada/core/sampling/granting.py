"""Which waiting prompts get responses now: samples, tokens, and who comes first (algorithm.md section 6).

Responses are served by level: the number of responses that a prompt has once its request is served, so first waves
come before second ones, whoever ended first. While the budget covers all that may still be asked for up to a level, a
request is granted at once. Where it does not, `policy` ranks the requests of a level, and one is granted only when the
budget also covers what prompts that still run may ask for before it. So short responses do not win the budget, and
with a cap on samples `continuous` serves the same prompts as `rounds`.
"""

from __future__ import annotations

import numpy as np

from nemo_ada.core import seeds
from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.metrics import BOUNDS
from nemo_ada.core.sampling.budget import Ledger
from nemo_ada.core.sampling.deadline import Deadline
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.priority import exit_probability
from nemo_ada.core.sampling.state import StepState


class Granter:
    """Grants responses to waiting prompts within the caps of one batch."""

    def __init__(self, state: StepState, ledger: Ledger, latency: LatencyModel, run_seed: int, step: int) -> None:
        self._state, self._ledger, self._latency = state, ledger, latency
        self._run_seed, self._step = run_seed, step
        self._begun = False
        self._deadline = Deadline(state, latency)

    def tokens_each(self) -> int:
        """Tokens to reserve for one response."""
        plan = self._state.plan
        if plan.token_reservation == "expected" and self._latency.ready:
            return max(1, self._latency.length_quantile(plan.reservation_quantile))
        return plan.prior_tokens

    def grant(self, now: float, began: float) -> tuple[IntArray, IntArray]:
        """(prompts, sizes) to issue now. First waves always pass; whatever else a cap refuses for good is cut."""
        state = self._state
        waiting = np.flatnonzero(state.want_P)
        if len(waiting) == 0:
            return waiting, waiting
        each = self.tokens_each()
        if not self._begun:  # nobody else waits before the first waves are out
            self._begun = True
            total = int(state.want_P[waiting].sum())
            self._ledger.reserve(total, total * each, forced=True)
            return waiting, state.want_P[waiting]
        while True:
            in_time = self._deadline.in_time(waiting, now - began, now, self._ranked)
            prompts, sizes = self._affordable(in_time, each)
            left = np.flatnonzero(state.want_P)
            if len(prompts) or state.in_flight or len(left) == 0 or np.array_equal(left, waiting):
                state.held_P[prompts] = 0
                self._deadline.book(prompts, sizes, now - began)
                return prompts, sizes
            waiting = left  # the budget refused all that time let through: now it is the others' turn

    # samples and tokens -----------------------------------------------------------------------------------------------

    def _affordable(self, waiting: IntArray, each: int) -> tuple[IntArray, IntArray]:
        state, ledger = self._state, self._ledger
        if len(waiting) == 0:
            return waiting, waiting
        claims = int(self._claims(waiting).sum()) if ledger.bounded else 0
        if self._fits(claims, each):
            total = int(state.want_P[waiting].sum())
            ledger.reserve(total, total * each)
            return waiting, state.want_P[waiting]
        granted_P = np.zeros(len(state.uid_P), np.int64)
        short = ledger.refusal(claims, claims * each)
        state.held_P[waiting] = 0 if short is None else BOUNDS.index(short)
        level_W = self._level(waiting)
        for level in np.unique(level_W):
            if not self._serve(waiting[level_W == level], int(level), each, granted_P):
                break
        prompts = np.flatnonzero(granted_P)
        return prompts, granted_P[prompts]

    def _serve(self, group: IntArray, level: int, each: int, granted_P: IntArray) -> bool:
        """Serve the requests of one level; False when some of them must wait, and so must those of higher levels."""
        state, ledger = self._state, self._ledger
        want_P = np.zeros(len(granted_P), np.int64)
        want_P[group] = state.want_P[group]
        net_P = state.issued_P - state.failed_P + granted_P
        running_P = (state.in_flight_P > 0) | (granted_P > 0)
        before_P, claim_P = self._demand(level - int(want_P.max()), net_P), self._demand(level, net_P)
        claim_P -= before_P
        before_P += self._redraws()
        unknown = bool(before_P[running_P].any())  # somebody who runs may ask for something first
        ahead, taken, done = int(before_P.sum()), 0, True
        for prompt in self._ranked(group, np.flatnonzero(claim_P + want_P)).tolist():
            ahead += int(claim_P[prompt])
            unknown = unknown or bool(running_P[prompt] and claim_P[prompt] > want_P[prompt])
            size = int(want_P[prompt])
            if size == 0:
                continue
            if not self._fits(ahead, each):
                least = size if state.plan.window is None else 1  # a wave is issued whole, a window filled in part
                refused = ledger.refusal(taken + least, (taken + least) * each)
                if refused == "max_samples" or (refused and not (granted_P.any() or state.in_flight)):
                    state.cut(np.array([prompt]), refused)  # nothing in flight can give back what it needs
                    ahead -= int(claim_P[prompt])
                    continue
                if refused or unknown:
                    done = False
                    continue
                while not self._fits(taken + size, each):
                    size -= 1
            granted_P[prompt] = size
            taken += size
        if taken:
            ledger.reserve(taken, taken * each)
        return done

    def _fits(self, responses: int, each: int) -> bool:
        return self._ledger.refusal(responses, responses * each) is None

    def _level(self, waiting: IntArray) -> IntArray:
        """Responses of each prompt once its request is served; windows are replaced one by one and count whole."""
        state = self._state
        level_W = state.issued_P[waiting] - state.failed_P[waiting] + state.want_P[waiting]
        quantum = state.plan.window or 1
        return np.asarray(-(-level_W // quantum) * quantum)

    def _claims(self, waiting: IntArray) -> IntArray:
        """What each prompt may ask for until all are at the highest level that is waited for."""
        state = self._state
        return self._demand(int(self._level(waiting).max()), state.issued_P - state.failed_P) + self._redraws()

    def _redraws(self) -> IntArray:
        """What may fail of first waves, which are whole before other prompts have a second one."""
        state = self._state
        return np.asarray(np.where(state.first_open_P & (state.plan.window is None), state.in_flight_P, 0))

    def _demand(self, level: int, net_P: IntArray) -> IntArray:
        state = self._state
        open_P = state.active_P & ~state.cut_P
        return np.asarray(np.where(open_P, np.maximum(np.minimum(level, state.cap_P) - net_P, 0), 0))

    # priority ---------------------------------------------------------------------------------------------------------

    def _ranked(self, waiting: IntArray, claimants: IntArray | None = None) -> IntArray:
        """Claimants (None: those who wait) by level and rank; among equals chance decides, seeded.

        Of claimants who run the level is that of those who wait. Their rank is known for `uniform`; for `greedy` any of
        them may turn out to be the first.
        """
        state = self._state
        claimants = waiting if claimants is None else claimants
        level_W = self._level(waiting)
        level_P = np.full(len(state.uid_P), level_W[0])
        level_P[waiting] = level_W
        chance_P = seeds.uniform(self._run_seed, self._step, state.uid_P, level_P, stream=seeds.Stream.PRIORITY)
        rank_P = np.zeros(len(state.uid_P))
        if state.plan.policy == "greedy":
            rank_P -= np.inf
            rank_P[waiting] = -self._promise(waiting)
        rank_P[state.n_starting :] = 1.0 + np.arange(len(state.uid_P) - state.n_starting)  # in the order of the data
        return np.asarray(claimants[np.lexsort((chance_P[claimants], rank_P[claimants], level_P[claimants]))])

    def _promise(self, waiting: IntArray) -> FloatArray:
        """Posterior probability that the request meets the exit, per response."""
        state, rule = self._state, self._state.plan.exit
        pos, neg, sizes = state.seen_pos_P[waiting], state.seen_neg_P[waiting], state.want_P[waiting]
        short_pos, short_neg, short = rule.shortfall(pos, neg)
        alpha, beta = pos + state.prior_pos_P[waiting], neg + state.prior_neg_P[waiting]
        met = exit_probability(alpha, beta, short_pos, short_neg, sizes) * (sizes >= short)
        return np.asarray(met / sizes)
