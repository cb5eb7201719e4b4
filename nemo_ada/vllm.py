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
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import LogprobsLists

TOKENS = 32
"""Tokens of a response that are sent together."""
COLLECTED = {"request_id", "new_token_ids", "new_logprobs"}
_OTHERS = {
    name: default
    for name, default in zip(
        EngineCoreOutput.__struct_fields__[-len(EngineCoreOutput.__struct_defaults__) :],
        EngineCoreOutput.__struct_defaults__,
        strict=True,
    )
    if name not in COLLECTED
}
_others, _DEFAULTS = attrgetter(*_OTHERS), tuple(_OTHERS.values())


@dataclass(slots=True)
class Collected:
    """What was not sent yet of a response.

    Attributes:
        request: vLLM's request.
        columns: Log-probabilities per token: that of the token, and those of the most likely ones that were asked for.
        tokens: Token ids.
        logprobs: A part for each step.
    """

    request: Any
    columns: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogprobsLists] = field(default_factory=list)

    def add(self, output: EngineCoreOutput) -> None:
        """Take the tokens of an output."""
        self.tokens.extend(output.new_token_ids)
        if output.new_logprobs is not None:
            self.logprobs.append(output.new_logprobs)

    def into(self, output: EngineCoreOutput) -> None:
        """Give all tokens to an output. vLLM's columns of a step are as many as any request asked for."""
        output.new_token_ids = self.tokens
        if self.logprobs:
            output.new_logprobs = LogprobsLists(
                np.concatenate([part.logprob_token_ids[:, : self.columns] for part in self.logprobs]),
                np.concatenate([part.logprobs[:, : self.columns] for part in self.logprobs]),
                np.concatenate([part.sampled_token_ranks for part in self.logprobs]),
            )


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
        return _collecting(unnamed.get_scheduler_cls())(vllm_config, *args, **kwargs)


@functools.cache
def _collecting(scheduler: type) -> type:
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

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Do as vLLM does, and keep back the outputs that can wait."""
        live = self.requests  # a stopped response is not among them, and its id may belong to another one
        self._collected = {name: one for name, one in self._collected.items() if live.get(name) is one.request}
        messages = super().update_from_output(scheduler_output, model_runner_output)
        for message in messages.values():
            message.outputs = [output for output in message.outputs if self._is_due(output)]
        return messages

    def _is_due(self, output: EngineCoreOutput) -> bool:
        """Return whether an output is sent now, then with all that was kept back before."""
        name = output.request_id
        collected = self._collected.get(name)
        if collected is None:
            request = self.requests.get(name)  # a finished one is not there any more
            columns = 0 if request is None else columns_of(request)
            if not columns:
                return True
            collected = self._collected[name] = Collected(request, columns)
        collected.add(output)
        if len(collected.tokens) < TOKENS and all(map(is_, _others(output), _DEFAULTS)):
            return False
        del self._collected[name]
        collected.into(output)
        return True


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
