"""A worker that judges answers may compute, read code and answer: nothing else works, and the pool survives the try.

The attacks run as a scorer, which is more than model output can do: it would have to find a way to run code first.
The last tests leave out layers, to see what each one holds alone.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.verify import kernel
from nemo_ada.verify.confine import limits_of
from nemo_ada.verify.pool import MathVerifier, VerifierLimits
from nemo_ada.verify.verdict import CRASH, Verdict
from tests.patience import PATIENCE
from tests.verify import hostile
from tests.verify.scorers import ATTACKS


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("victim") / "file"
    path.write_text("untouched")
    return path


@pytest.fixture(scope="module")
def verifier(victim: Path) -> Iterator[MathVerifier]:
    yield from _attacked(victim, "attack")


def _attacked(victim: Path, scorer: str) -> Iterator[MathVerifier]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", "hostile-secret-1")
        patch.setenv("HF_TOKEN", "hostile-secret-2")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hostile-secret-3")
        patch.setenv("NEMO_ADA_TEST_LOG", str(victim))
        limits = VerifierLimits(deadline_s=PATIENCE, workers=1)
        with MathVerifier(limits, scorer=f"tests.verify.scorers:{scorer}", self_test=False) as started:
            yield started


@pytest.mark.parametrize("attack", [*ATTACKS, "secrets", "inherited"])
def test_an_attack_is_refused_and_leaves_nothing(verifier: MathVerifier, victim: Path, attack: str) -> None:
    assert verifier.verify_many([(rf"\boxed{{{attack}}}", str(victim))]) == [Verdict(0.0)]
    assert [path.name for path in victim.parent.iterdir()] == ["file"]
    assert victim.read_text() == "untouched"


def test_a_worker_cannot_send_its_server_code(victim: Path) -> None:
    limits = VerifierLimits(deadline_s=PATIENCE, workers=1)
    with MathVerifier(limits, scorer="tests.verify.scorers:attack", self_test=False) as started:
        assert started.verify_many([(r"\boxed{pickle}", str(victim))]) == [Verdict(None, CRASH)]
        assert [path.name for path in victim.parent.iterdir()] == ["file"]
        assert started.verify_many([(r"\boxed{read}", str(victim))]) == [Verdict(0.0)], "the server goes on"


def test_the_same_attacks_work_where_nothing_confines_them(tmp_path: Path) -> None:
    """The oracle of the test above: what it calls refused is not merely impossible."""
    target = tmp_path / "file"
    for name in ("socket", "write", "mkdir", "chmod", "read", "list", "subprocess", "shell", "read system file"):
        target.write_text("x")
        ATTACKS[name](str(target))


def test_a_worker_has_the_limits() -> None:
    limits = VerifierLimits(deadline_s=PATIENCE, workers=1, memory_bytes=512 << 20)
    with MathVerifier(limits, scorer="tests.verify.scorers:limit", self_test=False) as started:
        for kind, value in limits_of(512 << 20).items():
            (verdict,) = started.verify_many([(rf"\boxed{{{kind}}}", str(value))])
            assert verdict == Verdict(1.0), kind


def attack(victim: Path, *without: str) -> dict[str, Any]:
    """What a hostile process gets with these layers left out, and which layers it then has."""
    command = [sys.executable, hostile.__file__, str(victim), str(os.getpid()), *without]
    environment = {**os.environ, "HF_TOKEN": "hostile-secret"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def gained(result: dict[str, Any]) -> set[str]:
    return {name for name, got in result["got"].items() if got is not None}


needs_landlock = pytest.mark.skipif(kernel.read_landlock_version() == 0, reason="this kernel has no Landlock")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "planted.py").write_text("")
    file = tmp_path / "file"
    file.write_text("untouched")
    return file


READING = {"read", "read by number", "open by the loader", "list", "system file", "temporary folder", "import",
           "relative"}  # fmt: skip


@pytest.mark.parametrize("without", [(), ("Landlock",)], ids=["all layers", "without Landlock"])
def test_the_kernel_refuses_every_attack_with_and_without_landlock(place: Path, without: tuple[str, ...]) -> None:
    result = attack(place, *without)
    if "seccomp" in result["missing"]:
        pytest.skip(f"no seccomp here: {result['missing']['seccomp']}")
    assert gained(result) == set()
    assert sorted(path.name for path in place.parent.iterdir()) == ["file", "planted.py"]
    assert place.read_text() == "untouched"


@needs_landlock
def test_landlock_alone_keeps_files(place: Path) -> None:
    assert not gained(attack(place, "seccomp")) & (READING | {"write", "create", "unlink", "rename", "mkdir"})


WITHOUT_LANDLOCK = r"""
from nemo_ada.verify import confine, worker
worker.load_scorer(worker.DEFAULT_SCORER)
confine.import_ahead()
confine.confine(1 << 30, frozenset({"Landlock"}))
for pair in ((r"\int_0^1 x dx", "1/2"), ("2e", "2e"), (r"[1,2)\cup(3,4]", r"(3,4]\cup[1,2)"), ("3", "4")):
    print(worker.judge_answer(worker.DEFAULT_SCORER, *pair, 900.0)[:2])
"""


def test_without_landlock_answers_are_judged_for_which_sympy_imports_late() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANDLOCK], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == "(1.0, None)\n" * 3 + "(0.0, None)\n"


def test_the_hostile_process_gets_something_where_nothing_confines_it(place: Path) -> None:
    """The oracle of the tests above."""
    layers = ("Landlock", "seccomp", "no capabilities", "no new privileges")
    worked = gained(attack(place, *layers))
    assert worked >= READING | {"environment of the parent", "mkdir", "socket", "shell", "fork", "memfd"}


def test_a_verifier_says_which_layers_hold(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), MathVerifier(VerifierLimits(PATIENCE, workers=1)) as started:
        assert started.layers is not None
        assert {"limits", "no new privileges"} <= set(started.layers.held)
        assert ("Landlock" in started.layers.held) == (kernel.read_landlock_version() > 0)
    assert "are confined by: limits" in caplog.text
    warned = {name for name in ("Landlock", "seccomp") if f"without {name}" in caplog.text}
    assert warned == {"Landlock", "seccomp"} & started.layers.missing.keys()


@pytest.mark.parametrize("network", [True, False])
@pytest.mark.parametrize("may_open", [True, False])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_jumps_to_places_that_exist(machine: str, may_open: bool, network: bool) -> None:
    """The kernel refuses a filter that does not; it can only be asked about its own machine."""
    program = kernel._write_filter(kernel._MACHINES[machine], 7, may_open, network)
    for place, instruction in enumerate(program):
        code, where_true, where_false = instruction[0], instruction[2], instruction[3]
        if code & 0x07 == 0x05:
            assert place + 1 + max(where_true, where_false) < len(program)
    assert program[-1][0] == 0x06


def test_modules_of_the_user_do_not_hide_those_of_the_standard_library(tmp_path: Path) -> None:
    """The working folder and the import path both have them, in front of everything."""
    for name in ("re", "enum", "pickle", "types"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('not this {name}')")
    program = (
        "import sys; from nemo_ada.verify.pool import VerifierLimits\n"
        "from nemo_ada.verify.pool import MathVerifier\n"
        f"sys.path.insert(0, {str(tmp_path)!r}); "
        f"v = MathVerifier(VerifierLimits({PATIENCE}, workers=1)); v.close(); print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "fine\n", done.stderr
