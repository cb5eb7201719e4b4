"""What a job listens on, and who may get in. `nemo-ada check` prints it, and SECURITY.md has the same rows.

The ports of NeMo-RL v0.7.0 are read from its source (distributed/virtual_cluster.py, models/generation/vllm/
vllm_worker_async.py, environments/nemo_gym.py, models/policy/workers/base_policy_worker.py), those of the data plane
from transfer_queue's, ours from slurm/node.sh and the embedded back end. Files of a run are in SECURITY.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nemo_ada.config.load import backend_of
from nemo_ada.config.values import Values
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.facts.site import site_setting
from nemo_ada.rules.finding import Finding, Findings, ok, warning
from nemo_ada.rules.gym import SECTION, uses_gym

KEY = "listens"
RAY_PORT = 9900
EVERYBODY = "anyone who reaches the port"
Condition = Callable[[Values], bool]


@dataclass(frozen=True, slots=True)
class Listener:
    """A kind of socket that other processes may connect to.

    Attributes:
        what: who listens.
        where: the address, as a user's firewall sees it.
        ports: the ports. A name in braces stands for Ray's own or for a range of `RANGES`.
        who: who gets an answer.
        when: whether a job of this config has it.
        warns: whether `check` warns of it, because everybody of the network may use it.
    """

    what: str
    where: str
    ports: str
    who: str
    when: Condition
    warns: bool = False


def _controller(values: Values) -> bool:
    return Loop.of(values) is Loop.CONTROLLER


def _embedded(values: Values) -> bool:
    return backend_of(values.config) == "embedded"


def _cluster(values: Values) -> bool:
    return not _embedded(values)


def _http(values: Values) -> bool:
    """Return whether vLLM answers over HTTP."""
    return _cluster(values) and (
        uses_gym(values) or bool(values.get("policy.generation.vllm_cfg.expose_http_server", False))
    )


def _colocated(values: Values) -> bool:
    return _cluster(values) and bool(values.get("policy.generation.colocated.enabled", True))


def _gym(values: Values) -> bool:
    return _cluster(values) and uses_gym(values)


def _open_ray(values: Values) -> bool:
    return _cluster(values) and site_setting("RAY_AUTH") == "disabled"


def _closed_ray(values: Values) -> bool:
    return _cluster(values) and not _open_ray(values)


_RAY = (
    "Ray, started by the batch script",
    "every interface of the nodes",
    "ports {ray}, 10002 to 11000, and some that Ray picks",
)
LISTENERS = (
    Listener("Ray", "127.0.0.1", "free ports", "processes with the run's token", _embedded),
    Listener("torch's rendezvous and gloo", "127.0.0.1", "free ports", "users of this machine", _embedded),
    Listener(*_RAY, "processes with the attempt's token", _closed_ray),
    Listener(*_RAY, f"{EVERYBODY}, because RAY_AUTH=disabled", _open_ray, warns=True),
    Listener(
        "Ray, started by the driver (no batch script)",
        "every interface of the node, its dashboard 127.0.0.1",
        "ports that Ray picks",
        f"{EVERYBODY}, unless RAY_AUTH_MODE=token is exported",
        _cluster,
    ),
    Listener(
        "torch's rendezvous and NCCL",
        "every interface, or that of NCCL_SOCKET_IFNAME",
        "ports {master}, and free ones",
        EVERYBODY,
        _cluster,
    ),
    Listener("vLLM's rendezvous", "the node's address", "ports from 20001 on, 100 per engine", EVERYBODY, _cluster),
    Listener("weights on their way to vLLM", "Unix socket /tmp/GPU-ID.sock", "no port", "this user", _colocated),
    Listener("the data plane", "the node's address", "free ports", EVERYBODY, _controller),
    Listener(
        "vLLM's HTTP server",
        "0.0.0.0",
        "ports {generation}, or a free one",
        f"{EVERYBODY}, without a key",
        _http,
        warns=True,
    ),
    Listener("NeMo-Gym's head", "0.0.0.0", "ports {gym}", f"{EVERYBODY}, without a key", _gym, warns=True),
    Listener(
        "NeMo-Gym's servers", "the node's address", "ports {gym}", f"{EVERYBODY}, without a key", _gym, warns=True
    ),
    Listener(
        "math-verify's workers",
        "Unix sockets without a name",
        "no port",
        "the run's own processes",
        lambda values: True,
    ),
)
RANGES = {
    "master": ("cluster.master_port_range", 25000, 28000),
    "generation": ("policy.generation.port_range", 11001, 15000),
    "gym": (f"{SECTION}.port_range", 15001, 20000),
}
"""Name -> the key without its ending _low or _high, and NeMo-RL's defaults of both."""


def ports_of(listener: Listener, values: Values) -> str:
    """Return the listener's ports in this config."""
    names = {
        name: f"{values.get(f'{key}_low', low)} to {values.get(f'{key}_high', high)}"
        for name, (key, low, high) in RANGES.items()
    }
    first = site_setting("RAY_PORT") or RAY_PORT
    return listener.ports.format(ray=f"{first} and the 69 after it", **names)


def listening(values: Values) -> Findings:
    """One finding per listener of a job of this config."""
    for listener in LISTENERS:
        if listener.when(values):
            yield _finding(listener, values)


def _finding(listener: Listener, values: Values) -> Finding:
    text = f"{listener.what}: {listener.where}, {ports_of(listener, values)}; answers {listener.who}"
    return warning(KEY, f"{text}; use a network that is the cluster's alone") if listener.warns else ok(KEY, text)


def rows() -> Iterator[str]:
    """Yield the rows of SECURITY.md's table, with the defaults."""
    for listener in LISTENERS:
        ports = ports_of(listener, Values({}))
        yield f"| {listener.what} | {listener.where} | {ports} | {listener.who} |"
