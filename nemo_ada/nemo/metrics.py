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
WITHOUT_LABEL, ENGINE_STEPS = PREFIX + "without_label", PREFIX + "engine_steps_at_least"


def named(values: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a step with their prefix. Raises InvariantError for a name that is not in the table."""
    unknown = sorted(set(values) - set(TABLE))
    if unknown:
        raise InvariantError(f"metrics that are not in the table: {', '.join(unknown)}")
    return {PREFIX + name: float(value) for name, value in values.items()}


def engine_steps_at_least(result: SamplingResult, *, barrier: bool, windowed: bool) -> int:
    """Return the fewest engine steps that a sampling phase can have taken. A response takes one step per token.

    Args:
        result: Responses of the phase.
        barrier: Whether a wave waits for the last wave of all prompts, as in whole-batch rollouts. Otherwise it waits
            for the last wave of its own prompt.
        windowed: Whether responses are requested one by one while others run. Then perhaps none waited for another.
    """
    if len(result.tokens_N) == 0:
        return 0
    if windowed:
        return int(result.tokens_N.max())
    chain_N = np.zeros_like(result.prompt_N) if barrier else result.prompt_N
    longest = np.zeros((int(chain_N.max()) + 1, int(result.wave_N.max()) + 1), np.int64)
    np.maximum.at(longest, (chain_N, result.wave_N), result.tokens_N)
    return int(longest.sum(axis=1).max())
