"""What a sampling session returns: the pools, and what they cost.

P prompts by position, N responses of all pools, sorted by prompt and then by issue order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.metrics import BOUNDS
from nemo_ada.core.sampling.pass_rate import haldane
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.table import FAILED

if TYPE_CHECKING:
    from nemo_ada.core.sampling.session import SamplingSession


@dataclass(frozen=True, slots=True)
class SamplingResult:
    """Pools of one step. The source holds the payloads under response_id_N.

    rate_F: pass rates of the F drawn prompts with a labelled response (see `pass_rate` in metrics.py).
    group_G: the G prompts whose groups are kept. As many zero-signal groups are left out as were replaced.
    used: prompts that the step has taken from the data, kept or not.
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
    rate_F: FloatArray
    stats: dict[str, float]
    failures: dict[str, int]

    @property
    def size_P(self) -> IntArray:
        """Responses in each pool."""
        return self.pos_P + self.neg_P

    @property
    def rank_N(self) -> IntArray:
        """Position of each response within its pool, from 0."""
        return np.arange(len(self.prompt_N)) - np.repeat(np.cumsum(self.size_P) - self.size_P, self.size_P)


def collect(session: SamplingSession) -> SamplingResult:
    """Assemble the result of a finished session."""
    state, table, plan = session.state, session.state.table, session.plan
    ids = np.flatnonzero(table.accepted[: table.n])
    ids = ids[np.lexsort((table.index[ids], table.prompt[ids]))]
    prompt_N, positive_N = table.prompt[ids], table.positive[ids]
    size_P = state.pos_P + state.neg_P
    prompts = len(size_P)
    drawn_P = (state.issued_P > 0) & ((np.arange(prompts) < state.n_starting) | (size_P > 0))
    drawn = np.flatnonzero(drawn_P)
    rank_N = np.arange(len(ids)) - np.repeat(np.cumsum(size_P) - size_P, size_P)
    first_N = rank_N < state.first_P[prompt_N] if plan.window is not None else table.wave[ids] == 0
    first_size_P = np.bincount(prompt_N[first_N], minlength=prompts)
    first_pos_P = np.bincount(prompt_N[first_N & positive_N], minlength=prompts)
    if plan.window is None:  # the size of a first wave does not depend on labels
        rate_P = np.asarray(first_pos_P / np.maximum(first_size_P, 1), np.float64)
    else:
        rate_P = haldane(state.pos_P, size_P, StopRule(plan.exit, (1,), plan.max_responses))
    result = SamplingResult(
        response_id_N=ids,
        prompt_N=prompt_N,
        index_N=table.index[ids],
        wave_N=table.wave[ids],
        reward_N=table.reward[ids],
        positive_N=positive_N,
        tokens_N=table.tokens[ids],
        uid_P=state.uid_P,
        pos_P=state.pos_P,
        neg_P=state.neg_P,
        first_pos_P=first_pos_P,
        first_size_P=first_size_P,
        drawn_P=drawn_P,
        resolved_P=plan.exit.met(state.pos_P, state.neg_P) & drawn_P,
        cut_P=state.cut_P,
        group_G=_kept_groups(drawn, (state.pos_P > 0) & (state.neg_P > 0), state.n_starting),
        used=int(np.flatnonzero(state.issued_P).max(initial=-1)) + 1,
        rate_F=rate_P[drawn[size_P[drawn] > 0]],
        stats={},
        failures=dict(session.failures),
    )
    result.stats.update(_prompt_stats(session, result) | _response_stats(session, result) | _budget_stats(session))
    return result


def _kept_groups(drawn: IntArray, mixed_P: BoolArray, batch: int) -> IntArray:
    """The `batch` drawn prompts that are kept: those with both labels first, then in the order of the data."""
    order = np.argsort(~mixed_P[drawn], kind="stable")[:batch]
    return np.sort(drawn[order])


def _prompt_stats(session: SamplingSession, result: SamplingResult) -> dict[str, float]:
    state, plan = session.state, session.plan
    size_P, first_pos_P, group = result.size_P, result.first_pos_P, plan.group_size
    drawn = np.flatnonzero(result.drawn_P)
    unresolved = drawn[~result.resolved_P[drawn]]
    filled = drawn[size_P[drawn] > 0]
    batch = drawn[drawn < state.n_starting]
    first_met_P = plan.exit.met(first_pos_P, result.first_size_P - first_pos_P) & result.drawn_P
    lacks_pos_P, lacks_neg_P = plan.exit.lacking(state.pos_P, state.neg_P)
    grpo_N = (result.rank_N < group) & result.positive_N
    grpo_pos_P = np.bincount(result.prompt_N[grpo_N], minlength=len(size_P))
    grpo_size_P = np.minimum(size_P, group)
    reward_P = np.bincount(result.prompt_N, weights=result.reward_N, minlength=len(size_P))
    waves = state.table.wave[state.tail_P[drawn]] + 1
    return {
        "waves_mean": _mean(waves),
        "waves_max": int(waves.max(initial=0)),
        "prompts_drawn": len(drawn),
        "prompts_resolved": int(result.resolved_P.sum()),
        "prompts_unresolved": len(unresolved),
        "missing_positive": int(lacks_pos_P[unresolved].sum()),
        "missing_negative": int(lacks_neg_P[unresolved].sum()),
        "resolved_in_first_wave": int(first_met_P.sum()),
        "prompts_cut": int(state.cut_P[unresolved].sum()),
        "zero_signal_groups": _zero_signal(state.pos_P[result.group_G], size_P[result.group_G]),
        "zero_signal_groups_if_grpo": _zero_signal(grpo_pos_P[batch], grpo_size_P[batch]),
        "pool_size_mean": _mean(size_P[drawn]),
        "pool_size_p95": float(np.percentile(size_P[drawn], 95)) if len(drawn) else 0.0,
        "pool_size_max": int(size_P[drawn].max(initial=0)),
        "pass_rate": _mean(result.rate_F),
        "pool_reward": _mean(reward_P[filled] / size_P[filled]),
        "groups_replaced": int(result.drawn_P[state.n_starting :].sum()),
    }


def _response_stats(session: SamplingSession, result: SamplingResult) -> dict[str, float]:
    table, ledger = session.state.table, session.ledger
    pooled, failed = len(result.response_id_N), int((table.state[: table.n] == FAILED).sum())
    duration = session.now - session.began
    stats: dict[str, float] = {
        "samples_drawn": ledger.samples,
        "samples_in_pools": pooled,
        "samples_failed": failed,
        "samples_dropped": ledger.samples - pooled - failed,
        "tokens_drawn": ledger.tokens_used,
        "tokens_in_pools": int(result.tokens_N.sum()),
        "response_length_pools": _mean(result.tokens_N),
        "sampling_seconds": duration,
        "engine_utilisation": session.load / (session.peak * duration) if session.peak and duration > 0 else 0.0,
    }
    if session.plan.idle:
        stats["idle_label_bias"] = idle_label_bias(session)
    return stats


def _budget_stats(session: SamplingSession) -> dict[str, float]:
    caps, ledger, refusals = session.plan.caps, session.ledger, session.state.refusals
    duration = session.now - session.began
    most = max(refusals, key=lambda cap: refusals[cap]) if refusals.total() else "none"
    stats: dict[str, float] = {
        "budget_bound": BOUNDS.index(most),
        "tokens_overshoot": ledger.tokens_overshoot,
        "seconds_overshoot": max(0.0, duration - caps.max_seconds) if caps.max_seconds is not None else 0.0,
    }
    if caps.max_samples is not None:
        stats["budget_used_samples"] = ledger.samples / caps.max_samples
    if caps.max_tokens is not None:
        stats["budget_used_tokens"] = ledger.tokens_used / caps.max_tokens
    if caps.max_seconds is not None:
        stats["budget_used_seconds"] = duration / caps.max_seconds
    return stats


def _mean(value_N: IntArray | FloatArray | BoolArray) -> float:
    """Mean, or 0.0 of nothing (a step that was stopped before its first response)."""
    return float(value_N.mean()) if len(value_N) else 0.0


def _zero_signal(pos_P: IntArray, size_P: IntArray) -> float:
    """Share of groups whose labels are all equal."""
    return _mean((pos_P == 0) | (pos_P == size_P))


def idle_label_bias(session: SamplingSession) -> float:
    """Estimated E[label | its wave was kept] - E[label] over the extra responses of an idle-mode step.

    An extra wave issued at time t is kept when all its responses end within T - t, where T is the end of the phase.
    First waves are never cut, so they show how label and duration are related. With labels centred within each prompt,
    the mean label of first-wave responses of at most T - t estimates the bias of a wave issued at t. Extra waves go to
    prompts with one-sided pass rates, whose labels vary less, so the estimate is rather too large. 0 without waves.
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
