"""The pool itself, with scorers that crash, stall or return nonsense; and that it leaves no process behind."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from contextlib import suppress
from pathlib import Path

import pytest

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.verify.pool import MathVerifier, VerifierLimits
from nemo_ada.verify.process import Patience, Worker
from nemo_ada.verify.selftest import VerifierSelfTestError
from nemo_ada.verify.verdict import CRASH, INVALID, MEMORY, TIMEOUT, Verdict
from tests.patience import PATIENCE

SCORER = "tests.verify.scorers:misbehave"
RIGHT = Verdict(1.0)
SHORT_S = 0.5  # the deadline of answers that never end


def box(command: str) -> tuple[str, str]:
    return rf"\boxed{{{command}}}", "fine"


def make(workers: int = 2, answers_per_worker: int = 2000) -> MathVerifier:
    limits = VerifierLimits(PATIENCE, workers, answers_per_worker=answers_per_worker)
    return MathVerifier(limits, scorer=SCORER, self_test=False)


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    with make() as started:
        yield started


@pytest.fixture(scope="module")
def lone() -> Iterator[MathVerifier]:
    with make(workers=1, answers_per_worker=5) as started:
        yield started


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("exit 3", Verdict(None, CRASH)),
        ("exit 0", Verdict(None, CRASH)),
        ("segfault", Verdict(None, CRASH)),
        ("sleep 9999", Verdict(None, TIMEOUT)),
        ("spin", Verdict(None, TIMEOUT)),
        ("deaf", Verdict(None, TIMEOUT)),
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
    before = verifier._submit([box("fine")] * 5, PATIENCE)
    (bad,) = verifier._submit([box(command)], SHORT_S if verdict.cause == TIMEOUT else PATIENCE)
    after = verifier._submit([box("fine")] * 5, PATIENCE)
    assert bad.result() == verdict
    assert [future.result() for future in (*before, *after)] == [RIGHT] * 10


@pytest.mark.long
def test_the_deadline_counts_from_the_start_of_an_answer_not_from_its_place_in_the_queue(lone: MathVerifier) -> None:
    def last_in_a_queue() -> Verdict:
        """Of an answer that takes no time, has one second, and waits for one and a half."""
        hanging = lone._submit([box("sleep 9999")] * 3, 0.5)
        (last,) = lone._submit([box("fine")], 1.0)
        assert [future.result() for future in hanging] == [Verdict(None, TIMEOUT)] * 3
        return last.result()

    assert any(last_in_a_queue() == RIGHT for _ in range(5)), "a busy machine may stop a worker for a second, once"


def test_workers_are_replaced_after_their_share_of_answers(lone: MathVerifier) -> None:
    workers = {verdict.label for verdict in lone.verify_many([box("pid")] * 20)}
    assert len(workers) in (4, 5), "the first one may have had answers before"


def test_answers_that_kill_every_worker_end_in_causes_not_in_a_stall(verifier: MathVerifier) -> None:
    verdicts = verifier.verify_many([box("exit 9")] * 6)
    assert verdicts == [Verdict(None, CRASH)] * 6


def test_workers_that_never_start_end_in_causes_not_in_a_stall() -> None:
    with MathVerifier(VerifierLimits(PATIENCE, 2), scorer="tests.verify.no_start:score", self_test=False) as started:
        for _ in range(2):
            assert started.verify_many([box("fine")] * 4) == [Verdict(None, CRASH)] * 4


def test_the_self_test_names_the_pair_that_fails() -> None:
    with pytest.raises(VerifierSelfTestError, match=r"frac\{1\}\{2\}.*expected Verdict\(label=1\.0"):
        MathVerifier(VerifierLimits(workers=1), scorer=SCORER)


def test_closing_leaves_no_process(gone: Callable[[int], bool], no_new_children: Callable[[], bool]) -> None:
    verifier = make()
    group = verifier.process_group
    assert verifier.submit(*box("fine")).result() == RIGHT, "the workers have started"
    stuck = [verifier.submit(*box(command)) for command in ("spin", "sleep 9999", "fine", "fine")]
    verifier.close()
    verifier.close()
    assert group is not None
    assert gone(group)
    assert no_new_children()
    with pytest.raises(CancelledError):
        stuck[-1].result(0)
    with pytest.raises(InvariantError, match="closed"):
        verifier.submit(*box("fine"))


OWNER = """
import os, signal, sys, time
from nemo_ada.verify.pool import VerifierLimits
from nemo_ada.verify.pool import MathVerifier
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
verifier = MathVerifier(VerifierLimits(9999, 2), scorer="tests.verify.scorers:misbehave", self_test=False)
verifier.submit(r"\\boxed{fine}", "fine").result()
verifier.submit(r"\\boxed{sleep 9999}", ""); verifier.submit(r"\\boxed{deaf}", "")
print(verifier.process_group, flush=True)
if sys.argv[1] == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
elif sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[1] == "together":  # as Ray kills an actor: its children at once
    os.kill(verifier.process_group, signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[1] == "forget":
    sys.exit(0)
time.sleep(9999)
"""


@pytest.mark.long
@pytest.mark.parametrize("end", ["interrupt", "kill", "together", "forget"])
def test_processes_end_with_their_owner_however_it_ends(end: str, gone: Callable[[int], bool]) -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", OWNER, end]
    owner = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=root)
    assert owner.stdout, owner.stderr
    assert gone(int(owner.stdout))


def test_a_killed_server_costs_no_answer_its_verdict() -> None:
    with make(workers=4) as verifier:
        futures = [verifier.submit(*box(f"sleep 0.0{n % 5}")) for n in range(300)]
        for n in (20, 150, 280):
            assert futures[n].result() == RIGHT
            os.killpg(verifier._server.pid, signal.SIGKILL)
        assert {future.result() for future in futures} == {RIGHT}


def test_a_worker_that_is_killed_from_outside_costs_no_answer_its_verdict() -> None:
    with make(workers=1) as verifier:
        assert verifier.submit(*box("fine")).result() == RIGHT
        (worker,) = verifier._workers.values()
        futures = [verifier.submit(*box(f"sleep 0.{n}")) for n in (3, 1)]
        os.kill(worker._pid, signal.SIGKILL)  # as the kernel does when the node has no memory left
        assert [future.result() for future in futures] == [RIGHT, RIGHT]


def test_servers_that_die_before_a_first_answer_end_in_causes_and_then_in_an_error() -> None:
    with MathVerifier(VerifierLimits(PATIENCE, 1), scorer="tests.verify.dies:score", self_test=False) as started:
        assert {verdict.cause for verdict in started.verify_many([box("fine")] * 3)} == {CRASH}
        with pytest.raises(InvariantError, match="died before a first answer"):
            started.submit(*box("fine"))


def test_an_answer_that_times_out_is_asked_again_once(verifier: MathVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    judge = Worker.judge
    monkeypatch.setattr(Worker, "judge", lambda one, message, due: (asked.append(due), judge(one, message, due))[1])
    answers = verifier._submit([box("spin")] * 2, 0.2)
    assert [one.result() for one in answers] == [Verdict(None, TIMEOUT)] * 2
    assert asked == [0.2] * 4


def test_a_deadline_counts_the_time_of_the_worker_and_its_rest_but_no_wait_for_a_core() -> None:
    """A worker that is runnable and gets no core rests for nobody; one that is stopped does."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        patience, (ours, theirs) = Patience(busy.pid, 0.3), socket.socketpair()
        try:
            with pytest.raises(TimeoutError):
                patience.wait(ours, select.POLLIN)
            assert time.clock_gettime(~busy.pid << 3 | 2) >= 0.3, "it has had its seconds"
            os.kill(busy.pid, signal.SIGSTOP)
            stopped = Patience(busy.pid, 0.3)
            with pytest.raises(TimeoutError):
                stopped.wait(ours, select.POLLIN)
            theirs.send(b"x")
            Patience(busy.pid, 1e-9).wait(ours, select.POLLIN)
        finally:
            busy.kill()
            ours.close()
            theirs.close()


def test_a_killed_server_is_replaced_and_its_answers_have_a_cause(
    verifier: MathVerifier, gone: Callable[[int], bool]
) -> None:
    assert verifier.submit(*box("fine")).result() == RIGHT
    group = verifier.process_group
    assert group is not None
    (lost,) = verifier._submit([box("sleep 9999")], SHORT_S)
    os.killpg(group, signal.SIGKILL)
    assert lost.result().cause in (CRASH, TIMEOUT), "TIMEOUT where no worker had it yet, so that the next server got it"
    assert verifier.submit(*box("fine")).result() == RIGHT
    assert verifier.process_group != group and gone(group)


SCARCE = """
import logging, resource, signal, sys, threading
from nemo_ada.verify.pool import VerifierLimits
from nemo_ada.verify.pool import MathVerifier
start, few = threading.Thread.start, iter(range(3))
def refuse(thread):
    if next(few, None) is None:
        raise RuntimeError("can't start new thread")
    start(thread)
match sys.argv[1]:
    case "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
    case "threads":
        threading.Thread.start = refuse
    case "children":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
logging.basicConfig(level=logging.WARNING)
with MathVerifier(VerifierLimits(9999, 64), scorer="tests.verify.scorers:misbehave", self_test=False) as verifier:
    verdicts = verifier.verify_many([(r"\\boxed{exit 3}", "")] * 3 + [(r"\\boxed{fine}", "fine")] * 300)
print(sum(verdict.label == 1.0 for verdict in verdicts), sum(verdict.cause == "verifier_crash" for verdict in verdicts))
"""


@pytest.mark.long
@pytest.mark.parametrize("scarce", ["descriptors", "threads", "children"])
def test_fewer_workers_than_wanted_lose_no_answer_and_say_so_once(scarce: str) -> None:
    command = [sys.executable, "-c", SCARCE, scarce]
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert done.stdout == "300 3\n", done.stderr
    assert done.stderr.count("uses fewer") == (scarce != "children")


def test_every_future_ends_where_close_comes_between() -> None:
    for _ in range(5):
        verifier, ended = make(), []

        def ask(verifier: MathVerifier = verifier, ended: list[object] = ended) -> None:
            with suppress(InvariantError, CancelledError):
                while True:
                    verifier.verify_many([box("fine")] * 20)
            ended.append(None)

        askers = [threading.Thread(target=ask) for _ in range(16)]
        for asker in askers:
            asker.start()
        verifier.submit(*box("fine")).result()
        verifier.close()
        for asker in askers:
            asker.join(PATIENCE)
        assert len(ended) == len(askers)


def test_a_callback_may_close_the_verifier() -> None:
    verifier, done = make(workers=1), threading.Event()
    answer = verifier.submit(*box("sleep 0.2"))
    answer.add_done_callback(lambda _: (verifier.close(), done.set()))
    assert done.wait(PATIENCE)


def test_a_cancelled_future_disturbs_nobody(verifier: MathVerifier) -> None:
    (cancelled,) = verifier._submit([box("sleep 9999")], SHORT_S)
    assert cancelled.cancel()
    queued = verifier._submit([box("sleep 9999")] * 2 + [box("fine")], SHORT_S)[-1]
    assert queued.cancel() and wait([queued], PATIENCE).not_done == set()
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
    assert verifier.submit(*box("fine")).result() == RIGHT


@pytest.mark.parametrize(
    ("label", "cause"), [(None, None), (1.0, TIMEOUT), (None, "tired"), (math.nan, None), (2.0, None)]
)
def test_a_verdict_is_a_label_or_a_known_cause(label: float | None, cause: str | None) -> None:
    with pytest.raises(InvariantError):
        Verdict(label, cause)


@pytest.mark.parametrize(
    ("key", "value"),
    [("deadline_s", 0.0), ("deadline_s", math.nan), ("workers", 0), ("memory_bytes", 1000), ("answers_per_worker", 0)],
)
def test_a_senseless_limit_is_refused_with_its_key(key: str, value: float) -> None:
    with pytest.raises(UserError, match=f"verifier.{key}="):
        VerifierLimits(**{key: value})  # type: ignore[arg-type]


def test_what_a_scorer_prints_reaches_the_log_in_part_and_its_label_stays(verifier, caplog) -> None:
    assert verifier.verify_many([box("print so"), box("score 0.5")]) == [RIGHT, Verdict(0.5)]
    (said,) = [one.getMessage() for one in caplog.records if "printed" in one.getMessage()]
    assert SCORER in said and "soso" in said and len(said) < 400


def test_a_scorer_without_a_function_name_is_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match=r"package\.module:function"):
        MathVerifier(scorer="os.path")
