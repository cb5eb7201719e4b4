"""`MathVerifier` turns responses into verdicts. An answer cannot harm another one."""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Self

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.verify import selftest
from nemo_ada.verify.boxed import last_boxed, plain_reference
from nemo_ada.verify.messages import Done, Layers, VerifierLimits, Work
from nemo_ada.verify.process import ServerProcess
from nemo_ada.verify.verdict import CRASH, INVALID, REWARD, Verdict
from nemo_ada.verify.worker import DEFAULT_SCORER

log = logging.getLogger(__name__)

START_S = 120.0  # for a cold start (imports on a loaded machine)
SHORT_ANSWER = 1000  # characters that math-verify reads, however short the reference is
KERNEL_LAYERS = {"Landlock", "seccomp"}  # without one of them there is a warning
STOP_S = 2.0  # for killing and replacing a worker, on top of a deadline
MOST_PRINTED = 20  # texts of a scorer that reach the log
SELF_TEST_DEADLINE_S = 60.0  # of the known pairs, which wait for a cold scorer


def longest_answer(reference: str) -> int:
    """Characters of the longest box that is read. A longer one is wrong, as a text that could not be the reference."""
    return SHORT_ANSWER + 4 * len(reference)


class MathVerifier:
    r"""Judges the last \boxed{...} of a response against a reference answer, with math-verify.

    Every answer is judged in a process that is killed at its deadline. A failure has a cause instead of a label
    (`nemo_ada.verify.verdict`). A response without a closed box, or with a box that is far longer than its reference
    (`longest_answer`), gets label 0 at once.

    Life cycle: the constructor starts the server process and runs the self-test. `close`, or leaving the `with` block,
    ends all processes. If the server dies, its open answers get the cause "verifier_crash", and the next submit starts
    another server. A server that dies before its first answer is not replaced (InvariantError). Thread-safe. A forked
    child must make its own verifier.

    whole: whether the scorer gets the whole response in place of its last box, and the reference as it is: a text, a
    number, a list or an object of JSON.
    scorer: `package.module:function`, (answer, reference) -> score in [0, 1]; imported in the workers only. It imports
    what it needs at the top of its module: a worker is confined afterwards (`confine`), and cannot read other files.
    """

    def __init__(
        self,
        limits: VerifierLimits | None = None,
        *,
        scorer: str = DEFAULT_SCORER,
        whole: bool = False,
        self_test: bool = True,
    ) -> None:
        if ":" not in scorer:
            raise UserError(f"verifier.scorer={scorer!r} must be package.module:function")
        self.limits = limits if limits is not None else VerifierLimits()
        self._scorer, self._whole = scorer, whole
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._tickets, self._printed = itertools.count(), itertools.count()
        self._open: dict[int, Future[Verdict]] = {}
        self._counts: Counter[str] = Counter()
        self._answered = True
        self._closed = False
        self.layers: Layers | None = None  # how workers are confined; None until the first one has said it
        self._server: ServerProcess | None = self._new_server()
        if self_test:
            try:
                self.self_test()
            except BaseException:
                self.close()
                raise

    @property
    def counts(self) -> dict[str, int]:
        """Number of verdicts so far: "labelled", and each cause that occurred."""
        with self._lock:
            return dict(self._counts)

    @property
    def process_group(self) -> int | None:
        """Process group of the verifier's processes, None while none run."""
        with self._lock:
            return self._server.pid if self._server is not None else None

    def submit(self, response: str, reference: Any) -> Future[Verdict]:
        """Queue one response. A failure of the verifier is a verdict with a cause, never an exception."""
        return self._submit([(response, reference)], self.limits.deadline_s)[0]

    def verify_many(self, pairs: Iterable[tuple[str, Any]]) -> list[Verdict]:
        """Verdicts of (response, reference) pairs, in order. The wait is bounded by their deadlines."""
        return self._verify(list(pairs), self.limits.deadline_s)

    def self_test(self) -> None:
        """Judge the known pairs and one hanging answer. Raises VerifierSelfTestError for a wrong verdict."""
        pairs = selftest.KNOWN_PAIRS
        selftest.check(pairs, self._verify([pair[:2] for pair in pairs], SELF_TEST_DEADLINE_S))
        hanging = selftest.HANGING
        deadline = min(1.0, self.limits.deadline_s)
        selftest.check([hanging], self._verify([hanging[:2]], deadline))

    def close(self) -> None:
        """End all processes and cancel open futures. Idempotent."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
            abandoned, self._open = list(self._open.values()), {}
        for future in abandoned:
            future.cancel()
            future.set_running_or_notify_cancel()  # wakes waiting threads
        if server is not None:
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _verify(self, pairs: Sequence[tuple[str, Any]], deadline_s: float) -> list[Verdict]:
        futures = self._submit(pairs, deadline_s)
        with self._lock:
            queued = len(self._open)  # includes those of other callers
        worst = math.ceil(queued / self.limits.processes) * (max(deadline_s, self.limits.deadline_s) + STOP_S)
        if wait(futures, timeout=START_S + worst).not_done:
            log.error("the verifier's server did not answer within %.0f s; it is killed", START_S + worst)
            with self._lock:
                server = self._server
            if server is not None:
                server.kill()
        return [future.result(timeout=START_S) for future in futures]

    def _submit(self, pairs: Sequence[tuple[str, Any]], deadline_s: float) -> list[Future[Verdict]]:
        if os.getpid() != self._owner:
            raise InvariantError("this MathVerifier belongs to another process; make one in this process")
        futures: list[Future[Verdict]] = []
        batch: list[Work] = []
        for response, reference in pairs:
            future: Future[Verdict] = Future()
            futures.append(future)
            answer = response if self._whole else last_boxed(response)
            if answer is None or (not self._whole and len(answer) > longest_answer(reference)):
                self._resolve(future, Verdict(0.0))
                continue
            ticket = next(self._tickets)
            wanted = reference if self._whole else plain_reference(reference)
            batch.append(Work(ticket, answer, wanted, deadline_s))
            with self._lock:
                self._open[ticket] = future
        if batch:
            with self._lock:
                self._server = server = self._server or self._new_server()
            server.send(batch)
        return futures

    def _new_server(self) -> ServerProcess:
        if self._closed:
            raise InvariantError("this MathVerifier is closed")
        if not self._answered:
            raise InvariantError(
                "the verifier's server process died before its first answer; see its error output above"
            )
        self._answered = False
        return ServerProcess(self._scorer, self.limits, self._on_message, self._on_end)

    def _on_message(self, done: Done | Layers) -> None:
        if isinstance(done, Layers):
            self._on_layers(done)
            return
        with self._lock:
            self._answered = True
            future = self._open.pop(done.ticket, None)
        if future is None:
            return  # closed or restarted meanwhile
        if done.cause is not None:
            log.info("verdict %s: %s", done.cause, done.detail)
        elif done.detail and next(self._printed) < MOST_PRINTED:
            log.warning("%s printed: %s", self._scorer, done.detail)
        cause = done.cause
        if cause == INVALID and self._whole:
            cause = f"{REWARD} {done.detail.partition(': ')[0]}"  # file, line and type of the user's error
        self._resolve(future, Verdict(done.label, cause))

    def _on_layers(self, layers: Layers) -> None:
        """Log once per verifier how its workers are confined."""
        if self.layers is None:
            log.info("the verifier's workers are confined by: %s", ", ".join(layers.held))
            for name in sorted(KERNEL_LAYERS & layers.missing.keys()):
                reason = layers.missing[name]
                log.warning("the verifier's workers run without %s: %s; SECURITY.md says what follows", name, reason)
        self.layers = layers

    def _on_end(self, server: ServerProcess) -> None:
        with self._lock:
            if self._server is not server:
                return  # closed
            self._server = None
            lost, self._open = list(self._open.values()), {}
        log.warning("the verifier's server process ended; %d open answers have no verdict", len(lost))
        for future in lost:
            self._resolve(future, Verdict(None, CRASH))

    def _resolve(self, future: Future[Verdict], verdict: Verdict) -> None:
        with self._lock:
            self._counts[verdict.cause if verdict.cause is not None else "labelled"] += 1
        if future.set_running_or_notify_cancel():
            future.set_result(verdict)
