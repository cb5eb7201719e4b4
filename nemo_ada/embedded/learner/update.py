"""The updates of a step, on mini-batches of whole prompts without the rows that have no gradient.

R rows of the step. A mini-batch is one optimizer step.
"""

from __future__ import annotations

import math

import numpy as np

from nemo_ada.config.run import RunConfig
from nemo_ada.core.seeds import shuffled
from nemo_ada.embedded.learner.batch import TrainBatch
from nemo_ada.embedded.learner.group import LearnerGroup
from nemo_ada.embedded.rollout import StepData
from nemo_ada.errors import InvariantError


def train_on(learner: LearnerGroup, data: StepData, config: RunConfig, step: int) -> dict[str, float]:
    """Train on the rows of a step.

    Rows without advantage are left out, unless the loss has an entropy term, which gives them a gradient. With
    `all_rows` the denominator counts the response tokens of all selected rows of the mini-batch, so it does not matter
    which rows are left out. With `live_rows` it counts those of the rows with a gradient.

    Returns:
        The means over mini-batches of the learner's metrics, the number of updates, and the number of trained rows.
        `logger.gradient_cosine` adds the mean cosine, and the number of updates that count: (sum of the gradient
        norms)^2 / sum of their squares.

    Raises:
        InvariantError: A metric is not finite.
    """
    real_R = data.weight_R > 0
    live_R = real_R & (data.advantage_R != 0) if config.loss_fn.entropy_coefficient == 0 else real_R
    counted_R = real_R if config.reinforce_ada.advantage.denominator == "all_rows" else live_R
    tokens_R = data.length_R - data.prompt_length_R
    size = config.policy.train_global_batch_size or len(real_R)
    order = shuffled(data.prompt_R, config.grpo.seed, step)
    collected: list[dict[str, float]] = []
    cosines: list[float] = []
    for start in range(0, len(order), size):
        chosen = np.sort(order[start : start + size])
        trained = chosen[live_R[chosen]]
        denominator = float(max(tokens_R[chosen[counted_R[chosen]]].sum(), 1))
        batch = TrainBatch(**data.columns(trained), denominator=denominator)
        metrics = learner.train(batch)
        if not all(math.isfinite(value) for value in metrics.values()):
            raise InvariantError(f"step {step}: the update is not finite: {metrics}")
        cosines += [metrics.pop("gradient_cosine")] if "gradient_cosine" in metrics else []
        collected.append(metrics)
    means = {name: float(np.mean([metrics[name] for metrics in collected])) for name in collected[0]}
    means |= {"updates": len(collected), "trained_rows": float(live_R.sum())}
    if config.logger.gradient_cosine:
        norm_U = np.array([metrics["grad_norm"] for metrics in collected])
        means["effective_updates"] = float(norm_U.sum() ** 2 / max((norm_U**2).sum(), 1e-30))
        if cosines:
            means["gradient_cosine"] = float(np.mean(cosines))
    return means
