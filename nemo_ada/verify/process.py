"""The trainer's side of one verifier server process: start it, exchange messages, end it with its workers."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict

from nemo_ada.run.start import PYTHON_NEEDS, TimeoutExpired, begin, environment, python
from nemo_ada.verify.messages import Done, Layers, VerifierLimits, line, read

log = logging.getLogger(__name__)

CLOSE_S = 10.0  # time for an orderly end before the process group is killed


def import_path() -> list[str]:
    """This process's import path, the standard library first: a user's own re.py must not stop the server.

    Paths that begin with "__" belong to import hooks, and the new process has them anyhow.
    """
    library = os.path.dirname(os.__file__)
    given = [path for path in sys.path if path and not path.startswith("__")]
    return sorted(given, key=lambda path: path not in (library, os.path.join(library, "lib-dynload")))


class ServerProcess:
    """One server in a session of its own (Ctrl-C at the terminal does not reach it).

    on_message is called on a reader thread for every Done and for the Layers, on_end once after the last one.
    """

    def __init__(
        self,
        scorer: str,
        limits: VerifierLimits,
        on_message: Callable[[Done | Layers], None],
        on_end: Callable[[ServerProcess], None],
    ) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._sending = threading.Lock()
        self._closing = False
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = begin(
                python(sys.executable, "-c", f"from nemo_ada.verify.server import main; main({os.getpid()})"),
                stdin=theirs.fileno(),
                start_new_session=True,
                # The caller's import path, for the scorer. One thread per worker.
                env=environment(listed=PYTHON_NEEDS, PYTHONPATH=os.pathsep.join(import_path()), OMP_NUM_THREADS="1"),
            )
        self.send([(scorer, asdict(limits))])
        self._reader = threading.Thread(target=self._read, name="verifier-reader", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the server. It is also its process group."""
        return self._process.pid

    def send(self, messages: Iterable[object]) -> None:
        """Send Work. If the server is gone, `on_end` is called."""
        with self._sending, suppress(OSError):
            self._connection.sendall(b"".join(map(line, messages)))

    def _read(self) -> None:
        with suppress(OSError), self._connection.makefile("rb") as lines:
            for text in lines:
                message = read(text)
                self._on_message(Done(**message) if "ticket" in message else Layers(**message))
        if not self._closing:  # it died: end the rest of its group
            self.kill()
            self._process.wait()
        self._on_end(self)

    def kill(self) -> None:
        """End the whole group now."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the server, by force after CLOSE_S. Afterwards no process of the group is left."""
        self._closing = True
        with suppress(OSError):  # the server is gone
            self._connection.shutdown(socket.SHUT_WR)
        try:
            orderly = self._process.wait(CLOSE_S) == 0
        except TimeoutExpired:
            orderly = False
        except BaseException:  # a second Ctrl-C
            self.kill()
            raise
        if not orderly:
            log.warning("the verifier's server did not end within its time; its process group %d is killed", self.pid)
            self.kill()
            self._process.wait()
        self._reader.join(CLOSE_S)
        self._connection.close()
