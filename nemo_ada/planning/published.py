"""Published step times, and what a recipe without a run of its own is extrapolated from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from nemo_ada.check.shapes import TABLE, ModelShape


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a GRPO step, and of its update alone where they were published; rows and tokens per row of that step
    (None where not published); GPUs; whose figure."""

    seconds: float
    update: float | None
    rows: int
    tokens: float | None
    gpus: int
    source: str


_AUTHORS = "the authors' verl run, GRPO n = 4; A100 in paper v3, H100 in v1"
_NEMO = "NeMo-RL's performance table, v0.6, H100"
GRPO: Mapping[str, StepTime] = {
    "Qwen/Qwen2.5-Math-1.5B": StepTime(102.0, 15.0, 2048, None, 8, _AUTHORS),
    "Qwen/Qwen2.5-Math-7B": StepTime(236.0, 85.0, 2048, None, 8, _AUTHORS),
    "Qwen/Qwen3-30B-A3B": StepTime(192.0, None, 2048, 3200.0, 32, _NEMO),
    "Qwen/Qwen3-235B-A22B": StepTime(395.0, None, 512, 5700.0, 128, _NEMO),
}
UPDATE_SHARE = 85.0 / 236.0  # of a step whose update was not published: what it is in the authors' 7B run
UPDATE_ASSUMED = "assumed: the share of the step that the authors' 7B update has, 85 of 236 s"
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


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a GRPO step and of its update here, how each was come by, and whose figure the step rests on."""

    seconds: float
    update: float
    said: str
    update_said: str
    source: str
    as_published: bool


def grpo_step(model: str, shape: ModelShape, rows: int, gpus: int, tokens: float) -> Estimate:
    """A GRPO step of `rows` rows on `gpus` GPUs.

    Another model is scaled from the published one of the nearest size by active parameters; rows, GPUs and, where
    they are known, `tokens` per row linearly.
    """
    if model in GRPO:
        name, scale, by = model, 1.0, []
    else:
        own = active_parameters(shape)
        name = min(GRPO, key=lambda other: abs(active_parameters(TABLE[other]) / own - 1.0))
        scale, by = own / active_parameters(TABLE[name]), ["active parameters"]
    base = GRPO[name]
    ratios = {
        "rows": rows / base.rows,
        "GPUs": base.gpus / gpus,
        "length": tokens / base.tokens if base.tokens else 1.0,
    }
    by += [what for what, ratio in ratios.items() if abs(ratio - 1.0) > 0.01]
    factor = scale * prod(ratios.values())

    def said(seconds: float) -> str:
        return f"scaled from {name}'s published {seconds:.0f} s by {', '.join(by)}" if by else "published"

    update = base.seconds * UPDATE_SHARE if base.update is None else base.update
    update_said = UPDATE_ASSUMED if base.update is None else f"{said(base.update)} ({base.source})"
    return Estimate(base.seconds * factor, update * factor, said(base.seconds), update_said, base.source, not by)
