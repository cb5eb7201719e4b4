"""Published step times, and what a recipe without a run of its own is extrapolated from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nemo_ada.check.shapes import TABLE, ModelShape


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a published GRPO step, update included; rows and tokens per row of that step (None where not
    published); GPUs; whose figure."""

    seconds: float
    update: float
    rows: int
    tokens: float | None
    gpus: int
    source: str


_AUTHORS = "the authors' verl run, GRPO n = 4; A100 in paper v3, H100 in v1"
_NEMO = "NeMo-RL's performance table, H100"
GRPO: Mapping[str, StepTime] = {
    "Qwen/Qwen2.5-Math-1.5B": StepTime(102.0, 15.0, 2048, None, 8, _AUTHORS),
    "Qwen/Qwen2.5-Math-7B": StepTime(236.0, 85.0, 2048, None, 8, _AUTHORS),
    "Qwen/Qwen3-30B-A3B": StepTime(192.0, 70.0, 2048, 3200.0, 32, _NEMO),
    "Qwen/Qwen3-235B-A22B": StepTime(395.0, 140.0, 512, 5700.0, 128, _NEMO),
}
# Share of a GRPO step, less its update, that follows the length of the sampling phase; the rest is log-probs, refit and
# verification. Assumed: the authors' two models give 0.7 (1.5B) and 0.3 (7B) when their Ada step times are set against
# simulated phases.
SAMPLING_SHARE = 0.5
# Step time of a preset over GRPO n = 4 (paper, table of step times).
RATIO: Mapping[tuple[str, str], float] = {
    ("Qwen/Qwen2.5-Math-1.5B", "ada_seq_positive"): 2.2,
    ("Qwen/Qwen2.5-Math-1.5B", "ada_seq_balance"): 2.8,
    ("Qwen/Qwen2.5-Math-1.5B", "ada_est_ema"): 1.3,
    ("Qwen/Qwen2.5-Math-7B", "ada_seq_positive"): 1.41,
    ("Qwen/Qwen2.5-Math-7B", "ada_seq_balance"): 1.59,
    ("Qwen/Qwen2.5-Math-7B", "ada_est_ema"): 1.62,
}


def active_parameters(shape: ModelShape) -> float:
    """Parameters that a token passes."""
    idle = shape.layers * 3 * shape.hidden * shape.ffn * (shape.experts - shape.top_k) if shape.experts else 0
    return float(shape.parameters - idle)


def grpo_step(model: str, shape: ModelShape, rows: int, gpus: int, tokens: float) -> tuple[StepTime, str]:
    """A GRPO step of `rows` rows on `gpus` GPUs, and how it was come by.

    Another model is scaled from the published one of the nearest size by active parameters; rows, GPUs and, where
    they are known, `tokens` per row linearly.
    """
    if model in GRPO:
        base, label, scale = GRPO[model], "published", 1.0
    else:
        own = active_parameters(shape)
        name = min(GRPO, key=lambda other: abs(active_parameters(TABLE[other]) / own - 1.0))
        base, label = GRPO[name], f"extrapolated from {name} by active parameters"
        scale = own / active_parameters(TABLE[name])
    factor = scale * rows / base.rows * base.gpus / gpus * (1.0 if base.tokens is None else tokens / base.tokens)
    if abs(factor - 1.0) > 0.01 and label == "published":
        label = "extrapolated from its published step by rows, GPUs and length"
    return StepTime(base.seconds * factor, base.update * factor, rows, base.tokens, gpus, base.source), label
