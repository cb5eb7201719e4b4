"""The config of one GPU: its sizes, what it refuses, and how many layers fit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.errors import UserError
from nemo_ada.rehearsal.fit import count_fitting_layers, fit_to_one_gpu
from nemo_ada.rules.facts.cards import H100, H200, find_card_of_device
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.facts.models import TABLE
from nemo_ada.rules.facts.nemo_config import NemoConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
pytestmark = pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="our configs build on NeMo-RL's files")


def fitted(name: str, *words: str, scale: float = 0.125) -> dict[str, Any]:
    """A config of this project on one GPU."""
    config = load_config(CONFIGS / f"{name}.yaml", [*words])
    return fit_to_one_gpu(config, model=Path("/m"), data=Path("/d"), scale=scale).config


@pytest.mark.parametrize("name", ["qwen2.5-math-1.5b", "qwen2.5-math-7b", "qwen2.5-72b", "qwen3-30b-a3b"])
def test_everything_is_on_one_gpu_and_an_update_keeps_its_share_of_the_step(name: str) -> None:
    full, small = load_config(CONFIGS / f"{name}.yaml"), fitted(name)
    megatron = small["policy"]["megatron_cfg"]
    kinds = ("tensor_model", "pipeline_model", "context", "expert_model")
    assert [megatron[f"{kind}_parallel_size"] for kind in kinds] == [1] * 4
    assert small["policy"]["generation"]["vllm_cfg"]["tensor_parallel_size"] == 1
    assert (small["cluster"]["num_nodes"], small["cluster"]["gpus_per_node"]) == (1, 1)
    assert NemoConfig.of_megatron(small).learner.replicas == 1
    group = full["grpo"]["num_generations_per_prompt"]
    updates = full["grpo"]["num_prompts_per_step"] * group / full["policy"]["train_global_batch_size"]
    prompts = small["grpo"]["num_prompts_per_step"]
    assert prompts == full["grpo"]["num_prompts_per_step"] / 8
    assert prompts * group / small["policy"]["train_global_batch_size"] == updates
    for key in ("max_total_sequence_length",):
        assert small["policy"][key] == full["policy"][key], "lengths stay"
    assert small["policy"]["generation"]["max_new_tokens"] == full["policy"]["generation"]["max_new_tokens"]


@pytest.mark.parametrize(
    ("name", "scale", "match"),
    [
        ("qwen3-30b-a3b-async", 0.125, "two|one for vLLM"),
        ("qwen3-4b-instruct-2507-gym-math", 0.125, "NeMo-Gym"),
        ("qwen2.5-math-1.5b", 0.0, "above 0"),
        ("qwen2.5-math-1.5b", 1.5, "at most 1"),
    ],
)
def test_what_one_gpu_cannot_run_is_refused(name: str, scale: float, match: str) -> None:
    with pytest.raises(UserError, match=match):
        fitted(name, scale=scale)


def test_a_model_keeps_its_layers_where_they_fit_and_loses_some_where_they_do_not() -> None:
    small = NemoConfig.of_megatron(fitted("qwen2.5-math-1.5b"))
    assert count_fitting_layers(small, TABLE["Qwen/Qwen2.5-Math-1.5B"]) == 28
    config = NemoConfig.of_megatron(fitted("qwen2.5-math-7b"))
    shape = TABLE["Qwen/Qwen2.5-Math-7B"]
    on_h100, on_h200 = (count_fitting_layers(replace(config, card=card), shape) for card in (H100, H200))
    assert 0 < on_h100 < on_h200 <= 28
    with pytest.raises(UserError, match="one layer"):
        count_fitting_layers(replace(config, card=replace(H100, gib=8.0)), shape)


def test_a_card_is_known_by_cudas_name() -> None:
    assert find_card_of_device("NVIDIA H100 80GB HBM3") is H100
    assert find_card_of_device("NVIDIA H200") is H200
    assert find_card_of_device("NVIDIA GeForce RTX 4090") is None
