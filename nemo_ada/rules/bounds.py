"""Bounds of single numbers. No run works outside them, whatever the model. NeMo-RL checks them late or never."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.rules.facts.nemo_config import DEFAULT_RUN_DIR, OFFLOAD, OFFLOADS
from nemo_ada.rules.finding import Findings, error

GENERATION, LEARNER, VLLM = "policy.generation", "policy.megatron_cfg", "policy.generation.vllm_cfg"
RESUME = ("never", "auto")


@dataclass(frozen=True, slots=True)
class Bound:
    """The numbers that a key may have.

    Attributes:
        low: the smallest number.
        high: the largest number.
        whole: whether it must be a whole number.
        above: whether `low` itself is excluded.
    """

    low: float
    high: float = math.inf
    whole: bool = False
    above: bool = False

    def holds(self, value: object) -> bool:
        """Return whether the value of a YAML is inside. YAML reads 1e-6 as text, and NeMo-RL makes a number of it."""
        if isinstance(value, str) and not self.whole:
            try:
                value = float(value)
            except ValueError:
                return False
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        return (value > self.low if self.above else value >= self.low) and value <= self.high and math.isfinite(value)

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low = f"above {self.low:g}" if self.above else f"of {self.low:g} or more"
        return f"{kind} {low}" + ("" if math.isinf(self.high) else f", at most {self.high:g}")


COUNT, COUNT_OR_ZERO, POSITIVE, NOT_NEGATIVE = (
    Bound(1, whole=True),
    Bound(0, whole=True),
    Bound(0, above=True),
    Bound(0),
)
FRACTION = Bound(0, 1, above=True)
LEARNING_RATE = Bound(0, 1e-3, above=True)
BOUNDS: Mapping[str, tuple[Bound, Any]] = {  # key -> (bound, a value that would work)
    "grpo.max_num_steps": (COUNT, 400),
    "grpo.max_num_epochs": (COUNT, 1000),
    "grpo.num_prompts_per_step": (COUNT, 512),
    "grpo.num_generations_per_prompt": (COUNT, 4),
    "grpo.val_period": (Bound(-1, whole=True), 50),  # NeMo-RL's own recipes write -1 for never
    "grpo.max_val_samples": (COUNT, 480),
    "grpo.val_batch_size": (COUNT, 480),
    "grpo.batch_multiplier": (POSITIVE, 2),
    "grpo.dynamic_sampling_max_gen_batches": (COUNT, 10),
    "checkpointing.save_period": (COUNT, 50),
    "checkpointing.keep_top_k": (COUNT, 3),
    "loss_fn.ratio_clip_min": (NOT_NEGATIVE, 0.2),
    "loss_fn.ratio_clip_max": (NOT_NEGATIVE, 0.28),
    "loss_fn.ratio_clip_c": (Bound(1, above=True), 10),
    "loss_fn.reference_policy_kl_penalty": (NOT_NEGATIVE, 0.0),
    "policy.max_grad_norm": (NOT_NEGATIVE, 1.0),
    f"{LEARNER}.optimizer.lr": (LEARNING_RATE, "1.0e-6"),
    f"{LEARNER}.optimizer.min_lr": (NOT_NEGATIVE, "1.0e-6"),
    f"{LEARNER}.optimizer.weight_decay": (NOT_NEGATIVE, 0.0),
    f"{LEARNER}.scheduler.lr_warmup_iters": (COUNT_OR_ZERO, 10),
    f"{GENERATION}.temperature": (POSITIVE, 1.0),
    f"{GENERATION}.top_p": (FRACTION, 1.0),
    f"{GENERATION}.max_new_tokens": (COUNT, 2048),
    f"{VLLM}.gpu_memory_utilization": (Bound(0, 0.92, above=True), 0.8),
    f"{VLLM}.max_model_len": (COUNT, 3072),
}


def check_bounds(values: Values) -> Findings:
    """Every key of BOUNDS that is set keeps its bound. The run has a folder, and `resume` is a choice that exists."""
    for key, (bound, works) in BOUNDS.items():
        value = values.get(key)
        if value is not None and not bound.holds(value):
            yield error(key, f"{key}={str(value)[:80]} must be {bound}; {works} would work")
    folder = values.get("run_dir", DEFAULT_RUN_DIR)
    if not isinstance(folder, str) or not folder.strip():
        yield error("run_dir", f"run_dir={str(folder)[:80]!r} names no folder; runs/NAME would work")
    resume = values.get("resume", RESUME[0])
    if resume not in RESUME:
        yield error("resume", f"resume={str(resume)[:80]}: no such choice; choices: {', '.join(RESUME)}")
    offload = values.get(OFFLOAD, OFFLOADS[0])
    if offload not in OFFLOADS:
        yield error(OFFLOAD, f"{OFFLOAD}={str(offload)[:80]}: no such choice; choices: {', '.join(OFFLOADS)}")
