"""Metrics of this back end only. As in nemo_ada.core.metrics, every metric needs an entry in the table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nemo_ada.core.metrics import PREFIX
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.errors import InvariantError

TABLE: Mapping[str, str] = {
    "tokens_trained": "response tokens in the loss of this step",
    "tokens_skipped": "response tokens of kept rows whose advantage is zero, which no pass computes",
    "rows_skipped": "kept rows whose advantage is zero, replaced by rows of two tokens",
    "prompts_too_long": "prompts above data.max_input_seq_length: no response is drawn, their rows have no weight",
    "rollout_calls": "rollout calls of the step (synchronous engine)",
    "tokens_dropped_estimated": "tokens of dropped responses, estimated because the engine does not report them",
    "engine_steps_at_least": "tokens of the longest chain of responses that waited for one another: the engine, which "
    "NeMo-RL does not count the steps of, made so many or more",
    "newest_prob_error": "token_mult_prob_error of the responses that the step's own weights drew: 1 where engine and "
    "learner agree (asynchronous training, where NeMo-RL's number compares weights of different age)",
    "without_label": "validation answers that count as wrong because the engine or the verifier failed on them",
}
REWARD = "reward"
WITHOUT_LABEL, ENGINE_STEPS = PREFIX + "without_label", PREFIX + "engine_steps_at_least"


def add_prefix(values: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a step with their prefix. Raises InvariantError for a name that is not in the table."""
    unknown = sorted(set(values) - set(TABLE))
    if unknown:
        raise InvariantError(f"metrics that are not in the table: {', '.join(unknown)}")
    return {PREFIX + name: float(value) for name, value in values.items()}


def compute_mean_reward(result: SamplingResult) -> dict[str, float]:
    """Return NeMo-RL's own metric `reward`: what the policy earns on the prompts of a step, after scaling and shaping.

    NeMo-RL takes the mean over the rows, which are all of its responses. Ours are chosen by their labels, and hard
    prompts have more responses than easy ones. So this is the mean of each prompt's first wave, whose size does not
    depend on labels, averaged over the prompts. With a preset that draws n responses it is NeMo-RL's number. Under
    dynamic sampling it is that of the step's last batch, and NeMo-RL takes the first rows of all batches.

    Args:
        result: pools of the step, or of one prompt.
    """
    counted_N = result.wave_N == 0
    prompt_N, prompts = result.prompt_N[counted_N], len(result.uid_P)
    count_P = np.bincount(prompt_N, minlength=prompts)
    sum_P = np.bincount(prompt_N, result.reward_N[counted_N], prompts)
    mean_F = sum_P[count_P > 0] / count_P[count_P > 0]
    return {REWARD: float(mean_F.mean())} if len(mean_F) else {}


def bound_engine_steps(result: SamplingResult, *, barrier: bool) -> int:
    """Return the fewest engine steps that a sampling phase can have taken. A response takes one step per token.

    Args:
        result: Responses of the phase.
        barrier: Whether a wave waits for the last wave of all prompts, as in whole-batch rollouts. Otherwise it waits
            for the last wave of its own prompt.
    """
    if len(result.tokens_N) == 0:
        return 0
    chain_N = np.zeros_like(result.prompt_N) if barrier else result.prompt_N
    longest = np.zeros((int(chain_N.max()) + 1, int(result.wave_N.max()) + 1), np.int64)
    np.maximum.at(longest, (chain_N, result.wave_N), result.tokens_N)
    return int(longest.sum(axis=1).max())
