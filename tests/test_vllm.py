"""Few messages per response change nothing but the number of messages (real engines, nemo_ada/vllm.py).

1. Tokens, log-probabilities and reasons are equal to the bit to an engine without it: with stop tokens, preemption, a
   prefix cache, dropped requests, log-probabilities in several widths, a pause, a sleep.
2. Who reads token by token gets token by token, and a stop string stops where it did.
3. An aborted response lacks fewer than TOKENS tokens, and what it has is a prefix of the response.
4. A dead engine ends a request with the same error.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpu.folders import write_model
from tests.patience import PATIENCE

pytestmark = pytest.mark.long
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed (extra: embedded)", allow_module_level=True)
ROOT = Path(__file__).resolve().parents[1]
OURS = "nemo_ada.vllm.FewMessages"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What the engine answers without our scheduler and with it. Both run side by side."""
    folder = tmp_path_factory.mktemp("vllm")
    model = write_model(folder / "model", "qwen2", max_position_embeddings=256)
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    runs = {}
    for name, scheduler in (("theirs", []), ("ours", [OURS])):
        with (folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "tests.vllm_scenarios", model, folder / f"{name}.json", *scheduler]
            runs[name] = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    for name, run in runs.items():
        assert run.wait(PATIENCE) == 0, (folder / f"{name}.log").read_text()[-4000:]
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in runs}


@pytest.mark.parametrize("scenario", ["seeded", "columns", "vocabulary", "paused", "slept", "watched", "died"])
def test_nothing_but_the_number_of_messages_differs(answers, scenario):
    from nemo_ada.vllm import TOKENS

    ours, theirs = (answers[name][scenario] for name in ("ours", "theirs"))
    if scenario == "watched":  # vLLM itself joins outputs that a busy client does not read at once
        (ours, messages), (theirs, _) = ours, theirs
        tokens = [len(ours["stream"]), len(ours["stop string"][0])]
        few = [2 * math.ceil(drawn / TOKENS) for drawn in tokens]
        assert all(count > least for count, least in zip(messages, few, strict=True))
    assert ours == theirs


def test_the_scenarios_are_what_they_say(answers):
    reasons = {response[2] for response in answers["theirs"]["seeded"]}
    assert reasons == {"stop", "length"}
    assert answers["theirs"]["watched"][0]["stop string"][2] == "stop"
    assert answers["theirs"]["died"] != "none"


def test_an_aborted_response_lacks_less_than_a_message(answers):
    from nemo_ada.vllm import TOKENS

    ours, theirs = answers["ours"]["aborted"], answers["theirs"]["aborted"]
    assert ours[2] == theirs[2] == "abort"
    short = min(len(ours[0]), len(theirs[0]))
    assert short >= 40 - TOKENS + 1
    assert ours[0][:short] == theirs[0][:short]
    assert ours[1][:short] == theirs[1][:short]
    assert len(ours[1]) == len(ours[0])
