"""vLLM's scheduler with few messages per response: `vllm_kwargs: {scheduler_cls: nemo_ada.vllm.FewMessages}`.

vLLM's engine core sends a message for each token of each response, and the asynchronous engine's front end spends most
of its time on reading them, because a token's log-probability travels as three arrays of one element. This scheduler
collects a response's tokens and sends them together. Nothing else changes: what is drawn, and what a finished response
holds, is equal to the bit (tests/test_vllm.py; costs: recipes/results/host_cost.md).

A response that is stopped from outside loses the tokens that were not sent yet, fewer than TOKENS. vLLM's front end
reports a stopped response from what it has received.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import LogprobsLists

TOKENS = 32
"""Tokens of a response that are sent together."""
COLLECTED = {"request_id", "new_token_ids", "new_logprobs"}
"""Fields of an output that are collected, or the same in every one."""
_OTHERS = {
    name: default
    for name, default in zip(
        EngineCoreOutput.__struct_fields__[-len(EngineCoreOutput.__struct_defaults__) :],
        EngineCoreOutput.__struct_defaults__,
        strict=True,
    )
    if name not in COLLECTED
}
"""The other fields with their defaults. Where an output has these defaults, it says nothing but tokens and can wait."""
_read_others, _DEFAULTS = attrgetter(*_OTHERS), tuple(_OTHERS.values())


class StepLogprobs:
    """The log-probabilities of a step, in place of vLLM's LogprobsLists.

    vLLM's scheduler calls nothing of them but `slice_request`, and cuts each request's part out of them at once. Here
    that waits for the message.
    """

    __slots__ = ("_first", "lists", "rows")

    def __init__(self, lists: LogprobsLists) -> None:
        self.lists = lists
        self.rows = lists.cu_num_generated_tokens is None and lists.logprob_token_ids.ndim > 1  # row i is request i's
        self._first: tuple[list[int], list[float], list[int]] | None = None

    def slice_request(self, row: int, positions: int) -> Part:
        """Note what vLLM wants of a request, as its own class takes the question."""
        return self, row, positions

    @property
    def first(self) -> tuple[list[int], list[float], list[int]]:
        """The sampled token, its log-probability and its rank, by row: a list of each for all requests of the step."""
        if self._first is None:
            lists = self.lists
            self._first = (
                lists.logprob_token_ids[:, 0].tolist(), lists.logprobs[:, 0].tolist(),
                lists.sampled_token_ranks.tolist(),
            )  # fmt: skip
        return self._first


Part = tuple[StepLogprobs, int, int]
"""The log-probabilities of a request in a step: the step, vLLM's number of the request in it, and its tokens."""


def cut_part(part: Part) -> LogprobsLists:
    """Return a part as vLLM would have cut it."""
    step, row, positions = part
    return step.lists.slice_request(row, positions)


def join_parts(parts: list[Part], columns: int) -> LogprobsLists:
    """Return the log-probabilities of some steps. vLLM's columns of a step are as many as any request asked for.

    vLLM's sampler leaves ids and ranks out where it returns the whole vocabulary unsorted. Its front end reads nothing
    of such a step, so nothing is sent.
    """
    lists = parts[0][0].lists
    if columns == 1 and all(one == 1 and step.rows for step, _, one in parts):
        ids, logprobs, ranks = zip(*[[each[row] for each in step.first] for step, row, _ in parts], strict=True)
        return LogprobsLists(
            np.array(ids, lists.logprob_token_ids.dtype)[:, None],
            np.array(logprobs, lists.logprobs.dtype)[:, None],
            np.array(ranks, lists.sampled_token_ranks.dtype),
        )
    every = [cut_part(part) for part in parts]
    every = [one for one in every if len(one.sampled_token_ranks)] or every[:1]
    return LogprobsLists(
        np.concatenate([one.logprob_token_ids[..., :columns] for one in every]),
        np.concatenate([one.logprobs[:, :columns] for one in every]),
        np.concatenate([one.sampled_token_ranks for one in every]),
    )


@dataclass(slots=True)
class Collected:
    """What was not sent yet of a response.

    Attributes:
        request: vLLM's request.
        columns: Log-probabilities per token: that of the token, and those of the most likely ones that were asked for.
        tokens: Token ids.
        parts: Log-probabilities, a part for each step.
    """

    request: Any
    columns: int
    tokens: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def move_into(self, output: EngineCoreOutput) -> None:
        """Give everything to an output."""
        output.new_token_ids = self.tokens
        if self.parts:
            output.new_logprobs = join_parts(self.parts, self.columns)


class FewMessages:
    """Makes vLLM's own scheduler, with the collecting part in front of it.

    vLLM decides whether it plans a step before the tokens of the last one are there. Its workers follow that decision,
    and a scheduler that does not would plan steps for tokens that no worker has: vLLM's Ray executor, for example, had
    no such planning in 0.20, and NeMo-RL chooses that executor for every engine of several GPUs. A named scheduler is
    not asked which way it plans. So this one asks vLLM which class it would have taken, when the engine starts.
    """

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a scheduler for an engine. The arguments are those of vLLM's schedulers."""
        unnamed = copy.copy(vllm_config.scheduler_config)
        unnamed.scheduler_cls = None
        return _make_collecting(unnamed.get_scheduler_cls())(vllm_config, *args, **kwargs)


@functools.cache
def _make_collecting(scheduler: type) -> type:
    """Return a scheduler's class with the collecting part. Its name tells logs and tracebacks what it is made of."""
    return type(f"FewMessages{scheduler.__name__}", (Collecting, scheduler), {})


if TYPE_CHECKING:
    Scheduler = Any  # vLLM's
else:
    Scheduler = object


class Collecting(Scheduler):
    """Sends a response's tokens and log-probabilities every TOKENS tokens and at its end.

    It is a part: vLLM's scheduler is the next class in the order of inheritance.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._collected: dict[str, Collected] = {}
        self._stopped = False  # whether requests were stopped from outside since the last step

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """Do as vLLM does when requests are stopped from outside."""
        self._stopped = True
        return super().finish_requests(*args, **kwargs)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Do as vLLM does, and keep back the outputs that can wait."""
        if self._stopped:
            live = self.requests  # a stopped response is not among them, and its id may belong to another one
            self._collected = {name: one for name, one in self._collected.items() if live.get(name) is one.request}
            self._stopped = False
        lists = model_runner_output.logprobs
        if lists:
            model_runner_output.logprobs = StepLogprobs(lists)
        try:
            messages = super().update_from_output(scheduler_output, model_runner_output)
        finally:
            model_runner_output.logprobs = lists
        for message in messages.values():
            message.outputs = self._take_due(message.outputs)
        return messages

    def _take_due(self, outputs: list[EngineCoreOutput]) -> list[EngineCoreOutput]:
        """Return the outputs that are sent now, with all that was kept back of their responses."""
        due, kept = [], self._collected  # a step has an output per response: every call here counts
        for output in outputs:
            collected = kept.get(output.request_id) or self._begin(output)
            part: Any = output.new_logprobs
            if collected is None:
                output.new_logprobs = None if part is None else cut_part(part)
                due.append(output)
                continue
            collected.tokens += output.new_token_ids
            if part is not None:
                collected.parts.append(part)
            if len(collected.tokens) >= TOKENS or not _has_only_tokens(output):
                del kept[output.request_id]
                collected.move_into(output)
                due.append(output)
        return due

    def _begin(self, output: EngineCoreOutput) -> Collected | None:
        """Begin to collect a response. None for one whose tokens cannot wait."""
        request = self.requests.get(output.request_id)  # a finished one is not there any more
        columns = 0 if request is None else columns_of(request)
        if not columns:
            return None
        collected = self._collected[output.request_id] = Collected(request, columns)
        return collected


def _has_only_tokens(output: EngineCoreOutput) -> bool:
    """Return whether an output has nothing but tokens and log-probabilities."""
    try:
        return output.finish_reason is None and _read_others(output) == _DEFAULTS
    except ValueError:  # an array, which has no one truth
        return False


def columns_of(request: Any) -> int:
    """Return the columns of log-probabilities of a request whose tokens can wait, 0 for one whose tokens cannot.

    Only the front end finds stop strings, so it must see each token at once, as a client that reads a stream must.
    """
    params: SamplingParams | None = request.sampling_params
    if params is None or request.resumable or params.stop or params.output_kind == RequestOutputKind.DELTA:
        return 0
    if getattr(params, "logprob_token_ids", None):  # columns of other tokens, which `logprobs` does not count
        return 0
    return 1 + (params.logprobs or 0)  # -1, the whole vocabulary, leaves none
