"""The sampling session of one training step: it decides what is drawn next and what belongs to a pool.

Pure bookkeeping: no clock, no engine, no verifier, no global randomness. A driver (schedulers.py) sends what
`next_requests` returns to a source and hands back what came of it with `record` and `record_aborted`.
P prompts (positions 0..P-1), N responses of a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from nemo_ada.core import seeds
from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.sampling.budget import Ledger
from nemo_ada.core.sampling.granting import Granter
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.result import SamplingResult, collect
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.core.sampling.state import StepState, distinct
from nemo_ada.core.sampling.stopping import judge_prefixes, judge_waves
from nemo_ada.core.sampling.table import DONE, FAILED, IN_FLIGHT
from nemo_ada.errors import FailedResponsesError, InvariantError

MIN_FAILURES = 4  # with fewer failed responses a step is never an error: one of ten is no pattern
SEEDS_PER_RESPONSE = 4  # entries that the table of seeds may have per response issued: memory stays linear
_NONE = np.zeros(0, np.int64)
_NO_REQUESTS = Requests(_NONE, _NONE, _NONE, _NONE, _NONE)


class SamplingSession:
    """Draws responses for the prompts of one step until each pool has enough or the budget is spent."""

    def __init__(
        self,
        plan: SamplingPlan,
        uid_P: IntArray,
        *,
        run_seed: int,
        step: int,
        latency: LatencyModel | None = None,
        first_wave_P: IntArray | None = None,
        reserve: int = 0,
        names_P: Sequence[str] | None = None,
        prior_P: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        """Prepare a step.

        uid_P: identity of each prompt occurrence (two equal prompts of a batch differ in it); seeds derive from it.
        first_wave_P: responses per prompt in the estimation variant; they are also its cap.
        reserve: the last `reserve` prompts are drawn only in place of groups that ended without signal.
        names_P: prompt ids for error messages. prior_P: (a, b) of the Beta prior of each prompt's pass rate, for the
        `greedy` policy and for windows that follow the shortfall; null takes the plan's.
        Raises UserError when the caps cannot hold the first waves.
        """
        if not 0 <= reserve < len(uid_P):
            raise InvariantError(f"{reserve} of {len(uid_P)} reserve prompts")
        self.plan, self.run_seed, self.step = plan, run_seed, step
        self.latency = latency if latency is not None else LatencyModel()
        self.ledger = Ledger(plan.caps)
        self.state = StepState(plan, uid_P, first_wave_P, reserve, prior_P)
        plan.check_first_waves(self.state.n_starting, int(self.state.first_P[: self.state.n_starting].sum()))
        self.failures: Counter[str] = Counter()
        self.peak = 0
        self.load = 0.0  # integral of responses in flight over time
        self.began = self.now = 0.0
        self._granter = Granter(self.state, self.ledger, self.latency, run_seed, step)
        self._seed_PI = np.zeros((len(uid_P), 0), np.int64)
        self._names_P = names_P
        self._failed_rows: list[int] = []
        self._begun = False
        self.dropped = False

    @property
    def finished(self) -> bool:
        """True when nothing runs, nothing waits and nothing is left to abort."""
        return self.state.in_flight == 0 and not self.state.want_P.any()

    def stop(self, *, drain: bool) -> None:
        """Issue nothing more (end of the job); without `drain` what is in flight is dropped as well.

        `dropped` is then True, as it is when nothing had been issued: the step must not be trained on, and it teaches
        the latency model nothing.
        """
        state = self.state
        self.dropped = self.dropped or not drain or state.table.n == 0
        state.next_reserve = len(state.uid_P)
        state.cut(np.flatnonzero(state.want_P), "stopped")
        state.cut_P[state.active_P] = True
        if not drain:
            state.end_now("stopped")

    def next_requests(self, now: float) -> Requests:
        """What to issue now; empty when everybody waits for outcomes."""
        self._advance(now)
        state = self.state
        if self.plan.scheduler == "rounds" and state.in_flight:
            return _NO_REQUESTS
        prompts, sizes = self._granter.grant(now, self.began)
        self._end_idle_phase()
        return self._issue(prompts, sizes, now) if len(prompts) else _NO_REQUESTS

    def record(self, outcomes: Outcomes, now: float) -> None:
        """Take in finished responses. Raises InvariantError for rows that are not in flight or come twice."""
        self._advance(now)
        state, table, rows = self.state, self.state.table, outcomes.response_id_N
        if len(rows) == 0:
            return
        known = rows.min() >= 0 and rows.max() < table.n and (table.state[rows] == IN_FLIGHT).all()
        if not known or (len(rows) > 1 and len(set(rows.tolist())) < len(rows)):
            raise InvariantError(f"outcomes for responses that are not in flight: rows {rows[:8].tolist()}")
        self._end(rows, outcomes.tokens_N, now)
        prompts = table.prompt[rows]
        finite = np.isfinite(outcomes.reward_N)
        any_failed = bool(outcomes.failures) or not finite.all()
        labelled, reward_N = rows, outcomes.reward_N
        if any_failed:
            failed = self._failed(outcomes, ~finite)
            table.state[rows[failed]] = FAILED
            np.add.at(state.failed_P, prompts[failed], 1)
            labelled, reward_N = rows[~failed], reward_N[~failed]
        table.state[labelled] = DONE
        table.reward[labelled] = reward_N
        table.positive[labelled] = positive = reward_N > self.plan.positive_threshold
        of_label = table.prompt[labelled]
        np.add.at(state.seen_pos_P, of_label[positive], 1)
        np.add.at(state.seen_neg_P, of_label[~positive], 1)
        touched = distinct(prompts)
        if self.plan.window is None:
            table.accepted[labelled] = True
            drained = touched[state.in_flight_P[touched] == 0]
            if len(drained):
                judge_waves(state, drained)
        else:
            judge_prefixes(state, touched)
        self._end_idle_phase()
        if any_failed:  # the share of a step that is not over is at least that of one which draws all it may
            self._check_failures(int(state.cap_P[: state.next_reserve].sum()))

    @property
    def aborting(self) -> bool:
        """True while `take_aborts` has rows to give: the source must not be polled before it knows them."""
        return bool(self.state.to_abort)

    def take_aborts(self) -> IntArray:
        """Rows that the source must stop; their generated tokens go to `record_aborted`."""
        if not self.state.to_abort:
            return _NONE
        rows = np.concatenate(self.state.to_abort)
        self.state.to_abort = []
        return rows

    def record_aborted(self, response_id_N: IntArray, tokens_N: IntArray, now: float) -> None:
        """Book responses that were dropped while they ran."""
        self._advance(now)
        self._end(response_id_N, tokens_N, now)

    def result(self) -> SamplingResult:
        """The pools and what they cost, when the session has finished; teaches the latency model.

        Raises FailedResponsesError when too many responses of a step that was not dropped have no label.
        """
        if not self.finished:
            raise InvariantError(f"result of a session with {self.state.in_flight} responses in flight")
        if not self.dropped:
            self._check_failures(self.state.table.n)
            self._teach()
        return collect(self)

    def _end_idle_phase(self) -> None:
        """Idle mode ends with the last first-wave response, or with the budget's refusal to redraw one."""
        if self.plan.idle and not self.state.first_open_P.any():
            self.state.end_now("idle")

    def _issue(self, prompts: IntArray, sizes: IntArray, now: float) -> Requests:
        state, table = self.state, self.state.table
        start = np.cumsum(sizes) - sizes
        total = int(start[-1] + sizes[-1])
        each = total == len(prompts)  # one response each, as windows are mostly replaced
        prompt_N = prompts if each else np.repeat(prompts, sizes)
        issued = state.issued_P[prompts]
        index_N = issued if each else np.arange(total) + np.repeat(issued - start, sizes)
        wave_N = state.wave_P[prompt_N]
        response_id_N = table.append(
            prompt_N, index_N, wave_N, reserved=self._granter.tokens_each(), now=now, load=self.load
        )
        if not each:
            same = prompt_N[1:] == prompt_N[:-1]
            table.next_row[response_id_N[:-1][same]] = response_id_N[1:][same]
        first = response_id_N[start]
        previous = state.tail_P[prompts]
        follows = previous >= 0
        table.next_row[previous[follows]] = first[follows]
        fresh = state.head_P[prompts] < 0
        state.head_P[prompts[fresh]] = first[fresh]
        state.tail_P[prompts] = response_id_N[start + sizes - 1]
        state.issued_P[prompts] += sizes
        state.in_flight_P[prompts] += sizes
        state.want_P[prompts] -= sizes
        state.in_flight += len(response_id_N)
        self.peak = max(self.peak, state.in_flight)
        return Requests(response_id_N, prompt_N, index_N, wave_N, self._seeds(prompt_N, index_N))

    def _seeds(self, prompt_N: IntArray, index_N: IntArray) -> IntArray:
        """Seeds of responses; most issues are of one or two, so they come from a table, if it stays small."""
        last, uid_P = int(index_N.max()), self.state.uid_P
        columns = 2 * last + 2
        if last >= self._seed_PI.shape[1] and columns * len(uid_P) <= SEEDS_PER_RESPONSE * self.state.table.n:
            block_1I = np.arange(columns)[None, :]
            self._seed_PI = seeds.response_seed(self.run_seed, self.step, uid_P[:, None], block_1I)
        if last < self._seed_PI.shape[1]:
            return self._seed_PI[prompt_N, index_N]
        return seeds.response_seed(self.run_seed, self.step, uid_P[prompt_N], index_N)

    def _end(self, rows: IntArray, tokens_N: IntArray, now: float) -> None:
        """Responses leave the engine: settle their budget, note their time."""
        state, table = self.state, self.state.table
        self.ledger.settle(int(table.reserved[rows].sum()), int(tokens_N.sum()))
        np.subtract.at(state.in_flight_P, table.prompt[rows], 1)
        state.in_flight -= len(rows)
        table.tokens[rows] = tokens_N
        table.ended_at[rows] = now
        table.load[rows] = self.load - table.load[rows]

    def _advance(self, now: float) -> None:
        if not self._begun:
            self._begun, self.began, self.now = True, now, now
        now = max(now, self.now)  # a clock that jumps back costs nothing but its reading
        self.load += self.state.in_flight * (now - self.now)
        self.now = now

    def _failed(self, outcomes: Outcomes, failed: BoolArray) -> BoolArray:
        """Which outcomes have no label: `failed` by their reward, or named by the source; counted by cause."""
        for i in np.flatnonzero(failed).tolist():
            if int(outcomes.response_id_N[i]) not in outcomes.failures:
                self.failures["reward_not_finite"] += 1
        if outcomes.failures:
            failed = failed | np.isin(
                outcomes.response_id_N, np.fromiter(outcomes.failures, np.int64, len(outcomes.failures))
            )
            self.failures.update(outcomes.failures.values())
        self._failed_rows.extend(outcomes.response_id_N[failed].tolist())
        return failed

    def _check_failures(self, responses: int) -> None:
        """Raise when too many failed of a step of at most so many responses, or of those issued if that is more."""
        failed, issued = len(self._failed_rows), self.state.table.n
        if failed < MIN_FAILURES or failed <= self.plan.max_failed_share * max(issued, responses):
            return
        prompts = dict.fromkeys(self.state.table.prompt[self._failed_rows].tolist())
        names = [self._names_P[p] if self._names_P is not None else str(p) for p in list(prompts)[:3]]
        causes = ", ".join(f"{cause}: {count}" for cause, count in self.failures.most_common())
        raise FailedResponsesError(
            f"{failed} of {issued} responses of step {self.step} have no label ({causes}), more than "
            f"reinforce_ada.max_failed_share={self.plan.max_failed_share:g}; prompts {', '.join(names)}: look at the "
            f"verifier or the engine that these causes name, a higher share would train on a biased rest"
        )

    def _teach(self) -> None:
        """Give the latency model a set of lengths that nothing was dropped from for being long."""
        table = self.state.table
        state_N = table.state[: table.n]
        ended = np.flatnonzero((state_N == DONE) | (state_N == FAILED))
        if self.plan.window is not None:
            whole = ended[table.accepted[ended]]
        elif self.plan.idle:
            whole = ended[table.wave[ended] == 0]
        else:
            whole = ended
        seconds = table.ended_at[ended] - table.issued_at[ended]
        in_flight = table.load[ended] / np.where(seconds > 0, seconds, 1.0)
        self.latency.observe(table.tokens[whole], table.tokens[ended], seconds, in_flight)
