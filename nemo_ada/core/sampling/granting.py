"""Decides which waiting prompts get responses now, given the caps on samples and tokens (algorithm.md section 6).

Requests are served by level. The level is the number of responses that a prompt has once its request is served. So
all first waves come before any second wave. While the budget covers everything that prompts may request up to a level,
each request is granted at once. Otherwise a seeded random order ranks the requests of a level. A request is
then granted only when the budget also covers what running prompts may request before it. So short responses do not
win the budget, and with a cap on samples `continuous` serves the same prompts as `rounds`.
"""

from __future__ import annotations

import numpy as np

from nemo_ada.core import seeds
from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.budget import Ledger
from nemo_ada.core.sampling.deadline import Deadline
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.state import StepState

RESERVED_QUANTILE = 0.95  # `expected` reserves this quantile of recent lengths per response


class Granter:
    """Grants responses to waiting prompts within the caps of one batch."""

    def __init__(self, state: StepState, ledger: Ledger, latency: LatencyModel, run_seed: int, step: int) -> None:
        self._state, self._ledger, self._latency = state, ledger, latency
        self._run_seed, self._step = run_seed, step
        self._begun = False
        self._deadline = Deadline(state, latency)

    def estimate_tokens(self) -> int:
        """Return the tokens to reserve for one response."""
        plan = self._state.plan
        if plan.budget.token_reservation == "expected" and self._latency.ready:
            return max(1, self._latency.get_length_quantile(RESERVED_QUANTILE))
        return plan.prior_tokens

    def grant(self, now: float, began: float) -> tuple[IntArray, IntArray]:
        """Grant responses. First waves always pass. Requests that a cap refuses for good are cut.

        Args:
            now: time of the source's clock.
            began: time at which the batch began.

        Returns:
            The prompts, and how many responses each may issue now.
        """
        state = self._state
        waiting = np.flatnonzero(state.want_P)
        if len(waiting) == 0:
            return waiting, waiting
        each = self.estimate_tokens()
        if not self._begun:
            self._begun = True
            total = int(state.want_P[waiting].sum())
            self._ledger.reserve(total, each, first_waves=True)
            return waiting, state.want_P[waiting]
        while True:
            in_time = self._deadline.select_in_time(waiting, now - began, self._rank)
            prompts, sizes = self._grant_affordable(in_time, each)
            left = np.flatnonzero(state.want_P)
            if len(prompts) or state.in_flight or len(left) == 0 or np.array_equal(left, waiting):
                self._deadline.book(prompts, sizes, now - began)
                return prompts, sizes
            # Nothing runs, so no outcome would ask again. But the caps have cut some requests, and those that the
            # deadline had left out behind them may be in time now. Where nothing was cut, a second look would find the
            # same.
            waiting = left

    # samples and tokens -----------------------------------------------------------------------------------------------

    def _grant_affordable(self, waiting: IntArray, each: int) -> tuple[IntArray, IntArray]:
        """Grant what the caps on samples and tokens cover, level by level. `each`: tokens to reserve for a response."""
        state, ledger = self._state, self._ledger
        if len(waiting) == 0:
            return waiting, waiting
        total = int(state.want_P[waiting].sum())
        if ledger.waits(total, each):  # earlier groups decide, so nothing is granted or cut before one of them ends
            return waiting[:0], waiting[:0]
        claims = int(self._compute_claims(waiting).sum()) if ledger.bounded else 0
        if ledger.find_refusal(claims, each) is None:
            ledger.reserve(total, each)
            return waiting, state.want_P[waiting]
        granted_P = np.zeros(len(state.uid_P), np.int64)
        level_W = self._compute_level(waiting)
        for level in np.unique(level_W):
            if not self._serve(waiting[level_W == level], int(level), each, granted_P):
                break
        prompts = np.flatnonzero(granted_P)
        return prompts, granted_P[prompts]

    def _serve(self, group: IntArray, level: int, each: int, granted_P: IntArray) -> bool:
        """Serve the requests of one level. Returns False when some must wait. Then higher levels must wait, too.

        An example: waves of 8 and max_samples = 48. Prompts A and B have their first wave without an exit and want the
        second one (level 16). C's first wave still runs. So 24 of the cap are left. The random order of the level is
        A, C, B:

            before  C's first wave may fail and be redrawn: ahead = 8, `unknown`.
            A       ahead = 16 fits into 24: granted, taken = 8.
            C       wants nothing yet, but it may want a second wave: ahead = 24.
            B       ahead = 32 does not fit. taken + 8 = 16 would, so no cap refuses B for good: it waits.

        When C's first wave has ended without a failure, B and C share the 16 that are left.
        """
        state, ledger = self._state, self._ledger
        want_P = np.zeros(len(granted_P), np.int64)
        want_P[group] = state.want_P[group]
        net_P = state.issued_P - state.failed_P + granted_P  # responses that count towards a prompt's cap
        running_P = (state.in_flight_P > 0) | (granted_P > 0)
        # What each prompt may still ask for below this level, and at it. Lower levels come first, whoever asks. The
        # level begins where its largest request does, which is a whole wave; smaller ones are redraws within that wave.
        before_P, claim_P = self._compute_demand(level - int(want_P.max()), net_P), self._compute_demand(level, net_P)
        claim_P -= before_P
        before_P += self._count_redraws()
        unknown = bool(before_P[running_P].any())  # a running prompt may rank above this request
        # ahead: the most that running prompts, this request and all that rank before it may take. taken: granted here.
        ahead, taken, done = int(before_P.sum()), 0, True
        for prompt in self._rank(group, np.flatnonzero(claim_P + want_P)).tolist():
            ahead += int(claim_P[prompt])
            unknown = unknown or bool(running_P[prompt] and claim_P[prompt] > want_P[prompt])
            size = int(want_P[prompt])
            if size == 0:
                continue
            if ledger.find_refusal(ahead, each) is not None:
                refused = ledger.find_refusal(taken + size, each)  # a wave is issued whole
                if refused and not (refused.drains and (granted_P.any() or state.in_flight)):
                    state.cut(np.array([prompt]), refused.name)  # the end of running responses cannot make room for it
                    ahead -= int(claim_P[prompt])
                    continue
                if refused or unknown:
                    done = False
                    continue
            granted_P[prompt] = size
            taken += size
        if taken:
            ledger.reserve(taken, each)
        return done

    def _compute_level(self, waiting: IntArray) -> IntArray:
        """Compute the responses that each prompt has once its request is served."""
        state = self._state
        return np.asarray(state.issued_P[waiting] - state.failed_P[waiting] + state.want_P[waiting])

    def _compute_claims(self, waiting: IntArray) -> IntArray:
        """Compute what each prompt may request until all are at the highest level among the requests."""
        state = self._state
        return (
            self._compute_demand(int(self._compute_level(waiting).max()), state.issued_P - state.failed_P)
            + self._count_redraws()
        )

    def _count_redraws(self) -> IntArray:
        """Count first-wave responses in flight, which may fail. First waves are completed before any second wave."""
        state = self._state
        return np.asarray(np.where(state.first_open_P, state.in_flight_P, 0))

    def _compute_demand(self, level: int, net_P: IntArray) -> IntArray:
        """Compute what each open prompt lacks up to a level, or up to its cap where that is lower."""
        state = self._state
        open_P = state.active_P & ~state.cut_P
        return np.asarray(np.where(open_P, np.maximum(np.minimum(level, state.cap_P) - net_P, 0), 0))

    def _rank(self, waiting: IntArray, claimants: IntArray | None = None) -> IntArray:
        """Sort prompts by level, and within a level in a seeded random order.

        Reserve prompts come behind the others of their level, in the order of the data, because a step has used all
        prompts up to the last one that it has drawn (`SamplingResult.used`): one that was passed over would be lost.

        Args:
            waiting: prompts that wait.
            claimants: prompts to sort. A running one gets the level of the waiting prompts, which have one here
                (`_serve`). None sorts `waiting`.
        """
        state = self._state
        claimants = waiting if claimants is None else claimants
        level_W = self._compute_level(waiting)
        level_P = np.full(len(state.uid_P), level_W[0])
        level_P[waiting] = level_W
        chance_P = seeds.draw_uniform(
            self._run_seed, self._step, state.uid_P, level_P, stream=seeds.SeedStream.PRIORITY
        )
        rank_P = np.maximum(np.arange(len(state.uid_P)) - state.n_starting + 1, 0)
        return np.asarray(claimants[np.lexsort((chance_P[claimants], rank_P[claimants], level_P[claimants]))])
