"""The updates of a step, on mini-batches of whole prompts without the rows that have no gradient.

R rows of the step. A mini-batch is one optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from nemo_ada.core.seeds import shuffle_rows
from nemo_ada.cpu.learner.batch import TrainBatch
from nemo_ada.cpu.learner.group import LearnerGroup
from nemo_ada.cpu.rollout import StepData
from nemo_ada.cpu.settings import RunConfig
from nemo_ada.errors import InvariantError, UserError

OF_HALVES = ("gradient_cosine", "gradient_signal", "gradient_noise")  # measured of two halves of an update's prompts


AGREE, COMPARED = 0.1, 64  # nats between engine and learner (rounding is below 1e-4), and rows that are compared


def train_on(learner: LearnerGroup, data: StepData, config: RunConfig, step: int) -> dict[str, float]:
    """Train on the rows of a step.

    Returns:
        What `summarise` makes of the learner's metrics.

    Raises:
        InvariantError: A metric is not finite.
    """
    return summarise([update(learner, batch, step) for batch in make_mini_batches(data, config, step)], config)


def check_agreement(learner: LearnerGroup, data: StepData) -> None:
    """Compare the engine's log-probabilities of some rows with those of the learner, whose weights must be the same.

    Raises:
        UserError: They differ by more than rounding.
    """
    rows = np.flatnonzero(data.weight_R > 0)[:COMPARED]
    if not len(rows):
        return
    place_T = np.arange(data.tokens_RT.shape[1])
    drawn_RT = (place_T >= data.prompt_length_R[rows, None]) & (place_T < data.length_R[rows, None])
    ours_RT = learner.logprobs(data.tokens_RT[rows], data.length_R[rows], data.prompt_length_R[rows])
    ratio = (ours_RT - data.old_logprob_RT[rows])[drawn_RT].clip(-20.0, 20.0)
    apart = float(np.mean(np.exp(ratio) - 1.0 - ratio)) if len(ratio) else 0.0
    if apart > AGREE:
        raise UserError(
            f"engine and learner read two models from one folder: for the same tokens approx_kl is {apart:.3g} before "
            "the first update, where rounding gives less than 0.0001; look for files of another export in "
            "policy.model_name, and for settings that its config.json has twice"
        )


def make_mini_batches(data: StepData, config: RunConfig, step: int) -> Iterator[TrainBatch]:
    """Yield the mini-batches of a step. Their order depends on the run's seed and the step.

    Rows without advantage are left out, unless the loss has an entropy term, which gives them a gradient. With
    `all_rows` the denominator counts the response tokens of all selected rows of the mini-batch, so it does not matter
    which rows are left out. With `live_rows` it counts those of the rows with a gradient.
    """
    real_R = data.weight_R > 0
    live_R = real_R & (data.advantage_R != 0) if config.loss_fn.entropy_coefficient == 0 else real_R
    counted_R = real_R if config.reinforce_ada.advantage.denominator == "all_rows" else live_R
    tokens_R = data.length_R - data.prompt_length_R
    size = config.policy.train_global_batch_size or len(real_R)
    order = shuffle_rows(data.prompt_R, config.grpo.seed, step)
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        chosen = np.sort(rows)
        trained = chosen[live_R[chosen]]
        denominator = float(max(tokens_R[chosen[counted_R[chosen]]].sum(), 1))
        # in the shuffled order, because a sampler may sort the prompts of a step by their worth
        prompts = list(dict.fromkeys(data.prompt_R[rows[live_R[rows]]].tolist()))
        halves = config.logger.gradient_cosine and len(prompts) > 1
        first_half_R = np.isin(data.prompt_R[trained], prompts[: len(prompts) // 2]) if halves else None
        yield TrainBatch(**data.columns(trained), denominator=denominator, first_half_R=first_half_R)


def update(learner: LearnerGroup, batch: TrainBatch, step: int) -> dict[str, float]:
    """Take one optimizer step. Returns the learner's metrics and the number of rows.

    Raises:
        InvariantError: A metric is not finite.
    """
    metrics = learner.train(batch)
    if not all(math.isfinite(value) for value in metrics.values()):
        raise InvariantError(f"step {step}: the update is not finite: {metrics}")
    return metrics | {"trained_rows": float(len(batch.length_R))}


def summarise(updates: Sequence[dict[str, float]], config: RunConfig) -> dict[str, float]:
    """Return the means of the metrics of a step's updates, the number of updates, and the number of trained rows.

    `logger.gradient_cosine` adds the means of `OF_HALVES` over the updates that have them, and the number of updates
    that count: (sum of the gradient norms)^2 / sum of their squares.
    """
    names = [name for name in updates[0] if name not in (*OF_HALVES, "trained_rows")]
    means = {name: float(np.mean([metrics[name] for metrics in updates])) for name in names}
    means |= {"updates": len(updates), "trained_rows": sum(metrics["trained_rows"] for metrics in updates)}
    if config.logger.gradient_cosine:
        norm_U = np.array([metrics["grad_norm"] for metrics in updates])
        means["effective_updates"] = float(norm_U.sum() ** 2 / max((norm_U**2).sum(), 1e-30))
        compared = [metrics for metrics in updates if OF_HALVES[0] in metrics]
        if compared:
            means |= {name: float(np.mean([metrics[name] for metrics in compared])) for name in OF_HALVES}
    return means
