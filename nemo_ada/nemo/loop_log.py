"""Correct what NeMo-RL's loop logs of a step, where adaptive groups would make it wrong, costly or missing.

- `plot`: The plot of token_mult_prob_error shows the row with the largest error. Placeholder rows have no token in the
  loss, so their 0/0 would be chosen. The plot gets the other rows only.
- `batches`: The asynchronous loop writes every batch of training rows to a file and has no switch for that. It follows
  the switch of the synchronous loop now (env.should_log_nemo_gym_responses: true).
- `rollout`: NeMo-RL's rollout functions report turns, tokens, terminations and the load of each worker. We report the
  same names for all responses of a step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from nemo_ada.config.values import Values
from nemo_ada.nemo.patch_points import replace_names

PLOT, BATCHES = "log_plot_token_mult_prob_error", "log_batched_dict_as_jsonl"
TRAINING = "train_data_step"  # NeMo-RL's file of a training batch begins with this
HISTOGRAMS = {name: f"histogram/{name.removeprefix('turn_')}_length"
              for name in ("turn_gen_tokens", "turn_input_tokens", "turn_total_tokens")}  # fmt: skip
WORKERS = "per_worker_token_counts"


def writes_no_batches(master_config: Any) -> bool:
    """Return whether NeMo-RL's switch turns the files of training batches off."""
    return bool(Values(master_config).get("env.should_log_nemo_gym_responses", False))


@contextmanager
def correct_logger(logger: Any, *, batches: bool) -> Iterator[None]:
    """Within the block NeMo-RL's class Logger plots only rows that have tokens in the loss.

    Args:
        logger: The class.
        batches: Whether it writes batches of training rows to files.
    """
    plot, write = getattr(logger, PLOT, None), getattr(logger, BATCHES, None)
    methods: dict[str, Any] = {}
    if plot is not None:

        def plot_rows(self: Any, data: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
            counted_R = ((data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)) != 0).any(dim=1)
            counted = {name: column[counted_R] if torch.is_tensor(column) else column for name, column in data.items()}
            return plot(self, counted, *args, **kwargs) if counted_R.any() else None

        methods[PLOT] = plot_rows
    if write is not None and not batches:

        def write_rows(self: Any, to_log: Any, filename: str) -> Any:
            return None if filename.startswith(TRAINING) else write(self, to_log, filename)

        methods[BATCHES] = write_rows
    with replace_names(logger, methods):
        yield


def summarise_samples(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """NeMo-RL's rollout metrics of a step, from those of its responses (`run_sample_multi_turn_rollout`)."""
    if not samples or not {"turn_count", "terminated", "total_tokens", "env_tokens"} <= samples[0].keys():
        return {}

    def mean(name: str) -> float:
        return float(np.mean([sample[name] for sample in samples]))

    turns = [int(sample["turn_count"]) for sample in samples]
    rewards = [reward for sample in samples if math.isfinite(reward := float(sample["total_reward"]))]
    tokens: Counter[Any] = Counter()
    longest = [int(sample["max_gen_tokens_per_turn"]) for sample in samples if "max_gen_tokens_per_turn" in sample]
    for sample in samples:
        tokens.update(sample.get(WORKERS, {}))
    return {
        "total_turns": sum(turns),
        "avg_turns_per_sample": mean("turn_count"),
        "max_turns_per_sample": max(turns),
        "natural_termination_rate": mean("terminated"),
        "max_turns_reached_rate": mean("max_turns_reached"),
        "mean_total_tokens_per_sample": mean("total_tokens"),
        "mean_env_tokens_per_sample": mean("env_tokens"),
        **(_summarise_rewards(rewards) if rewards else {}),
        WORKERS: dict(tokens),
        **{shown: [count for sample in samples for count in sample.get(name, ())]
           for name, shown in HISTOGRAMS.items()},
        **(_summarise_for_main(turns, longest) if longest else {}),
    }  # fmt: skip


def _summarise_rewards(rewards: Sequence[float]) -> dict[str, float]:
    """NeMo-RL's metrics of the rewards. A response without a verdict has none, and one NaN would hide all others."""
    return {
        "mean_total_reward": float(np.mean(rewards)),
        "max_total_reward": max(rewards),
        "min_total_reward": min(rewards),
    }


def _summarise_for_main(turns: Sequence[int], longest: Sequence[int]) -> dict[str, float]:
    """What NeMo-RL's main also reports: the tail of the turns, and the longest turn of each response."""
    return {
        "turns_per_sample/p95": compute_percentile(turns, 95),
        "turns_per_sample/p99": compute_percentile(turns, 99),
        "max_gen_tokens_per_turn/max": max(longest),
        "max_gen_tokens_per_turn/mean": float(np.mean(longest)),
        "max_gen_tokens_per_turn/p95": compute_percentile(longest, 95),
    }


def compute_percentile(values: Sequence[float], p: float) -> float:
    """Return the value below which p percent of the values lie, as NeMo-RL's main counts it."""
    return float(sorted(values)[min(int(len(values) * p / 100), len(values) - 1)])


def join_calls(calls: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """NeMo-RL's rollout metrics of several calls together.

    Args:
        calls: Number of rows and metrics of each call.
    """
    names = dict.fromkeys(name for _, numbers in calls for name in numbers)
    return {name: _join_values(name, [(rows, numbers[name]) for rows, numbers in calls if name in numbers])
            for name in names}  # fmt: skip


def _join_values(name: str, values: Sequence[tuple[int, Any]]) -> Any:
    """One value from those of several calls: the extreme, the sum, or the mean over rows. Else the last call's."""
    finite = [(rows, value) for rows, value in values if not isinstance(value, float) or math.isfinite(value)]
    values = finite or values  # a call without any verdict has no mean of rewards
    numbers = [value for _, value in values]
    if not all(isinstance(value, int | float) for value in numbers):
        return numbers[-1]
    if name.startswith("max_") and not name.endswith("_rate"):
        return max(numbers)
    if name.startswith("min_") and not name.endswith("_rate"):
        return min(numbers)
    if name.startswith("total_"):
        return sum(numbers)
    return float(np.average(numbers, weights=[rows for rows, _ in values]))
