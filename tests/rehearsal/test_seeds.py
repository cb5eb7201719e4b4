"""Seeds of the rehearsal's responses: per prompt and draw, the same in every generation phase."""

from __future__ import annotations

from collections import Counter

from nemo_ada.rehearsal.standins.responses import next_seed


def test_a_phase_repeats_the_seeds_of_its_prompts() -> None:
    requests: Counter[bytes] = Counter()
    first = [next_seed(requests, prompt) for prompt in (b"one", b"two", b"one")]
    assert len(set(first)) == 3
    requests.clear()
    assert [next_seed(requests, prompt) for prompt in (b"two", b"one", b"one")] == [first[1], first[0], first[2]]
    assert all(0 <= seed < 2**31 for seed in first)
