"""When may responses be left out of the pool? (algorithm.md section 5)

Two rules, both free of length bias because neither looks at which response came first:

`wave`         a wave is drained, its failures are redrawn, then all of it enters the pool, which is judged (paper).
`issue_order`  the pool is a prefix in issue order that ends at the first response j such that all issued before it have
               finished and the exit condition holds on 1..j. Later ones are dropped, finished or not.

Each function takes the prompts that an outcome has just touched and moves them on: finished, or waiting for more.
"""

from __future__ import annotations

import numpy as np

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.table import DONE, IN_FLIGHT


def judge_waves(state: StepState, drained: IntArray) -> None:
    """`wave` stopping for prompts with nothing in flight."""
    labels = state.seen_pos_P[drained] + state.seen_neg_P[drained]
    lacking = state.target_P[drained] - labels
    redraw = (lacking > 0) & state.may_redraw(drained) & ~state.cut_P[drained]
    state.want_P[drained[redraw]] = lacking[redraw]
    close_waves(state, drained[~redraw])


def close_waves(state: StepState, prompts: IntArray) -> None:
    """The open wave of these prompts enters the pool; judge it and ask for the next one where it is needed."""
    if len(prompts) == 0:
        return
    state.first_open_P[prompts] = False
    state.pos_P[prompts] = state.seen_pos_P[prompts]
    state.neg_P[prompts] = state.seen_neg_P[prompts]
    size = state.pos_P[prompts] + state.neg_P[prompts]
    room = state.cap_P[prompts] - size
    enough = state.plan.exit.met(state.pos_P[prompts], state.neg_P[prompts])
    over = enough | (room <= 0) | ~state.may_redraw(prompts) | state.cut_P[prompts]
    onward = prompts[~over]
    state.wave_P[onward] += 1
    state.want_P[onward] = np.minimum(state.plan.wave_size(state.wave_P[onward]), room[~over])
    state.target_P[onward] = size[~over] + state.want_P[onward]
    state.finish(prompts[over])


def judge_prefixes(state: StepState, touched: IntArray) -> None:
    """`issue_order` stopping: move the judged prefix of each prompt on, then refill its window."""
    table, plan = state.table, state.plan
    open_P = touched[state.active_P[touched]]
    moving = open_P
    while True:
        rows = state.head_P[moving]
        settled = table.state[rows] != IN_FLIGHT
        moving, rows = moving[settled], rows[settled]
        if len(moving) == 0:
            break
        labelled = table.state[rows] == DONE
        correct = table.positive[rows]
        table.accepted[rows] = labelled
        state.pos_P[moving] += correct
        state.neg_P[moving] += labelled ^ correct
        state.head_P[moving] = table.next_row[rows]
        pos, neg = state.pos_P[moving], state.neg_P[moving]
        over = plan.exit.met(pos, neg) | (pos + neg >= state.cap_P[moving])
        if over.any():
            state.finish(moving[over])
            moving = moving[~over]
    left = open_P[state.active_P[open_P]]
    refill_windows(state, left)


def refill_windows(state: StepState, prompts: IntArray) -> None:
    """Ask for responses until each window is full, unless those that have finished already decide the exit.

    With `max_window` the window is the expected number of responses still needed, shortfall / pass rate, with the
    posterior mean of the pass rate over all labels seen. Its size never decides which responses are kept.
    """
    plan = state.plan
    pos, neg = state.seen_pos_P[prompts], state.seen_neg_P[prompts]
    decided = plan.exit.met(pos, neg)
    window: IntArray | int = plan.window or 0
    if plan.max_window is not None:
        a, b = state.prior_pos_P[prompts], state.prior_neg_P[prompts]
        rate = (pos + a) / (pos + neg + a + b)
        short_pos, short_neg, short = plan.exit.shortfall(pos, neg)
        needed = np.maximum(np.maximum(short_pos / rate, short_neg / (1.0 - rate)), short)
        window = np.minimum(np.maximum(np.ceil(needed).astype(np.int64), window), plan.max_window)
    room = state.cap_P[prompts] - (state.issued_P[prompts] - state.failed_P[prompts])
    want = np.maximum(np.minimum(window - state.in_flight_P[prompts], room), 0)
    want[decided | state.cut_P[prompts] | ~state.may_redraw(prompts)] = 0
    state.want_P[prompts] = want
    state.finish(prompts[(want == 0) & (state.in_flight_P[prompts] == 0)])
