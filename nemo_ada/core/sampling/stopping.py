"""The two stopping rules decide which responses may be left out of the pool (algorithm.md section 5).

Both rules avoid length bias, because neither looks at which response ended first:

- `wave`: Drain a wave and redraw its failures. Then all of it enters the pool, and the pool is judged (paper).
- `issue_order`: The pool is a prefix in issue order. It ends at the first response j for which two things hold: all
  responses before j have finished, and responses 1..j meet the exit condition. Later responses are dropped, whether
  they have finished or not.

Each function takes the prompts that an outcome touched. It finishes them, or lets them wait for more responses.
"""

from __future__ import annotations

import numpy as np

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.exits import PoolView
from nemo_ada.core.sampling.plan import IssueOrderStopping
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.table import DONE, IN_FLIGHT


def judge(state: StepState, touched: IntArray) -> None:
    """Apply the plan's stopping rule to prompts that an outcome touched."""
    stopping = state.plan.stopping
    if isinstance(stopping, IssueOrderStopping):
        judge_prefixes(state, touched, stopping.window)
        return
    drained = touched[state.in_flight_P[touched] == 0]
    if len(drained):
        judge_waves(state, drained)


def judge_waves(state: StepState, drained: IntArray) -> None:
    """Apply `wave` stopping to prompts with nothing in flight."""
    labels = state.seen_pos_P[drained] + state.seen_neg_P[drained]
    lacking = state.target_P[drained] - labels
    redraw = (lacking > 0) & state.may_redraw(drained) & ~state.cut_P[drained]
    state.want_P[drained[redraw]] = lacking[redraw]
    close_waves(state, drained[~redraw])


def close_waves(state: StepState, prompts: IntArray) -> None:
    """Add the open wave of these prompts to the pool, judge the pool, and ask for the next wave where needed."""
    if len(prompts) == 0:
        return
    state.first_open_P[prompts] = False
    state.pos_P[prompts] = state.seen_pos_P[prompts]
    state.neg_P[prompts] = state.seen_neg_P[prompts]
    size = state.pos_P[prompts] + state.neg_P[prompts]
    room = state.cap_P[prompts] - size
    over = state.enough(prompts) | (room <= 0) | ~state.may_redraw(prompts) | state.cut_P[prompts]
    onward = prompts[~over]
    state.wave_P[onward] += 1
    state.want_P[onward] = np.minimum(state.plan.wave_size(state.wave_P[onward]), room[~over])
    state.target_P[onward] = size[~over] + state.want_P[onward]
    state.finish(prompts[over])


def judge_prefixes(state: StepState, touched: IntArray, window: int) -> None:
    """Apply `issue_order` stopping. It extends the judged prefix of each prompt and then fills its window."""
    table, plan = state.table, state.plan
    open_P = touched[state.active_P[touched]]
    moving = open_P
    while True:
        ids = state.head_P[moving]
        settled = table.state[ids] != IN_FLIGHT
        moving, ids = moving[settled], ids[settled]
        if len(moving) == 0:
            break
        labelled = table.state[ids] == DONE
        correct = table.positive[ids]
        table.accepted[ids] = labelled
        state.pos_P[moving] += correct
        state.neg_P[moving] += labelled ^ correct
        state.head_P[moving] = table.next_id[ids]
        pos, neg = state.pos_P[moving], state.neg_P[moving]
        over = plan.exit.met(PoolView(pos, neg)) | (pos + neg >= state.cap_P[moving])
        if over.any():
            state.finish(moving[over])
            moving = moving[~over]
    fill_windows(state, open_P[state.active_P[open_P]], window)


def fill_windows(state: StepState, prompts: IntArray, window: int) -> None:
    """Ask for responses until each window is full, unless the finished ones already decide the exit."""
    decided = state.plan.exit.met(PoolView(state.seen_pos_P[prompts], state.seen_neg_P[prompts]))
    room = state.cap_P[prompts] - (state.issued_P[prompts] - state.failed_P[prompts])
    want = np.maximum(np.minimum(window - state.in_flight_P[prompts], room), 0)
    want[decided | state.cut_P[prompts] | ~state.may_redraw(prompts)] = 0
    state.want_P[prompts] = want
    state.finish(prompts[(want == 0) & (state.in_flight_P[prompts] == 0)])
