"""`MathVerifier` turns responses into verdicts. An answer cannot harm another one."""

from __future__ import annotations

import itertools
import logging
import math
import os
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.verify import selftest
from nemo_ada.verify.boxed import last_boxed, plain_reference
from nemo_ada.verify.confine import Layers
from nemo_ada.verify.process import CLOSE_S, Server, ServerGoneError, Worker
from nemo_ada.verify.verdict import CRASH, INVALID, REWARD, Verdict
from nemo_ada.verify.worker import DEFAULT_SCORER, Judgement, line

log = logging.getLogger(__name__)

MIN_MEMORY_BYTES = 256 << 20  # Python with sympy loaded maps about 150 MiB
SHORT_ANSWER = 1000  # characters that math-verify reads, however short the reference is
KERNEL_LAYERS = {"Landlock", "seccomp"}  # without one of them there is a warning
MOST_PRINTED = 20  # texts of a scorer that reach the log
SELF_TEST_DEADLINE_S = 60.0  # of the known pairs, which wait for a cold scorer


@dataclass(frozen=True, slots=True)
class VerifierLimits:
    """How many workers there are, and what one answer may cost.

    Attributes:
        deadline_s: wall seconds per answer, from the moment when a worker starts on it. Time in the queue does not
            count.
        workers: number of processes. None takes one per usable core.
        memory_bytes: address space of one worker (RLIMIT_AS).
        answers_per_worker: a worker is replaced after this many answers, because sympy's caches grow without limit.
    """

    deadline_s: float = 5.0
    workers: int | None = None
    memory_bytes: int = 1 << 30
    answers_per_worker: int = 2000

    def __post_init__(self) -> None:
        if not (math.isfinite(self.deadline_s) and self.deadline_s > 0):
            raise UserError(f"verifier.deadline_s={self.deadline_s} must be a positive number of seconds; 5 is usual")
        for name, least in (("workers", 1), ("memory_bytes", MIN_MEMORY_BYTES), ("answers_per_worker", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"verifier.{name}={value} must be {least} or more")

    @property
    def processes(self) -> int:
        """Number of workers."""
        return self.workers if self.workers is not None else len(os.sched_getaffinity(0))


class _Job(NamedTuple):
    """One answer to judge within `deadline_s` seconds of its start, as a worker gets it."""

    future: Future[Verdict]
    message: bytes
    deadline_s: float


def longest_answer(reference: str) -> int:
    """Characters of the longest box that is read. A longer one is wrong, as a text that could not be the reference."""
    return SHORT_ANSWER + 4 * len(reference)


class MathVerifier:
    r"""Judges the last \boxed{...} of a response against a reference answer, with math-verify.

    Every answer is judged in a process that is killed at its deadline. A failure has a cause instead of a label
    (`nemo_ada.verify.verdict`). A response without a closed box, or with a box that is far longer than its reference
    (`longest_answer`), gets label 0 at once.

    Life cycle: the constructor starts the server process and runs the self-test. `close`, or leaving the `with` block,
    ends all processes. Answers wait in one queue. Each worker process has a thread here, which gives it one answer at a
    time. Where the system has no room for another thread or worker, those that there are go on alone, with a warning.
    If the server dies, the answers in work get the cause "verifier_crash", and another server is started. One
    that dies before its first answer is not replaced: all answers get that cause, and a submit raises InvariantError.
    Thread-safe. A forked child must make its own verifier.

    whole: whether the scorer gets the whole response in place of its last box, and the reference as it is: a text, a
    number, a list or an object of JSON.
    scorer: `package.module:function`, (answer, reference) -> score in [0, 1]; imported in the workers only. It imports
    what it needs at the top of its module: a worker is confined afterwards (`confine`), and cannot read other files.
    Where it has a parameter `prompt`, it gets that, too.
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
        self._printed = itertools.count()
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._open: set[Future[Verdict]] = set()
        self._workers: dict[threading.Thread, Worker | None] = {}  # the threads, each with the worker that it asks
        self._most = self.limits.processes  # threads that there can be
        self._problem = ""  # why a thread got no worker
        self._counts: Counter[str] = Counter()
        self._closed = False
        self.layers: Layers | None = None  # how workers are confined; None until the first one has said it
        self._server = Server(scorer, self.limits.memory_bytes)
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
        """Process group of the verifier's processes, None after `close`."""
        return None if self._closed else self._server.pid

    def submit(self, response: str, reference: Any, prompt: str = "") -> Future[Verdict]:
        """Queue one response. A failure of the verifier is a verdict with a cause, never an exception.

        prompt: what the model read, for a scorer that has a parameter of this name.
        """
        return self._submit([(response, reference, prompt)], self.limits.deadline_s)[0]

    def verify_many(self, pairs: Iterable[tuple[Any, ...]]) -> list[Verdict]:
        """Verdicts of (response, reference) or (response, reference, prompt), in order. Deadlines bound the wait."""
        return self._verify(list(pairs), self.limits.deadline_s)

    def self_test(self) -> None:
        """Judge the known pairs and one hanging answer. Raises VerifierSelfTestError for a wrong verdict."""
        short = min(1.0, self.limits.deadline_s)
        for pairs, deadline in ((selftest.KNOWN_PAIRS, SELF_TEST_DEADLINE_S), ([selftest.HANGING], short)):
            selftest.check(pairs, self._verify([pair[:2] for pair in pairs], deadline), self._problem)

    def close(self) -> None:
        """End all processes and cancel open futures. Idempotent."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            abandoned, self._open = self._open, set()
            threads = [thread for thread in self._workers if thread is not threading.current_thread()]
        for future in abandoned:
            future.cancel()
            future.set_running_or_notify_cancel()  # wakes waiting threads
        for _ in threads:
            self._queue.put(None)
        self._server.close()
        for thread in threads:
            thread.join(CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _verify(self, pairs: Sequence[tuple[Any, ...]], deadline_s: float) -> list[Verdict]:
        return [future.result() for future in self._submit(pairs, deadline_s)]

    def _submit(self, pairs: Sequence[tuple[Any, ...]], deadline_s: float) -> list[Future[Verdict]]:
        if os.getpid() != self._owner:
            raise InvariantError("this MathVerifier belongs to another process; make one in this process")
        self._refuse_closed()
        if self._server.gone and not self._server.judged:
            raise InvariantError(
                "the verifier's server process died before its first answer; see its error output above"
            )
        futures: list[Future[Verdict]] = []
        for response, reference, *more in pairs:
            future: Future[Verdict] = Future()
            futures.append(future)
            answer = response if self._whole else last_boxed(response)
            if answer is None or (not self._whole and len(answer) > longest_answer(reference)):
                self._resolve(future, Verdict(0.0))
                continue
            wanted = reference if self._whole else plain_reference(reference)
            job = _Job(future, line([answer, wanted, deadline_s, *more]), deadline_s)
            with self._lock:
                self._refuse_closed()
                if len(self._workers) < min(self._most, len(self._open) + 1):
                    self._start_thread()
                self._open.add(future)
                self._queue.put(job)
        return futures

    def _refuse_closed(self) -> None:
        if self._closed:
            raise InvariantError("this MathVerifier is closed")

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="verifier", daemon=True)
        self._workers[thread] = None
        try:
            thread.start()
        except RuntimeError as problem:
            del self._workers[thread]
            if not self._workers:
                raise UserError(f"the verifier has no thread: {problem}; raise the limit of `ulimit -u`") from None
            self._go_on(str(problem))

    def _go_on(self, problem: str) -> None:
        """Start no further thread beside those that there are, and say so once."""
        if self._most == self.limits.processes:
            log.warning("the verifier has no room for all of its %d workers and uses fewer: %s", self._most, problem)
        self._most = len(self._workers)

    def _work(self) -> None:
        """Give the answers of the queue to one worker process, and to another one where it ended."""
        while not self._closed and (job := self._queue.get()) is not None:
            if job.future.cancelled():
                if self._take(job.future):
                    job.future.set_running_or_notify_cancel()  # wakes who waits for it
                continue
            worker: Worker | None = None
            try:
                worker = self._ready()
                judgement: Judgement = worker.judge(job.message, job.deadline_s)
            except (ServerGoneError, EOFError, OSError) as problem:  # OSError: too many open files
                if worker is None and self._leaves(str(problem)):
                    self._queue.put(job)
                    return
                judgement = None, CRASH, str(problem)
            self._settle(job.future, *judgement)

    def _ready(self) -> Worker:
        """Return a worker that this thread can ask: its own, or a new one."""
        thread = threading.current_thread()
        worker = self._workers[thread]
        with suppress(ServerGoneError):
            if worker is not None and worker.ready(self.limits.answers_per_worker):
                return worker
        self._workers[thread] = None
        worker = self._living().fork()
        self._on_layers(worker.layers)
        self._workers[thread] = worker
        return worker

    def _leaves(self, problem: str) -> bool:
        """Note that this thread gets no worker. Return whether it ends, because another one has a worker."""
        with self._lock:
            self._problem = problem
            others = sum(worker is not None for worker in self._workers.values())
            if others and not self._closed:
                del self._workers[threading.current_thread()]
                self._go_on(problem)
            return bool(others)

    def _living(self) -> Server:
        """Return the server, or a new one where it ended after it had judged answers."""
        with self._lock:
            if self._server.gone and self._server.judged and not self._closed:
                log.warning("the verifier's server process ended; another one is started")
                self._server.close()
                self._server = Server(self._scorer, self.limits.memory_bytes)
            return self._server

    def _settle(self, future: Future[Verdict], label: float | None, cause: str | None, detail: str) -> None:
        if not self._take(future):
            return
        if cause is not None:
            log.info("verdict %s: %s", cause, detail)
        elif detail and next(self._printed) < MOST_PRINTED:
            log.warning("%s printed: %r", self._scorer, detail)
        if cause == INVALID and self._whole:
            cause = f"{REWARD} {detail.partition(': ')[0]}"  # file, line and type of the user's error
        self._resolve(future, Verdict(label, cause, detail if cause is not None else ""))

    def _take(self, future: Future[Verdict]) -> bool:
        """Take an open future, to end it. False where `close` has ended it."""
        with self._lock:
            if future not in self._open:
                return False
            self._open.remove(future)
            return True

    def _on_layers(self, layers: Layers) -> None:
        """Log once per verifier how its workers are confined."""
        if self.layers is None:
            log.info("the verifier's workers are confined by: %s", ", ".join(layers.held))
            for name in sorted(KERNEL_LAYERS & layers.missing.keys()):
                reason = layers.missing[name]
                log.warning("the verifier's workers run without %s: %s; SECURITY.md says what follows", name, reason)
        self.layers = layers

    def _resolve(self, future: Future[Verdict], verdict: Verdict) -> None:
        with self._lock:
            self._counts[verdict.cause if verdict.cause is not None else "labelled"] += 1
        if future.set_running_or_notify_cancel():
            future.set_result(verdict)
