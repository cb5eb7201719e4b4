"""The Ray of a rehearsal: a stranger gets no answer, and it is on the loopback device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from nemo_ada.rehearsal.installation import Installation
from nemo_ada.run.files import private_folder
from tests.cpu.processes.test_private import loopback
from tests.patience import PATIENCE

START = """
from nemo_ada.rehearsal.standins import ray_placement
import ray
ray_placement.start_private_ray()
print(ray.get(ray.remote(lambda: 7).remote()), ray.get_runtime_context().gcs_address, flush=True)
input()
"""
STRANGER = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print(ray.cluster_resources())"


def joining(python, address, variables):
    """A process that asks this Ray what it has."""
    return subprocess.Popen([python, "-c", STRANGER, address], env=variables, text=True, stdout=subprocess.PIPE)


@pytest.mark.slow
def test_a_stranger_gets_no_answer_from_a_rehearsals_ray(tmp_path):
    python = Path(sys.executable)
    installed = Installation(Path(), Path(), Path(), python, python)
    environment = installed.environment(name="ray", gpus=1, events=tmp_path / "events", conversions=tmp_path)
    with private_folder(40) as folder:
        environment["NEMO_ADA_REHEARSAL_RAY"] = str(folder / "r")
        driver = subprocess.Popen(
            [python, "-c", START], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            answer, address = next(line for line in driver.stdout if line.startswith("7 ")).split()
            assert answer == "7"
            listening = [
                connection.laddr.ip
                for process in psutil.Process(driver.pid).children(recursive=True)
                for connection in process.net_connections(kind="inet")
                if connection.status == psutil.CONN_LISTEN
            ]
            assert listening and all(map(loopback, listening))
            mode, token = (environment[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"))
            own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
            loopback_device = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # without it Ray looks for this machine's address
            own |= {"HOME": str(tmp_path), loopback_device: environment[loopback_device]}
            with_wrong_one = {**own, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "0" * 64}
            strangers = [joining(python, address, variables) for variables in (own, with_wrong_one)]
            known = joining(python, address, {**own, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": token})
            assert "CPU" in known.communicate(timeout=PATIENCE)[0]
            for stranger in strangers:  # Ray lets one of them ask again and again
                stranger.kill()
                assert "CPU" not in stranger.communicate(timeout=PATIENCE)[0]
        finally:
            driver.communicate("\n", timeout=PATIENCE)
