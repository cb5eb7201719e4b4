"""The engine and the verifier as a `ResponseSource` for one training step.

The session's response ids are the engine's request ids, so an outcome finds its prompt in any order of completion. A
response passes through these states:

    submitted -> decoding -> (verifying, while its verdict is a pending future) -> ready -> reported

An abort ends it in any state before `reported`. The engine keeps stepping while verdicts are pending. It first waits a
moment (`grace_s`) for new ones. So verdicts that come in time are reported in the order of the engine, and the same
seeds give the same run. Only when nothing decodes does `poll` sleep until a verdict comes.
"""

from __future__ import annotations

import itertools
import logging
import math
import queue
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import replace
from functools import partial

import numpy as np

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.cpu.engine.vllm_engine import Engine, Finished, Payload, RequestRejected, Sampling
from nemo_ada.errors import InvariantError
from nemo_ada.verify.verdict import Verdict

log = logging.getLogger(__name__)

Verify = Callable[[int, list[int], bool], Verdict | Future[Verdict]]
"""A function of the prompt's position, the generated token ids and whether the response ended by itself. It returns a
verdict or a future of one."""

ENGINE_ERROR = "engine_error"
VERIFIER_ERROR = "verifier_error"
SILENCE_S = 600.0  # When nothing decodes and no verdict comes for so long, the open answers fail.


class EngineSource:
    """Draws responses from an engine and has them verified. It implements the core's `ResponseSource`.

    A failure never becomes a label. The cause of a verdict without a label is the cause of the failure. An exception of
    `verify` or of its future gives the cause "verifier_error". A request that the engine refuses or fails gives
    "engine_error". An exception from `engine.step` means that the engine is lost. It passes through `poll`. Outputs of
    the engine for ids that do not decode here (repeated or unknown ones) are ignored.
    """

    def __init__(
        self,
        engine: Engine,
        prompts_P: Sequence[Sequence[int]],
        verify: Verify,
        sampling: Sampling,
        *,
        clock: Callable[[], float] = time.perf_counter,
        lengths: Callable[[int, int], int] | None = None,
        grace_s: float = 0.0,
    ) -> None:
        """Make the source of one step.

        Args:
            engine: the engine, without requests of an earlier step.
            prompts_P: token ids of each prompt of the step.
            verify: see `Verify`. It runs in the thread that polls, so a slow verifier must return a future.
            sampling: how every response is drawn. The seed comes with the request.
            clock: seconds, or engine steps.
            lengths: function from (prompt position, issue index) to the number of tokens. Only replays use it.
            grace_s: seconds that the engine waits for the verdicts of responses that have just ended.
        """
        if engine.in_flight:
            raise InvariantError(f"a new step found {engine.in_flight} requests of an earlier one in the engine")
        self._engine = engine
        self._prompts_P = prompts_P
        self._verifier = verify
        self._grace_s = grace_s
        self._sampling = sampling
        self._lengths = lengths
        self.clock = clock
        self._prompt_by_id: dict[int, int] = {}  # every response ever submitted
        self._decoding: set[int] = set()
        self._verifying: dict[int, Future[Verdict]] = {}
        self._verified: queue.SimpleQueue[int] = queue.SimpleQueue()  # the verifier's threads fill it
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
        self._collect_verified(sleep=False)
        while not self._ready:
            if self._decoding:
                self._step()
                self._collect_verified(sleep=False)
            elif self._verifying:
                self._collect_verified(sleep=True)
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
        """Stop these responses and drop their tokens. Returns how many tokens each had, 0 if it was reported before."""
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
        """Return the tokens and log-probabilities of a response that was reported."""
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
        ended: dict[int, Finished | Verdict | Future[Verdict]] = {}
        for done in self._engine.step():
            response_id = done.request_id
            if not isinstance(response_id, int) or response_id not in self._decoding:
                continue
            self._decoding.remove(response_id)
            ended[response_id] = done
            if done.payload is not None:
                self._payloads[response_id] = done.payload
                ended[response_id] = self._verify(response_id, done.payload)
        # Verdicts that come now are reported in the engine's order, so that the same seeds give the same run.
        wait([future for future in ended.values() if isinstance(future, Future)], timeout=self._grace_s)
        for response_id, outcome in ended.items():
            if isinstance(outcome, Finished):
                self._fail(response_id, outcome.tokens, ENGINE_ERROR, outcome.error)
            elif not isinstance(outcome, Future):
                self._settle(response_id, outcome)
            elif outcome.done():
                self._settle_future(response_id, outcome)
            else:
                self._verifying[response_id] = outcome
                outcome.add_done_callback(partial(self._announce, response_id))
        if self._decoding and not self._engine.in_flight:
            raise InvariantError(f"the engine lost {len(self._decoding)} requests, ids {sorted(self._decoding)[:5]}")

    def _verify(self, response_id: int, payload: Payload) -> Verdict | Future[Verdict]:
        try:
            return self._verifier(self._prompt_by_id[response_id], payload.token_ids.tolist(), payload.finished)
        except Exception as error:  # noqa: BLE001 - a verifier may raise anything, and an error is not a label
            failed: Future[Verdict] = Future()
            failed.set_exception(error)
            return failed

    def _announce(self, response_id: int, _: Future[Verdict]) -> None:
        self._verified.put(response_id)

    def _collect_verified(self, *, sleep: bool) -> None:
        """Settle the responses whose future is done. Aborted ones are skipped.

        Args:
            sleep: whether to wait until there is one.
        """
        while not self._verified.empty() or sleep:
            try:
                response_id = self._verified.get(timeout=SILENCE_S)
            except queue.Empty:  # the verifier kills an answer at its deadline, so the verifier itself has failed
                for late in list(self._verifying):
                    del self._verifying[late]
                    self._fail(late, len(self._payloads[late]), VERIFIER_ERROR, f"silent for {SILENCE_S:.0f} s")
                return
            sleep = False
            future = self._verifying.pop(response_id, None)
            if future is not None:
                self._settle_future(response_id, future)

    def _settle_future(self, response_id: int, future: Future[Verdict]) -> None:
        try:
            verdict = future.result()
        except (Exception, CancelledError) as error:  # noqa: BLE001 - as in _verify
            self._fail(response_id, len(self._payloads[response_id]), VERIFIER_ERROR, error)
        else:
            self._settle(response_id, verdict)

    def _settle(self, response_id: int, verdict: Verdict) -> None:
        tokens = len(self._payloads[response_id])
        if not isinstance(verdict, Verdict):
            self._fail(response_id, tokens, VERIFIER_ERROR, f"{verdict!r} is not a verdict")
        elif verdict.label is None:
            self._fail(response_id, tokens, str(verdict.cause), "reported by the verifier")
        else:
            self._ready[response_id] = (verdict.label, tokens, None)

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
