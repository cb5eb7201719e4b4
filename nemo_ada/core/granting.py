"""Which waiting prompts get responses now: time, samples, tokens, and who comes first (algorithm.md section 6).

Responses are served by level: the number of responses that a prompt has once its request is served, so first waves
come before second ones, whoever ended first. While the budget covers all that may still be asked for up to a level, a
request is granted at once. Where it does not, `policy` ranks the requests of a level, and one is granted only when the
budget also covers what prompts that still run may ask for before it. So short responses do not win the budget, and
with a cap on samples `continuous` serves the same prompts as `rounds`.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from nemo_ada.core import seeds
from nemo_ada.core.latency import LatencyModel
from nemo_ada.core.ledger import Ledger
from nemo_ada.core.priority import exit_probability
from nemo_ada.core.state import StepState
from nemo_ada.core.table import IN_FLIGHT

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class Granter:
    """Grants responses to waiting prompts within the caps of one batch."""

    def __init__(self, state: StepState, ledger: Ledger, latency: LatencyModel, run_seed: int, step: int) -> None:
        self._state, self._ledger, self._latency = state, ledger, latency
        self._run_seed, self._step = run_seed, step
        self._begun = False

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
            prompts, sizes = self._affordable(self._in_time(waiting, now, began), each)
            left = np.flatnonzero(state.want_P)
            if len(prompts) or state.in_flight or len(left) == 0 or np.array_equal(left, waiting):
                return prompts, sizes
            waiting = left  # the budget refused all that time let through: now it is the others' turn

    # time -------------------------------------------------------------------------------------------------------------

    def _in_time(self, waiting: IntArray, now: float, began: float) -> IntArray:
        """Leave out waves that the latency model expects to end too late; redraws for a first wave always pass."""
        state, plan = self._state, self._state.plan
        limit = plan.caps.max_seconds
        if not plan.idle and limit is None:
            return waiting
        first = (state.wave_P[waiting] == 0) & (waiting < state.n_starting) & (plan.window is None)
        redraws, later = waiting[first], waiting[~first]
        load = state.in_flight + int(state.want_P[redraws].sum())
        if plan.idle:  # each by itself: a wave that others make late costs tokens, not time, for it is dropped whole
            later = later[self._fit_alone(later, load, self._idle_tail(now), plan.idle_quantile)]
        if limit is not None:
            left = limit - (now - began)
            alone = self._fit_alone(later, load, left, 0.5)
            state.cut(later[~alone], "max_seconds")
            later = self._fit_together(later[alone], load, left)
        return np.sort(np.concatenate((redraws, later)))

    def _fit_alone(self, waiting: IntArray, load: int, seconds: float, quantile: float) -> BoolArray:
        """Whose waves end within `seconds` beside `load` responses."""
        size_U, inverse_W = np.unique(self._state.want_P[waiting], return_inverse=True)
        ends = [self._latency.wave_seconds(size, load, quantile) <= seconds for size in size_U.tolist()]
        return np.array(ends, np.bool_)[inverse_W]

    def _fit_together(self, waiting: IntArray, load: int, seconds: float) -> IntArray:
        """As many, in the order of priority, as end within `seconds` beside each other, too."""
        if len(waiting) == 0 or self._seconds(waiting, load) <= seconds:
            return waiting
        waiting = self._ranked(waiting)
        several = [waiting[:size] for size in range(1, len(waiting) + 1)]
        return waiting[: bisect_right(several, seconds, key=lambda some: self._seconds(some, load))]

    def _seconds(self, waiting: IntArray, load: int) -> float:
        """Median time until the waves of these prompts end, issued together beside `load` responses."""
        size_W = self._state.want_P[waiting]
        largest = int(size_W.max())
        return self._latency.wave_seconds(largest, load + int(size_W.sum()) - largest, 0.5)

    def _idle_tail(self, now: float) -> float:
        """Expected time until the last of the first waves ends; below 0 before the latency model has seen a step."""
        state, table = self._state, self._state.table
        if not self._latency.ready:
            return -1.0
        running = np.flatnonzero(table.state[: table.n] == IN_FLIGHT)
        running = running[(table.wave[running] == 0) & (table.prompt[running] < state.n_starting)]
        return self._latency.remaining_seconds(now - table.issued_at[running], state.in_flight)

    # samples and tokens -----------------------------------------------------------------------------------------------

    def _affordable(self, waiting: IntArray, each: int) -> tuple[IntArray, IntArray]:
        state, ledger = self._state, self._ledger
        if len(waiting) == 0:
            return waiting, waiting
        if not ledger.bounded or self._fits(int(self._claims(waiting).sum()), each):
            total = int(state.want_P[waiting].sum())
            ledger.reserve(total, total * each)
            return waiting, state.want_P[waiting]
        granted_P = np.zeros(len(state.uid_P), np.int64)
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
        """Responses of each prompt once its request is served; windows are refilled one by one and count whole."""
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
