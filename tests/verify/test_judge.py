"""Labels from verdicts: part of a point, unfinished responses, failures; processes start only when they are needed."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError, Future, wait
from threading import Timer

import pytest

from nemo_ada.verify import judge as module
from nemo_ada.verify.judge import Judge, make_judge, normalise_text
from nemo_ada.verify.verdict import TIMEOUT, Verdict


class ScriptedVerifier:
    """Its verdict on an answer is the number that it holds; `hang` fails."""

    started = closed = 0

    def __init__(self, limits, **how) -> None:
        assert how == {"scorer": module.DEFAULT_SCORER, "whole": False, "self_test": True}
        type(self).started += 1

    def submit(self, text, answer, prompt):
        future = Future()

        def settle() -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(*self.verify_many([(text, answer)]))

        Timer(0.01, settle).start()
        return future

    def verify_many(self, pairs):
        return [Verdict(None, TIMEOUT) if text == "hang" else Verdict(float(text)) for text, _ in pairs]

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def scripted(monkeypatch):
    kind = type("Fresh", (ScriptedVerifier,), {})
    monkeypatch.setattr(module, "MathVerifier", kind)
    return kind


def labels(judge: Judge, *responses: tuple[str, str, bool]) -> list[float | None]:
    return [verdict.label for verdict in judge.verdicts(responses)]


@pytest.mark.parametrize(("verifier", "text"), [("math", "1.0"), ("exact", "42")])
def test_cut_off_responses_are_wrong_or_judged_as_asked(scripted, verifier, text):
    responses = [(text, "42", False), (text, "42", True)]
    assert labels(make_judge(verifier), *responses) == [0.0, 1.0]
    assert labels(make_judge(verifier, unfinished="judged"), *responses) == [1.0, 1.0]


def test_processes_start_with_the_first_answer_and_again_after_closing(scripted):
    judge = make_judge("math")
    assert labels(judge) == [] and labels(judge, ("1.0", "1", False)) == [0.0]
    judge.close()
    assert (scripted.started, scripted.closed) == (0, 0)
    for _ in range(2):
        assert labels(judge, ("1.0", "1", True), ("0.0", "1", True)) == [1.0, 0.0]
    judge.close()
    judge.close()
    assert (scripted.started, scripted.closed) == (1, 1)
    assert labels(judge, ("1.0", "1", True)) == [1.0] and scripted.started == 2


def test_submitted_answers_get_the_same_verdicts_later_and_may_be_cancelled(scripted):
    judge = make_judge("math")
    futures = [judge.submit(text, "1", True) for text in ("1.0", "0.0", "hang")]
    assert [future.result(5).label for future in futures] == [1.0, 0.0, None]
    assert judge.submit("1.0", "1", False) == Verdict(0.0) and scripted.started == 1
    assert make_judge("exact").submit(" A", "a", True) == Verdict(1.0)
    dropped = judge.submit("1.0", "1", True)
    assert dropped.cancel()
    wait([dropped], 5)
    with pytest.raises(CancelledError):
        dropped.result()


@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0f73"])
def test_accents_on_one_letter_are_compared_in_linear_time(marks):
    def cost(n: int) -> float:
        """CPU seconds, the best of three."""
        times = []
        for _ in range(3):
            begin = time.process_time()
            assert labels(make_judge("exact"), ("a" + marks * n, "a", True)) == [0.0]
            times.append(time.process_time() - begin)
        return min(times)

    assert cost(16_000) < 4 * 16 * max(cost(1_000), 1e-4), "16 times as long; ordering all of them costs 256 times"


def test_exact_text_is_equal_in_every_unicode_form_of_it():
    assert normalise_text("A\u0308  \uff11") == normalise_text("\u00e4 1")
    assert normalise_text("a\u0301") != normalise_text("a")
