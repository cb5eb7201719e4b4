"""The verifier's server process: it forks workers, and gives each one answer at a time.

Why a separate process, and not workers of the trainer:

* `fork` of a process with threads (Ray, vLLM, gloo) is unsafe. This process has one thread and math-verify loaded. A
  new worker costs milliseconds, and none loads the trainer's script or torch.
* The whole tree is one process group. The trainer can end it at once, in any state.

Life cycle: `process` starts `main` with a socket as its input. It receives the scorer's name and the limits, then Work,
and sends Layers (once, from the first worker) and Done. It ends when the connection does, or when its parent is gone.

Workers are not trusted. Each has a connection of its own, so what it sends or leaves out concerns its own answer. The
deadline counts here.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from nemo_ada.verify import confine, worker
from nemo_ada.verify.messages import Channel, Done, Layers, SpoiledError, VerifierLimits, Work, read
from nemo_ada.verify.verdict import CAUSES, CRASH, TIMEOUT
from nemo_ada.verify.worker import Judgement

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
CHECK_S = 0.5  # how often an idle server checks for its parent
START_S = 60.0  # for a new worker, on a loaded machine
MAX_FAILED_STARTS = 3  # in a row, after which open answers get a cause
MAX_LINE = 16 << 10  # bytes of a worker's message: its text has 500 characters


def checked(message: object) -> Judgement:
    """Return a judgement as a worker sent it. Raises SpoiledError for one that `judge` cannot have made."""
    match message:
        case [float(label), None, str(detail)] if 0.0 <= label <= 1.0:
            return label, None, detail
        case [None, str(cause), str(detail)] if cause in CAUSES:
            return None, cause, detail
    raise SpoiledError("it sent something else than a judgement")


@dataclass(eq=False)
class Worker:
    """A worker process, as its server sees it.

    Attributes:
        pid: its process id.
        channel: its connection.
        due: when it is ended, in seconds of the monotonic clock; None while it has nothing to do.
        work: the answer that it judges.
        ready: whether it has said how it is confined.
        answers: how many it has judged.
    """

    pid: int
    channel: Channel
    due: float | None
    work: Work | None = None
    ready: bool = False
    answers: int = 0


class Server:
    """Gives the trainer's answers to workers, and ends a worker that is late, dies or sends nonsense."""

    def __init__(self, trainer: Channel, scorer: str, limits: VerifierLimits) -> None:
        self._trainer, self._scorer, self._limits = trainer, scorer, limits
        self._queue: deque[Work] = deque()
        self._workers: list[Worker] = []
        self._failed_starts = 0
        self._told = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(trainer, READ, (trainer, None))

    def serve(self, parent: int) -> None:
        """Work until the connection ends or the parent is gone."""
        while os.getppid() == parent:
            self._start_workers()
            self._hand_out()
            for channel, one in self._channels():
                self._selector.modify(channel, READ | (WRITE if channel.unsent else 0), (channel, one))
            for key, _ in self._selector.select(self._rest_s()):
                channel, one = key.data
                channel.flush()
                if one is not None:
                    self._hear(one)
                elif not self._take():
                    return
            for one in [one for one in self._workers if one.due is not None and one.due <= time.monotonic()]:
                self._end(one, TIMEOUT, "the deadline passed")

    def _channels(self) -> list[tuple[Channel, Worker | None]]:
        return [(self._trainer, None), *((one.channel, one) for one in self._workers)]

    def _take(self) -> bool:
        """Take the trainer's answers. False where it is gone."""
        try:
            self._queue += [Work(*message) for message in self._trainer.receive()]
        except EOFError:
            return False
        return True

    def _rest_s(self) -> float:
        """Seconds until something is due."""
        due = [one.due - time.monotonic() for one in self._workers if one.due is not None]
        return max(0.0, min([CHECK_S, *due]))

    def _start_workers(self) -> None:
        """Fork workers where answers wait for one."""
        busy = sum(one.work is not None for one in self._workers)
        while len(self._workers) < min(self._limits.processes, busy + len(self._queue)):
            try:
                self._fork()
            except OSError as problem:
                self._start_failed(f"no worker can be started: {problem}")
                return

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                worker.work(theirs.fileno(), self._scorer, self._limits.memory_bytes)
            finally:
                os._exit(1)
        theirs.close()
        one = Worker(pid, Channel(ours, MAX_LINE), time.monotonic() + START_S)
        self._workers.append(one)
        self._selector.register(one.channel, READ, (one.channel, one))

    def _hand_out(self) -> None:
        for one in self._workers:
            if self._queue and one.ready and one.work is None:
                one.work = self._queue.popleft()
                one.due = time.monotonic() + one.work.deadline_s
                one.channel.send(one.work[1:])

    def _hear(self, one: Worker) -> None:
        """Take what a worker sent. It is ended after its last answer, and at once for nonsense."""
        try:
            for message in one.channel.receive():
                if not one.ready:
                    self._started(one, Layers(*message))
                    continue
                judgement = checked(message)
                if one.work is None:
                    raise SpoiledError("it sent a judgement that nobody asked for")
                self._trainer.send(Done(one.work.ticket, *judgement)._asdict())
                one.work = one.due = None
                one.answers += 1
        except SpoiledError as problem:
            self._end(one, CRASH, str(problem))
        except EOFError:
            self._end(one)
        else:
            if one.answers >= self._limits.answers_per_worker:
                self._end(one)

    def _started(self, one: Worker, layers: Layers) -> None:
        one.ready, one.due = True, None
        self._failed_starts = 0
        if not self._told:
            self._trainer.send(layers._asdict())
            self._told = True

    def _end(self, one: Worker, cause: str | None = None, detail: str = "") -> None:
        """End a worker, and report its answer if it has one. Without a cause, its exit code tells."""
        self._workers.remove(one)
        self._selector.unregister(one.channel)
        one.channel.close()
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(one.pid, 0)[1])
        if cause is None and code == -signal.SIGXCPU:
            cause, detail = TIMEOUT, "the processor time limit was reached"
        if not one.ready:
            self._start_failed(f"the worker ended with exit code {code} before its first answer")
        elif one.work is not None:
            detail = detail or f"the worker ended with exit code {code}"
            self._trainer.send(Done(one.work.ticket, None, cause or CRASH, detail)._asdict())

    def _start_failed(self, detail: str) -> None:
        self._failed_starts += 1
        while self._queue and self._failed_starts >= MAX_FAILED_STARTS:
            self._trainer.send(Done(self._queue.popleft().ticket, None, CRASH, detail)._asdict())

    def close(self) -> None:
        """End and reap the workers."""
        for one in list(self._workers):
            self._end(one)


def main(parent: int) -> None:
    """Entry point of the server process: serve the connection that is its input."""
    connection = socket.socket(fileno=os.dup(0))
    with connection.makefile("rb", buffering=0) as first:  # no byte beyond the line
        scorer, limits = read(first.readline())
    with suppress(Exception):  # `judge` imports it again, and reports the error with the answer
        worker.load_scorer(scorer)
    confine.import_ahead()
    gc.freeze()  # workers share this memory
    server = Server(Channel(connection), scorer, VerifierLimits(**limits))
    try:
        server.serve(parent)
    finally:
        server.close()
