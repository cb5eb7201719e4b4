"""The socket on which a learner's worker gives weights to the engine on its GPU, in a folder of ours.

NeMo-RL's is /tmp/GPU-ID.sock, and `nvidia-smi -L` tells the id to all users of a machine. The engine unpickles what
comes from there. So another user who makes the name first would run code in the engine (models/policy/workers/
base_policy_worker.py, models/generation/vllm/vllm_backend.py of v0.7.0).

The learner's worker gets a socket in a private folder, and the name in /tmp becomes a link to it, because the engine
looks for that name. It is made before the first weights go, and /tmp lets nobody else replace it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.nemo.workers import call_each


def move_sockets(policy: Any) -> int:
    """Give each worker of a NeMo-RL policy its socket in a private folder.

    Returns:
        Workers that have one now.

    Raises:
        UserError: another user has the name of a socket already.
    """
    taken = call_each(policy, move())
    if problems := sorted({one for one in taken if isinstance(one, str)}):
        raise UserError(
            f"{problems[0]}: the engine would take weights from there; ask its owner or root to remove it, or run in a "
            "container with a /tmp of its own"
        )
    return sum(one is True for one in taken)


def remove_links(policy: Any, seconds: float) -> None:
    """Remove the names in /tmp, which nobody but us could remove for the next user of the GPU."""
    call_each(policy, remove(), seconds)


def move() -> Callable[[Any], bool | str]:
    """Make the function that moves a worker's socket."""

    def moved(worker: Any) -> bool | str:
        """Return whether it was moved. A text says whose the name in /tmp is."""
        import os
        import tempfile

        if not hasattr(worker, "get_zmq_address") or hasattr(worker, "zmq_socket"):
            return False
        name = worker.get_zmq_address().removeprefix("ipc://")
        socket = os.path.join(tempfile.mkdtemp(prefix="w"), "s")
        try:
            owner = os.lstat(name).st_uid
        except FileNotFoundError:
            owner = os.geteuid()
        else:
            if owner == os.geteuid():
                os.unlink(name)
        try:
            os.symlink(socket, name)
        except FileExistsError:
            return f"{name} belongs to user {owner}, and this process is user {os.geteuid()}"
        worker.get_zmq_address = lambda: f"ipc://{socket}"
        worker.link_of_zmq = name
        return True

    return moved


def remove() -> Callable[[Any], None]:
    """Make the function that removes a worker's name in /tmp."""

    def removed(worker: Any) -> None:
        import os

        name = getattr(worker, "link_of_zmq", "")
        if name and os.path.islink(name) and f"ipc://{os.readlink(name)}" == worker.get_zmq_address():
            os.unlink(name)

    return removed
