"""recipes/benchmarks/bench_caps.py runs: phases on the real engine, the plan's cap, both clocks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.run.folder import read_lines

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_recipe_compares_phases_with_and_without_the_plans_cap(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    done = subprocess.run(
        [sys.executable, "recipes/benchmarks/bench_caps.py", "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=500, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "bench_caps.md").read_text()
    assert page.count("The plan expects p95/p50 = ") == 2
    for clock in ("wall", "engine_steps"):
        records = read_lines(tmp_path / clock / "metrics.jsonl")
        assert len(records) == 4
        assert all(record["ada/samples_drawn"] >= 24 * 8 for record in records), "first waves are never cut"
    assert [record["time/sampling"] for record in records] == [record["engine_steps"] for record in records]
