"""Never Give Up: which prompts come again, and what a chain of attempts does to the advantages."""

import numpy as np
import pytest

from nemo_ada.config.presets import ada_settings
from nemo_ada.errors import UserError
from tests.core.scripted import Script, ScriptedSource


def step(own, number, ids, *labels):
    sampled = own.run_step(number, ids, ScriptedSource(Script.of(*labels), np.random.default_rng(number)))
    assert sampled is not None
    return sampled, sampled.rows.advantage_R.reshape(len(ids), -1)


def sampler(probability=1.0, n=4, **settings):
    return ada_settings({"preset": "ngu", "retry_probability": probability} | settings).sampler(n, 16, run_seed=3)


def test_prompts_without_a_correct_response_come_again_and_no_others():
    sampled, _ = step(sampler(), 1, ["wrong", "mixed", "right", "again"], "----", "+---", "++++", "----")
    assert sampled.again == (0, 3)


def test_the_probability_decides_how_many_come_again():
    ids = [f"p{i}" for i in range(400)]
    sampled, _ = step(sampler(0.3), 1, ids, *["----"] * 400)
    assert len(sampled.again) == pytest.approx(120, abs=40)
    assert step(sampler(0.3), 1, ids, *["----"] * 400)[0].again == sampled.again


def test_the_baseline_is_the_mean_of_the_chain_and_the_correct_rows_keep_their_advantage():
    own = sampler()
    _, first = step(own, 1, ["a", "b"], "----", "+---")
    assert (first[0] == 0).all()
    sampled, second = step(own, 2, ["a", "c"], "++--", "+---")
    np.testing.assert_allclose(sorted(second[0]), [-0.75, -0.75, 0.75, 0.75])  # 1 - 2 / 8, and its opposite
    np.testing.assert_allclose(sorted(second[1]), sorted(first[1]))  # a first attempt is GRPO's group
    assert sampled.metrics["ada/retried_prompts"] == 1
    assert sampled.again == ()


def test_a_chain_ends_with_its_first_correct_response():
    own = sampler()
    step(own, 1, ["a"], "----")
    step(own, 2, ["a"], "+---")
    _, third = step(own, 3, ["a"], "++--")
    np.testing.assert_allclose(sorted(third[0]), [-0.5, -0.5, 0.5, 0.5])


def test_a_group_of_correct_responses_after_a_failed_attempt_has_a_gradient():
    own = sampler()
    step(own, 1, ["a"], "----")
    _, second = step(own, 2, ["a"], "++++")
    np.testing.assert_allclose(second[0], 0.5)


def test_open_chains_are_part_of_the_samplers_state():
    own, resumed = sampler(), sampler()
    step(own, 1, ["a", "b"], "----", "+---")
    resumed.load_state_dict(own.state_dict())
    np.testing.assert_array_equal(step(resumed, 2, ["a"], "+---")[1], step(own, 2, ["a"], "+---")[1])


@pytest.mark.parametrize(
    "settings",
    [
        {"advantage": {"baseline": "shrunk"}},
        {"advantage": {"weighting": "objective"}},
        {"reserve_prompts": 4},
        {"candidate_prompts": 64},
    ],
)
def test_settings_that_choose_prompts_or_baselines_themselves_are_refused(settings):
    with pytest.raises(UserError, match="retry_probability"):
        sampler(**settings)
