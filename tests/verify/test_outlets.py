"""What a worker could write to, and what it could read from its environment: nothing of the trainer's."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.verify import MathVerifier, Verdict, VerifierLimits
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
TRAINER = """
import sys
from nemo_ada.verify import MathVerifier, VerifierLimits
print("the start of the job's log", flush=True)
limits = VerifierLimits(deadline_s=900.0, workers=1)
with MathVerifier(limits, scorer="tests.verify.outlets:write_everywhere", self_test=False) as verifier:
    print(verifier.verify_many([(r"\\boxed{x}", sys.argv[1])])[0].label, flush=True)
"""


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm on this machine")
def test_a_worker_can_neither_write_over_the_trainers_output_nor_have_a_file_deleted(tmp_path):
    victim = Path(f"/dev/shm/nemo-ada-test-{secrets.token_hex(8)}")
    victim.touch()
    command = [sys.executable, "-c", TRAINER, victim.name]
    try:
        with (tmp_path / "log").open("w+b") as file:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            subprocess.run(command, env=environment, stdout=file, stderr=file, timeout=PATIENCE, check=True)
        assert (tmp_path / "log").read_text() == "the start of the job's log\n1.0\n"
        assert victim.exists()
    finally:
        victim.unlink(missing_ok=True)


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


@pytest.mark.parametrize("spoiled", ["half", "endless", "nonsense"])
def test_a_spoiled_message_costs_its_own_answer_a_verdict_and_no_other(spoiled):
    limits = VerifierLimits(deadline_s=5.0, workers=2)
    with MathVerifier(limits, scorer="tests.verify.outlets:spoiled_messages", self_test=False) as started:
        answers = ["1", "2", spoiled, "3", "4", "5"]
        verdicts = started.verify_many([(rf"\boxed{{{answer}}}", "x") for answer in answers])
        assert [verdict.label for verdict in verdicts] == [None if one == spoiled else 1.0 for one in answers]
        assert started.verify_many([(r"\boxed{6}", "x")]) == [Verdict(1.0)]
