"""maj@k."""

from __future__ import annotations

import pytest

from nemo_ada.lab.evaluation.majority import compute_majority, read_vote
from nemo_ada.lab.evaluation.results import BenchmarkResult, summarise_results
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
    assert compute_majority(votes) == expected


def test_responses_vote_by_the_text_of_their_last_box():
    assert read_vote(r"\\boxed{1}, no: \\boxed{X +  2}", boxed=True) == "x+2"
    assert read_vote("no box", boxed=True) is None and read_vote(r"\\boxed{ }", boxed=True) is None
    assert read_vote(" A b ", boxed=False) == "ab"


def test_a_table_has_the_majority_where_it_is_known():
    rows = [row | {"majority": share} for row, share in zip(records([8, 2, 0]), (1.0, 0.5, 0.0), strict=True)]
    found = summarise_results([BenchmarkResult.of("a", rows, 0)], 8)["overall"]["maj@8"]
    assert found["mean"] == 0.5 and found["prompts"] == 3
    assert summarise_results([BenchmarkResult.of("a", records([8, 8]), 0)], 8)["overall"]["maj@8"]["mean"] is None
