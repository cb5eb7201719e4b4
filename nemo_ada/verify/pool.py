"""`MathVerifier` turns responses into verdicts. An answer cannot harm another one."""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.cores import count_usable_cores
from nemo_ada.verify import outside, selftest
from nemo_ada.verify.boxed import last_boxed, plain_reference
from nemo_ada.verify.confine import Layers
from nemo_ada.verify.process import CLOSE_S, KilledError, Server, ServerGoneError, Worker
from nemo_ada.verify.verdict import CRASH, INVALID, REWARD, TIMEOUT, Verdict
from nemo_ada.verify.worker import DEFAULT_SCORER, Judgement, encode_line

log = logging.getLogger(__name__)

MIN_MEMORY_BYTES = 256 << 20  # Python with sympy loaded maps about 150 MiB
SHORT_ANSWER = 1000  # characters that math-verify reads, however short the reference is
KERNEL_LAYERS = {"Landlock", "seccomp"}  # without one of them there is a warning
MOST_PRINTED = 20  # texts of a scorer that reach the log
SELF_TEST_DEADLINE_S = 60.0  # of the known pairs, which wait for a cold scorer
MOST_KILLED = 2  # times that an answer is given to another worker because its own was killed from outside
MOST_SERVERS = 3  # that may end in a row before they judge an answer
ALONE_AFTER_S = 30.0  # how long an answer that timed out waits for a quiet moment


@dataclass(frozen=True, slots=True)
class VerifierLimits:
    """How many workers there are, and what one answer may cost.

    Attributes:
        deadline_s: CPU seconds per answer, of the worker that judges it. So a busy machine changes no verdict. A worker
            that rests for as long, because it sleeps or is stopped, is ended, too.
        workers: number of processes. None takes one per core that the affinity and the container's quota give.
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
        return self.workers if self.workers is not None else count_usable_cores()


class _Job(NamedTuple):
    """One answer to judge, as a worker gets it.

    Attributes:
        future: its verdict.
        message: the line for the worker.
        deadline_s: how long it may take.
        killed: how often its worker was killed from outside.
        since: when it timed out, on the monotonic clock. None before.
    """

    future: Future[Verdict]
    message: bytes
    deadline_s: float
    killed: int = 0
    since: float | None = None


def bound_answer(reference: str) -> int:
    """Characters of the longest box that is read. A longer one is wrong, as a text that could not be the reference."""
    return SHORT_ANSWER + 4 * len(reference)


class MathVerifier:
    r"""Judges the last \boxed{...} of a response against a reference answer, with math-verify.

    Every answer is judged in a process that is killed at its deadline, which counts CPU seconds. An answer that timed
    out is asked again once, when no other waits and with a core of its own, before the timeout is its verdict. A
    failure has a cause instead of a label (`nemo_ada.verify.verdict`). A response without a closed box, or with a box
    that is far longer than its reference (`bound_answer`), gets label 0 at once.

    Life cycle: the constructor starts the server process and runs the self-test. `close`, or leaving the `with` block,
    ends all processes. Answers wait in one queue. Each worker process has a thread here, which gives it one answer at a
    time. Where the system has no room for another thread or worker, those that there are go on alone, with a warning.
    If the server or a worker is killed, another one is started, which gets the answers in work. Where MOST_SERVERS in a
    row end before their first answer, answers get the cause "verifier_crash", and a submit raises InvariantError.
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
        self._turn = threading.Condition(self._lock)  # an answer waits, or this verifier is closed
        self._waiting: deque[_Job] = deque()
        self._timed_out: deque[_Job] = deque()  # to be asked again
        self._asked_again, self._cores = 0, count_usable_cores()  # of these in work, and how many may be
        self._dead_servers = 0  # that ended in a row without an answer
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
        return self._wait_for_verdicts(list(pairs), self.limits.deadline_s)

    def try_out(self, pairs: Iterable[tuple[Any, ...]]) -> list[Verdict]:
        """Verdicts as of `verify_many`. Their details say what the scorer asked for and did not get (`outside`)."""
        return [future.result() for future in self._submit(list(pairs), self.limits.deadline_s, trial=True)]

    def self_test(self) -> None:
        """Judge the known pairs and one hanging answer. Raises VerifierSelfTestError for a wrong verdict."""
        short = min(0.5, self.limits.deadline_s)
        for pairs, deadline in ((selftest.KNOWN_PAIRS, SELF_TEST_DEADLINE_S), ([selftest.HANGING], short)):
            selftest.check_verdicts(
                pairs, self._wait_for_verdicts([pair[:2] for pair in pairs], deadline), self._problem
            )

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
            self._turn.notify_all()
        for future in abandoned:
            future.cancel()
            future.set_running_or_notify_cancel()  # wakes waiting threads
        self._server.close()
        for thread in threads:
            thread.join(CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_for_verdicts(self, pairs: Sequence[tuple[Any, ...]], deadline_s: float) -> list[Verdict]:
        return [future.result() for future in self._submit(pairs, deadline_s)]

    def _submit(
        self, pairs: Sequence[tuple[Any, ...]], deadline_s: float, *, trial: bool = False
    ) -> list[Future[Verdict]]:
        if os.getpid() != self._owner:
            raise InvariantError("this MathVerifier belongs to another process; make one in this process")
        self._refuse_closed()
        if self._dead_servers >= MOST_SERVERS:
            raise InvariantError(
                f"{MOST_SERVERS} server processes of the verifier died before a first answer; see their errors above"
            )
        futures: list[Future[Verdict]] = []
        for response, reference, *more in pairs:
            future: Future[Verdict] = Future()
            futures.append(future)
            answer = response if self._whole else last_boxed(response)
            if answer is None or (not self._whole and len(answer) > bound_answer(reference)):
                self._set_verdict(future, Verdict(0.0))
                continue
            wanted = reference if self._whole else plain_reference(reference)
            job = _Job(future, encode_line([answer, wanted, deadline_s, *more, trial]), deadline_s)
            with self._lock:
                self._refuse_closed()
                if len(self._workers) < min(self._most, len(self._open) + 1):
                    self._start_thread()
                self._open.add(future)
                self._waiting.append(job)
                self._turn.notify()
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
            self._use_fewer_threads(str(problem))

    def _use_fewer_threads(self, problem: str) -> None:
        """Start no further thread beside those that there are, and say so once."""
        if self._most == self.limits.processes:
            log.warning("the verifier has no room for all of its %d workers and uses fewer: %s", self._most, problem)
        self._most = len(self._workers)

    def _work(self) -> None:
        """Give the answers of the queue to one worker process, and to another one where it ended."""
        while (job := self._take_next()) is not None:
            if job.future.cancelled():
                if self._take_open(job.future):
                    job.future.set_running_or_notify_cancel()  # wakes who waits for it
                self._note_done(job)
                continue
            worker: Worker | None = None
            try:
                worker = self._get_worker()
                judgement: Judgement = worker.judge(job.message, job.deadline_s)
            except (ServerGoneError, KilledError, EOFError, OSError) as problem:  # OSError: too many open files
                self._note_done(job)
                if worker is None and self._give_up_thread(str(problem)):
                    self._put_back(job)
                    return
                if worker is not None and job.killed < MOST_KILLED and not isinstance(problem, EOFError):
                    self._put_back(job._replace(killed=job.killed + 1))
                    continue
                judgement = None, CRASH, str(problem)
            else:
                self._note_done(job)
                if judgement[1] == TIMEOUT and job.since is None:
                    self._put_back(job._replace(since=time.monotonic()))
                    continue
            self._end_answer(job.future, *judgement)

    def _take_next(self) -> _Job | None:
        """Wait for an answer, and take it. None after `close`.

        Answers that timed out come last, and no more of them at once than there are cores: they are to have a core of
        their own. Where others always wait, they do not wait for ever.
        """
        with self._turn:
            while not self._closed:
                again = self._timed_out if self._asked_again < self._cores else ()
                late = again and time.monotonic() - (again[0].since or 0.0) > ALONE_AFTER_S
                if self._waiting and not late:
                    return self._waiting.popleft()
                if again:
                    self._asked_again += 1
                    return self._timed_out.popleft()
                self._turn.wait()
        return None

    def _put_back(self, job: _Job) -> None:
        with self._turn:
            (self._waiting if job.since is None else self._timed_out).append(job)
            self._turn.notify()

    def _note_done(self, job: _Job) -> None:
        """Note that an answer is no longer in work."""
        if job.since is not None:
            with self._turn:
                self._asked_again -= 1
                self._turn.notify()

    def _get_worker(self) -> Worker:
        """Return a worker that this thread can ask: its own, or a new one."""
        thread = threading.current_thread()
        worker = self._workers[thread]
        with suppress(ServerGoneError):
            if worker is not None and worker.is_ready(self.limits.answers_per_worker):
                return worker
        self._workers[thread] = None
        while True:
            server = self._get_server()
            try:
                worker = server.fork()
                break
            except ServerGoneError:
                if self._closed or self._dead_servers >= MOST_SERVERS:
                    raise
        self._log_layers(worker.layers)
        self._workers[thread] = worker
        return worker

    def _give_up_thread(self, problem: str) -> bool:
        """Note that this thread gets no worker. Return whether it ends, because another one has a worker."""
        with self._lock:
            self._problem = problem
            others = sum(worker is not None for worker in self._workers.values())
            if others and not self._closed:
                del self._workers[threading.current_thread()]
                self._use_fewer_threads(problem)
            return bool(others)

    def _get_server(self) -> Server:
        """Return the server, or a new one where it has ended. Raises ServerGoneError where none lives long enough."""
        with self._lock:
            if not self._server.gone or self._closed:
                return self._server
            self._dead_servers = 0 if self._server.judged else self._dead_servers + 1
            if self._dead_servers >= MOST_SERVERS:
                raise ServerGoneError(f"{MOST_SERVERS} of the verifier's server processes ended at once")
            log.warning("the verifier's server process ended; another one is started")
            self._server.close()
            self._server = Server(self._scorer, self.limits.memory_bytes)
            return self._server

    def _end_answer(self, future: Future[Verdict], label: float | None, cause: str | None, detail: str) -> None:
        if not self._take_open(future):
            return
        if cause is not None:
            log.info("verdict %s: %s", cause, detail)
        elif detail and not detail.startswith((outside.REFUSES, outside.HIDES)) and next(self._printed) < MOST_PRINTED:
            log.warning("%s printed: %r", self._scorer, detail)
        if cause == INVALID and self._whole:
            cause = f"{REWARD} {detail.partition(': ')[0]}"  # file, line and type of the user's error
        self._set_verdict(future, Verdict(label, cause, detail))

    def _take_open(self, future: Future[Verdict]) -> bool:
        """Take an open future, to end it. False where `close` has ended it."""
        with self._lock:
            if future not in self._open:
                return False
            self._open.remove(future)
            return True

    def _log_layers(self, layers: Layers) -> None:
        """Log once per verifier how its workers are confined."""
        if self.layers is None:
            log.info("the verifier's workers are confined by: %s", ", ".join(layers.held))
            for name in sorted(KERNEL_LAYERS & layers.missing.keys()):
                reason = layers.missing[name]
                log.warning("the verifier's workers run without %s: %s; SECURITY.md says what follows", name, reason)
        self.layers = layers

    def _set_verdict(self, future: Future[Verdict], verdict: Verdict) -> None:
        with self._lock:
            self._counts[verdict.cause if verdict.cause is not None else "labelled"] += 1
        if future.set_running_or_notify_cancel():
            future.set_result(verdict)
