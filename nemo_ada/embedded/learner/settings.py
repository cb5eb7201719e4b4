"""What a group of learner ranks needs to know when it starts; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from nemo_ada.embedded.learner.shape import PolicyShape
from nemo_ada.embedded.processes.actors import START_SECONDS


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Model, layout, loss and optimizer of the embedded learner. `stack.learner_config` fills it from the run's YAML.

    The YAML's own types hold the bounds; here only the layout is checked (UserError). micro_batch_size: rows.
    packed_tokens: different tokens of a packed micro-batch (`packing.py`); None pads rows instead. threads: of a rank.
    max_grad_norm: 0 turns clipping off. ratio_clip_c: the dual clip; None for none. The learning rate rises linearly
    over `warmup_steps` from lr / warmup_steps to lr, then stays. With `decay_steps` it falls linearly to 0 at that step
    (supervision only).
    """

    shape: PolicyShape = field(default_factory=PolicyShape)
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    micro_batch_size: int = 64
    packed_tokens: int | None = None
    threads: int = 1
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    warmup_steps: int = 0
    decay_steps: int | None = None
    ratio_clip_min: float = 0.2
    ratio_clip_max: float = 0.28
    ratio_clip_c: float | None = None
    entropy_coefficient: float = 0.0
    seed: int = 0
    start_timeout_s: float = START_SECONDS
    call_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        self.shape.check_parallel(self.tensor_parallel, self.pipeline_parallel)

    @property
    def world_size(self) -> int:
        """How many ranks (processes) the learner has."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel
