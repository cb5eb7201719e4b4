"""Fixtures of the SLURM tests: one cluster of one node, and one of two emulated nodes, per session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster, cluster, why_not


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
