"""Every benchmark of recipes/benchmarks runs with the smallest arguments, so that a published number can be made again.

Programs that train, that time other programs, or that start NeMo-RL, vLLM or TRL, are only started with --help here:
imports and arguments. Their parts have tests of their own beside this file.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

if any(importlib.util.find_spec(name) is None for name in ("megatron", "ray", "vllm")):
    pytest.skip("the CPU back end is not installed", allow_module_level=True)

from tests.patience import PATIENCE

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "recipes" / "benchmarks"
SMALLEST = {  # arguments; {out} is an empty folder
    "bench_async.py": "--steps 3 --seeds 1 --prompts 8 --slots 64 --samples 128 --longest 100 --median 20",
    "bench_driver.py": "--prompts 8 --steps 1",
    "bench_graders.py": "--first 20 --misses",
    "bench_scheduler.py": "--responses 4 --tokens 40 --rounds 1",
    "bench_sampling.py": "--prompts 8 --seeds 1 --model-seeds 1 --no-engine --out {out}",
    "bench_verifier.py": "--answers 20 --repeats 1 --workers 1",
    "contamination.py": "--problems 60 --copies 30",
    "paper_figures.py": "--out {out}",
    "signal_per_response.py": "--prompts 200",
}
HELP = ("bench_caps.py", "bench_host_cost.py", "bench_gym.py", "bench_model.py", "bench_optimizer_move.py",
        "bench_rehearsal.py", "compare_cpu.py", "compare_presets.py", "leaderboard.py", "peers.py", "tune_lr.py",
        "value_features.py")  # fmt: skip
ELSEWHERE = {
    "config_rules.py": "needs NeMo-RL's files; tests/rules/check/test_config_rules.py walks its list",
    "coverage.py": "minutes of simulation; tests/lab/evaluation has a few of its cells",
    "device_work.py": "imported by bench_host_cost.py",
    "engine_pace.py": "imported by bench_host_cost.py; test_device_work.py runs an engine",
    "python_work.py": "imported by bench_host_cost.py",
    "fit_forecast.py": "rewrites recipes/results/forecast.md",
    "bench_session.py": "524,288 responses take minutes on a busy machine; it has no arguments",
    "leaderboard_page.py": "imported by leaderboard.py",
    "claims.py": "test_claims.py",
    "front_picture.py": "test_front_picture.py",
    "measure.py": "imported by every benchmark",
    "peers_ours.py": "imported by peers.py",
    "peers_trl.py": "needs TRL, which peers.py installs",
    "process_tree.py": "imported by peers.py",
    "untuned.py": "a task of leaderboard.yaml; test_leaderboard.py makes its problems",
    "tables.py": "imported by benchmarks, and test_tables.py",
    "workload.py": "imported by the benchmarks of sampling",
}


def test_every_program_has_the_same_main_block():
    for path in BENCHMARKS.glob("*.py"):
        text = path.read_text()
        assert ("if __name__" not in text) or text.endswith('if __name__ == "__main__":\n    measure(main)\n'), (
            path.name
        )


def test_every_benchmark_is_listed():
    assert {path.name for path in BENCHMARKS.glob("*.py")} == {*SMALLEST, *HELP, *ELSEWHERE}


EACH = """
import contextlib, io, json, pathlib, runpy, sys, traceback
folder = pathlib.Path(sys.argv[1])
for name, *arguments in json.loads(sys.stdin.read()):
    sys.path[0], sys.argv, said, code = str(folder), [str(folder / name), *arguments], io.StringIO(), "it raised"
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
    print(json.dumps([name, code, said.getvalue()]), file=sys.__stdout__, flush=True)
"""
"""Runs programs one after the other as `python NAME` does. They share their imports, which take most of the time."""


def run_all(lines):
    """What each of these command lines ends with and says. What the programs' own processes print comes between."""
    command = [sys.executable, "-c", EACH, BENCHMARKS]
    done = subprocess.run(
        command, cwd=ROOT, input=json.dumps(lines), capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert [name for name, *_ in found] == [name for name, *_ in lines], done.stdout + done.stderr
    return found


@pytest.mark.slow
def test_every_benchmark_that_can_runs_with_the_smallest_arguments(tmp_path):
    outs = {name: tmp_path / name for name in SMALLEST}
    for out in outs.values():
        out.mkdir()
    for name, code, said in run_all([[name, *SMALLEST[name].format(out=outs[name]).split()] for name in SMALLEST]):
        assert code == 0, f"{name}: {said}"
        assert said.strip() or any(outs[name].iterdir()), name


def test_every_benchmark_that_trains_starts():
    for name, code, said in run_all([[name, "--help"] for name in HELP]):
        assert code == 0 and "usage" in said, f"{name}: {said}"
