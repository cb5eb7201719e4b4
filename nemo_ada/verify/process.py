"""The trainer's side of one verifier server process: start it, exchange messages, end it with its workers."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe

from nemo_ada.run_folder.redaction import without_secrets
from nemo_ada.verify import kernel, messages
from nemo_ada.verify.messages import Done, Layers, VerifierLimits, Work

log = logging.getLogger(__name__)


NEEDED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TZ|LANG|LANGUAGE|LC_\w+|TMPDIR|LD_\w+|PYTHON\w*|VIRTUAL_ENV|CONDA_\w+|COVERAGE_\w+"
    r"|(?:OMP|MKL|OPENBLAS)_\w+|NEMO_ADA_\w+"
)
"""Names of variables that workers get. A scorer's own setting may be called NEMO_ADA_SCORER_..."""
CLOSE_S = 10.0  # time for an orderly end before the process group is killed


def import_path() -> list[str]:
    """This process's import path, the standard library first: a user's own re.py must not stop the server.

    Paths that begin with "__" belong to import hooks, and the new process has them anyhow.
    """
    library = os.path.dirname(os.__file__)
    given = [path for path in sys.path if path and not path.startswith("__")]
    return sorted(given, key=lambda path: path not in (library, os.path.join(library, "lib-dynload")))


def for_workers(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python, its packages and a scorer need. Others may be secrets, so they stay here."""
    return {name: value for name, value in without_secrets(environment).items() if NEEDED.fullmatch(name)}


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
        shown = for_workers(os.environ)
        if len(without_secrets(os.environ)) < len(os.environ) and not kernel.landlock_version():
            # Landlock keeps a worker away from /proc. Where it is missing, this process closes its own door. It costs
            # traces and stack dumps of this process by others, so not everywhere.
            with suppress(kernel.Missing):
                kernel.hide_memory()
        ours, theirs = Pipe()
        self._connection: Connection = ours
        with theirs:
            program = f"from nemo_ada.verify.server import main; main({theirs.fileno()}, {os.getpid()})"
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program],  # -P: no module of the working folder
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                # The caller's import path, for the scorer. One thread per worker.
                env=shown | {"PYTHONPATH": os.pathsep.join(import_path()), "OMP_NUM_THREADS": "1"},
            )
        self._connection.send((scorer, limits))
        self._reader = threading.Thread(target=self._read, name="verifier-reader", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the server. It is also its process group."""
        return self._process.pid

    def send(self, batch: list[Work] | None) -> None:
        """Send work, or None to end the server. If the server is gone, `on_end` is called."""
        with self._sending, suppress(OSError):
            self._connection.send(batch)

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                for message in messages.read(self._connection.recv_bytes()):
                    self._on_message(message)
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
        self.send(None)
        try:
            orderly = self._process.wait(CLOSE_S) == 0
        except subprocess.TimeoutExpired:
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
