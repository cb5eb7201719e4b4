"""The address that a node gives to the others for Ray and the all-reduce, in a network of its own (`unshare --net`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

NODE = Path(__file__).resolve().parents[2] / "slurm" / "node.sh"
DOCKER, FABRIC = ("docker0", "172.17.0.1/16"), ("ib0", "10.1.2.3/24")
RAY = """#!/bin/sh
for word; do case $word in --node-ip-address=*) echo "${word#*=}" >"$SEEN" ;; esac; done
exec sleep 600
"""
DRIVER = """#!/bin/sh
until [ -s "$SEEN" ]; do sleep 0.1; done
"""


def node(folder: Path, interfaces: list[tuple[str, str]], hosts: str, nodes: str = "n1", **settings: str) -> str:
    """Run node n1's script with stand-ins for Ray and the driver: the address that Ray was given, else its log."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip"))):
        pytest.skip("only root makes a network, by unshare and ip")
    tools, attempt = folder / "tools", folder / "attempt"
    tools.mkdir()
    attempt.mkdir()
    for name, text in {"ray": RAY, "driver": DRIVER}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (folder / "python").write_text(
        f'#!/bin/sh\ncase $1 in */wait_for_nodes.py) ;; *) exec {sys.executable} "$@" ;; esac\n'
    )
    (folder / "python").chmod(0o755)
    (attempt / "canary").touch()
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    made = [
        f"ip link add {name} type bridge && ip addr add {one} dev {name} && ip link set {name} up"
        for name, one in interfaces
    ]
    enter = " && ".join(["ip link set lo up", *made, f"mount --bind {folder}/hosts /etc/hosts", f"exec bash {NODE}"])
    variables = {
        "PATH": f"{tools}:/usr/sbin:/sbin:{os.environ['PATH']}", "SLURMD_NODENAME": "n1", "NODE_NAMES": nodes,
        "SLURM_JOB_ID": f"{os.getpid()}", "ATTEMPT_DIR": str(attempt), "RUN_DIR": str(folder), "NODE_SETUP": "",
        "HEALTH": "0", "RAY_START": "1", "RAY_PORT": "9900", "RAY_SECONDS": "60", "SHARED_SECONDS": "5",
        "LAUNCH": "driver", "CONFIG": "x.yaml", "PYTHON": str(folder / "python"), "NEMO_ADA_HOME": str(folder),
        "RAY_FOLDER": str(folder / "ray"), "SEEN": str(folder / "seen"), **settings,
    }  # fmt: skip
    made_net = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True, check=False)
    if made_net.returncode:
        pytest.skip(f"no network of its own can be made here: {made_net.stderr.strip()}")
    done = subprocess.run(
        ["unshare", "--net", "--mount", "bash", "-c", enter], env=variables, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    log = attempt / "node-n1.log"
    assert log.exists(), done.stderr
    return (folder / "seen").read_text().strip() if (folder / "seen").exists() else log.read_text()


@pytest.mark.parametrize(
    ("interfaces", "hosts", "nodes", "settings", "expected"),
    [
        ([DOCKER, FABRIC], "10.1.2.3 n1\n", "n1", {}, "10.1.2.3"),
        ([DOCKER, FABRIC], "127.0.1.1 n1\n", "n1", {}, "10.1.2.3"),
        ([DOCKER, FABRIC], "172.17.0.1 n1\n", "n1", {}, "10.1.2.3"),
        ([DOCKER, FABRIC], "", "n1", {}, "10.1.2.3"),
        ([("br-1", "172.18.0.1/16"), FABRIC], "127.0.1.1 n1\n10.1.2.4 n2\n", "n1 n2", {}, "10.1.2.3"),
        ([("cni0", "10.88.0.1/16"), FABRIC], "127.0.1.1 n1\n10.1.2.4 n2\n", "n1 n2", {}, "10.1.2.3"),
        ([DOCKER], "127.0.1.1 n1\n", "n1", {}, "172.17.0.1"),
        ([], "127.0.1.1 n1\n", "n1", {}, "127.0.0.1"),
        ([("eth0", "192.168.5.5/24"), FABRIC], "192.168.5.5 n1\n", "n1", {}, "192.168.5.5"),
        ([("eth0", "192.168.5.5/24"), FABRIC], "192.168.5.5 n1\n", "n1", {"RAY_INTERFACE": "ib0"}, "10.1.2.3"),
    ],
    ids=["name", "loopback", "docker's name", "none", "bridge", "podman", "docker alone", "alone", "eth0", "setting"],
)  # fmt: skip
def test_ray_takes_an_address_that_the_other_nodes_reach(
    tmp_path: Path, interfaces: list[tuple[str, str]], hosts: str, nodes: str, settings: dict[str, str], expected: str
) -> None:
    assert node(tmp_path, interfaces, hosts, nodes, **settings) == expected


def test_an_interface_that_a_node_lacks_is_refused_with_those_that_are_there(tmp_path: Path) -> None:
    log = node(tmp_path, [DOCKER, FABRIC], "10.1.2.3 n1\n", RAY_INTERFACE="ib9")
    assert "RAY_INTERFACE=ib9 has no IPv4 address on n1: here are " in log and "ib0" in log
    assert "RAY_INTERFACE=ib9" in (tmp_path / "attempt" / "refused").read_text(), "so the run does not repeat it"
