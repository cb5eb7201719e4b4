"""Cores that a container gives, in the files that Linux has for both versions of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nemo_ada.run.cores import count_usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def machine(tmp_path: Path, own: str, files: dict[str, str]) -> int:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    return count_usable_cores(tmp_path, tmp_path / "own")


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "5000 100000\n"}, 1),
        ("0::/slurm/job_7/step_0\n", {"slurm/job_7/cpu.max": "400000 100000\n"}, 4),
        ("0::/docker/a\n", {"cpu.max": "300000 100000\n"}, 3),  # a container that sees the host's path
        ("0::/x\n", {"x/cpu.max": "1600000 100000\n"}, 8),
        ("3:cpu,cpuacct:/a/b\n0::/\n", {"cpu,cpuacct/a/cpu.cfs_quota_us": "250000",
                                        "cpu,cpuacct/a/cpu.cfs_period_us": "100000"}, 3),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("4:memory:/a\n", {"memory/a/cpu.max": "100000 100000"}, 8),
        ("0::/\n", {}, 8),
        ("nonsense", {"cpu.max": "nonsense"}, 8),
        ("0::/\n", {"cpu.max": "100000 0\n"}, 8),
    ],
)  # fmt: skip
def test_a_quota_counts_where_it_is_lower_than_the_affinity(tmp_path, own, files, cores):
    assert machine(tmp_path, own, files) == cores
