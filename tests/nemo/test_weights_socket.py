"""The socket for weights: the engine reaches it under NeMo-RL's name, and nobody else's is taken."""

from __future__ import annotations

import ast
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_ada.errors import UserError
from nemo_ada.nemo import weights_socket
from nemo_ada.nemo.weights_socket import move, move_sockets, remove, remove_links
from tests.nemo.nemo_support.private_ray import private_ray
from tests.people import OTHER, as_other, needs_two_users

zmq = pytest.importorskip("zmq")


@pytest.fixture
def shared():
    """A folder such as /tmp."""
    with tempfile.TemporaryDirectory(prefix="w", dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def worker(shared: Path) -> SimpleNamespace:
    return SimpleNamespace(get_zmq_address=lambda: f"ipc://{shared}/GPU-1.sock")


def test_weights_pass_and_the_name_leads_to_a_private_folder(shared):
    sender, name = worker(shared), shared / "GPU-1.sock"
    name.touch()  # of a run of ours that was killed
    assert move()(sender) is True
    target = Path(os.readlink(name))
    assert target.parent.stat().st_mode & 0o777 == 0o700 and sender.get_zmq_address() == f"ipc://{target}"
    context = zmq.Context()
    binds, connects = context.socket(zmq.REQ), context.socket(zmq.REP)
    try:
        for socket in (binds, connects):
            socket.setsockopt(zmq.RCVTIMEO, 60_000)
            socket.setsockopt(zmq.LINGER, 0)
        connects.connect(worker(shared).get_zmq_address())  # the engine may come first
        binds.bind(sender.get_zmq_address())
        binds.send_pyobj(("weights", 7))
        assert connects.recv_pyobj() == ("weights", 7)
    finally:
        binds.close()
        connects.close()
        context.term()
    remove()(sender)
    assert not os.path.lexists(name)


def test_a_worker_with_an_open_socket_or_without_one_stays_as_it_is(shared):
    assert move()(SimpleNamespace()) is False
    assert move()(SimpleNamespace(zmq_socket=1, **vars(worker(shared)))) is False
    assert not list(shared.iterdir())
    remove()(SimpleNamespace())


@needs_two_users
def test_another_users_socket_is_refused_and_ours_cannot_be_replaced(shared, monkeypatch):
    name = shared / "GPU-1.sock"
    assert as_other('touch "$1"', name).returncode == 0
    monkeypatch.setattr(weights_socket, "call_each", lambda _, function: [function(worker(shared))])
    with pytest.raises(UserError, match=rf"GPU-1\.sock belongs to user {OTHER}.*container with a /tmp of its own"):
        move_sockets(None)
    os.unlink(name)
    assert move_sockets(None) == 1
    assert as_other('rm -f "$1" || ln -sf /x "$1"', name).returncode != 0 and os.readlink(name) != "/x"


def test_nemo_rl_asks_for_the_address_where_it_binds_and_where_it_connects():
    home = os.environ.get("NEMO_RL_HOME")
    if not home:
        pytest.skip("NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set")
    for path, call in (
        ("policy/workers/base_policy_worker.py", "self.zmq_socket.bind(self.get_zmq_address())"),
        ("generation/vllm/vllm_backend.py", "self.zmq_socket.connect(self.get_zmq_address())"),
    ):
        text = Path(home, "nemo_rl/models", path).read_text()
        calls = {ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}
        assert call in calls and "ipc:///tmp/{self.report_device_id()}.sock" in text


@pytest.mark.long
def test_workers_get_it_by_ray(shared):
    ray = pytest.importorskip("ray")

    class Worker:
        def get_zmq_address(self):
            return f"ipc://{shared}/GPU-1.sock"

        def binds_to(self):
            return self.get_zmq_address()  # as NeMo-RL does, within the worker

    with private_ray(2):
        actor = ray.remote(Worker).remote()
        policy = SimpleNamespace(worker_group=SimpleNamespace(workers=[actor]))
        assert move_sockets(policy) == 1
        assert ray.get(actor.binds_to.remote()) == f"ipc://{os.readlink(shared / 'GPU-1.sock')}"
        remove_links(policy, seconds=60)
        assert not list(shared.iterdir())
        ray.kill(actor)
        with pytest.raises(ray.exceptions.RayActorError):
            remove_links(policy, seconds=60)
