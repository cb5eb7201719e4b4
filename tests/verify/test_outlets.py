"""What a worker could write to, and what it could read from its environment: nothing of the trainer's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.verify.pool import MathVerifier, VerifierLimits
from nemo_ada.verify.verdict import CRASH, TIMEOUT, Verdict
from tests.patience import PATIENCE
from tests.verify.outlets import MESSAGES

ROOT = Path(__file__).resolve().parents[2]
TRAINER = """
import os, sys
from nemo_ada.verify.pool import VerifierLimits
from nemo_ada.verify.pool import MathVerifier
os.set_inheritable(os.open(sys.argv[1], os.O_RDWR), True)
print("the start of the job's log", flush=True)
limits = VerifierLimits(deadline_s=900.0, workers=1)
with MathVerifier(limits, scorer="tests.verify.outlets:write_everywhere", self_test=False) as verifier:
    print(verifier.verify_many([(r"\\boxed{x}", "x")])[0].label, flush=True)
"""


def test_a_worker_can_write_neither_over_the_trainers_output_nor_to_its_files(tmp_path):
    (tmp_path / "file").write_text("untouched")
    command = [sys.executable, "-c", TRAINER, str(tmp_path / "file")]
    with (tmp_path / "log").open("w+b") as file:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, env=environment, stdout=file, stderr=file, timeout=PATIENCE, check=True)
    log = (tmp_path / "log").read_text()
    assert log.startswith("the start of the job's log\n") and log.endswith("\n1.0\n") and "owned" not in log
    assert (tmp_path / "file").read_text() == "untouched"


KEPT = ["PATH", "HOME", "LC_ALL", "NEMO_ADA_SCORER_MODE", "OMP_NUM_THREADS"]
LEFT = ["SLURM_JWT", "https_proxy", "DATABASE_URL", "GH_PAT", "SSH_AUTH_SOCK", "HF_TOKEN", "SOMETHING_ELSE"]


@pytest.fixture(scope="module")
def verifier():
    with pytest.MonkeyPatch.context() as patch:
        for name in [*KEPT[1:], *LEFT]:
            patch.setenv(name, "C")
        limits = VerifierLimits(deadline_s=PATIENCE, workers=1)
        with MathVerifier(limits, scorer="tests.verify.outlets:seen_variables", self_test=False) as started:
            yield started


@pytest.mark.parametrize("name", [*KEPT, *LEFT])
def test_a_worker_has_only_the_variables_that_it_needs(verifier, name):
    assert verifier.verify_many([(rf"\boxed{{{name}}}", "x")]) == [Verdict(float(name in KEPT))]


def judged(scorer: str, *pairs: tuple[str, str], deadline_s: float, workers: int = 1) -> list[Verdict]:
    limits = VerifierLimits(deadline_s, workers)
    with MathVerifier(limits, scorer=f"tests.verify.outlets:{scorer}", self_test=False) as started:
        return started.verify_many([(rf"\boxed{{{answer}}}", reference) for answer, reference in pairs])


@pytest.mark.long
@pytest.mark.parametrize("spoiled", MESSAGES)
def test_a_spoiled_message_costs_its_own_answer_a_verdict_and_no_other(spoiled):
    verdicts = judged("spoiled_messages", *[(a, "x") for a in ("1", "2", spoiled, "3", "4")], deadline_s=5.0, workers=2)
    cause = TIMEOUT if spoiled == "half" else CRASH
    assert verdicts == [Verdict(None, cause) if place == 2 else Verdict(1.0) for place in range(5)]


@pytest.mark.long
def test_the_answer_of_a_worker_that_reads_nothing_is_asked_again_elsewhere():
    verdicts = judged("judged_and_deaf", ("deaf", "x"), ("1", "x" * (8 << 20)), ("2", "x"), deadline_s=5.0)
    assert verdicts == [Verdict(1.0)] * 3


def test_a_worker_that_judges_twice_is_replaced():
    verdicts = judged("judged_twice", ("twice", "x"), *[("1", "x")] * 3, deadline_s=PATIENCE)
    assert verdicts == [Verdict(1.0), *[Verdict(0.0)] * 3]
