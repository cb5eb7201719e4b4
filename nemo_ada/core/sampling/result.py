"""What a sampling session leaves: the pools, and what they cost.

P prompts by position, N responses of all pools, sorted by prompt and then by issue order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.metrics import BOUNDS
from nemo_ada.core.sampling.budget import Ledger
from nemo_ada.core.sampling.pass_rate import haldane
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.table import FAILED


@dataclass(frozen=True, slots=True)
class SamplingResult:
    """Pools of one step. response_id_N are the session's ids, under which the source holds the payloads.

    rate_F: pass rates of the F drawn prompts that have a labelled response, as `pass_rate` in metrics.py says.
    group_G: the G prompts whose groups are kept: all that were drawn, without as many groups without signal as were
    replaced. used: prompts that the step has taken from the data, the kept ones and those before them.
    """

    response_id_N: IntArray
    prompt_N: IntArray
    index_N: IntArray
    wave_N: IntArray
    reward_N: FloatArray
    positive_N: BoolArray
    tokens_N: IntArray
    uid_P: IntArray
    pos_P: IntArray
    neg_P: IntArray
    first_pos_P: IntArray
    first_size_P: IntArray
    drawn_P: BoolArray
    resolved_P: BoolArray
    cut_P: BoolArray
    group_G: IntArray
    used: int
    replaced: int
    rate_F: FloatArray
    stats: dict[str, float]
    failures: dict[str, int]

    @property
    def size_P(self) -> IntArray:
        """Responses in each pool."""
        return self.pos_P + self.neg_P


class FinishedSession(Protocol):
    """What `collect` reads of a session: its state and plan, what it cost and when."""

    state: StepState
    plan: SamplingPlan
    ledger: Ledger
    failures: Counter[str]
    began: float
    now: float
    load: float
    peak: int


def collect(session: FinishedSession) -> SamplingResult:
    """Assemble the result of a finished session."""
    state, table, plan = session.state, session.state.table, session.plan
    rows = np.flatnonzero(table.accepted[: table.n])
    rows = rows[np.lexsort((table.index[rows], table.prompt[rows]))]
    prompt_N = table.prompt[rows]
    positive_N = table.positive[rows]
    size_P = state.pos_P + state.neg_P
    starting_P = np.arange(len(size_P)) < state.n_starting
    drawn_P = (state.issued_P > 0) & (starting_P | (size_P > 0))  # a reserve group of which nothing was kept is none
    drawn = np.flatnonzero(drawn_P)
    groups = _kept_groups(drawn, (state.pos_P > 0) & (state.neg_P > 0), state.n_starting)
    batch = drawn[drawn < state.n_starting]
    rank_N = np.arange(len(rows)) - np.repeat(np.cumsum(size_P) - size_P, size_P)
    first_N = rank_N < state.first_P[prompt_N] if plan.window is not None else table.wave[rows] == 0
    first_size_P = np.bincount(prompt_N[first_N], minlength=len(size_P))
    first_pos_P = np.bincount(prompt_N[first_N & positive_N], minlength=len(size_P))
    met_P = plan.exit.met(state.pos_P, state.neg_P) & drawn_P
    met_first_P = plan.exit.met(first_pos_P, first_size_P - first_pos_P) & drawn_P
    short_pos_P, short_neg_P, _ = plan.exit.shortfall(state.pos_P, state.neg_P)
    grpo_pos_P = np.bincount(prompt_N[(rank_N < plan.group_size) & positive_N], minlength=len(size_P))
    grpo_size_P = np.minimum(size_P, plan.group_size)
    waves = table.wave[state.tail_P[drawn]] + 1
    filled = drawn[size_P[drawn] > 0]
    reward_sum_P = np.bincount(prompt_N, weights=table.reward[rows], minlength=len(size_P))
    rate_F = _rates(plan, state, first_pos_P, first_size_P)[filled]
    lost = drawn[~met_P[drawn]]
    sizes = size_P[drawn]
    duration = session.now - session.began
    caps = plan.caps
    stats: dict[str, float] = {
        "samples_drawn": session.ledger.samples,
        "samples_in_pools": len(rows),
        "samples_failed": int((table.state[: table.n] == FAILED).sum()),
        "samples_dropped": session.ledger.samples - len(rows) - int((table.state[: table.n] == FAILED).sum()),
        "tokens_drawn": session.ledger.tokens_used,
        "tokens_in_pools": int(table.tokens[rows].sum()),
        "waves_mean": _mean(waves),
        "waves_max": int(waves.max(initial=0)),
        "prompts_drawn": len(drawn),
        "prompts_resolved": int(met_P.sum()),
        "prompts_unresolved": len(lost),
        "missing_positive": int((short_pos_P[lost] > 0).sum()),
        "missing_negative": int((short_neg_P[lost] > 0).sum()),
        "resolved_in_first_wave": int(met_first_P.sum()),
        "prompts_cut": int(state.cut_P[lost].sum()),
        "zero_signal_groups": _share_without_signal(state.pos_P[groups], size_P[groups]),
        "zero_signal_groups_if_grpo": _share_without_signal(grpo_pos_P[batch], grpo_size_P[batch]),
        "pool_size_mean": _mean(sizes),
        "pool_size_p95": float(np.percentile(sizes, 95)) if len(sizes) else 0.0,
        "pool_size_max": int(sizes.max(initial=0)),
        "pass_rate": _mean(rate_F),
        "pool_reward": _mean(reward_sum_P[filled] / size_P[filled]),
        "response_length_pools": _mean(table.tokens[rows]),
        "groups_replaced": int(drawn_P[state.n_starting :].sum()),
        "budget_bound": BOUNDS.index(_bound(session)),
        "tokens_overshoot": session.ledger.tokens_overshoot,
        "seconds_overshoot": max(0.0, duration - caps.max_seconds) if caps.max_seconds is not None else 0.0,
        "sampling_seconds": duration,
        "engine_utilisation": session.load / (session.peak * duration) if session.peak and duration > 0 else 0.0,
    }
    if caps.max_samples is not None:
        stats["budget_used_samples"] = session.ledger.samples / caps.max_samples
    if caps.max_tokens is not None:
        stats["budget_used_tokens"] = session.ledger.tokens_used / caps.max_tokens
    if caps.max_seconds is not None:
        stats["budget_used_seconds"] = duration / caps.max_seconds
    if plan.idle:
        stats["idle_label_bias"] = idle_label_bias(session)
    return SamplingResult(
        response_id_N=rows,
        prompt_N=prompt_N,
        index_N=table.index[rows],
        wave_N=table.wave[rows],
        reward_N=table.reward[rows],
        positive_N=positive_N,
        tokens_N=table.tokens[rows],
        uid_P=state.uid_P,
        pos_P=state.pos_P,
        neg_P=state.neg_P,
        first_pos_P=first_pos_P,
        first_size_P=first_size_P,
        drawn_P=drawn_P,
        resolved_P=met_P,
        cut_P=state.cut_P,
        group_G=groups,
        used=int(np.flatnonzero(state.issued_P).max(initial=-1)) + 1,
        replaced=int(stats["groups_replaced"]),
        rate_F=rate_F,
        stats=stats,
        failures=dict(session.failures),
    )


def _mean(value_N: IntArray | FloatArray | BoolArray) -> float:
    """Mean, 0.0 of nothing (a step that was stopped before its first response)."""
    return float(value_N.mean()) if len(value_N) else 0.0


def _kept_groups(drawn: IntArray, mixed_P: BoolArray, batch: int) -> IntArray:
    order = np.argsort(~mixed_P[drawn], kind="stable")[:batch]
    return np.sort(drawn[order])


def _rates(plan: SamplingPlan, state: StepState, first_pos_P: IntArray, first_size_P: IntArray) -> FloatArray:
    """Pass rates that do not depend on when the labels ended a pool: the first wave's, or path counts for prefixes."""
    if plan.window is None:
        return np.asarray(first_pos_P / np.maximum(first_size_P, 1), np.float64)
    rule = StopRule(plan.exit, (1,), plan.max_responses)
    return haldane(state.pos_P, state.pos_P + state.neg_P, rule).rate_P


def _share_without_signal(pos_P: IntArray, size_P: IntArray) -> float:
    return _mean((pos_P == 0) | (pos_P == size_P))


def _bound(session: FinishedSession) -> str:
    refusals = session.state.refusals
    return max(refusals, key=lambda cap: refusals[cap]) if refusals.total() else "none"


def idle_label_bias(session: FinishedSession) -> float:
    """Estimated E[label | its wave was kept] - E[label] over the extra responses of an idle-mode step.

    An extra wave issued at time t is kept when all its responses end within T - t, T the end of the phase. The first
    waves are never cut, so they show how label and duration go together: with labels centred within their prompt, the
    mean label of first-wave responses no longer than T - t estimates the bias of a wave issued at t. Extra waves go to
    prompts with one-sided pass rates, whose labels vary less, so this errs on the large side. 0 without waves.
    """
    table, n = session.state.table, session.state.table.n
    first = np.flatnonzero((table.wave[:n] == 0) & table.accepted[:n])
    extra = np.flatnonzero((table.wave[:n] > 0) & table.accepted[:n])
    if len(first) == 0 or len(extra) == 0:
        return 0.0
    prompt = table.prompt[first]
    label = table.positive[first].astype(np.float64)
    count_P = np.bincount(prompt)
    mean_P = np.bincount(prompt, weights=label) / np.maximum(count_P, 1)
    centred = (label - mean_P[prompt]) * (count_P / np.maximum(count_P - 1, 1))[prompt]
    duration = table.ended_at[first] - table.issued_at[first]
    order = np.argsort(duration, kind="stable")
    running_mean = np.cumsum(centred[order]) / np.arange(1, len(order) + 1)
    left = session.now - table.issued_at[extra]
    position = np.searchsorted(duration[order], left, side="right") - 1
    return float(np.where(position >= 0, running_mean[np.maximum(position, 0)], 0.0).mean())
