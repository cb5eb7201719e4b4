"""The trainer's side of the verifier's processes: start the server, get workers from it, ask them, end them all.

Messages are JSON. Reading it makes numbers, texts, lists and dictionaries only, so a worker that an answer has taken
over cannot run code here. Each worker has a connection and a thread of its own: what it sends or leaves out concerns
its own answer.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from nemo_ada.by_name import find
from nemo_ada.errors import UserError
from nemo_ada.run.start import PYTHON_NEEDS, TimeoutExpired, begin, environment, python
from nemo_ada.verify.confine import Layers
from nemo_ada.verify.verdict import CAUSES, CRASH, TIMEOUT
from nemo_ada.verify.worker import Judgement, line

log = logging.getLogger(__name__)

CLOSE_S = 10.0  # time for an orderly end before the process group is killed
REPLY_S = 120.0  # for a server that starts cold, on a loaded machine
START_S = 60.0  # for a new worker
MAX_STARTS = 3  # of workers for one answer
MAX_LINE, MAX_TEXT = 16 << 10, 500  # bytes of a worker's message, and characters of the text in it


class ServerGoneError(Exception):
    """The server process ended, or does not reply."""


class SpoiledError(Exception):
    """A worker sent what is no judgement."""


class Server:
    """One server in a session of its own (Ctrl-C at the terminal does not reach it). It has a reply to each request."""

    def __init__(self, scorer: str, memory_bytes: int) -> None:
        self.judged = False  # whether a worker of it has judged an answer
        self._closing = False
        self._asking = threading.Lock()
        self._forking = threading.Lock()  # a worker's two sockets are open for one worker at a time
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._process = begin(
                python(sys.executable, "-c", f"from nemo_ada.verify.server import main; main({os.getpid()})"),
                stdin=theirs.fileno(),
                start_new_session=True,
                env=environment(listed=PYTHON_NEEDS, OMP_NUM_THREADS="1"),  # one thread per worker
            )
        self._control.settimeout(REPLY_S)
        with suppress(UserError):  # one that is not there: each answer gets that as its cause
            scorer = find("the scorer", scorer)
        self._control.send(line([scorer, memory_bytes]))

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
                worker.layers = Layers(*worker.receive(time.monotonic() + START_S))
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
        self.answers = 0
        self.alive = True

    def judge(self, message: bytes, deadline_s: float) -> Judgement:
        """Return the judgement of an answer. After a failure of the worker, this is a cause, and the worker is ended.

        Args:
            message: the line that asks for it.
            deadline_s: how long it may take.

        Raises:
            ServerGoneError: the worker failed, and so did its server.
        """
        due = time.monotonic() + deadline_s
        try:
            self._connection.settimeout(deadline_s)
            self._connection.sendall(message)
            judgement = _checked(self.receive(due))
        except SpoiledError as problem:
            self.end()
            return None, CRASH, str(problem)
        except (TimeoutError, BlockingIOError):
            self.end()
            return None, TIMEOUT, "the deadline passed"
        except (EOFError, OSError):
            code = self.end()
            timed_out = code == -signal.SIGXCPU
            return None, TIMEOUT if timed_out else CRASH, f"the worker ended with exit code {code}"
        self._server.judged = True
        self.answers += 1
        return judgement

    def receive(self, due: float) -> Any:
        """Return the next message. Raises TimeoutError, EOFError, or SpoiledError where it is none."""
        received = bytearray()
        while b"\n" not in received:
            self._connection.settimeout(max(0.0, due - time.monotonic()))
            try:
                part = self._connection.recv(MAX_LINE)
            except BlockingIOError:
                raise TimeoutError from None
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

    def ready(self, most_answers: int) -> bool:
        """Return whether it can be asked. One that had its share of answers, or that spoke unasked, is ended."""
        if self.alive and (self._server.gone or self.answers >= most_answers or self._spoke()):
            self.end()
        return self.alive

    def _spoke(self) -> bool:
        """Return whether it sent something, or ended, while nobody asked it."""
        self._connection.settimeout(0.0)
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


def _checked(message: object) -> Judgement:
    """Return a judgement as a worker sent it. Raises SpoiledError for one that `judge` cannot have made."""
    match message:
        case [float(label), None, str(detail)] if 0.0 <= label <= 1.0 and len(detail) <= MAX_TEXT:
            return label, None, detail
        case [None, str(cause), str(detail)] if cause in CAUSES and len(detail) <= MAX_TEXT:
            return None, cause, detail
    raise SpoiledError("it sent something else than a judgement")
