"""Seeds of the rehearsal's responses: per prompt and draw, the same in every generation phase."""

from __future__ import annotations

from nemo_ada.rehearsal.standins.nemo_rl_vllm import Draws


def test_a_phase_repeats_the_seeds_of_its_prompts() -> None:
    draws = Draws()
    first = [draws.seed(b"one"), draws.seed(b"two"), draws.seed(b"one")]
    assert len(set(first)) == 3
    draws.clear()
    assert [draws.seed(b"two"), draws.seed(b"one"), draws.seed(b"one")] == [first[1], first[0], first[2]]
    assert all(0 <= seed < 2**31 for seed in first)
