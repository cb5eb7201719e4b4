"""The sampling session of one training step decides what to draw next and what belongs to a pool.

It has no clock, no engine, no verifier and no global randomness, so the same outcomes always give the same decisions. A
driver (schedulers.py) sends the requests of `next_requests` to a source, and reports the outcomes with `record` and
`record_aborted`. Its generator `_decide` only names the methods of the source, for example "poll", so that sources that
answer at once and sources that are awaited have one driver.
P prompts (positions 0..P-1), N responses of a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from nemo_ada.core import seeds
from nemo_ada.core.arrays import BoolArray, IntArray
from nemo_ada.core.sampling.budget import Ledger
from nemo_ada.core.sampling.granting import Granter
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.result import SamplingResult, collect_result
from nemo_ada.core.sampling.source import MASKED, Outcomes, Requests
from nemo_ada.core.sampling.state import StepState, sort_distinct
from nemo_ada.core.sampling.table import DONE, FAILED, IN_FLIGHT
from nemo_ada.errors import FailedResponsesError, InvariantError

MIN_FAILURES = 4  # fewer failed responses are never an error: too few to judge
SEEDS_PER_RESPONSE = 4  # size limit of the table of seeds, per response issued, so that memory stays linear
_NONE = np.zeros(0, np.int64)
_NO_REQUESTS = Requests(_NONE, _NONE, _NONE, _NONE, _NONE)


class SamplingSession:
    """Draws responses for the prompts of one step until each pool has enough or the budget is spent."""

    def __init__(
        self,
        state: StepState,
        *,
        run_seed: int,
        step: int,
        latency: LatencyModel | None = None,
        names_P: Sequence[str] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """Prepare a step.

        Args:
            state: a new state, with the plan and the prompts of the step.
            run_seed: seed of the run.
            step: number of the step.
            latency: model of response times, which the session uses and teaches. None begins a new one.
            names_P: prompt ids for error messages.
            ledger: a group's share of a budget that several sessions have in common (budget.py). Then the step that
                joins their pools judges the share of failed responses, and this session does not.

        Raises:
            UserError: the caps cannot hold the first waves.
        """
        plan = state.plan
        plan.check_first_waves(state.n_starting, int(state.first_P[: state.n_starting].sum()))
        self.state = state
        self.plan, self.run_seed, self.step = plan, run_seed, step
        self.latency = latency if latency is not None else LatencyModel()
        self.ledger = ledger if ledger is not None else Ledger(plan.budget)
        self._judges_failures = ledger is None
        self.failures: Counter[str] = Counter()
        self.peak = 0
        self.load = 0.0  # integral of responses in flight over time
        self.began = self.now = 0.0
        self._granter = Granter(state, self.ledger, self.latency, run_seed, step)
        self._seed_PI = np.zeros((len(state.uid_P), 0), np.int64)
        self._names_P = names_P
        self._failed_ids: list[int] = []
        self._begun = False
        self.dropped = False

    @property
    def finished(self) -> bool:
        """True when nothing runs and nothing waits."""
        return self.state.in_flight == 0 and not self.state.want_P.any()

    def stop(self, *, drain: bool) -> None:
        """Issue nothing more, because the job ends. Without `drain`, also drop what is in flight.

        `dropped` becomes True without `drain`, and when nothing had been issued. A dropped step must not be trained on,
        and the latency model does not learn from it.
        """
        state = self.state
        self.dropped = self.dropped or not drain or state.table.n == 0
        state.next_reserve = len(state.uid_P)  # no reserve prompt starts any more
        state.cut(np.flatnonzero(state.want_P), "stopped")
        state.cut_P[state.active_P] = True  # what runs ends, and no further wave follows it
        if not drain:
            state.end_now("stopped")

    def give_up(self) -> None:
        """End the pools with their complete waves, because they took too long. An open wave is dropped whole."""
        self.state.end_now("group_seconds")

    def next_requests(self, now: float) -> Requests:
        """Return what to issue now. It is empty when every prompt waits for outcomes."""
        self._advance_clock(now)
        state = self.state
        if self.plan.scheduler == "rounds" and state.in_flight:
            return _NO_REQUESTS
        prompts, sizes = self._granter.grant(now, self.began)
        return self._issue(prompts, sizes, now) if len(prompts) else _NO_REQUESTS

    def record(self, outcomes: Outcomes, now: float) -> None:
        """Take in finished responses.

        Raises:
            InvariantError: an id is not in flight, or comes twice.
        """
        self._advance_clock(now)
        state, table, ids = self.state, self.state.table, outcomes.response_id_N
        if len(ids) == 0:
            return
        known = ids.min() >= 0 and ids.max() < table.n and (table.state[ids] == IN_FLIGHT).all()
        if not known or (len(ids) > 1 and len(set(ids.tolist())) < len(ids)):
            raise InvariantError(f"outcomes for responses that are not in flight: response ids {ids[:8].tolist()}")
        self._end_responses(ids, outcomes.tokens_N, now)
        any_failed = self._label(outcomes)
        state.judge(sort_distinct(table.prompt[ids]))
        if any_failed:  # judge the share against all that the step may still draw
            self._check_failures(int(state.cap_P[: state.next_reserve].sum()))

    def _label(self, outcomes: Outcomes) -> bool:
        """Book labels and failures of finished responses. Returns True when any failed."""
        state, table, labelled, reward_N = self.state, self.state.table, outcomes.response_id_N, outcomes.reward_N
        finite = np.isfinite(reward_N)
        any_failed = bool(outcomes.failures) or not finite.all()
        if any_failed:
            failed = self._note_failures(outcomes, ~finite)
            table.state[labelled[failed]] = FAILED
            np.add.at(state.failed_P, table.prompt[labelled[failed]], 1)
            labelled, reward_N = labelled[~failed], reward_N[~failed]
        table.state[labelled] = DONE
        table.reward[labelled] = reward_N
        table.positive[labelled] = positive = reward_N > self.plan.positive_threshold
        prompt_N = table.prompt[labelled]
        np.add.at(state.seen_pos_P, prompt_N[positive], 1)
        np.add.at(state.seen_neg_P, prompt_N[~positive], 1)
        table.accepted[labelled] = True
        return any_failed

    def take_aborts(self) -> IntArray:
        """Ids of responses that the source must stop. Their generated tokens go to `record_aborted`."""
        if not self.state.to_abort:
            return _NONE
        response_id_N = np.concatenate(self.state.to_abort)
        self.state.to_abort = []
        return response_id_N

    def record_aborted(self, response_id_N: IntArray, tokens_N: IntArray, now: float) -> None:
        """Book dropped responses that the source has stopped."""
        self._advance_clock(now)
        self._end_responses(response_id_N, tokens_N, now)

    def result(self) -> SamplingResult:
        """Return the pools and what they cost. The session must have finished. The latency model learns from it.

        Raises:
            FailedResponsesError: too many responses have no label. A dropped step never raises it.
        """
        if not self.finished:
            raise InvariantError(f"result of a session with {self.state.in_flight} responses in flight")
        if not self.dropped:
            self._check_failures(0)
            self._teach()
        seconds = self.now - self.began
        return collect_result(
            self.state,
            began=self.began,
            ended=self.now,
            utilisation=self.load / (self.peak * seconds) if self.peak and seconds > 0 else 0.0,
            failures=self.failures,
        )

    def _issue(self, prompts: IntArray, sizes: IntArray, now: float) -> Requests:
        state, table = self.state, self.state.table
        start = np.cumsum(sizes) - sizes
        total = int(start[-1] + sizes[-1])
        prompt_N = np.repeat(prompts, sizes)
        index_N = np.arange(total) + np.repeat(state.issued_P[prompts] - start, sizes)
        wave_N = state.wave_P[prompt_N]
        response_id_N = table.append(
            prompt_N, index_N, wave_N, reserved=self._granter.estimate_tokens(), now=now, load=self.load
        )
        state.tail_P[prompts] = response_id_N[start + sizes - 1]
        state.issued_P[prompts] += sizes
        state.in_flight_P[prompts] += sizes
        state.want_P[prompts] -= sizes
        state.in_flight += len(response_id_N)
        self.peak = max(self.peak, state.in_flight)
        return Requests(response_id_N, prompt_N, index_N, wave_N, self._compute_seeds(prompt_N, index_N))

    def _compute_seeds(self, prompt_N: IntArray, index_N: IntArray) -> IntArray:
        """Seeds of responses, from a table while it stays small: most requests have one or two responses."""
        last, uid_P = int(index_N.max()), self.state.uid_P
        columns = 2 * last + 2
        if last >= self._seed_PI.shape[1] and columns * len(uid_P) <= SEEDS_PER_RESPONSE * self.state.table.n:
            block_1I = np.arange(columns)[None, :]
            self._seed_PI = seeds.compute_response_seed(self.run_seed, self.step, uid_P[:, None], block_1I)
        if last < self._seed_PI.shape[1]:
            return self._seed_PI[prompt_N, index_N]
        return seeds.compute_response_seed(self.run_seed, self.step, uid_P[prompt_N], index_N)

    def _end_responses(self, response_id_N: IntArray, tokens_N: IntArray, now: float) -> None:
        """Responses leave the engine: settle their budget, note their time."""
        state, table = self.state, self.state.table
        self.ledger.settle(int(table.reserved[response_id_N].sum()), int(tokens_N.sum()))
        np.subtract.at(state.in_flight_P, table.prompt[response_id_N], 1)
        state.in_flight -= len(response_id_N)
        table.tokens[response_id_N] = tokens_N
        table.ended_at[response_id_N] = now
        table.load[response_id_N] = self.load - table.load[response_id_N]

    def _advance_clock(self, now: float) -> None:
        if not self._begun:
            self._begun, self.began, self.now = True, now, now
        now = max(now, self.now)  # ignore a clock that goes back
        self.load += self.state.in_flight * (now - self.now)
        self.now = now

    def _note_failures(self, outcomes: Outcomes, failed: BoolArray) -> BoolArray:
        """Return which outcomes have no label: `failed` by their reward, or named by the source. Counts the causes."""
        for i in np.flatnonzero(failed).tolist():
            if int(outcomes.response_id_N[i]) not in outcomes.failures:
                self.failures["reward_not_finite"] += 1
        if outcomes.failures:
            failed = failed | np.isin(
                outcomes.response_id_N, np.fromiter(outcomes.failures, np.int64, len(outcomes.failures))
            )
            self.failures.update(outcomes.failures.values())
        self._failed_ids.extend(outcomes.response_id_N[failed].tolist())
        return failed

    def _check_failures(self, planned: int) -> None:
        """Raise when too many responses failed, of `planned` or of those issued, whichever is more."""
        if not self._judges_failures:
            return
        prompts = dict.fromkeys(self.state.table.prompt[self._failed_ids].tolist())
        names = [self._names_P[p] if self._names_P is not None else str(p) for p in prompts]
        share, when = self.plan.max_failed_share, f"of step {self.step}"
        check_failures(self.failures, self.state.table.n, planned, share, when, names)

    def _teach(self) -> None:
        """Teach the latency model, with lengths of a set from which no response was dropped for its length."""
        table = self.state.table
        state_N = table.state[: table.n]
        ended = np.flatnonzero((state_N == DONE) | (state_N == FAILED))
        seconds = table.ended_at[ended] - table.issued_at[ended]
        in_flight = table.load[ended] / np.where(seconds > 0, seconds, 1.0)
        self.latency.observe(table.tokens[ended], seconds, in_flight)


def check_failures(
    causes: Counter[str], issued: int, planned: int, max_share: float, when: str, names: Sequence[str]
) -> None:
    """Raise an error when more than `max_share` of the responses failed, or when nothing but masked ones is left.

    A response that its environment masks is in neither number of the share, because some environments mask many.

    Args:
        causes: failures by cause.
        issued: responses so far.
        planned: responses that may have a label in the end, while more are drawn. 0 afterwards.
        max_share: largest share that is allowed.
        when: a phrase for the message, such as `of step 3`.
        names: ids of the prompts concerned.

    Raises:
        FailedResponsesError: the share is larger, or nothing but masked and failed responses is left.
    """
    masked = causes[MASKED]
    failed = causes.total() - masked
    if masked >= MIN_FAILURES and masked + failed >= max(issued, planned):
        raise FailedResponsesError(
            f"all {issued} responses {when} have no label, and their environment masks {masked} of them; prompts "
            f"{', '.join(names[:3])}: look at the environment's log for the reason why it masks them"
        )
    if failed < MIN_FAILURES or failed <= max_share * max(issued - masked, planned):
        return
    counts = ", ".join(f"{cause}: {count}" for cause, count in causes.most_common())
    raise FailedResponsesError(
        f"{failed} of {issued} responses {when} have no label ({counts}), more than "
        f"reinforce_ada.max_failed_share={max_share:g}; prompts {', '.join(names[:3])}: repair the "
        f"verifier or engine that these causes name; with a higher share the sample would be a biased one"
    )
