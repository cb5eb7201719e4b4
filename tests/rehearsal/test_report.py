"""Verdicts: bounds that fail a rehearsal, a resumed run that differs, the phase of a failure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.rehearsal.report import Deviation, Events, Report, compare_resumed, measure_run
from nemo_ada.rehearsal.shrink import Layout

LAYOUT = Layout("megatron", 2, 1, 1, 1, 1)


def run(steps: dict[int, dict[str, float]], rows: list[list[str]], *extra: dict[str, Any]) -> Events:
    metrics = [{"event": "metrics", "step": step, "prefix": "train", "numbers": given} for step, given in steps.items()]
    return Events([*metrics, *({"event": "rows", "rows": row} for row in rows), *extra])


GOOD = {"loss": 0.5, "lr": 0.01, "grad_norm": 1.0, "token_mult_prob_error": 1.0, "gen_kl_error": 0.0}


@pytest.mark.parametrize(
    ("metric", "value"), [("token_mult_prob_error", 1.05), ("gen_kl_error", -0.1), ("gen_kl_error", math.nan)]
)
def test_a_stale_refit_fails(metric: str, value: float) -> None:
    assert all(result.passed for result in measure_run(run({1: GOOD}, [])))
    assert not all(result.passed for result in measure_run(run({1: GOOD | {metric: value}}, [])))


@pytest.mark.parametrize(("packed", "unpacked"), [(1.0, 1.1), (0.0, 0.0)], ids=["differ", "nothing to compare"])
def test_packed_gradients_that_are_not_seen_to_be_equal_fail(packed: float, unpacked: float) -> None:
    norms = {"event": "gradient norms", "packed": packed, "unpacked": unpacked}
    assert [result.passed for result in measure_run(run({}, [], norms))] == [False]


EMPTY = {"loss": 0.0, "lr": 0.01, "grad_norm": 0.0, "token_mult_prob_error": math.nan, "global_valid_toks": 0.0}


def test_a_step_without_a_token_in_the_loss_gives_no_number() -> None:
    """With overlong filtering every response of a step may be cut, and 0/0 says nothing about the refit."""
    names = [result.name for result in measure_run(run({1: GOOD, 2: EMPTY}, []))]
    assert [name for name in names if name.startswith("step 2")] == []
    assert all(result.passed for result in measure_run(run({1: GOOD, 2: EMPTY}, [])))
    rows = [["a"], ["b"]]
    resumed = compare_resumed(run({1: GOOD, 2: EMPTY}, rows), run({2: EMPTY}, rows[1:]), 1, 2, "rows")
    assert [result.name for result in resumed if "step 2" in result.name] == [
        "resumed step 2: |lr difference|", "resumed step 2: rows that differ of 1",
    ]  # fmt: skip
    differs = compare_resumed(run({1: GOOD, 2: EMPTY}, rows), run({2: GOOD}, rows[1:]), 1, 2, "rows")
    assert not all(result.passed for result in differs)


def test_one_step_must_have_a_gradient_and_the_report_says_why_none_has() -> None:
    (failed,) = (
        result for result in measure_run(run({1: EMPTY, 2: GOOD | {"grad_norm": 0.0}}, [])) if not result.passed
    )
    assert failed.name == "steps whose last update had no gradient, of 2 (1 had no token in the loss)"


@pytest.mark.parametrize(
    ("learns", "probed", "passed"),
    [
        ([True, False], 0.2, True),
        ([True, False], 0.0, False),
        ([True, False], None, False),
        ([False, False], None, True),
    ],
    ids=["seen by the probe", "a zero", "not probed", "nothing to learn"],
)
def test_a_gradient_is_seen_where_an_update_had_something_to_learn(
    learns: list[bool], probed: float | None, passed: bool
) -> None:
    """NeMo-RL reports the norm of a step's last update, which may have no advantage where another one has."""
    events = Events(
        [
            {"event": "rows", "rows": [], "learns": learns},
            {"event": "metrics", "step": 1, "prefix": "train", "numbers": GOOD | {"grad_norm": 0.0}},
            *([] if probed is None else [{"event": "gradient norms", "unpacked": probed}]),
        ]
    )
    (measured,) = (result for result in measure_run(events) if result.name.startswith("steps whose last"))
    assert measured.passed is passed


def test_a_resumed_run_equals_the_undisturbed_one() -> None:
    whole = run({1: GOOD, 2: GOOD, 3: GOOD}, [["a"], ["b", "c"], ["d"], ["a probe's"]])
    assert all(
        measurement.passed
        for measurement in compare_resumed(whole, run({2: GOOD, 3: GOOD}, [["b", "c"], ["d"]]), 1, 3, "rows")
    )


@pytest.mark.parametrize(
    ("steps", "rows", "said"),
    [
        ({2: GOOD | {"lr": 0.001}, 3: GOOD}, [["b", "c"], ["d"]], "lr"),
        ({2: GOOD, 3: GOOD | {"loss": 0.6}}, [["b", "c"], ["d"]], "loss"),
        ({2: GOOD, 3: GOOD}, [["b", "x"], ["d"]], "rows"),
        ({2: GOOD, 3: GOOD}, [["b", "c"]], "rows"),
        ({2: GOOD}, [["b", "c"], ["d"]], "missing"),
    ],
)
def test_a_resumed_run_that_differs_fails(steps: dict[int, dict[str, float]], rows: list[list[str]], said: str) -> None:
    whole = run({1: GOOD, 2: GOOD, 3: GOOD}, [["a"], ["b", "c"], ["d"]])
    failed = [result.name for result in compare_resumed(whole, run(steps, rows), 1, 3, "rows") if not result.passed]
    assert len(failed) == 1 and said in failed[0]


def test_the_innermost_failing_phase_is_named(tmp_path: Path) -> None:
    lines = [
        {
            "event": "error",
            "phase": "score",
            "kind": "ValueError",
            "message": "ray::f()\n  File\nValueError: no verifier",
        },
        {"event": "error", "phase": "generate", "kind": "ValueError", "message": "x"},
        {"event": "failed", "kind": "ValueError", "message": "no verifier"},
    ]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Events.read(path).failure() == ("score", "ValueError: no verifier")


def test_an_error_without_a_sentence_is_told_with_its_name() -> None:
    error = {"event": "error", "phase": "data", "kind": "KeyError", "message": "'ada_maths'"}
    assert Events([error, {"event": "failed", "kind": "KeyError", "message": "'ada_maths'"}]).failure() == (
        "data", "KeyError: 'ada_maths'"
    )  # fmt: skip


def test_a_report_without_numbers_does_not_pass() -> None:
    report = Report("c.yaml", "nemo-ada rehearse c.yaml", LAYOUT, [], [])
    assert not report.passed
    report.measurements = [Deviation("x", 0.0, 1.0)]
    assert report.passed
    report.failure = ("refit", "no weights")
    assert not report.passed
    assert "Failed in phase **refit**: no weights" in report.markdown()


def prompts(step: int, *names: str) -> dict[str, Any]:
    return {"event": "prompts", "step": step, "prompts": list(names)}


def test_asynchronous_training_is_judged_by_the_engine_after_the_last_refit() -> None:
    old = GOOD | {"token_mult_prob_error": 1.5}
    near, far = ({"event": "engine log-probs", "difference": value} for value in (1e-6, 0.3))
    for probes, passed in (([near], True), ([far], False), ([], False)):
        results = measure_run(run({1: old}, [], *probes), ahead=True)
        assert all(result.passed for result in results) == passed


def test_a_prompt_trained_on_twice_fails() -> None:
    near = {"event": "engine log-probs", "difference": 0.0}
    twice = run({1: GOOD, 2: GOOD}, [], near, prompts(1, "a", "b"), prompts(2, "c", "a"))
    results = measure_run(twice, ahead=True)
    assert [result.value for result in results if "twice" in result.name] == [1.0]


@pytest.mark.parametrize(
    ("steps", "drawn", "wrong"),
    [
        ({2: GOOD, 3: GOOD}, ["c", "d"], []),
        ({3: GOOD}, ["d"], ["missing"]),
        ({1: GOOD, 2: GOOD, 3: GOOD}, ["c", "d"], ["missing"]),
        ({2: GOOD, 3: GOOD}, ["a", "d"], ["twice"]),
    ],
)
def test_a_continued_asynchronous_run_does_every_step_once(
    steps: dict[int, dict[str, float]], drawn: list[str], wrong: list[str]
) -> None:
    before = run({1: GOOD, 2: GOOD}, [], prompts(1, "a", "b"), prompts(2, "x"))  # killed in step 2, after its prompts
    results = compare_resumed(before, run(steps, [], prompts(3, *drawn)), 1, 3, "steps")
    failed = [result.name for result in results if not result.passed]
    assert [word for name in failed for word in ("missing", "twice") if word in name] == wrong
