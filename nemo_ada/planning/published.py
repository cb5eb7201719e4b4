"""Published step times, and what a recipe without a run of its own is extrapolated from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from nemo_ada.cluster.shapes import TABLE, ModelShape

GROUP = 4  # rows per prompt of the published steps; of NeMo-RL's, whose groups are larger, rows are counted in fours


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a GRPO step, and of its update alone where they were published; prompts of that step; longest response
    or mean tokens per response, whichever was published; GPUs; whose figure."""

    seconds: float
    update: float | None
    prompts: int
    longest: int | None
    tokens: float | None
    gpus: int
    source: str


_AUTHORS = "the authors' verl run, GRPO n = 4; A100 in paper v3, H100 in v1"
_NEMO = "NeMo-RL's performance table, v0.6, H100"
GRPO: Mapping[str, StepTime] = {
    "Qwen/Qwen2.5-Math-1.5B": StepTime(102.0, 15.0, 512, 2048, None, 8, _AUTHORS),
    "Qwen/Qwen2.5-Math-7B": StepTime(236.0, 85.0, 512, 2048, None, 8, _AUTHORS),
    "Qwen/Qwen3-30B-A3B": StepTime(192.0, None, 512, None, 3200.0, 32, _NEMO),
    "Qwen/Qwen3-235B-A22B": StepTime(395.0, None, 128, None, 5700.0, 128, _NEMO),
}
UPDATE_SHARE = 85.0 / 236.0  # of a step whose update was not published: what it is in the authors' 7B run
UPDATE_ASSUMED = "assumed: the share of the step that the authors' 7B update has, 85 of 236 s"
# Share of a GRPO step, less its update, that follows the length of the sampling phase; the rest is log-probs, refit and
# verification. Assumed where no second point was published: the authors' two models give 0.7 (1.5B) and 0.3 (7B) when
# their Ada step times are set against simulated phases.
SAMPLING_SHARE = 0.5
# Step time of a preset over GRPO n = 4 (paper, table of step times), on the easy sets.
RATIO: Mapping[str, Mapping[str, float]] = {
    "Qwen/Qwen2.5-Math-1.5B": {"ada_seq_positive": 2.2, "ada_seq_balance": 2.8, "ada_est_ema": 1.3},
    "Qwen/Qwen2.5-Math-7B": {"ada_seq_positive": 1.41, "ada_seq_balance": 1.59, "ada_est_ema": 1.62},
}
RESPONSES: Mapping[str, int] = {"ada_est_ema": 8}  # num_generations_per_prompt of a published preset, where not GROUP
FP8 = 0.8  # of the seconds in BF16: NeMo-RL's documentation gives a gain of 15 to 25 %


def active_parameters(shape: ModelShape) -> float:
    """Parameters that a token passes."""
    idle = shape.layers * 3 * shape.hidden * shape.ffn * (shape.experts - shape.top_k) if shape.experts else 0
    return float(shape.parameters - idle)


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """Seconds of a GRPO step and of its update with the published lengths, on other prompts and GPUs; the model whose
    figure it is; what it was scaled by."""

    seconds: float
    update: float
    name: str
    by: tuple[str, ...]

    @property
    def published(self) -> StepTime:
        """The figure that it rests on."""
        return GRPO[self.name]

    @property
    def said(self) -> str:
        """How the seconds of the step were come by."""
        return self._said(self.published.seconds)

    @property
    def update_said(self) -> str:
        """The same of the update."""
        update = self.published.update
        return UPDATE_ASSUMED if update is None else f"{self._said(update)} ({self.published.source})"

    def _said(self, seconds: float) -> str:
        if not self.by:
            return "published"
        return f"scaled from {self.name}'s published {seconds:.0f} s by {', '.join(self.by)}"


def grpo_step(model: str, shape: ModelShape, prompts: int, gpus: int) -> StepEstimate:
    """A GRPO step (n = 4) of `prompts` prompts on `gpus` GPUs.

    Another model is scaled from the published one of the nearest size by active parameters; prompts and GPUs linearly.
    """
    if model in GRPO:
        name, scale, by = model, 1.0, []
    else:
        own = active_parameters(shape)
        name = min(GRPO, key=lambda other: abs(active_parameters(TABLE[other]) / own - 1.0))
        scale, by = own / active_parameters(TABLE[name]), ["active parameters"]
    base = GRPO[name]
    ratios = {"prompts": prompts / base.prompts, "GPUs": base.gpus / gpus}
    by += [what for what, ratio in ratios.items() if abs(ratio - 1.0) > 0.01]
    factor = scale * prod(ratios.values())
    update = base.seconds * UPDATE_SHARE if base.update is None else base.update
    return StepEstimate(base.seconds * factor, update * factor, name, tuple(by))
