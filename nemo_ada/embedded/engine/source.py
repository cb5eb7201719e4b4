"""The engine and the verifier as a `ResponseSource` for one training step.

The session's response ids are the engine's request ids, so an outcome finds its prompt in any order of completion. A
response goes

    submitted -> decoding -> (verifying, while its score is a pending future) -> ready -> reported

and leaves this line at any point before `reported` when it is aborted. The engine keeps stepping while futures are
pending. Only when nothing decodes does `poll` sleep until a future is done.
"""

from __future__ import annotations

import itertools
import logging
import math
import queue
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

import numpy as np

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.embedded.engine.vllm_engine import Finished, Payload, RequestRejected, Sampling
from nemo_ada.errors import InvariantError

log = logging.getLogger(__name__)

Score = tuple[float, str | None]
"""Reward and None, or any number and the cause why there is no reward."""

Scorer = Callable[[int, list[int], bool], Score | Future[Score]]
"""score(position of the prompt, generated token ids, whether the response ended by itself): a score, or its future."""

ENGINE_ERROR = "engine_error"
VERIFIER_ERROR = "verifier_error"
NONFINITE_REWARD = "nonfinite_reward"


class RequestEngine(Protocol):
    """The part of `vllm_engine.Engine` that a source uses."""

    @property
    def in_flight(self) -> int: ...

    def add(self, request_id: Hashable, prompt_token_ids: Sequence[int], sampling: Sampling) -> None: ...

    def step(self) -> list[Finished]: ...

    def abort(self, request_ids: Iterable[Hashable]) -> dict[Hashable, int]: ...


class EngineSource:
    """Draws responses from an engine and scores them; implements `nemo_ada.core.sampling.source.ResponseSource`.

    prompts_P: token ids of each prompt of the step. sampling: how every response is drawn; its seed comes with the
    request. score: see `Scorer`; it runs in the thread that polls, so give slow verifiers to a pool and return the
    future. lengths: gives the exact number of tokens to draw for (prompt position, issue index); replays only.

    A failure never becomes a label. An exception of `score` or of its future is the failure "verifier_error", a reward
    that is not finite "nonfinite_reward", a request that the engine refuses or fails "engine_error". An exception from
    `engine.step` means that the engine is lost, and passes through `poll`.
    Outputs of the engine for ids that do not decode here, repeated or unknown, are ignored.
    """

    def __init__(
        self,
        engine: RequestEngine,
        prompts_P: Sequence[Sequence[int]],
        score: Scorer,
        sampling: Sampling,
        *,
        clock: Callable[[], float] = time.perf_counter,
        lengths: Callable[[int, int], int] | None = None,
    ) -> None:
        if engine.in_flight:
            raise InvariantError(f"a new step found {engine.in_flight} requests of an earlier one in the engine")
        self._engine = engine
        self._prompts_P = prompts_P
        self._score = score
        self._sampling = sampling
        self._lengths = lengths
        self.clock = clock
        self._prompt_by_id: dict[int, int] = {}  # every response ever submitted
        self._decoding: set[int] = set()
        self._verifying: dict[int, Future[Score]] = {}
        self._verified: queue.SimpleQueue[int] = queue.SimpleQueue()  # filled by the verifier's threads
        self._ready: dict[int, tuple[float, int, str | None]] = {}  # reward, tokens, cause of failure
        self._payloads: dict[int, Payload] = {}

    def submit(self, requests: Requests) -> None:
        """Queue the responses in the engine. Raises InvariantError for a repeated id or an unknown prompt position."""
        columns = (requests.response_id_N, requests.prompt_N, requests.index_N, requests.seed_N)
        for response_id, prompt, index, seed in zip(*(column.tolist() for column in columns), strict=True):
            if response_id in self._prompt_by_id:
                raise InvariantError(f"response {response_id} was submitted twice")
            if not 0 <= prompt < len(self._prompts_P):
                raise InvariantError(
                    f"response {response_id}: prompt position {prompt} is outside 0..{len(self._prompts_P) - 1}"
                )
            self._prompt_by_id[response_id] = prompt
            sampling = self._sampling if self._lengths is None else self._sampling.forced(self._lengths(prompt, index))
            try:
                self._engine.add(response_id, self._prompts_P[prompt], replace(sampling, seed=seed))
            except RequestRejected as error:
                self._fail(response_id, 0, ENGINE_ERROR, error)
            else:
                self._decoding.add(response_id)

    def poll(self) -> Outcomes:
        """Step the engine until a response is decoded and scored, then report all that are.

        Raises InvariantError when nothing is under way, and whatever a lost engine raises.
        """
        self._collect_verified(wait=False)
        while not self._ready:
            if self._decoding:
                self._step()
                self._collect_verified(wait=False)
            elif self._verifying:
                self._collect_verified(wait=True)
            else:
                raise InvariantError("poll was called with no response under way: it would never return")
        ready, self._ready = self._ready, {}
        return Outcomes(
            response_id_N=np.array(list(ready), dtype=np.int64),
            reward_N=np.array([reward for reward, _, _ in ready.values()], dtype=np.float64),
            tokens_N=np.array([tokens for _, tokens, _ in ready.values()], dtype=np.int64),
            failures={response_id: cause for response_id, (_, _, cause) in ready.items() if cause is not None},
        )

    def abort(self, response_id_N: IntArray | Iterable[int]) -> IntArray:
        """Stop these responses and drop their tokens; returns how many each had, 0 for those reported before."""
        ids = [int(response_id) for response_id in response_id_N]
        unknown = [response_id for response_id in ids if response_id not in self._prompt_by_id]
        if unknown:
            raise InvariantError(f"abort of responses that were never submitted: {unknown}")
        stopped = self._engine.abort([response_id for response_id in ids if response_id in self._decoding])
        self._decoding.difference_update(ids)
        tokens_N = np.zeros(len(ids), np.int64)
        for position, response_id in enumerate(ids):
            future = self._verifying.pop(response_id, None)
            ready = self._ready.pop(response_id, None)
            if future is not None:
                future.cancel()
                tokens_N[position] = len(self._payloads[response_id])
            elif ready is not None:
                tokens_N[position] = ready[1]
            else:
                tokens_N[position] = stopped.get(response_id, 0)
            self._payloads.pop(response_id, None)
        return tokens_N

    def payload(self, response_id: int) -> Payload:
        """Tokens and log-probabilities of a response that was reported."""
        try:
            return self._payloads[int(response_id)]
        except KeyError:
            raise InvariantError(f"response {response_id} has no payload: not finished, failed or aborted") from None

    def close(self) -> None:
        """Abort all responses under way and drop all payloads, so the engine is free for the next step."""
        self.abort(list(itertools.chain(self._decoding, self._verifying)))
        self._ready.clear()
        self._payloads.clear()

    def _step(self) -> None:
        for done in self._engine.step():
            response_id = done.request_id
            if not isinstance(response_id, int) or response_id not in self._decoding:
                continue
            self._decoding.remove(response_id)
            if done.payload is None:
                self._fail(response_id, done.tokens, ENGINE_ERROR, done.error)
                continue
            self._payloads[response_id] = done.payload
            self._verify(response_id, done.payload)
        if self._decoding and not self._engine.in_flight:
            raise InvariantError(f"the engine lost {len(self._decoding)} requests, ids {sorted(self._decoding)[:5]}")

    def _verify(self, response_id: int, payload: Payload) -> None:
        try:
            score = self._score(self._prompt_by_id[response_id], payload.token_ids.tolist(), payload.finished)
        except Exception as error:  # noqa: BLE001 - a verifier may raise anything; none of it may become a label
            self._fail(response_id, len(payload), VERIFIER_ERROR, error)
            return
        if isinstance(score, Future):
            self._verifying[response_id] = score
            score.add_done_callback(lambda _: self._verified.put(response_id))
        else:
            self._settle(response_id, score)

    def _collect_verified(self, *, wait: bool) -> None:
        """Settle the responses whose future is done; with `wait`, sleep until there is one. Skips aborted ones."""
        while not self._verified.empty() or wait:
            response_id = self._verified.get()
            wait = False
            future = self._verifying.pop(response_id, None)
            if future is None:
                continue
            try:
                score = future.result()
            except Exception as error:  # noqa: BLE001 - as in _verify
                self._fail(response_id, len(self._payloads[response_id]), VERIFIER_ERROR, error)
            else:
                self._settle(response_id, score)

    def _settle(self, response_id: int, score: Score) -> None:
        tokens = len(self._payloads[response_id])
        try:
            reward, cause = float(score[0]), score[1]
        except (TypeError, ValueError, LookupError) as error:
            self._fail(response_id, tokens, VERIFIER_ERROR, error)
            return
        if cause is not None:
            self._fail(response_id, tokens, cause, "reported by the verifier")
        elif not math.isfinite(reward):
            self._fail(response_id, tokens, NONFINITE_REWARD, f"reward {reward}")
        else:
            self._ready[response_id] = (reward, tokens, None)

    def _fail(self, response_id: int, tokens: int, cause: str, detail: object) -> None:
        log.debug(
            "response %d of prompt position %d failed with %s: %r",
            response_id,
            self._prompt_by_id[response_id],
            cause,
            detail,
        )
        self._payloads.pop(response_id, None)
        self._ready[response_id] = (math.nan, tokens, cause)
