"""maj@k, and length by verdict."""

from __future__ import annotations

import pytest

from nemo_ada.lab.evaluation.majority import majority, vote
from nemo_ada.lab.evaluation.results import BenchmarkResult, results
from tests.lab.evaluation.test_results import records


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([], 0.0),
        ([("4", True)], 1.0),
        ([("4", True), ("5", False), ("5", False)], 0.0),
        ([("4", True), ("5", False)], 0.5),
        ([("4", True), ("4", True), ("5", False), ("5", False), ("6", False)], 0.5),
        ([("4", True), ("4", False), ("5", False)], 0.5),  # the verifier was not sure of itself
    ],
)
def test_the_answer_of_most_responses_counts_and_ties_are_shared(votes, expected):
    assert majority(votes) == expected


def test_responses_vote_by_the_text_of_their_last_box():
    assert vote(r"\\boxed{1}, no: \\boxed{X +  2}", boxed=True) == "x+2"
    assert vote("no box", boxed=True) is None and vote(r"\\boxed{ }", boxed=True) is None
    assert vote(" A b ", boxed=False) == "ab"


def test_a_table_has_the_majority_and_length_by_verdict():
    rows = records([8, 2, 0])
    for row, share in zip(rows, (1.0, 0.5, 0.0), strict=True):
        right = {"right_tokens": 10 * row["correct"], "right_finished": row["correct"]}
        row |= {"majority": share, "wrong_tokens": 30 * (8 - row["correct"]), "wrong_finished": 0, **right}
    found = results([BenchmarkResult.of("a", rows, 0)], 8)["overall"]
    assert found["maj@8"]["mean"] == 0.5 and found["maj@8"]["prompts"] == 3
    assert found["by_verdict"]["right"] == {"responses": 10, "mean_tokens": 10.0, "finished": 1.0}
    assert found["by_verdict"]["wrong"] == {"responses": 14, "mean_tokens": 30.0, "finished": 0.0}
    older = results([BenchmarkResult.of("a", records([8, 8]), 0)], 8)["overall"]
    assert older["maj@8"]["mean"] is None and older["by_verdict"]["wrong"]["finished"] is None
