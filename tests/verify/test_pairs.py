"""Labelled pairs of an answer and a reference, judged by the real verifier, with a budget of misjudged ones.

The pairs are facts: what was answered, what the reference is, and whether they say the same. `source` names the public
data set or test suite whose references or pairs they are; the others were written for this test.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.verify.pool import MathVerifier, VerifierLimits
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

PAIRS: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("pairs.jsonl").read_text(encoding="utf-8").splitlines()
]
KINDS = {
    "percent", "number", "punctuation", "unreadable reference", "list", "tuple", "interval", "ratio", "time and date",
    "choice", "text", "unit", "form", "chain", "mixed", "hedge", "language",
}  # fmt: skip
RESPONSES: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("responses.jsonl").read_text(encoding="utf-8").splitlines()
]
ASKED: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("asked.jsonl").read_text(encoding="utf-8").splitlines()
]
PAID, REFUSED = 0.0, 0.03  # budget: wrong answers that are paid, right ones that are refused


@pytest.fixture(scope="module")
def labels() -> list[float | None]:
    with MathVerifier(VerifierLimits(PATIENCE, workers=2), self_test=False) as verifier:
        verdicts = verifier.verify_many([(rf"\boxed{{{pair['answer']}}}", pair["reference"]) for pair in PAIRS])
    return [verdict.label for verdict in verdicts]


def misjudged(labels: list[float | None], value: int) -> list[tuple[str, str, float | None]]:
    return [
        (pair["answer"], pair["reference"], label)
        for pair, label in zip(PAIRS, labels, strict=True)
        if pair["value"] == value and label != value
    ]


def test_there_are_right_and_wrong_pairs_of_every_kind_each_once() -> None:
    counts = Counter((pair["kind"], pair["value"]) for pair in PAIRS)
    assert {kind for kind, _ in counts} == KINDS
    assert all(counts[kind, value] >= 5 for kind in KINDS - {"hedge"} for value in (0, 1))
    assert counts["hedge", 1] == 0, "a hedge is never right"
    assert len({(pair["answer"], pair["reference"]) for pair in PAIRS}) == len(PAIRS) >= 400
    assert all(set(pair) == {"kind", "answer", "reference", "value", "source"} for pair in PAIRS)


@pytest.mark.parametrize(("value", "budget"), [(0, PAID), (1, REFUSED)], ids=["paid", "refused"])
def test_misjudged_pairs_stay_within_the_budget(labels: list[float | None], value: int, budget: float) -> None:
    missed = misjudged(labels, value)
    count = sum(pair["value"] == value for pair in PAIRS)
    assert len(missed) <= budget * count, missed


def test_every_pair_has_a_label(labels: list[float | None]) -> None:
    assert [pair for pair, label in zip(PAIRS, labels, strict=True) if label is None] == []


def test_whole_responses_get_the_label_of_what_they_claim() -> None:
    """Several boxes, thoughts, and what stands around a box."""
    with MathVerifier(VerifierLimits(PATIENCE, workers=2), self_test=False) as verifier:
        verdicts = verifier.verify_many([(one["response"], one["reference"]) for one in RESPONSES])
    assert [
        (one["response"], one["reference"], verdict)
        for one, verdict in zip(RESPONSES, verdicts, strict=True)
        if verdict.label != one["value"]
    ] == []


def test_answers_to_a_prompt_get_the_label_of_what_they_say_to_it() -> None:
    """800 cents for 8 where dollars were asked for, `diverges` for No: right and wrong ones, none misjudged."""
    with MathVerifier(VerifierLimits(PATIENCE, workers=2), self_test=False) as verifier:
        verdicts = verifier.verify_many(
            [(rf"\boxed{{{one['answer']}}}", one["reference"], one["prompt"]) for one in ASKED]
        )
    assert sum(one["value"] for one in ASKED) > 100
    assert sum(not one["value"] for one in ASKED) > 50
    assert [
        (one["prompt"], one["answer"], one["reference"], verdict)
        for one, verdict in zip(ASKED, verdicts, strict=True)
        if verdict.label != one["value"]
    ] == []


def test_the_pairs_are_written_as_their_authors_wrote_them() -> None:
    """Full-width, invisible and composed characters are part of some pairs: an editor must not normalise the file."""
    text = "".join(pair["answer"] for pair in PAIRS)
    assert {"\u200b", "\ufeff", "，", "½"} <= set(text) and unicodedata.normalize("NFKC", text) != text
