"""The state of a sampling session: columns per prompt (P) and a table of responses.

The life of a prompt:

    reserve --(a zero-signal group ended)--> waiting --(budget)--> running --(exit, cap, budget)--> finished
                                                ^                     |
                                                +-------(judged)------+

Every way to the end goes through `StepState.finish`: `judge` calls it where a pool has enough or is full, `cut` where
the budget refuses a wave, and `end_now` where the job stops or the time of a group is over.
"""

from __future__ import annotations

import numpy as np

from nemo_ada.core.arrays import BoolArray, IntArray
from nemo_ada.core.sampling.budget import BOUNDS
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.table import DROPPED, IN_FLIGHT, ResponseTable
from nemo_ada.errors import InvariantError


def sort_distinct(value_N: IntArray) -> IntArray:
    """Sort values and drop repeats. np.unique takes several times as long on the few values of an event."""
    if len(value_N) < 2:
        return value_N
    value_N = np.sort(value_N)
    first: BoolArray = np.concatenate(([True], value_N[1:] != value_N[:-1]))
    return np.asarray(value_N[first], np.int64)


class StepState:
    """Columns of the prompts of one step, and every transition of a prompt.

    The session brings labels (`judge`), the budget refuses (`cut`), and the job or a time limit ends (`end_now`).
    """

    def __init__(
        self, plan: SamplingPlan, uid_P: IntArray, *, first_wave_P: IntArray | None = None, reserve: int = 0
    ) -> None:
        """Let the prompts wait for their first waves.

        Args:
            plan: settings.
            uid_P: identity of each prompt occurrence, a part of every seed. Equal prompts of a batch differ in it.
            first_wave_P: responses per prompt in the estimation variant. They are also its caps.
            reserve: the last `reserve` prompts are drawn only in place of zero-signal groups.
        """
        if not 0 <= reserve < len(uid_P):
            raise InvariantError(f"{reserve} of {len(uid_P)} reserve prompts")
        size = len(uid_P)
        self.plan = plan
        self.uid_P = np.asarray(uid_P, np.int64)
        self.n_starting = size - reserve
        estimated = None if first_wave_P is None else np.asarray(first_wave_P, np.int64)
        self.first_P = np.full(size, plan.stop.first_wave, np.int64) if estimated is None else estimated
        self.cap_P = np.full(size, plan.stop.cap, np.int64) if estimated is None else estimated
        self.table = ResponseTable(2 * int(self.first_P[: self.n_starting].sum()))

        self.pos_P = np.zeros(size, np.int64)  # labels in the pool
        self.neg_P = np.zeros(size, np.int64)
        self.seen_pos_P = np.zeros(size, np.int64)  # all labels, in the pool or not
        self.seen_neg_P = np.zeros(size, np.int64)
        self.issued_P = np.zeros(size, np.int64)
        self.failed_P = np.zeros(size, np.int64)
        self.in_flight_P = np.zeros(size, np.int64)
        self.wave_P = np.zeros(size, np.int64)  # number of the open wave
        self.target_P = np.zeros(size, np.int64)  # labels in the pool once the open wave is complete
        self.want_P = np.zeros(size, np.int64)  # responses that wait to be issued
        self.tail_P = np.full(size, -1, np.int64)  # last response issued
        self.active_P = np.zeros(size, np.bool_)
        self.cut_P = np.zeros(size, np.bool_)  # the budget refused more responses
        self.first_open_P = np.zeros(size, np.bool_)  # a starting prompt whose first wave is not complete
        self.next_reserve = self.n_starting  # position of the next reserve prompt to start
        self.in_flight = 0
        self.bound_P = np.zeros(size, np.int64)  # which of BOUNDS ended the prompt, 0 for none
        self.to_abort: list[IntArray] = []
        self.start(np.arange(self.n_starting))

    def start(self, prompts: IntArray) -> None:
        """Let prompts wait for their first wave."""
        self.active_P[prompts] = True
        self.first_open_P[prompts] = prompts < self.n_starting
        self.want_P[prompts] = self.first_P[prompts]
        self.target_P[prompts] = self.first_P[prompts]

    def have_enough(self, prompts: IntArray) -> BoolArray:
        """Return whether the pools of these prompts meet the exit rule."""
        return self.plan.stop.exit.met(self.table.view(self.pos_P, self.neg_P, prompts))

    def judge(self, touched: IntArray) -> None:
        """Judge the prompts that an outcome touched, once nothing of them is in flight.

        When a wave ends, all of it enters the pool, and the pool is judged (algorithm.md section 5). This avoids length
        bias, because nothing looks at which response ended first: a wave is drained, and its failures are drawn again.
        """
        drained = touched[self.in_flight_P[touched] == 0]
        if len(drained) == 0:
            return
        lacking = self.target_P[drained] - self.seen_pos_P[drained] - self.seen_neg_P[drained]
        redraw = (lacking > 0) & self._may_redraw(drained) & ~self.cut_P[drained]
        self.want_P[drained[redraw]] = lacking[redraw]
        self._close_waves(drained[~redraw])

    def _close_waves(self, prompts: IntArray) -> None:
        """Add the open wave of these prompts to the pool, judge the pool, and ask for the next wave where needed."""
        if len(prompts) == 0:
            return
        self.first_open_P[prompts] = False
        self.pos_P[prompts] = self.seen_pos_P[prompts]
        self.neg_P[prompts] = self.seen_neg_P[prompts]
        size = self.pos_P[prompts] + self.neg_P[prompts]
        room = self.cap_P[prompts] - size
        over = self.have_enough(prompts) | (room <= 0) | ~self._may_redraw(prompts) | self.cut_P[prompts]
        onward = prompts[~over]
        self.wave_P[onward] += 1
        self.want_P[onward] = np.minimum(self.plan.stop.get_wave_size(self.wave_P[onward]), room[~over])
        self.target_P[onward] = size[~over] + self.want_P[onward]
        self.finish(prompts[over])

    def _may_redraw(self, prompts: IntArray) -> BoolArray:
        """Return False for prompts with as many failures as the cap allows responses. They are given up."""
        return self.failed_P[prompts] < self.cap_P[prompts]

    def finish(self, prompts: IntArray) -> None:
        """Issue nothing more for these prompts.

        Each zero-signal group starts a reserve prompt, unless the budget ended the group.
        """
        if len(prompts) == 0:
            return
        self.active_P[prompts] = False
        self.first_open_P[prompts] = False
        self.want_P[prompts] = 0
        zero_signal = ((self.pos_P[prompts] == 0) | (self.neg_P[prompts] == 0)) & ~self.cut_P[prompts]
        last = min(self.next_reserve + int(zero_signal.sum()), len(self.uid_P))
        if last > self.next_reserve:
            self.start(np.arange(self.next_reserve, last))
            self.next_reserve = last

    def cut(self, prompts: IntArray, cap: str) -> None:
        """End waiting prompts to which the budget gives nothing more. `cap` names the cap that refuses."""
        if len(prompts) == 0:
            return
        self._note_bound(prompts, BOUNDS[cap])
        self.cut_P[prompts] = True
        self.want_P[prompts] = 0
        ended = prompts[self.in_flight_P[prompts] == 0]
        self.pos_P[ended] = self.seen_pos_P[ended]  # a wave whose failures cannot be redrawn counts with the others
        self.neg_P[ended] = self.seen_neg_P[ended]
        self.finish(ended)

    def _note_bound(self, prompts: IntArray, code: int) -> None:
        """Note what ended these prompts. The first reason of a prompt stays."""
        self.bound_P[prompts] = np.where(self.bound_P[prompts] > 0, self.bound_P[prompts], code)

    def drop(self, response_id_N: IntArray) -> None:
        """Drop running responses whose outcome no longer matters. The source will stop them."""
        if len(response_id_N):
            self.table.state[response_id_N] = DROPPED
            self.to_abort.append(response_id_N)

    def end_now(self, reason: str) -> None:
        """End every prompt, for a reason of BOUNDS. What runs is dropped, and incomplete waves are dropped whole."""
        table, size, open_P = self.table, self.table.n, np.flatnonzero(self.active_P)
        prompt_N = table.prompt[:size]
        late_N = self.active_P[prompt_N] & (table.wave[:size] == self.wave_P[prompt_N])
        table.accepted[:size][late_N] = False
        self.drop(np.flatnonzero(self.active_P[prompt_N] & (table.state[:size] == IN_FLIGHT)))
        self._note_bound(open_P, BOUNDS[reason])
        self.cut_P[open_P] = True
        self.finish(open_P)
