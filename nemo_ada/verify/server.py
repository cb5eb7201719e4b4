"""The verifier's server process: a pebble pool behind one connection.

Why a separate process, and not a pool inside the trainer:

* `spawn` and `forkserver` workers import the main script of their parent. A recipe or a Ray worker would load torch
  into each of them. This process has no main script.
* `fork` of a process with threads (Ray, vLLM, gloo) is unsafe. Here workers come from a fork server: one
  single-threaded process with math-verify loaded. A new worker costs milliseconds.
* The whole tree is one process group. The trainer can end it at once, in any state.

Life cycle: `process` starts `main` with an open connection. It receives the scorer's name and the
limits, then lists of Work, and sends lists of Layers (once, from the first worker) and Done. It ends on None, when the
connection closes, or when its parent is gone.

Workers are not trusted: `messages.read` reads what they send, and `read` checks it.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import struct
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import forkserver, reduction, resource_tracker
from multiprocessing.connection import Connection

from pebble import ProcessExpired, ProcessPool

from nemo_ada.verify import kernel, messages
from nemo_ada.verify.messages import Done, Layers, VerifierLimits, Work
from nemo_ada.verify.verdict import CAUSES, CRASH, INVALID, TIMEOUT
from nemo_ada.verify.worker import Judgement, judge, layers, start

HEADER = struct.Struct("!i")  # multiprocessing's: the size of a message
CHECK_S = 0.5  # how often an idle server checks for its parent and a broken pool
MAX_BREAKS = 3  # breaks of the pool in a row, after which open answers get a cause
MAX_MESSAGE = 64 << 10  # bytes of a worker's message
REST_S = 1.0  # for the rest of a worker's message: the kernel passes on one of up to 4096 bytes in one piece


def read(future: Future[Judgement]) -> Judgement:
    """The judgement of a finished task. A process failure becomes a cause. Raises BrokenProcessPool."""
    try:
        return _checked(future.result())
    except BrokenProcessPool:
        raise
    except TimeoutError:
        return None, TIMEOUT, "the deadline passed"
    except ProcessExpired as error:
        if error.exitcode == -signal.SIGXCPU:
            return None, TIMEOUT, "the processor time limit was reached"
        return None, CRASH, f"the worker ended with exit code {error.exitcode}"
    except Exception as error:  # noqa: BLE001 - a boundary: an answer that cannot be sent to a worker
        return None, INVALID, f"{type(error).__name__}: {error}"[:500]


def _checked(judgement: object) -> Judgement:
    """A judgement as a worker sent it. One that `judge` cannot have made is a crash of the worker."""
    match judgement:
        case float(label), None, str(detail) if 0.0 <= label <= 1.0:
            return label, None, detail
        case None, str(cause), str(detail) if cause in CAUSES:
            return None, cause, detail
    return None, CRASH, "the worker sent something else than a judgement"


def whole_message(connection: Connection, _maxsize: int | None = None) -> io.BytesIO:
    """Read one message of a worker, in place of Connection._recv_bytes. All workers write to one pipe.

    Raises:
        OSError: the message is longer than MAX_MESSAGE, or its rest does not come. Pebble then replaces its workers.
        EOFError: the pipe was closed.
    """
    data, size = b"", HEADER.size
    while len(data) < size:
        if data and not connection.poll(REST_S):
            raise OSError("a worker sent half a message")
        part = os.read(connection.fileno(), size - len(data))
        if not part:
            raise EOFError
        data += part
        if len(data) == HEADER.size == size:
            size += HEADER.unpack(data)[0]
            if not HEADER.size < size <= MAX_MESSAGE:
                raise OSError(f"a worker sent a message of {size} bytes")
    return io.BytesIO(data[HEADER.size :])


class Server:
    """Feeds one pebble pool from one connection.

    The pool breaks when workers die before they take work, or send nonsense. Then it is replaced, and the open answers
    are judged one by one, because nobody knows the guilty one and pebble forgets its queue.
    """

    def __init__(self, connection: Connection, scorer: str, limits: VerifierLimits) -> None:
        self._connection, self._scorer, self._limits = connection, scorer, limits
        self._sending = threading.Lock()
        self._open: dict[int, Work] = {}
        self._queue = threading.RLock()
        self._one_by_one: deque[Work] = deque()  # the first of them is being judged
        self._broken = threading.Event()
        self._breaks = 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([scorer.partition(":")[0]])
        self._pool = self._new_pool()
        self._pool.schedule(layers).add_done_callback(self._tell_layers)

    def _tell_layers(self, future: Future[Layers]) -> None:
        """Send how the first worker is confined. A worker that dies before it can say so is an answer's affair."""
        with suppress(Exception):
            held = future.result()
            if isinstance(held, Layers):
                self._send(held)

    def _new_pool(self) -> ProcessPool:
        return ProcessPool(
            max_workers=self._limits.processes,
            max_tasks=self._limits.answers_per_worker,
            initializer=start,
            initargs=(self._scorer, self._limits.memory_bytes),
            context=self._context,
        )

    def _schedule(self, work: Work) -> None:
        arguments = (self._scorer, work.answer, work.reference, work.deadline_s)
        try:
            future = self._pool.schedule(judge, args=arguments, timeout=work.deadline_s)
        except RuntimeError:  # pebble raises this for a broken pool
            self._broken.set()
            return
        future.add_done_callback(lambda finished: self._finish(work.ticket, finished))

    def _finish(self, ticket: int, future: Future[Judgement]) -> None:
        try:
            label, cause, detail = read(future)
        except BrokenProcessPool:
            self._broken.set()
            return
        self._breaks = 0
        self._report(Done(ticket, label, cause, detail))
        with self._queue:
            if self._one_by_one and self._one_by_one[0].ticket == ticket:
                self._one_by_one.popleft()
                if self._one_by_one:
                    self._schedule(self._one_by_one[0])

    def _report(self, done: Done) -> None:
        self._open.pop(done.ticket, None)
        self._send(done)

    def _send(self, message: Done | Layers) -> None:
        with self._sending, suppress(OSError):  # the parent is gone; serve() will end
            self._connection.send([message])

    def _mend(self) -> None:
        self._close_pool()
        self._broken.clear()
        self._breaks += 1
        self._pool = self._new_pool()
        guilty = [self._one_by_one[0]] if self._one_by_one else []
        if self._breaks >= MAX_BREAKS:
            guilty = list(self._open.values())
        for work in guilty:
            self._report(Done(work.ticket, None, CRASH, "its worker broke the pool"))
        with self._queue:
            self._one_by_one = deque(self._open.values())
            if self._one_by_one:
                self._schedule(self._one_by_one[0])

    def serve(self, parent: int) -> None:
        """Work until None arrives, the connection closes or the parent is gone."""
        while os.getppid() == parent:
            if self._broken.is_set():
                self._mend()
            if not self._connection.poll(CHECK_S):
                continue
            try:
                batch = messages.read(self._connection.recv_bytes())
            except (EOFError, OSError):
                return
            if batch is None:
                return
            for work in batch:
                self._open[work.ticket] = work
                with self._queue:
                    if self._one_by_one:
                        self._one_by_one.append(work)
                    else:
                        self._schedule(work)

    def _close_pool(self) -> None:
        self._pool.stop()
        self._pool.join()

    def close(self) -> None:
        """End and reap the workers, then multiprocessing's two helper processes."""
        self._close_pool()
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


def main(descriptor: int, parent: int) -> None:
    """Entry point of the server process: serve the connection on an inherited file descriptor."""
    with suppress(kernel.Missing):
        kernel.hide_memory()
    reduction.ForkingPickler.loads = messages.read  # type: ignore[assignment]  # what workers send, too
    connection = Connection(descriptor)
    connection._recv_bytes = connection._recv_bytes  # type: ignore[attr-defined]  # the trainer's messages may be long
    Connection._recv_bytes = whole_message  # type: ignore[attr-defined]
    server = Server(connection, *messages.read(connection.recv_bytes()))
    try:
        server.serve(parent)
    finally:
        server.close()
