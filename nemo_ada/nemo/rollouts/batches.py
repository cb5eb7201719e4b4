"""The source for engines that take whole batches. All responses that were submitted become one rollout call.

NeMo-RL gives each of its engines a contiguous share of the rows. So the rows of a call are interleaved by prompt. They
begin with response 0 of every prompt, then comes response 1, and so on. In prompt order, all late responses of a hard
prompt would run on one engine. Calls of any size are safe on vLLM, whose wrapper allows uneven and empty shares.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.errors import InvariantError
from nemo_ada.nemo.loop_log import join_calls
from nemo_ada.nemo.rollouts.call import Prompts, RolloutCall
from nemo_ada.nemo.rollouts.engine_abort import EngineAbort
from nemo_ada.nemo.rollouts.response import Response, read


class BatchSource:
    """A ResponseSource that calls NeMo-RL's `run_multi_turn_rollout`. Nothing runs between two polls.

    Attributes:
        calls: rollout calls so far.
    """

    def __init__(self, call: RolloutCall, prompts: Prompts) -> None:
        self._call, self._prompts = call, prompts
        self._engine = EngineAbort(call.policy_generation)
        self._waiting: dict[int, tuple[int, int]] = {}  # response_id -> (index, prompt)
        self._done: dict[int, Response] = {}
        self.calls = 0
        self._reported: list[tuple[int, dict[str, Any]]] = []  # rows and NeMo-RL's metrics of each call

    def submit(self, requests: Requests) -> None:
        """Add responses to the next call."""
        columns = (requests.response_id_N, requests.index_N, requests.prompt_N)
        for response_id, index, prompt in zip(*(column.tolist() for column in columns), strict=True):
            self._waiting[response_id] = (index, prompt)

    def poll(self) -> Outcomes:
        """Run one rollout call for all waiting responses and report them.

        Raises:
            ProcessLostError: an engine died.
        """
        ids = sorted(self._waiting, key=lambda response_id: self._waiting[response_id])
        places = [self._waiting.pop(response_id)[1] for response_id in ids]
        try:
            final, reported = self._call.run(self._prompts.rows(places))
        except Exception:
            self._engine.check()
            raise
        self.calls += 1
        self._reported.append((len(ids), reported))
        rewards = final["total_reward"].tolist()
        if not len(rewards) == len(final["message_log"]) == len(ids):
            raise InvariantError(f"{len(ids)} responses were asked for, {len(final['message_log'])} came back")
        truncated = list(final["truncated"]) if "truncated" in final else [False] * len(ids)
        logs = self._prompts.logs
        finished = [
            read(logs[place], log, reward, cut)
            for place, log, reward, cut in zip(places, final["message_log"], rewards, truncated, strict=True)
        ]
        self._done.update(zip(ids, finished, strict=True))
        return convert_outcomes(ids, finished)

    def abort(self, response_id_N: IntArray) -> IntArray:
        """Remove responses from the next call. They have 0 tokens, because nothing was generated for them."""
        for response_id in response_id_N.tolist():
            del self._waiting[response_id]
        return np.zeros(len(response_id_N), np.int64)

    def clock(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def response(self, response_id: int) -> Response:
        """Return a response that was reported."""
        return self._done[response_id]

    def close(self) -> None:
        """Do nothing, because nothing runs between calls."""

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics that the session does not have."""
        return {"rollout_calls": float(self.calls)}

    @property
    def reported(self) -> dict[str, Any]:
        """NeMo-RL's metrics, joined over all calls."""
        return join_calls(self._reported)


def convert_outcomes(ids: list[int], responses: list[Response]) -> Outcomes:
    """Convert finished responses to the session's columns.

    Args:
        ids: response_id of each response.
        responses: the responses.
    """
    causes = {response_id: response.cause for response_id, response in zip(ids, responses, strict=True)}
    return Outcomes(
        np.array(ids, np.int64),
        np.array([response.reward for response in responses], np.float64),
        np.array([response.tokens for response in responses], np.int64),
        {response_id: cause for response_id, cause in causes.items() if cause is not None},
    )
