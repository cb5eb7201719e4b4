"""When a wave ends, all of it enters the pool, and the pool is judged (algorithm.md section 5).

This avoids length bias, because nothing looks at which response ended first: a wave is drained, and its failures are
drawn again. The function takes the prompts that an outcome touched. It finishes them, or lets them wait for more
responses.
"""

from __future__ import annotations

import numpy as np

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.state import StepState


def judge(state: StepState, touched: IntArray) -> None:
    """Judge the prompts that an outcome touched and that have nothing in flight."""
    drained = touched[state.in_flight_P[touched] == 0]
    if len(drained) == 0:
        return
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
