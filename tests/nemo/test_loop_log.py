"""What NeMo-RL's loop logs of a step: its plot, its files of training batches, its rollout metrics, its throughputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_ada.nemo.gym.metrics import compute_metrics
from nemo_ada.nemo.hooks import PERFORMANCE, Hooks
from nemo_ada.nemo.loop_log import correct_logger, join_calls, summarise_samples, writes_no_batches


class Logger:
    """What NeMo-RL's Logger does with a plot: the row with the largest mean error."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def log_plot_token_mult_prob_error(self, data, step, name):
        mask = data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)
        error = ((data["generation_logprobs"] - data["prev_logprobs"])[:, 1:].abs().exp() * mask).sum(-1) / mask.sum(-1)
        self.told.append(int(data["full_lengths"][torch.argmax(error)]))

    def log_batched_dict_as_jsonl(self, to_log, filename):
        self.told.append(filename)


def rows(*in_loss):
    return {
        "prompt_lengths": torch.ones(3, dtype=torch.int64),
        "full_lengths": torch.tensor([2, 5, 4]),
        "generation_logprobs": torch.tensor([[0.0] * 5, [0.5] * 5, [0.1] * 5]),
        "prev_logprobs": torch.zeros(3, 5),
        "token_mask": torch.ones(3, 5),
        "sample_mask": torch.tensor(in_loss),
    }


def test_the_plot_shows_a_row_with_tokens_in_the_loss():
    logger = Logger()
    logger.log_plot_token_mult_prob_error(rows(0.0, 1.0, 1.0), 1, name="plot")
    assert logger.told == [2], "the placeholder row's 0/0 is the largest for NeMo-RL"
    with correct_logger(Logger, batches=True):
        logger.log_plot_token_mult_prob_error(rows(0.0, 1.0, 1.0), 1, name="plot")
        logger.log_plot_token_mult_prob_error(rows(0.0, 0.0, 0.0), 2, name="plot")
    assert logger.told == [2, 5]


@pytest.mark.parametrize("off", [True, False])
def test_training_batches_are_written_only_where_the_switch_of_nemo_rl_lets_them(off):
    logger, config = Logger(), {"env": {"should_log_nemo_gym_responses": off}}
    with correct_logger(Logger, batches=not writes_no_batches(config)):
        for name in ("train_data_step7.jsonl", "val_data_step7.jsonl"):
            logger.log_batched_dict_as_jsonl({}, name)
    assert logger.told == ["train_data_step7.jsonl", "val_data_step7.jsonl"][int(off) :]
    assert "correct_logger" not in Logger.log_batched_dict_as_jsonl.__qualname__


def test_metrics_of_calls_are_joined_by_what_they_mean():
    calls: list[tuple[int, dict[str, Any]]] = [
        (6, {"total_turns": 6, "avg_turns_per_sample": 1.0, "max_turns_per_sample": 1, "max_turns_reached_rate": 0.0}),
        (2, {"total_turns": 6, "avg_turns_per_sample": 3.0, "max_turns_per_sample": 4, "max_turns_reached_rate": 1.0}),
    ]
    assert join_calls(calls) == {
        "total_turns": 12, "avg_turns_per_sample": 1.5, "max_turns_per_sample": 4, "max_turns_reached_rate": 0.25,
    }  # fmt: skip
    assert summarise_samples([]) == {} and summarise_samples([{"truncated": True, "turn_count": 1}]) == {}


def test_a_response_without_a_verdict_hides_no_reward():
    """An environment says NaN for it, and a mean over NaN is NaN."""
    sample = {"turn_count": 1, "terminated": True, "max_turns_reached": False, "total_tokens": 3, "env_tokens": 1}
    samples = [{**sample, "total_reward": reward} for reward in (1.0, float("nan"), 0.0, 0.0, 1.0)]
    joined = summarise_samples(samples)
    assert [joined[f"{name}_total_reward"] for name in ("mean", "max", "min")] == [0.5, 1.0, 0.0]
    assert "mean_total_reward" not in summarise_samples(samples[1:2])
    assert join_calls([(2, {"mean_reward": 1.0}), (8, {"mean_reward": float("nan")})]) == {"mean_reward": 1.0}
    called = [{"math/reward/mean": reward} for reward in (1.0, float("nan"))]
    assert compute_metrics(called) == {"math/reward/mean": 1.0}


def test_the_engines_pace_counts_all_tokens_that_it_made():
    def performance(results, metrics, timing, config):
        return {"generation_tokens_per_sec": 100.0, "e2e_tokens_per_sec": 50.0}

    hooks = object.__new__(Hooks)
    vars(hooks).update(_originals={PERFORMANCE: performance}, _tokens_drawn=0.0)
    told = hooks._correct_performance(
        None, {"ada/tokens_drawn": 1200.0, "total_num_tokens": 200}, {}, SimpleNamespace()
    )
    assert told == {"generation_tokens_per_sec": 600.0, "e2e_tokens_per_sec": 50.0}
