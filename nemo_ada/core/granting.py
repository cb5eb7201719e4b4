"""Which waiting prompts get responses now: time, samples, tokens, and who comes first (algorithm.md section 6)."""

from __future__ import annotations

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
        return self._affordable(self._in_time(waiting, now, began), each)

    def _in_time(self, waiting: IntArray, now: float, began: float) -> IntArray:
        """Leave out waves that the latency model expects to end too late; redraws for a first wave always pass."""
        state, plan, latency = self._state, self._state.plan, self._latency
        if len(waiting) == 0 or not (plan.idle or plan.caps.max_seconds is not None):
            return waiting
        first = (state.wave_P[waiting] == 0) & (waiting < state.n_starting)
        if plan.window is not None:
            first[:] = False
        if plan.idle and not self._fits_idle_tail(waiting, now):
            waiting, first = waiting[first], first[first]
        limit = plan.caps.max_seconds
        if limit is None or len(waiting) == 0:
            return waiting
        size_P = state.want_P[waiting]
        load = state.in_flight + float(size_P.sum())
        size_U, inverse = np.unique(size_P, return_inverse=True)
        seconds_U = np.array([latency.wave_seconds(int(size), load - int(size), 0.5) for size in size_U])
        late = (now - began + seconds_U[inverse] > limit) & ~first
        state.cut(waiting[late], "max_seconds")
        return np.asarray(waiting[~late])

    def _fits_idle_tail(self, waiting: IntArray, now: float) -> bool:
        """now + q <= D: an extra wave is expected to end before the last of the first waves does."""
        state, latency, table = self._state, self._latency, self._state.table
        if not latency.ready:
            return False
        running = np.flatnonzero(table.state[: table.n] == IN_FLIGHT)
        running = running[(table.wave[running] == 0) & (table.prompt[running] < state.n_starting)]
        remaining = latency.remaining_seconds(now - table.issued_at[running], state.in_flight)
        size = int(state.want_P[waiting].max())
        return latency.wave_seconds(size, state.in_flight, state.plan.idle_quantile) <= remaining

    def _affordable(self, waiting: IntArray, each: int) -> tuple[IntArray, IntArray]:
        state, ledger = self._state, self._ledger
        sizes = state.want_P[waiting]
        if len(waiting) == 0:
            return waiting, sizes
        total = int(sizes.sum())
        if ledger.refusal(total, total * each) is None:
            ledger.reserve(total, total * each)
            return waiting, sizes
        granted: list[tuple[int, int]] = []
        for prompt in waiting[np.argsort(self._order(waiting, each), kind="stable")].tolist():
            size = int(state.want_P[prompt])
            refused = ledger.refusal(size, size * each)
            while refused is not None and size > 1 and state.plan.window is not None:
                size -= 1  # a window may be filled in part, a wave is issued whole
                refused = ledger.refusal(size, size * each)
            if refused is None:
                ledger.reserve(size, size * each)
                granted.append((prompt, size))
            elif refused == "max_samples" or not (granted or state.in_flight):
                state.cut(np.array([prompt]), refused)  # nothing in flight can give back what it needs
        pairs = np.array(granted, np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _order(self, waiting: IntArray, each: int) -> FloatArray:
        """Sort key, smallest first: seeded random, or exit probability per expected token."""
        state, plan = self._state, self._state.plan
        if plan.policy == "uniform":
            return seeds.uniform(
                self._run_seed, self._step, state.uid_P[waiting], state.issued_P[waiting], stream=seeds.Stream.PRIORITY
            )
        pos, neg = state.seen_pos_P[waiting], state.seen_neg_P[waiting]
        short_pos, short_neg = plan.exit.shortfall(pos, neg)
        sizes = state.want_P[waiting]
        alpha, beta = pos + state.prior_pos_P[waiting], neg + state.prior_neg_P[waiting]
        chance = exit_probability(alpha, beta, short_pos, short_neg, sizes)
        return -chance / (sizes * float(each))
