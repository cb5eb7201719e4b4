"""The pool itself, with scorers that crash, stall or return nonsense; and that it leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from nemo_ada.errors import InvariantError
from nemo_ada.verify import (
    CRASH,
    INVALID,
    MEMORY,
    TIMEOUT,
    MathVerifier,
    Verdict,
    VerifierLimits,
    VerifierSelfTestError,
)

SCORER = "tests.verify.scorers:misbehave"
RIGHT = Verdict(1.0)


def box(command: str) -> tuple[str, str]:
    return rf"\boxed{{{command}}}", "fine"


def make(scorer: str = SCORER, **limits: float) -> MathVerifier:
    settings = {"deadline_s": 1.0, "workers": 2, **limits}
    return MathVerifier(VerifierLimits(**settings), scorer=scorer, self_test=False)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    with make() as started:
        yield started


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("fine", RIGHT),
        ("exit 3", Verdict(None, CRASH)),
        ("exit 0", Verdict(None, TIMEOUT)),  # pebble takes a clean exit for a retirement; the deadline still ends it
        ("segfault", Verdict(None, CRASH)),
        ("sleep 30", Verdict(None, TIMEOUT)),
        ("spin", Verdict(None, TIMEOUT)),
        ("raise", Verdict(None, INVALID)),
        ("score nan", Verdict(None, INVALID)),
        ("score inf", Verdict(None, INVALID)),
        ("score -1", Verdict(None, INVALID)),
        ("score 0.25", Verdict(0.25)),
        ("allocate 4096", Verdict(None, MEMORY)),
    ],
)
def test_one_bad_answer_gets_its_cause_and_the_others_their_labels(
    verifier: MathVerifier, command: str, verdict: Verdict
) -> None:
    pairs = [box("fine")] * 20
    pairs[7] = box(command)
    expected = [RIGHT] * 20
    expected[7] = verdict
    assert verifier.verify_many(pairs) == expected


def test_killing_code_that_is_deaf_to_signals_takes_no_time_from_the_others(verifier: MathVerifier) -> None:
    assert verifier.submit(*box("fine")).result(60) == RIGHT, "the workers have started"
    begin = time.monotonic()
    assert verifier.verify_many([box("deaf")] * 4 + [box("fine")]) == [Verdict(None, TIMEOUT)] * 4 + [RIGHT]
    assert time.monotonic() - begin < 2 * 1.0 + 2.5, "two deadlines one after the other, and two replacements"


def test_crashes_in_a_row_hurt_nobody_else(verifier: MathVerifier) -> None:
    pairs = [box("segfault") if i % 3 == 0 else box("fine") for i in range(30)]
    verdicts = verifier.verify_many(pairs)
    assert [v for i, v in enumerate(verdicts) if i % 3] == [RIGHT] * 20
    assert {v.cause for v in verdicts[::3]} <= {CRASH, TIMEOUT}
    assert all(v.label is None for v in verdicts[::3])


def test_a_scorer_that_kills_every_worker_ends_in_causes_not_in_a_stall() -> None:
    with make("tests.verify.scorers:die_at_once") as verifier:
        verdicts = verifier.verify_many([box("fine")] * 6)
    assert all(v.label is None and v.cause in (CRASH, TIMEOUT) for v in verdicts)


def test_a_scorer_that_does_not_exist_is_no_label() -> None:
    with make("tests.verify.scorers:nowhere") as verifier:
        assert verifier.submit(*box("fine")).result(60) == Verdict(None, INVALID)


def test_workers_are_replaced_after_their_share_of_answers() -> None:
    with make(workers=1, answers_per_worker=5) as verifier:
        verdicts = verifier.verify_many([box("pid")] * 20)
    assert len({v.label for v in verdicts}) == 4


def test_the_self_test_names_the_pair_that_fails() -> None:
    with pytest.raises(VerifierSelfTestError, match=r"frac\{1\}\{2\}.*expected Verdict\(label=1\.0"):
        MathVerifier(VerifierLimits(deadline_s=1, workers=1), scorer=SCORER)


def test_closing_leaves_no_process(gone: Callable[[int], bool], no_new_children: Callable[[], bool]) -> None:
    verifier = make()
    group = verifier.process_group
    stuck = [verifier.submit(*box(command)) for command in ("spin", "sleep 100", "fine", "fine")]
    time.sleep(0.5)
    verifier.close()
    verifier.close()
    assert group is not None
    assert gone(group)
    assert no_new_children()
    with pytest.raises(CancelledError):
        stuck[-1].result(0)
    with pytest.raises(InvariantError, match="closed"):
        verifier.submit(*box("fine"))


def test_leaving_the_block_by_ctrl_c_leaves_no_process(
    gone: Callable[[int], bool], no_new_children: Callable[[], bool]
) -> None:
    groups: list[int | None] = []

    def interrupted() -> None:
        with make() as verifier:
            groups.append(verifier.process_group)
            verifier.submit(*box("spin"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (group,) = groups
    assert group is not None
    assert gone(group)
    assert no_new_children()


OWNER = """
import os, signal, sys, time
from tests.verify.test_pool import box, make
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
verifier = make(deadline_s=100)
verifier.submit(*box("spin")); verifier.submit(*box("spin"))
time.sleep(1)
print(verifier.process_group, flush=True)
if sys.argv[1] == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
elif sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[1] == "forget":
    sys.exit(0)
time.sleep(100)
"""


@pytest.mark.parametrize("end", ["interrupt", "kill", "forget"])
def test_processes_end_with_their_owner_however_it_ends(end: str, gone: Callable[[int], bool]) -> None:
    root = Path(__file__).resolve().parents[2]
    owner = subprocess.run([sys.executable, "-c", OWNER, end], capture_output=True, text=True, timeout=60, cwd=root)
    assert owner.stdout, owner.stderr
    assert gone(int(owner.stdout))


def test_a_killed_server_is_replaced_and_its_answers_have_a_cause(no_new_children: Callable[[], bool]) -> None:
    with make() as verifier:
        assert verifier.submit(*box("fine")).result(60) == RIGHT
        group = verifier.process_group
        assert group is not None
        lost = verifier.submit(*box("sleep 0.9"))
        os.killpg(group, signal.SIGKILL)
        assert lost.result(60) == Verdict(None, CRASH)
        assert verifier.submit(*box("fine")).result(60) == RIGHT
        assert verifier.process_group != group
    assert no_new_children()


def test_a_cancelled_future_disturbs_nobody(verifier: MathVerifier) -> None:
    cancelled = verifier.submit(*box("sleep 0.3"))
    assert cancelled.cancel()
    assert verifier.verify_many([box("fine")] * 5) == [RIGHT] * 5


def test_a_forked_child_is_told_to_make_its_own(verifier: MathVerifier) -> None:
    child = os.fork()
    if child == 0:
        try:
            verifier.close()
            verifier.submit(*box("fine"))
        except InvariantError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert verifier.submit(*box("fine")).result(60) == RIGHT
