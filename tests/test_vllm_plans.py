"""The scheduler with few messages plans and sends what vLLM's own does, whichever way vLLM has decided (nemo_ada.vllm).

A scheduler that plans ahead where vLLM's workers do not sends a pipeline's first stage tokens that nobody has drawn.
The vLLM that is installed is asked, and those whose source VLLM_SOURCES names (folders, with a colon between them). For
one, unpack a wheel of vLLM, which needs no GPU for this: 0.20.2, 0.25.1 and 0.29.0 have passed.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpu.folders import write_model
from tests.patience import PATIENCE

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed (extra: embedded)", allow_module_level=True)
ROOT = Path(__file__).resolve().parents[1]
SOURCES = ["", *filter(None, os.environ.get("VLLM_SOURCES", "").split(os.pathsep))]


@pytest.mark.parametrize("source", SOURCES)
def test_plans_are_those_of_vllms_own_scheduler(source, tmp_path):
    model = write_model(tmp_path / "model", "qwen2", max_position_embeddings=256)
    path = os.pathsep.join(filter(None, [str(ROOT), source, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "tests.vllm_plans", model, tmp_path / "plans.json"]
    environment = {**os.environ, "PYTHONPATH": path, "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-4000:]
    cases = json.loads((tmp_path / "plans.json").read_text())["cases"]
    assert {(case["stages"], case["decided"]) for case in cases} == {(1, False), (1, True), (2, False), (2, True)}
    for case in cases:
        few, theirs = case["few"], case["theirs"]
        assert few.pop("left") == theirs.pop("left") == 0, "nothing is kept of a response that has ended"
        messages = {kind: {name: one.pop("messages") for name, one in case[kind]["answers"].items()}
                    for kind in ("few", "theirs")}  # fmt: skip
        assert few == {**theirs, "ours": True}
        at_once = {"short", "string", "stream"}
        assert {name: messages["few"][name] for name in at_once} == {name: messages["theirs"][name] for name in at_once}
        assert messages["few"]["long"] in (4, 5), "newer versions say something of the prompt with the first token"
        assert messages["theirs"]["long"] == 100
        assert [len(theirs["answers"][name]["tokens"]) for name in ("long", "stops", "again")] == [100, 46, 50]
        assert case["theirs"]["ahead"] == case["decided"]
        second = case["theirs"]["plans"][1][0]  # before the first step's token is back
        assert second == ({"a": 1} if case["decided"] else {})
