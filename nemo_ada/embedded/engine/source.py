"""The engine and the verifier as a `ResponseSource` for one training step.

Rows of the session are the request ids of the engine, so an outcome finds its prompt by identity, whatever the order of
completion. A response goes

    submitted -> decoding -> (verifying, while its score is a pending future) -> ready -> reported -> released

and leaves this line at any point before `reported` when its row is aborted. The engine keeps stepping while futures are
pending; only when nothing decodes does `poll` sleep until a future is done.
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
    """What a source needs of `nemo_ada.embedded.engine.vllm_engine.Engine`."""

    @property
    def in_flight(self) -> int: ...

    def add(self, request_id: Hashable, prompt_token_ids: Sequence[int], sampling: Sampling) -> None: ...

    def step(self) -> list[Finished]: ...

    def abort(self, request_ids: Iterable[Hashable]) -> dict[Hashable, int]: ...


class EngineSource:
    """Draws responses from an engine and scores them; implements `nemo_ada.core.sampling.source.ResponseSource`.

    prompts_P: token ids of each prompt of the step. sampling: how every response is drawn, except for its seed, which
    comes with the request. score: see `Scorer`. It is called in the thread that polls; hand slow verifiers to a pool
    and return the future. What it raises, and what its future raises, becomes the failure "verifier_error", and a
    reward that is not finite "nonfinite_reward": never a label. A request that the engine refuses or fails becomes
    "engine_error"; an exception from `engine.step` means that the engine is lost and passes through `poll`.
    lengths: called with (prompt position, issue index), gives the exact number of tokens to draw (replays only).

    ignored_outputs counts what the engine reported for rows that are not decoding here: repeated and unknown ids.
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
        self._prompt_by_row: dict[int, int] = {}  # every row ever submitted
        self._decoding: set[int] = set()
        self._verifying: dict[int, Future[Score]] = {}
        self._verified: queue.SimpleQueue[int] = queue.SimpleQueue()  # filled by the verifier's threads
        self._ready: dict[int, tuple[float, int, str | None]] = {}  # row -> reward, tokens, cause of failure
        self._payloads: dict[int, Payload] = {}
        self.ignored_outputs = 0

    def submit(self, requests: Requests) -> None:
        """Queue the responses in the engine. Raises InvariantError for a row or prompt position that cannot be."""
        columns = (requests.response_id_N, requests.prompt_N, requests.index_N, requests.seed_N)
        for row, prompt, index, seed in zip(*(column.tolist() for column in columns), strict=True):
            if row in self._prompt_by_row:
                raise InvariantError(f"row {row} was submitted twice")
            if not 0 <= prompt < len(self._prompts_P):
                raise InvariantError(f"row {row}: prompt position {prompt} is outside 0..{len(self._prompts_P) - 1}")
            self._prompt_by_row[row] = prompt
            sampling = self._sampling if self._lengths is None else self._sampling.forced(self._lengths(prompt, index))
            try:
                self._engine.add(row, self._prompts_P[prompt], replace(sampling, seed=seed))
            except RequestRejected as error:
                self._fail(row, 0, ENGINE_ERROR, error)
            else:
                self._decoding.add(row)

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
            failures={row: cause for row, (_, _, cause) in ready.items() if cause is not None},
        )

    def abort(self, response_id_N: IntArray | Iterable[int]) -> IntArray:
        """Stop these rows and forget what they made; returns the tokens of each, 0 for rows reported before."""
        rows = [int(row) for row in response_id_N]
        unknown = [row for row in rows if row not in self._prompt_by_row]
        if unknown:
            raise InvariantError(f"abort of rows that were never submitted: {unknown}")
        stopped = self._engine.abort([row for row in rows if row in self._decoding])
        self._decoding.difference_update(rows)
        tokens_N = np.zeros(len(rows), np.int64)
        for position, row in enumerate(rows):
            future = self._verifying.pop(row, None)
            ready = self._ready.pop(row, None)
            if future is not None:
                future.cancel()
                tokens_N[position] = len(self._payloads[row])
            elif ready is not None:
                tokens_N[position] = ready[1]
            else:
                tokens_N[position] = stopped.get(row, 0)
            self._payloads.pop(row, None)
        return tokens_N

    def payload(self, row: int) -> Payload:
        """Tokens and log-probabilities of a response that was reported and not released."""
        try:
            return self._payloads[int(row)]
        except KeyError:
            raise InvariantError(f"row {row} has no payload: not finished, failed, aborted or released") from None

    def release(self, response_id_N: IntArray | Iterable[int]) -> None:
        """Drop the payloads of these rows; rows without one are fine."""
        for row in response_id_N:
            self._payloads.pop(int(row), None)

    def close(self) -> None:
        """Abort everything that is under way and drop all payloads, so that the engine is free for the next step."""
        self.abort(list(itertools.chain(self._decoding, self._verifying)))
        self._ready.clear()
        self._payloads.clear()

    def _step(self) -> None:
        for done in self._engine.step():
            row = done.request_id
            if not isinstance(row, int) or row not in self._decoding:
                self.ignored_outputs += 1
                continue
            self._decoding.remove(row)
            if done.payload is None:
                self._fail(row, done.tokens, ENGINE_ERROR, done.error)
                continue
            self._payloads[row] = done.payload
            self._verify(row, done.payload)
        if self._decoding and not self._engine.in_flight:
            raise InvariantError(f"the engine lost {len(self._decoding)} requests, rows {sorted(self._decoding)[:5]}")

    def _verify(self, row: int, payload: Payload) -> None:
        try:
            score = self._score(self._prompt_by_row[row], payload.token_ids.tolist(), payload.finished)
        except Exception as error:  # noqa: BLE001 - a verifier may raise anything; none of it may become a label
            self._fail(row, len(payload), VERIFIER_ERROR, error)
            return
        if isinstance(score, Future):
            self._verifying[row] = score
            score.add_done_callback(lambda _: self._verified.put(row))
        else:
            self._settle(row, score)

    def _collect_verified(self, *, wait: bool) -> None:
        """Settle the rows whose future is done; with `wait`, sleep until there is one. Aborted rows are skipped."""
        while not self._verified.empty() or wait:
            row = self._verified.get()
            wait = False
            future = self._verifying.pop(row, None)
            if future is None:
                continue
            try:
                score = future.result()
            except Exception as error:  # noqa: BLE001 - as in _verify
                self._fail(row, len(self._payloads[row]), VERIFIER_ERROR, error)
            else:
                self._settle(row, score)

    def _settle(self, row: int, score: Score) -> None:
        tokens = len(self._payloads[row])
        try:
            reward, cause = float(score[0]), score[1]
        except (TypeError, ValueError, LookupError) as error:
            self._fail(row, tokens, VERIFIER_ERROR, error)
            return
        if cause is not None:
            self._fail(row, tokens, cause, "reported by the verifier")
        elif not math.isfinite(reward):
            self._fail(row, tokens, NONFINITE_REWARD, f"reward {reward}")
        else:
            self._ready[row] = (reward, tokens, None)

    def _fail(self, row: int, tokens: int, cause: str, detail: object) -> None:
        log.debug("row %d of prompt position %d failed with %s: %r", row, self._prompt_by_row[row], cause, detail)
        self._payloads.pop(row, None)
        self._ready[row] = (math.nan, tokens, cause)
