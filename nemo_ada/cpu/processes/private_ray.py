"""A private Ray for one run. It listens on the loopback device and accepts only its own token.

Anybody who reaches a port of Ray can run code as its user. By default Ray binds to the machine's address, because nodes
must reach each other, and even replaces `_node_ip_address="127.0.0.1"` by it. It also has one token per user, in the
home directory. A run has one node, so both can be narrower. The loopback device keeps other machines out, and the token
keeps other users of this machine out.
"""

from __future__ import annotations

import faulthandler
import inspect
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services, utils
from ray._raylet import Config  # type: ignore[attr-defined]
from ray.job_config import JobConfig

from nemo_ada.cpu.processes import actors as processes
from nemo_ada.errors import InvariantError, StallError, UserError
from nemo_ada.run.files import write_atomically
from nemo_ada.run.start import PIPE, SAFE, begin, leave_out_working_folder, limit_environment

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
TOKEN = "RAY_AUTH_TOKEN"
ATTEMPTS = 3
START_SECONDS = 300.0  # after which a start that hangs ends the process
HANGS = (
    "Ray has not answered for {:.0f} s. At {:.0f} s this process ends with the signal ALRM. Run the command again, "
    "when fewer programs run on this machine; resume=auto continues a run"
)
SOCKET = "/session_2026-11-26_11-23-18_123456_4194304/sockets/plasma_store"  # the longest below Ray's folder
LONGEST = 107 - len(SOCKET)  # bytes in the path of Ray's folder: a socket has a path of at most 107
NODE_SECONDS = 120.0  # in which a node comes up. A quiet machine takes 3 s
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray stays on the loopback device
    "RAY_task_events_report_interval_ms": "0",  # otherwise the head stores 100,000 calls for a dashboard
    "RAY_worker_niceness": "0",  # with Ray's 15 a worker gets 1 % of a core beside eight other programs
    "RAY_agent_register_timeout_ms": "180000",  # wait for the agent that makes the actors' environments
}


def start(folder: Path, **options: Any) -> None:
    """Start a Ray cluster of one node for this process. A node that does not come up is started again.

    A node may come up and never answer this process. That was seen twice, on a machine with many runnable processes.
    Ray then waits for ever, so the signal ALRM ends this process. The next slot makes another attempt.

    Args:
        folder: Folder of the node's files.
        **options: Further options of ray.init.

    Raises:
        StallError: No node came up in ATTEMPTS attempts.
        InvariantError: The same, for a cause that another attempt would meet again.
        UserError: This process has started Ray already.
    """
    if ray.is_initialized():
        raise UserError("this process has started Ray already, and a run needs its own: call ray.shutdown() first")
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault(TOKEN, secrets.token_hex(32))
    # In this process Ray has read the variables while it was imported, so they are set again. Children read them anew.
    ray_constants.ENABLE_RAY_CLUSTER = False
    Config.initialize("")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with (
                _end_when_stuck(),
                _start_patiently(),
                limit_environment(TOKEN, **SAFE),
                leave_out_working_folder(JobConfig),
            ):
                ray.init(
                    address="local",
                    include_dashboard=False,
                    _node_ip_address=LOOPBACK,
                    _temp_dir=str(folder),
                    **options,
                )
            return
        except Exception as error:
            cause = (str(error).strip().splitlines() or [repr(error)])[0]
            ray.shutdown()
            processes.end_processes(processes.find_naming(folder), grace=0.0)
            if attempt == ATTEMPTS:
                passes = isinstance(error, TimeoutError | ConnectionError)
                lasts = isinstance(error, OSError | ValueError) and not passes  # another attempt would meet it again
                kind = InvariantError if lasts else StallError
                raise kind(f"Ray did not start on this machine in {ATTEMPTS} attempts: {cause}") from error
            log.warning("Ray did not start (%s): attempt %d of %d", cause, attempt + 1, ATTEMPTS)


@contextmanager
def _end_when_stuck() -> Iterator[None]:
    """Within the block this process has START_SECONDS. Then the kernel ends it, after its stack was written to stderr.

    Ray waits in C++ with the interpreter's lock, so no Python code could end it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    patience = 0.9 * START_SECONDS
    faulthandler.dump_traceback_later(patience, file=2)
    # Another process has to say so. It ends when this one closes the pipe or is gone.
    text = HANGS.format(patience, START_SECONDS)
    words = ["bash", "-c", f"read -t {patience} _ || [ $? -le 128 ] || echo '{text}' >&2"]
    says = begin(words, stdin=PIPE)
    signal.setitimer(signal.ITIMER_REAL, START_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        faulthandler.cancel_dump_traceback_later()
        says.communicate()
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _start_patiently() -> Iterator[None]:
    """Within the block a node has NODE_SECONDS to come up, and need not wait for its agents.

    The agents are two Python programs that import Ray. Ray itself waits 30 s for the node. The node waits 15 s for the
    ports that its agents write to files, and then ends itself. A busy machine needs longer, and neither limit can be
    set. So we repeat `get_node` for longer, and write the files before the agents exist. The dashboard's agent gets no
    port (-1), as without ray[default]. The agent of the actors' environments gets a port that we choose.
    """
    start_raylet, get_node = services.start_raylet, services.get_node
    dependency_error, set_handler = utils.get_dashboard_dependency_error, utils.set_sigterm_handler

    def with_ports(*args: Any, **options: Any) -> Any:
        arguments = inspect.signature(start_raylet).bind(*args, **options).arguments
        for name in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"):
            file = Path(arguments["session_dir"]) / f"{name}_{arguments['node_id']}"
            write_atomically(file, "-1")
        return start_raylet(*args, **options | {"runtime_env_agent_port": _free_port()})

    def patiently(*args: Any) -> Any:
        deadline = time.monotonic() + NODE_SECONDS
        while True:
            try:
                return get_node(*args)
            except RuntimeError:  # the node has not registered yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    services.start_raylet, services.get_node = with_ports, patiently
    utils.get_dashboard_dependency_error = lambda: ImportError("not wanted in a CPU run")
    utils.set_sigterm_handler = lambda _: None  # Ray's would end the run with code 15 and leave no status
    try:
        yield
    finally:
        services.start_raylet, services.get_node = start_raylet, get_node
        utils.get_dashboard_dependency_error, utils.set_sigterm_handler = dependency_error, set_handler


def _free_port() -> int:
    """Return a port on which nobody listens, below those that Linux assigns by itself (from 32768 on)."""
    while True:
        port = 15_000 + secrets.randbelow(17_000)
        with socket.socket() as probe:
            if probe.connect_ex((LOOPBACK, port)) != 0:
                return port
