"""A stand-in for the CPU back end's vLLM engine (`vllm_engine.Engine`), whose responses a function gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from nemo_ada.cpu.engine.vllm_engine import (
    EngineConfig,
    Finished,
    FinishReason,
    Payload,
    RequestRejected,
    Sampling,
)

Respond = Callable[[list[int]], tuple[list[int], FinishReason]]
"""Token ids of a prompt -> token ids of a response, and why it ends."""


class ScriptedEngine:
    """Ends one request per step, the newest first."""

    def __init__(self, respond: Respond, config: EngineConfig | None = None) -> None:
        self.respond, self.config = respond, config
        self.added: dict[Hashable, tuple[list[int], Sampling]] = {}
        self.samplings: list[Sampling] = []
        self.running: dict[Hashable, Payload] = {}
        self.aborted: list[Hashable] = []
        self.steps = 0

    @property
    def in_flight(self) -> int:
        return len(self.running)

    def add(self, request_id: Hashable, prompt_token_ids: Sequence[int], sampling: Sampling) -> None:
        if not prompt_token_ids:
            raise RequestRejected("empty prompt")
        self.added[request_id] = (list(prompt_token_ids), sampling)
        self.samplings.append(sampling)
        self.running[request_id] = self._payload(prompt_token_ids)

    def step(self) -> list[Finished]:
        self.steps += 1
        request_id, payload = self.running.popitem()
        return [Finished(request_id, len(payload), payload)]

    def close(self) -> None:
        """It holds nothing."""

    def abort(self, request_ids: Iterable[Hashable]) -> dict[Hashable, int]:
        stopped = [request_id for request_id in request_ids if self.running.pop(request_id, None) is not None]
        self.aborted += stopped
        return dict.fromkeys(stopped, 10)

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling, seed: int = 0
    ) -> list[list[Payload]]:
        self.samplings.append(sampling)
        return [[self._payload(prompt)] * n for prompt in prompts]

    def _payload(self, prompt: Sequence[int]) -> Payload:
        ids, reason = self.respond(list(prompt))
        return Payload(np.array(ids), np.zeros(len(ids), np.float32), reason)
