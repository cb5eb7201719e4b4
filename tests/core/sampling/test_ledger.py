"""The ledger never promises more than the caps hold, whatever is reserved and settled in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_ada.core.sampling.budget import Caps, Ledger
from nemo_ada.errors import InvariantError

OPERATIONS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30), st.floats(0, 1)), max_size=60)


@given(st.integers(0, 40), st.integers(0, 300), OPERATIONS)
def test_reserved_and_spent_never_pass_the_caps(max_samples, max_tokens, operations):
    ledger = Ledger(Caps(max_samples, max_tokens))
    tickets: list[tuple[int, int]] = []
    samples = used = 0
    for count, each, share in operations:
        fits = samples + count <= max_samples and used + sum(t for t, _ in tickets) + count * each <= max_tokens
        assert (ledger.refusal(count, count * each) is None) == fits
        if fits:
            ledger.reserve(count, count * each)
            tickets.append((count * each, int(share * count * each)))
            samples += count
        elif tickets:
            reserved, spent = tickets.pop(int(share * (len(tickets) - 1)))
            ledger.settle(reserved, spent)
            used += spent
        assert ledger.samples == samples <= max_samples
        assert ledger.tokens_used == used
        assert ledger.tokens_used + ledger.tokens_reserved <= max_tokens
    assert ledger.tokens_overshoot == 0


def test_no_cap_refuses_nothing():
    assert Ledger(Caps()).refusal(10**9, 10**12) is None


def test_the_refusal_names_the_cap():
    ledger = Ledger(Caps(max_samples=4, max_tokens=100))
    assert ledger.refusal(5, 1) == "max_samples"
    assert ledger.refusal(1, 101) == "max_tokens"


def test_reserving_against_a_refusal_is_a_defect_but_first_waves_may_pass_the_token_cap():
    ledger = Ledger(Caps(max_samples=4, max_tokens=100))
    with pytest.raises(InvariantError, match="against max_tokens"):
        ledger.reserve(1, 101)
    ledger.reserve(2, 120, forced=True)
    ledger.settle(120, 130)
    assert ledger.tokens_overshoot == 30
    with pytest.raises(InvariantError, match="against max_samples"):
        ledger.reserve(3, 1, forced=True)


def test_giving_back_more_than_was_reserved_is_a_defect():
    ledger = Ledger(Caps())
    ledger.reserve(1, 10)
    with pytest.raises(InvariantError, match="settled 11"):
        ledger.settle(11, 3)
