"""A Ray that is private to one run: it listens on the loopback device and answers to its own token.

Whoever reaches a port of Ray can run code as its user. By default Ray binds to the machine's address, because nodes
must reach each other, and replaces `_node_ip_address="127.0.0.1"` by it. It also keeps one token per user in the home
directory. Here is one node, so both can be narrower: the loopback device keeps other machines out, and the token other
users of this machine.
"""

from __future__ import annotations

import inspect
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services, utils
from ray._raylet import Config  # type: ignore[attr-defined]

from nemo_ada.embedded.processes import actors as processes
from nemo_ada.errors import StallError, UserError

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
TOKEN = "RAY_AUTH_TOKEN"
ATTEMPTS = 3
NODE_SECONDS = 120.0  # for a node to come up; 3 s on a quiet machine
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # stay on the loopback device
    "RAY_task_events_report_interval_ms": "0",  # else the head keeps 100,000 calls for a dashboard
    "RAY_worker_niceness": "0",  # Ray's 15 leaves a worker one per cent of a core where eight other programs compute
    "RAY_agent_register_timeout_ms": "180000",  # for the agent that makes the actors' environments
}


def start(folder: Path, **options: Any) -> None:
    """ray.init of a cluster of one node for this process, in `folder`; other options are ray.init's own.

    A node that does not come up is started again, ATTEMPTS in all. Raises StallError when none came up, and UserError
    in a process that has a Ray already.
    """
    if ray.is_initialized():
        raise UserError("this process has started Ray already, and a run needs its own: call ray.shutdown() first")
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault(TOKEN, secrets.token_hex(32))
    # Ray read the variables while it was imported, in this process; its children read them afresh.
    ray_constants.ENABLE_RAY_CLUSTER = False
    Config.initialize("")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _patient_start():
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
            processes.end(processes.naming(folder), grace=0.0)
            if attempt == ATTEMPTS:
                raise StallError(f"Ray did not start on this machine in {ATTEMPTS} attempts: {cause}") from error
            log.warning("Ray did not start (%s): attempt %d of %d", cause, attempt + 1, ATTEMPTS)


@contextmanager
def _patient_start() -> Iterator[None]:
    """Give a node NODE_SECONDS to come up, and let it start before its agents, two Python programs that import Ray.

    Ray itself waits 30 s for the node. The node waits 15 s for the ports that its agents write to files, then ends
    itself. A busy machine needs longer, and neither limit can be set. So `get_node` is asked for longer, and the files
    exist before the agents do. The dashboard's agent serves nothing (-1), as without ray[default]; the agent of the
    actors' environments gets a port that was chosen for it.
    """
    start_raylet, get_node = services.start_raylet, services.get_node
    dependency_error = utils.get_dashboard_dependency_error

    def with_ports(*args: Any, **options: Any) -> Any:
        given = inspect.signature(start_raylet).bind(*args, **options).arguments
        for name in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"):
            (Path(given["session_dir"]) / f"{name}_{given['node_id']}").write_text("-1", encoding="ascii")
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
    utils.get_dashboard_dependency_error = lambda: ImportError("not wanted in an embedded run")
    try:
        yield
    finally:
        services.start_raylet, services.get_node = start_raylet, get_node
        utils.get_dashboard_dependency_error = dependency_error


def _free_port() -> int:
    """A port that nobody listens on, below those that Linux hands out by itself (from 32768 on)."""
    while True:
        port = 15_000 + secrets.randbelow(17_000)
        with socket.socket() as probe:
            if probe.connect_ex((LOOPBACK, port)) != 0:
                return port
