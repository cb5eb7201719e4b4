"""The result of a sampling session. It has the pools and the cost of each prompt.

P is the number of prompts, by position. N is the number of responses of all pools, sorted by prompt and issue order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.core.sampling.budget import Use
from nemo_ada.core.sampling.state import StepState


@dataclass(frozen=True, slots=True)
class SamplingResult:
    """The pools of one step, or of one prompt group. The source has the texts under `response_id_N`.

    Results of several sessions are joined by concatenating their columns (`join_results`).

    Attributes:
        response_id_N: id of each pooled response in its session.
        prompt_N: position of the response's prompt.
        index_N: issue order within the prompt.
        wave_N: number of the response's wave, from 0.
        reward_N: reward.
        positive_N: whether the response is correct.
        tokens_N: generated tokens.
        uid_P: identity of the prompt occurrence, a part of every seed.
        pos_P: correct responses in the pool.
        neg_P: incorrect responses in the pool.
        first_pos_P: correct responses of the first wave.
        first_size_P: responses of the first wave.
        rate_P: estimated pass rate (see `pass_rate` in metrics.py). It has no meaning if the pool is empty.
        issued_P: responses issued, including dropped and failed ones.
        failed_P: responses without a label.
        generated_P: tokens of all issued responses.
        waves_P: waves issued.
        lacks_pos_P: whether the exit rule still asks for correct responses.
        lacks_neg_P: whether the exit rule still asks for incorrect responses.
        drawn_P: whether the prompt has responses. A reserve prompt counts only with a labelled one.
        reserve_P: whether the prompt is a reserve prompt.
        resolved_P: whether the pool meets the exit condition.
        resolved_first_P: whether the first wave alone meets it.
        mixed_if_grpo_P: whether the first n responses of the pool have different rewards.
        kept_P: whether the group is kept. As many zero-signal groups are left out as were replaced.
        cut_P: whether the budget refused more responses.
        bound_P: which of budget.BOUNDS ended the prompt, 0 for none.
        seconds: duration of the sampling phase. Joined results have the longest one.
        utilisation: mean responses in flight over their peak. None for joined results.
        failures: responses without a label, by cause.
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
    rate_P: FloatArray
    issued_P: IntArray
    failed_P: IntArray
    generated_P: IntArray
    waves_P: IntArray
    lacks_pos_P: BoolArray
    lacks_neg_P: BoolArray
    drawn_P: BoolArray
    reserve_P: BoolArray
    resolved_P: BoolArray
    resolved_first_P: BoolArray
    mixed_if_grpo_P: BoolArray
    kept_P: BoolArray
    cut_P: BoolArray
    bound_P: IntArray
    seconds: float
    utilisation: float | None
    failures: Mapping[str, int]

    @property
    def size_P(self) -> IntArray:
        """Number of responses in each pool."""
        return self.pos_P + self.neg_P

    @property
    def rate_F(self) -> FloatArray:
        """Pass rates of the F drawn prompts with a labelled response."""
        return self.rate_P[self.drawn_P & (self.size_P > 0)]

    @property
    def group_G(self) -> IntArray:
        """Positions of the G prompts whose groups are kept."""
        return np.flatnonzero(self.kept_P)

    @property
    def use(self) -> Use:
        """What the responses cost."""
        return Use(int(self.issued_P.sum()), int(self.generated_P.sum()), self.seconds)

    @property
    def used(self) -> int:
        """Number of prompts that the step has taken from the data, kept or not."""
        return int(np.flatnonzero(self.issued_P).max(initial=-1)) + 1

    def as_dict(self) -> dict[str, object]:
        """Return the fields by name, for another process or a checkpoint."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def compute_ranks(prompt_N: IntArray, size_P: IntArray) -> IntArray:
    """Compute the position of each response within its pool, from 0. The responses are sorted by prompt."""
    return np.arange(len(prompt_N)) - np.repeat(np.cumsum(size_P) - size_P, size_P)


def find_differing(prompt_N: IntArray, reward_N: FloatArray, prompts: int) -> BoolArray:
    """Compute whether the rewards of each prompt's responses differ, [P]. Equal rewards teach nothing."""
    low_P, high_P = np.full(prompts, np.inf), np.full(prompts, -np.inf)
    np.minimum.at(low_P, prompt_N, reward_N)
    np.maximum.at(high_P, prompt_N, reward_N)
    return low_P < high_P


def join_results(results: Sequence[SamplingResult]) -> SamplingResult:
    """Join results to one result over all their prompts, in their order.

    The ids in `response_id_N` stay those of each session. They are unique only together with `prompt_N`.
    """
    columns = {
        field.name: np.concatenate([getattr(result, field.name) for result in results])
        for field in fields(SamplingResult)
        if field.name.endswith(("_N", "_P"))
    }
    offset_R = np.cumsum([0] + [len(result.uid_P) for result in results[:-1]])
    columns["prompt_N"] = columns["prompt_N"] + np.repeat(offset_R, [len(result.prompt_N) for result in results])
    return SamplingResult(
        **columns,
        seconds=max(result.seconds for result in results),
        utilisation=None,
        failures=dict(sum((Counter(result.failures) for result in results), Counter())),
    )


def collect_result(
    state: StepState, *, began: float, ended: float, utilisation: float, failures: Mapping[str, int]
) -> SamplingResult:
    """Assemble the result of a finished session, whose sampling phase lasted from `began` to `ended`."""
    table, plan = state.table, state.plan
    ids = np.flatnonzero(table.accepted[: table.n])
    ids = ids[np.lexsort((table.index[ids], table.prompt[ids]))]
    prompt_N, positive_N = table.prompt[ids], table.positive[ids]
    prompts = len(state.pos_P)
    size_P = state.pos_P + state.neg_P
    reserve_P = np.arange(prompts) >= state.n_starting
    drawn_P = (state.issued_P > 0) & (~reserve_P | (size_P > 0))
    rank_N = compute_ranks(prompt_N, size_P)
    first_N = table.wave[ids] == 0
    first_size_P = np.bincount(prompt_N[first_N], minlength=prompts)
    first_pos_P = np.bincount(prompt_N[first_N & positive_N], minlength=prompts)
    rate_P = np.asarray(first_pos_P / np.maximum(first_size_P, 1), np.float64)  # this size does not depend on labels
    lacks_pos_P, lacks_neg_P = plan.stop.exit.lacking(table.view(state.pos_P, state.neg_P))
    first_waves = table.view(first_pos_P, first_size_P - first_pos_P, ids=ids[first_N])
    grpo_N = rank_N < plan.group_size
    return SamplingResult(
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
        rate_P=rate_P,
        issued_P=state.issued_P,
        failed_P=state.failed_P,
        generated_P=np.bincount(table.prompt[: table.n], table.tokens[: table.n], prompts).astype(np.int64),
        waves_P=np.where(state.issued_P > 0, table.wave[state.tail_P] + 1, 0),
        lacks_pos_P=lacks_pos_P,
        lacks_neg_P=lacks_neg_P,
        drawn_P=drawn_P,
        reserve_P=reserve_P,
        resolved_P=state.have_enough(np.arange(prompts)) & drawn_P,
        resolved_first_P=plan.stop.exit.met(first_waves) & drawn_P,
        mixed_if_grpo_P=find_differing(prompt_N[grpo_N], table.reward[ids[grpo_N]], prompts),
        kept_P=_choose_kept(drawn_P, (state.pos_P > 0) & (state.neg_P > 0), state.n_starting),
        cut_P=state.cut_P,
        bound_P=state.bound_P,
        seconds=ended - began,
        utilisation=utilisation,
        failures=dict(failures),
    )


def _choose_kept(drawn_P: BoolArray, mixed_P: BoolArray, batch: int) -> BoolArray:
    """Choose `batch` of the drawn prompts. Prompts with both labels come first, then the order of the data counts."""
    drawn = np.flatnonzero(drawn_P)
    kept_P = np.zeros(len(drawn_P), np.bool_)
    kept_P[drawn[np.argsort(~mixed_P[drawn], kind="stable")[:batch]]] = True
    return kept_P
