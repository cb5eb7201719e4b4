"""The trainer's side of the verifier's processes: start the server, get workers from it, ask them, end them all.

Messages are JSON. Reading it makes numbers, texts, lists and dictionaries only, so a worker that an answer has taken
over cannot run code here. Each worker has a connection and a thread of its own: what it sends or leaves out concerns
its own answer.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from nemo_ada.by_name import find
from nemo_ada.errors import UserError
from nemo_ada.run.start import PYTHON_NEEDS, TimeoutExpired, begin, make_environment, make_python_command
from nemo_ada.verify.confine import Layers
from nemo_ada.verify.verdict import CAUSES, CRASH, TIMEOUT
from nemo_ada.verify.worker import DEFAULT_SCORER, Judgement, encode_line

log = logging.getLogger(__name__)

CLOSE_S = 10.0  # time for an orderly end before the process group is killed
REPLY_S = 120.0  # of CPU or of rest, for a server that starts cold
START_S = 60.0  # of CPU or of rest, for a new worker
LOOK_S = 0.5  # how often a process that takes long is looked at
MAX_STARTS = 3  # of workers for one answer
MOST_NAMES = 1000  # of hidden variables that a server hears of
MAX_LINE, MAX_TEXT = 16 << 10, 500  # bytes of a worker's message, and characters of the text in it


class ServerGoneError(Exception):
    """The server process ended, or does not reply."""


class SpoiledError(Exception):
    """A worker sent what is no judgement."""


class KilledError(Exception):
    """A worker was killed from outside, for example by the kernel when memory was short. Its answer did not do that."""


class Patience:
    """How long a process may take: CPU seconds of its own, and as many seconds of rest.

    The wall clock would end answers because the machine is busy. So time in which the process waits for a core does not
    count. Time in which it neither runs nor waits for a core does, because it makes no progress: it sleeps, or it is
    stopped.
    """

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid, self._seconds = pid, seconds
        self._begun, self._rested = self._read_cpu_seconds(), 0.0
        self._seen = time.monotonic(), self._begun

    def wait(self, connection: socket.socket, event: int) -> None:
        """Wait until a connection can be used.

        Args:
            connection: the connection.
            event: select.POLLIN or select.POLLOUT.

        Raises:
            TimeoutError: the process has used up its time.
        """
        waiting, left = select.poll(), self._seconds
        waiting.register(connection, event)
        while not waiting.poll(math.ceil(1000 * min(max(left, 0.01), LOOK_S))):
            left = self._count_seconds_left()
            if left <= 0 and not waiting.poll(0):  # this thread may have waited for a core itself
                raise TimeoutError

    def _count_seconds_left(self) -> float:
        """Look at the process, and return for how many seconds it may go on at least."""
        then, used_then = self._seen
        self._seen = now, used = time.monotonic(), self._read_cpu_seconds()
        if not self._waits_for_a_core():
            self._rested += max(0.0, now - then - (used - used_then))
        return self._seconds - max(used - self._begun, self._rested)

    def _read_cpu_seconds(self) -> float:
        """Return the CPU seconds of the process.

        Those of the wall clock where it has ended: its connection will say so.
        """
        try:
            return time.clock_gettime(~self._pid << 3 | 2)  # the kernel's number for the CPU clock of a process
        except OSError:
            return time.monotonic()

    def _waits_for_a_core(self) -> bool:
        try:
            with open(f"/proc/{self._pid}/stat", "rb") as status:
                return status.read().rpartition(b") ")[2].startswith(b"R")
        except OSError:
            return False


class Server:
    """One server in a session of its own (Ctrl-C at the terminal does not reach it). It has a reply to each request."""

    def __init__(self, scorer: str, memory_bytes: int) -> None:
        self.judged = False  # whether a worker of it has judged an answer
        self._closing = False
        self._asking = threading.Lock()
        # Held while a worker's two sockets are made and one is handed over. With `_asking` alone, every thread that
        # waits for its turn would hold two descriptors, and a site may allow few.
        self._forking = threading.Lock()
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        kept = make_environment(listed=PYTHON_NEEDS, OMP_NUM_THREADS="1")  # one thread per worker
        with theirs:
            self._process = begin(  # the server ends when the process of this id is no longer its parent
                make_python_command(
                    sys.executable, "-c", f"from nemo_ada.verify.server import main; main({os.getpid()})"
                ),
                stdin=theirs.fileno(),
                start_new_session=True,
                env=kept,
            )
        # With its whole path, because the server does not stand in the user's folder. One that is not there stays as it
        # is: each answer gets that as its cause.
        with suppress(UserError):
            scorer = find("the scorer", scorer)
        # The server gets no value of the others, and says when a reward reads one of these names.
        hidden = [name for name in os.environ if name not in kept] if scorer != DEFAULT_SCORER else []
        self._control.send(encode_line([scorer, memory_bytes, hidden[:MOST_NAMES]]))

    @property
    def pid(self) -> int:
        """Process id of the server. It is also its process group."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def fork(self) -> Worker:
        """Return a new worker. Raises EOFError where three of them end or hang before they can judge."""
        problem = ""
        for _ in range(MAX_STARTS):
            with self._forking:
                ours, theirs = socket.socketpair()
                with theirs:
                    pid = self._ask(b"fork", [theirs.fileno()])
            if isinstance(pid, str):
                ours.close()
                problem = f"no worker can be started: {pid}"
                continue
            worker = Worker(self, pid, ours)
            try:
                worker.layers = Layers(*worker.receive(Patience(pid, START_S)))
                return worker
            except (TimeoutError, EOFError, SpoiledError):
                problem = f"the worker ended with exit code {worker.end()} before its first answer"
        raise EOFError(problem)

    def end(self, pid: int) -> int:
        """End a worker, and return its exit code."""
        return int(self._ask(str(pid).encode()))

    def _ask(self, request: bytes, handed: list[int] | None = None) -> Any:
        try:
            with self._asking:
                socket.send_fds(self._control, [request], handed or [])
                Patience(self.pid, REPLY_S).wait(self._control, select.POLLIN)
                reply = self._control.recv(MAX_LINE)
        except OSError:
            reply = b""
        if not reply:
            if not self._closing:
                self._kill()
            raise ServerGoneError("the verifier's server process ended")
        return json.loads(reply)

    def _kill(self) -> None:
        """End the whole group now."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the server, by force after CLOSE_S. Afterwards no process of the group is left."""
        self._closing = True
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        try:
            orderly = self._process.wait(CLOSE_S) == 0
        except TimeoutExpired:
            orderly = False
        except BaseException:  # a second Ctrl-C
            self._kill()
            raise
        if not orderly:
            log.warning("the verifier's server did not end in order; its process group %d is killed", self.pid)
            self._kill()
        with self._asking:
            self._control.close()


class Worker:
    """A worker process. One thread at a time asks it."""

    layers: Layers

    def __init__(self, server: Server, pid: int, connection: socket.socket) -> None:
        self._server, self._pid, self._connection = server, pid, connection
        connection.setblocking(False)
        self.answers = 0
        self.alive = True

    def judge(self, message: bytes, deadline_s: float) -> Judgement:
        """Return the judgement of an answer. After a failure of the worker, this is a cause, and the worker is ended.

        Args:
            message: the line that asks for it.
            deadline_s: how long it may take (`Patience`).

        Raises:
            KilledError: the worker was killed, and not by its answer.
            ServerGoneError: the worker failed, and so did its server.
        """
        patience, unsent = Patience(self._pid, deadline_s), memoryview(message)
        try:
            while unsent:
                try:
                    unsent = unsent[self._connection.send(unsent) :]
                except BlockingIOError:  # a long one, which it has not read yet
                    patience.wait(self._connection, select.POLLOUT)
            judgement = _check_judgement(self.receive(patience))
        except SpoiledError as problem:
            self.end()
            return None, CRASH, str(problem)
        except TimeoutError:
            self.end()
            return None, TIMEOUT, "the deadline passed"
        except (EOFError, OSError):
            code = self.end()
            if code == -signal.SIGKILL:  # the limits of an answer end in SIGXCPU (CPU time) or an error (memory)
                raise KilledError("the worker was killed from outside") from None
            timed_out = code == -signal.SIGXCPU
            return None, TIMEOUT if timed_out else CRASH, f"the worker ended with exit code {code}"
        self._server.judged = True
        self.answers += 1
        return judgement

    def receive(self, patience: Patience) -> Any:
        """Return the next message. Raises TimeoutError, EOFError, or SpoiledError where it is none."""
        received = bytearray()
        while b"\n" not in received:
            patience.wait(self._connection, select.POLLIN)
            try:
                part = self._connection.recv(MAX_LINE)
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError
            received += part
            if len(received) > MAX_LINE:
                raise SpoiledError(f"what it sent is longer than {MAX_LINE} bytes")
        first, _, rest = received.partition(b"\n")
        if rest:  # nobody asked for more, so this is its last message
            self.end()
        try:
            return json.loads(first)
        except (ValueError, RecursionError) as problem:  # numbers of many digits, nested lists
            raise SpoiledError(f"what it sent cannot be read: {type(problem).__name__}") from None

    def is_ready(self, most_answers: int) -> bool:
        """Return whether it can be asked. One that had its share of answers, or that spoke unasked, is ended."""
        if self.alive and (self._server.gone or self.answers >= most_answers or self._has_spoken()):
            self.end()
        return self.alive

    def _has_spoken(self) -> bool:
        """Return whether it sent something, or ended, while nobody asked it."""
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def end(self) -> int:
        """End the process, and return its exit code. 0 where it has been ended before."""
        if not self.alive:
            return 0
        self.alive = False
        self._connection.close()
        return self._server.end(self._pid)


def _check_judgement(message: object) -> Judgement:
    """Return a judgement as a worker sent it. Raises SpoiledError for one that a worker cannot have made."""
    match message:
        case [float(label), None, str(detail)] if 0.0 <= label <= 1.0 and len(detail) <= MAX_TEXT:
            return label, None, detail
        case [None, str(cause), str(detail)] if cause in CAUSES and len(detail) <= MAX_TEXT:
            return None, cause, detail
    raise SpoiledError("it sent something else than a judgement")
