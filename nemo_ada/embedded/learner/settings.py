"""Everything a group of learner ranks needs to know, fixed when it starts; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from nemo_ada.embedded.learner.shape import PolicyShape
from nemo_ada.embedded.processes.actors import START_SECONDS
from nemo_ada.errors import UserError


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Model, layout, loss and optimizer of the embedded learner. Keys of the run's YAML are in the comments.

    Learning rate: linear warm-up from lr / warmup_steps to lr over `warmup_steps` steps, then constant; with
    `decay_steps` it falls linearly to 0 at that step (supervision). `micro_batch_size` is in rows.
    """

    shape: PolicyShape = field(default_factory=PolicyShape)
    tensor_parallel: int = 1  # policy.megatron_cfg.tensor_model_parallel_size
    pipeline_parallel: int = 1  # policy.megatron_cfg.pipeline_model_parallel_size
    data_parallel: int = 1
    micro_batch_size: int = 64  # policy.train_micro_batch_size
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0  # policy.max_grad_norm; 0 turns clipping off
    warmup_steps: int = 0
    decay_steps: int | None = None
    ratio_clip_min: float = 0.2  # loss_fn.ratio_clip_min
    ratio_clip_max: float = 0.28  # loss_fn.ratio_clip_max
    ratio_clip_c: float | None = None  # loss_fn.ratio_clip_c (dual clip)
    entropy_coefficient: float = 0.0
    seed: int = 0
    start_timeout_s: float = START_SECONDS
    call_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        self.shape.check_parallel(self.tensor_parallel, self.pipeline_parallel)
        for name in ("data_parallel", "micro_batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"learner {name}={getattr(self, name)} must be at least 1")
        for name in ("lr", "eps", "start_timeout_s", "call_timeout_s"):
            if not getattr(self, name) > 0:
                raise UserError(f"learner {name}={getattr(self, name)} must be positive")
        for name in ("weight_decay", "max_grad_norm", "warmup_steps", "entropy_coefficient"):
            if not getattr(self, name) >= 0:
                raise UserError(f"learner {name}={getattr(self, name)} must not be negative")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"learner betas={self.betas} must lie in [0, 1)")
        if not 0 <= self.ratio_clip_min < 1 or not self.ratio_clip_max >= 0:
            raise UserError(
                f"loss_fn.ratio_clip_min={self.ratio_clip_min}, loss_fn.ratio_clip_max={self.ratio_clip_max}: "
                "the ratio is clipped to [1 - min, 1 + max], so 0 <= min < 1 and max >= 0"
            )
        if self.ratio_clip_c is not None and not self.ratio_clip_c > 1:
            raise UserError(f"loss_fn.ratio_clip_c={self.ratio_clip_c} must be above 1, or null for no dual clip")
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise UserError(f"learner decay_steps={self.decay_steps} must be above warmup_steps={self.warmup_steps}")

    @property
    def world_size(self) -> int:
        """How many ranks (processes) the learner has."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel
