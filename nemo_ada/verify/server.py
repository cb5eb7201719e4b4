"""The verifier's server process: it forks a worker for each connection that it gets, and ends those that are named.

Why a separate process, and not workers of the trainer:

* `fork` of a process with threads (Ray, vLLM, gloo) is unsafe. This process has one thread and math-verify loaded. A
  new worker costs milliseconds, and none loads the trainer's script or torch.
* The whole tree is one process group. The trainer can end it at once, in any state.

Life cycle: `process` starts `main` with a socket as its input. It receives the scorer's name and the workers' memory,
and then requests, of which each has a reply. It ends with its workers when the connection does, or when its parent is
gone. The kernel ends the workers of a server that was killed. It never reads what a worker says: a worker's connection
leads to the trainer.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
from contextlib import suppress

from nemo_ada.verify import confine, outside, worker

CHECK_S = 0.5  # how often an idle server checks for its parent
LONGEST = 4096  # bytes of a request or a reply
LONGEST_START = 128 << 10  # of the first message


def main(parent: int) -> None:
    """Entry point of the server process: serve the connection that is its input."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may ignore it, and then no exit code is left to read
    trainer = socket.socket(fileno=os.dup(0))
    scorer, memory_bytes, hidden = json.loads(trainer.recv(LONGEST_START))
    if hidden:
        outside.watch_variables(hidden)
    with suppress(Exception):  # `judge_answer` imports it again, and reports the error with the answer
        worker.load_scorer(scorer)
    confine.import_ahead()
    gc.freeze()  # workers share this memory
    workers: set[int] = set()
    try:
        while os.getppid() == parent:
            if not select.select([trainer], [], [], CHECK_S)[0]:
                continue
            request, handed, _, _ = socket.recv_fds(trainer, LONGEST, 1)
            if not request:
                return
            if handed:
                reply: int | str = _fork_worker(handed[0], scorer, memory_bytes)
                workers |= {reply} if isinstance(reply, int) else set()
            else:
                workers.remove(int(request))
                reply = _end_worker(int(request))
            trainer.send(json.dumps(reply).encode())
    finally:
        for pid in workers:
            _end_worker(pid)


def _fork_worker(connection: int, scorer: str, memory_bytes: int) -> int | str:
    """Return the process id of a new worker, or why there is none."""
    server = os.getpid()
    try:
        if (pid := os.fork()) == 0:
            try:
                worker.serve_answers(connection, scorer, memory_bytes, server)
            finally:
                os._exit(1)
        return pid
    except OSError as problem:
        return str(problem)
    finally:
        os.close(connection)


def _end_worker(pid: int) -> int:
    """End a worker, and return its exit code."""
    with suppress(ProcessLookupError, PermissionError):  # its own processes, where a reward needs some
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
