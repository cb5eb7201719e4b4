"""The settings of a group of learner ranks. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from nemo_ada.cpu.learner.shape import PolicyShape
from nemo_ada.cpu.processes.actors import START_SECONDS
from nemo_ada.cpu.settings import LossSettings, OptimizerSettings, PolicySettings
from nemo_ada.errors import UserError

_POLICY = PolicySettings()  # the YAML's defaults are the only ones


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Model, layout, loss and optimizer of the CPU's learner. `stack.make_learner_config` makes it from the run's YAML.

    The YAML's types check all bounds but those of the layout.

    Attributes:
        shape: Shape of the model.
        tensor_parallel: Number of tensor-parallel ranks.
        pipeline_parallel: Number of pipeline stages.
        data_parallel: Number of data-parallel ranks.
        micro_batch_size: Largest number of rows of a padded micro-batch.
        packed_tokens: Largest number of different tokens of a packed micro-batch (`packing.py`). None pads rows.
        threads: Threads of a rank.
        optimizer: Section `optimizer` of the run. `lr` is the largest learning rate.
        max_grad_norm: Largest gradient norm. 0 turns clipping off.
        warmup_updates: Updates over which the learning rate rises linearly from lr / warmup_updates to `optimizer.lr`.
        decay_updates: The learning rate falls linearly to 0 at this update. None keeps it constant.
        loss: Section `loss_fn` of the run.
        temperature: Sampling temperature. The policy is the softmax of the logits divided by it, as in NeMo-RL.
        halves: Whether an update also compares the gradients of two halves of its prompts.
        seed: Seed of a random model.
        start_timeout_s: Seconds for the start of the ranks.
        call_timeout_s: Seconds for a call.

    Raises:
        UserError: The model does not split into the layout, or halves are measured on several ranks.
    """

    shape: PolicyShape = field(default_factory=PolicyShape)
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    micro_batch_size: int = _POLICY.train_micro_batch_size
    packed_tokens: int | None = None
    threads: int = _POLICY.threads
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    max_grad_norm: float = _POLICY.max_grad_norm
    warmup_updates: int = 0
    decay_updates: int | None = None
    loss: LossSettings = field(default_factory=LossSettings)
    temperature: float = 1.0
    halves: bool = False
    seed: int = 0
    start_timeout_s: float = START_SECONDS
    call_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        self.shape.check_parallel(self.tensor_parallel, self.pipeline_parallel)
        if self.halves and self.world_size > 1:
            raise UserError(
                f"logger.gradient_cosine=true needs one learner rank, and this layout has {self.world_size}; set it to "
                "false, or every parallel size to 1"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks, which are processes."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel
