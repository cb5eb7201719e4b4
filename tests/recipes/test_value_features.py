"""value_features.py: its correlation for features that tell the pass rate, and for those that do not."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

if any(importlib.util.find_spec(name) is None for name in ("megatron", "ray", "transformers")):
    pytest.skip("the CPU back end is not installed", allow_module_level=True)

from tests.lazy import Lazy

torch, transformers = Lazy("torch"), Lazy("transformers")
recipe = Lazy("value_features")

pytestmark = pytest.mark.slow  # imports transformers for a benchmark
SCHEDULE = 8, 32, 4  # steps, prompts of a step, responses of a prompt
RNG = np.random.default_rng(0)
NOISE = RNG.normal(size=(256, 16))
RATES = 1.0 / (1.0 + np.exp(-2.0 * NOISE[:, 0]))


def correlation(features, rates=RATES, seeds=range(5)):
    return np.mean([recipe.online_correlation(features, rates, 0.5, *SCHEDULE, seed) for seed in seeds])


def test_features_that_hold_the_rate_are_told_from_those_that_do_not():
    assert correlation(NOISE) > 0.8
    assert abs(correlation(np.random.default_rng(1).normal(size=NOISE.shape))) < 0.2


def test_a_prompt_is_judged_by_what_was_predicted_before_its_labels():
    """One feature per prompt: whoever had learned from a prompt would know it, who had not knows nothing of it."""
    assert abs(correlation(np.eye(256))) < 0.2


def test_the_states_are_those_of_each_prompt_alone(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, **heads)).save_pretrained(tmp_path)
    found = recipe.hidden_states(tmp_path, [[3, 4, 5], [7]])
    end, mean, both = found.values()
    assert end.shape == mean.shape == (2, 8)
    np.testing.assert_allclose(end[1], mean[1])  # of one token
    assert not np.allclose(end[0], mean[0])
    np.testing.assert_allclose(both, np.hstack([end, mean]))
    shorter = recipe.hidden_states(tmp_path, [[3, 4]])["the prompt's end"][0]
    np.testing.assert_allclose(
        3 * mean[0], end[0] + shorter + recipe.hidden_states(tmp_path, [[3]])["both"][0, :8], atol=1e-5
    )
