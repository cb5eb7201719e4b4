"""Tensors between the process that draws and vLLM's workers, on the wire as arrays.

NeMo-RL's asynchronous rollout sends each request and each response as a dictionary of tensors, in a Ray call of its
own. Pickle writes every tensor as `torch.save` would, storage by storage: on one core .26 ms to write the five tensors
of a response and .30 ms to read them, for 15 KB. Numpy's arrays travel as their bytes, in .06 and .03 ms
(recipes/results/host_cost.md). The process that draws reads one response after the other, so its time is the step's.

The reader copies the bytes into a tensor of its own, with equal bits, that may be written to. A tensor keeps pickle's
way where an array could not hold all of it, or where pickle would send more than its elements: a view of a storage that
other tensors may share, a dtype that numpy lacks, a gradient, a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

_told: WeakSet[Any] = WeakSet()  # workers that write arrays already


def send_arrays(workers: Sequence[Any]) -> None:
    """Write tensors as arrays from now on: in this process, and in these workers.

    It does not wait for the workers. A response that overtakes the call arrives as pickle writes it.

    Args:
        workers: Ray's handles of NeMo-RL's generation workers.
    """
    new = [worker for worker in workers if worker not in _told]
    if not new:
        return
    register = make_registration()
    register(None)
    for worker in new:
        worker.__ray_call__.remote(register)
        _told.add(worker)


def make_registration() -> Callable[[Any], None]:
    """Make the function that lets Ray write a process's tensors as arrays.

    Ray sends a nested function by value, so the worker's Python environment need not have this package.
    """

    def register(_worker: Any) -> None:
        """Register it, where nobody has registered another way for tensors."""
        import torch
        from ray.cloudpickle import CloudPickler
        from ray.cloudpickle.cloudpickle import DEFAULT_PROTOCOL

        dtypes = {
            torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
            torch.float64,
        }  # fmt: skip

        def reduced(tensor: torch.Tensor) -> Any:
            plain = (
                tensor.dtype in dtypes
                and tensor.layout is torch.strided
                and tensor.device.type == "cpu"
                and not (tensor.requires_grad or tensor.is_neg() or tensor.__dict__)
                and tensor.is_contiguous()
                and tensor.untyped_storage().nbytes() == tensor.nbytes
            )
            return (torch.tensor, (tensor.numpy(),)) if plain else tensor.__reduce_ex__(DEFAULT_PROTOCOL)

        # Ray's own way for tensors that are not copied registers here, too. `ray.util.register_serializer` has one
        # reader for all objects of a class.
        CloudPickler.dispatch.setdefault(torch.Tensor, reduced)

    return register
