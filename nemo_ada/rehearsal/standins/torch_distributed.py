"""torch.distributed: NCCL's groups run on gloo, and gloo gets the reduction that it lacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("NCCL", "gloo between processes of this machine")

REDUCTIONS = ("all_reduce", "reduce_scatter_tensor")
REFIT_GROUP = "nemo_rl.distributed.stateless_process_group"
REFIT_LIMIT = timedelta(minutes=10)


def choose_backend(backend: Any) -> Any:
    """Return the name gloo for NCCL, for `cpu:gloo,cuda:nccl` and for the default.

    Other names come back as they are.
    """
    return "gloo" if backend is None or (isinstance(backend, str) and "nccl" in backend) else backend


@REPLACEMENTS.after(
    "torch",
    *(f"distributed.{name}" for name in ("init_process_group", "new_group", "barrier")),
    *(f"distributed.distributed_c10d.{name}" for name in ("init_process_group", "new_group", "barrier")),
    why="NCCL moves data between GPUs; gloo has the same collectives for CPUs.",
)
def _replace_groups(names: Names) -> None:
    begin, create, wait = (names.get(f"distributed.{name}") for name in ("init_process_group", "new_group", "barrier"))

    @functools.wraps(begin)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        return begin(choose_backend(backend), *args, **kwargs)

    @functools.wraps(create)
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, **kwargs: Any
    ) -> Any:
        kwargs.pop("device_id", None)
        return create(ranks, timeout, choose_backend(backend), None, **kwargs)

    @functools.wraps(wait)
    def barrier(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_ids", None)
        return wait(*args, **kwargs)

    for owner in ("distributed", "distributed.distributed_c10d"):
        names.put(f"{owner}.init_process_group", init_process_group)
        names.put(f"{owner}.new_group", new_group)
        names.put(f"{owner}.barrier", barrier)


@REPLACEMENTS.after(
    "torch",
    *(f"distributed.{name}" for name in REDUCTIONS),
    *(f"distributed.distributed_c10d.{name}" for name in REDUCTIONS),
    why="gloo has no average; a sum divided by the group's size is the same.",
)
def _replace_averages(names: Names) -> None:
    for name in REDUCTIONS:
        averaging = _add_average(names.get(f"distributed.{name}"))
        for owner in ("distributed", "distributed.distributed_c10d"):
            names.put(f"{owner}.{name}", averaging)


def _add_average(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return the reduction, with an average that is a sum divided by the group's size."""

    @functools.wraps(reduce)
    def averaging(*args: Any, **kwargs: Any) -> Any:
        from torch import distributed

        if kwargs.get("op") != distributed.ReduceOp.AVG:
            return reduce(*args, **kwargs)
        kwargs["op"] = distributed.ReduceOp.SUM
        work = reduce(*args, **kwargs)
        if work is not None:
            work.wait()
        output: Any = args[0] if args else kwargs.get("output", kwargs.get("tensor"))
        output.div_(distributed.get_world_size(kwargs.get("group")))
        return work

    return averaging


@REPLACEMENTS.after(
    "torch.distributed.device_mesh",
    "init_device_mesh",
    why="A mesh of CUDA devices is a mesh of CPU processes here.",
)
def _replace_mesh(names: Names) -> None:
    create = names.get("init_device_mesh")

    @functools.wraps(create)
    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return create("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    names.put("init_device_mesh", init_device_mesh)
    from torch import distributed

    distributed.init_device_mesh = init_device_mesh


@REPLACEMENTS.after(
    REFIT_GROUP,
    "StatelessProcessGroup.init_nccl_communicator",
    "StatelessProcessGroup.broadcast",
    why="A refit between separate GPUs is an NCCL broadcast; its packing, its order and its store are NeMo-RL's own.",
)
def _replace_refit_group(names: Names) -> None:
    def init_nccl_communicator(self: Any, device: Any, **_: Any) -> None:  # main names the protocol of its peer
        from torch.distributed import ProcessGroupGloo

        self.nccl_communicator = ProcessGroupGloo(self.tcp_store, self.rank, self.world_size, REFIT_LIMIT)

    def broadcast(self: Any, tensor: Any, src: int, stream: Any = None) -> None:
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = src
        self.nccl_communicator.broadcast([tensor], options).wait()

    names.put("StatelessProcessGroup.init_nccl_communicator", init_nccl_communicator)
    names.put("StatelessProcessGroup.broadcast", broadcast)
