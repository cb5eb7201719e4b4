"""Fixtures of the SLURM tests: one cluster of one node, and one of two emulated nodes, per session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from chain import HERE, ROOT, SCRIPT, Run
from cluster import Cluster, cluster, why_not

from tests.people import Person


@pytest.fixture(scope="session")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node, n1."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm1") / "c") as running:
        yield running


@pytest.fixture(scope="session")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two emulated nodes, n1 and n2."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm2") / "c", ("n1", "n2")) as running:
        yield running


@pytest.fixture(scope="session")
def four_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of four emulated nodes, n1 to n4."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm4") / "c", ("n1", "n2", "n3", "n4")) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Run]:
    """Submit train_7b_ada.sh: start(cluster, "driver argument", ..., options=[...], SETTING="value").

    itself: the script submits itself, with options among the driver's arguments.
    """

    def submit(
        cluster: Cluster,
        *arguments: str,
        options: tuple[str, ...] = (),
        driver: str = "standin.py",
        itself: bool = False,
        script: str = SCRIPT.name,
        shell: dict[str, str] | None = None,
        user: Person | None = None,
        folder: Path = tmp_path,
        **settings: str,
    ) -> Run:
        setup = folder / "setup.sh"
        setup.write_text(
            f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={ROOT}\n{settings.pop('extra', '')}\n"
        )
        values = {
            "CONTAINER": "",
            "RUN_ROOT": str(folder),
            "RUN_DIR": str(folder / "run"),
            "NODE_SETUP": str(setup),
            "NEMO_RL_HOME": str(folder),
            "LAUNCH": f"{sys.executable} {HERE / driver}",
            "PYTHON": sys.executable,
            "RAY_START": "0",
            "POLL_SECONDS": "1",
            "END_SECONDS": "15",
            "HEALTH": "0",
            "PREFLIGHT": "0",
            "RETRY_SECONDS": "1",
            **settings,
        }
        site = folder / "site.env"
        site.write_text("".join(f'{name}="{value}"\n' for name, value in values.items()))
        python = os.path.realpath(sys.executable)  # a shim in the PATH, such as pyenv's, takes half a second to start
        here = {"NEMO_ADA_SITE": str(site), "NEMO_ADA_HOME": str(ROOT), "HOST_PYTHON": python}
        where = {**here, **(shell or {})}
        if itself:
            words = ("bash", str(ROOT / "slurm" / script), *arguments)
            printed = cluster.run("bash", "-c", 'exec "$@" 2>&1', "bash", *words, cwd=folder, user=user, **where)
            return Run(cluster, folder, int(printed.split()[-1]), printed=printed)
        job = cluster.submit(ROOT / "slurm" / script, *arguments, cwd=folder, options=options, user=user, **where)
        return Run(cluster, folder, job)

    return submit
