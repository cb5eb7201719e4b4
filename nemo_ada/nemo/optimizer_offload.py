"""The optimizer's way to the CPU and back in NeMo-RL's learner, through pinned memory.

Learner and engine share their GPUs. So NeMo-RL moves the optimizer to the CPU before each refit, and back before each
update. It copies tensor by tensor into new pageable memory, which took 12.9 of the 28.5 seconds of a step of GRPO with
a 1.5B on one H200 (recipes/results/gpu.md). A copy that need not block goes into pinned memory, which torch keeps for
the next one. It never gives memory to the next copy that somebody still reads, such as a save in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nemo_ada.nemo.workers import call_each

MOVES = ("move_optimizer", "move_optimizer_to_device")
"""The function of NeMo-RL's Megatron worker, and of its DTensor workers."""


def move_through_pinned_memory(policy: Any) -> int:
    """Give each worker of a NeMo-RL policy another function that moves its optimizer.

    Args:
        policy: NeMo-RL's Policy. A stand-in without workers is left alone.

    Returns:
        Workers that have it now.
    """
    return sum(call_each(policy, make_replacement()))


def make_replacement() -> Callable[[Any], bool]:
    """Make the function that replaces a worker's way of moving its optimizer.

    It is a nested one, for `call_each`.
    """
    names = MOVES

    def replace(worker: Any) -> bool:
        """Replace it. Returns whether the worker has one."""
        import torch

        def move(device: Any) -> None:
            for _, state in worker.optimizer.state.items():
                for name, value in state.items():
                    if torch.is_tensor(value):
                        state[name] = value.to(device, non_blocking=True)
            if torch.cuda.is_available():
                torch.cuda.synchronize()

        found = [name for name in names if hasattr(worker, name)]
        for name in found:
            setattr(worker, name, move)
        return bool(found)

    return replace
