"""What a group of learner ranks needs to know when it starts; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from nemo_ada.config.run import LossSettings, OptimizerSettings, PolicySettings
from nemo_ada.embedded.learner.shape import PolicyShape
from nemo_ada.embedded.processes.actors import START_SECONDS

_ADAM, _LOSS, _POLICY = OptimizerSettings(), LossSettings(), PolicySettings()  # the YAML's defaults are the only ones


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Model, layout, loss and optimizer of the embedded learner. `stack.learner_config` fills it from the run's YAML.

    The YAML's own types hold the bounds; here only the layout is checked (UserError). micro_batch_size: rows.
    packed_tokens: different tokens of a packed micro-batch (`packing.py`); None pads rows instead. threads: of a rank.
    max_grad_norm: 0 turns clipping off. ratio_clip_c: the dual clip; None for none. The learning rate rises linearly
    over `warmup_updates` from lr / warmup_updates to lr, then stays. With `decay_updates` it falls linearly to 0 at
    that update (supervision only).
    """

    shape: PolicyShape = field(default_factory=PolicyShape)
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    micro_batch_size: int = _POLICY.train_micro_batch_size
    packed_tokens: int | None = None
    threads: int = _POLICY.threads
    lr: float = _ADAM.lr
    betas: tuple[float, float] = (_ADAM.adam_beta1, _ADAM.adam_beta2)
    eps: float = _ADAM.adam_eps
    weight_decay: float = _ADAM.weight_decay
    max_grad_norm: float = _POLICY.max_grad_norm
    warmup_updates: int = 0
    decay_updates: int | None = None
    ratio_clip_min: float = _LOSS.ratio_clip_min
    ratio_clip_max: float = _LOSS.ratio_clip_max
    ratio_clip_c: float | None = _LOSS.ratio_clip_c
    entropy_coefficient: float = _LOSS.entropy_coefficient
    seed: int = 0
    start_timeout_s: float = START_SECONDS
    call_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        self.shape.check_parallel(self.tensor_parallel, self.pipeline_parallel)

    @property
    def world_size(self) -> int:
        """How many ranks (processes) the learner has."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel
