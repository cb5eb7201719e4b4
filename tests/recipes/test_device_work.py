"""What limits vLLM's pace: the device's share of time and its kernels (recipes/benchmarks/device_work.py)."""

import gzip
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "recipes" / "benchmarks"
pytestmark = pytest.mark.long
sys.path.insert(0, str(BENCHMARKS))
from device_work import NvmlShare, read_trace, tables  # noqa: E402
from python_work import table as work_table  # noqa: E402

from tests.patience import PATIENCE  # noqa: E402


def event(category, name, start, lasts, thread=7):
    """A span as torch's profiler writes it; microseconds."""
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "ts": start, "dur": lasts}


def written(path, *events):
    """A trace of these events."""
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}, file)
    return path


def test_the_devices_time_counts_once_where_streams_overlap_and_nothing_counts_but_its_work(tmp_path):
    found = read_trace(written(
        tmp_path / "t.json.gz", event("kernel", "gemm", 100, 50), event("gpu_memcpy", "copy", 120, 60, thread=8),
        event("kernel", "gemm", 300, 20), event("gpu_user_annotation", "step", 0, 1000),
        event("cuda_runtime", "cudaGraphLaunch", 0, 900), event("cpu_op", "aten::mm", 0, 900),
    ))  # fmt: skip
    assert found["on"] == "device"
    assert found["busy"] == pytest.approx(100e-6), "100 to 180 and 300 to 320"
    assert found["kernels"] == [("gemm", 2, pytest.approx(70e-6)), ("copy", 1, pytest.approx(60e-6))]


def test_without_a_gpu_there_is_no_share_and_an_operation_has_its_own_time(tmp_path):
    found = read_trace(written(
        tmp_path / "t.json.gz", event("cpu_op", "linear", 0, 100), event("cpu_op", "mm", 10, 60),
        event("cpu_op", "copy", 20, 30), event("cpu_op", "mm", 0, 500, thread=8),
    ))  # fmt: skip
    assert (found["on"], found["busy"]) == ("cpu", None)
    own = {name: seconds for name, _, seconds in found["kernels"]}
    assert own == {"linear": pytest.approx(40e-6), "mm": pytest.approx(530e-6), "copy": pytest.approx(30e-6)}


def test_a_table_says_what_has_no_value(tmp_path):
    written(tmp_path / "t.json.gz", event("kernel", "a|b", 0, 1000), event("kernel", "a|b", 3000, 1000))
    pace = [{"event": "pace", "engine": "few", "responses": 4, "tokens": 8, "seconds": 0.002, "nvml": share}
            for share in (0.5, None, 0.7)]  # fmt: skip
    device = {"event": "device", "engine": "few", "responses": 4, "steps": 2, "seconds": 0.004, "trace": "t.json.gz"}
    busy, kernels = tables([*pace, device], tmp_path, {"few": "F"}).split("\n\n")
    assert busy.splitlines()[2:] == ["| F | 4 | 1.00 | 2.00 | 1.00 | 0.50 | 1.00 | 0.60 |"]
    assert kernels.splitlines()[2:] == ["| F | 4 | device | `a/b` | 1.0 | 1.000 | 1.00 |"]
    nothing = tables([pace[1], {**device, "steps": 0, "seconds": 0.0}], tmp_path, {"few": "F"})
    assert nothing.splitlines()[2] == "| F | 4 | 1.00 |" + " no value |" * 5


def test_what_py_spy_sampled_after_the_end_is_no_work():
    event = {
        "engine": "few",
        "responses": 4,
        "tokens": 100,
        "seconds": 0.5,
        "sampled": 1,
        "shares": {"core": {"schedule": 0.1}},
    }
    row = work_table([event], {"few": "F"}).splitlines()[2]
    assert row.endswith("| 1000.0 |"), "a tenth of the second that was sampled, over 100 tokens"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (extra: embedded)")
def test_the_slice_walks_whole_without_a_driver(tmp_path):
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-W",
        "ignore",
        BENCHMARKS / "bench_host_cost.py",
        "--responses",
        "4",
        "8",
        "--tokens",
        "40",
    ]
    command += ["--rounds", "1", "--engines", "few", "--work", "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    profiles = [event for event in events if event["event"] == "device"]
    assert [(event["responses"], event["steps"]) for event in profiles] == [(4, 20), (8, 20)]
    for profile in profiles:
        found = read_trace(out / profile["trace"])
        own = sum(seconds for _, _, seconds in found["kernels"])
        assert (found["on"], found["busy"]) == ("cpu", None)
        assert 0 < own < profile["seconds"], "one thread computes"
        assert any("attention" in name for name, _, _ in found["kernels"]), "it is the model that was profiled"
    again = subprocess.run([*command[:4], "--read", out], cwd=ROOT, capture_output=True, text=True, check=True)
    assert again.stdout in done.stdout and again.stdout.count("no value") == 8, "three of the share, one of NVML"


def test_nvml_has_no_share_where_there_is_no_card():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    with NvmlShare() as nvml:
        pass
    assert nvml.share is None
