"""The Ray of an embedded run is nobody else's: it listens on the loopback device and answers to its own token.

Whoever reaches a port of Ray can run code as its user. Ray binds to the machine's address by default, because nodes
must reach each other (`_node_ip_address="127.0.0.1"` is replaced by that address), and keeps one token per user in the
home directory. Here there is one node, so both can be narrower; what is left open is other users of this machine, whom
the token stops.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import ray
from ray._private import ray_constants
from ray._raylet import Config  # type: ignore[attr-defined]

LOOPBACK = "127.0.0.1"
TOKEN = "RAY_AUTH_TOKEN"
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # stay on the loopback device
    "RAY_task_events_report_interval_ms": "0",  # the head keeps 100,000 calls for a dashboard that is not there
}


def start(**options: Any) -> None:
    """ray.init of a cluster of one node for this process; options are ray.init's own."""
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault(TOKEN, secrets.token_hex(32))
    # Ray has read them while it was imported, in this process; its children read them afresh.
    ray_constants.ENABLE_RAY_CLUSTER = False
    Config.initialize("")
    ray.init(address="local", include_dashboard=False, _node_ip_address=LOOPBACK, **options)
