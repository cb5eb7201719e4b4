"""Stand-ins for what an interpreter of a rehearsal lacks. There is one file per library.

No file imports its library. Each names the module after whose import its replacements apply.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Collection

from nemo_ada.rehearsal.standins import (
    automodel,
    cuda_ipc,
    kept,
    megatron_bridge,
    megatron_core,
    megatron_cpu,
    megatron_parts,
    nccl,
    nemo_rl_gym,
    nemo_rl_vllm,
    pynvml,
    ray_placement,
    responses,
    torch_cuda,
    torch_distributed,
    transfer_queue,
    vllm_cpu,
    vllm_http,
)
from nemo_ada.rehearsal.standins.replacing import Replacements

ON_GPU = "NEMO_ADA_REHEARSAL_ON_GPU"
"""Set in the processes of a rehearsal on a GPU."""

FILES: tuple[Replacements, ...] = (
    torch_cuda.REPLACEMENTS,
    torch_distributed.REPLACEMENTS,
    nccl.REPLACEMENTS,
    pynvml.REPLACEMENTS,
    cuda_ipc.REPLACEMENTS,
    megatron_core.REPLACEMENTS,
    megatron_bridge.REPLACEMENTS,
    megatron_cpu.REPLACEMENTS,
    megatron_parts.REPLACEMENTS,
    automodel.REPLACEMENTS,
    vllm_cpu.REPLACEMENTS,
    vllm_http.REPLACEMENTS,
    nemo_rl_vllm.REPLACEMENTS,
    responses.SEEDED,
    nemo_rl_gym.REPLACEMENTS,
    ray_placement.REPLACEMENTS,
    transfer_queue.REPLACEMENTS,
)
"""On a CPU."""
OF_SLICES: tuple[Replacements, ...] = (responses.DRAWN, kept.LEARNER)
"""In the slices of a rehearsal on a GPU with random weights, and in their dry run on a CPU."""
OF_RUNS: tuple[Replacements, ...] = (kept.ENGINE,)
"""In the driver of several runs."""
ALWAYS = (megatron_parts.REPLACEMENTS, ray_placement.REPLACEMENTS)
"""On every machine."""
WITHOUT_TE = (megatron_core.REPLACEMENTS, megatron_bridge.REPLACEMENTS)


LIBRARIES = ("transformer_engine", "transformer_engine_torch", "apex", "nccl")
"""Libraries of a GPU that an interpreter may lack."""


def installed() -> list[str]:
    """Return those of LIBRARIES that this interpreter has.

    The wheel of `transformer_engine_torch` has its module in a folder that only Transformer Engine searches.
    """
    return [name for name in LIBRARIES if importlib.util.find_spec(name) is not None or _has_wheel(name)]


def _has_wheel(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def chosen(libraries: Collection[str], *, gpu: bool, slices: bool) -> tuple[Replacements, ...]:
    """Return the replacements for a process, and for its report.

    Args:
        libraries: Those of LIBRARIES that its interpreter has.
        gpu: Whether it computes on a GPU.
        slices: Whether it belongs to a rehearsal in slices.
    """
    drawn = OF_SLICES if slices else ()
    if not gpu:
        return (*(one for one in FILES if not (slices and one is responses.SEEDED)), *drawn)
    te = () if {"transformer_engine", "transformer_engine_torch"} <= set(libraries) else WITHOUT_TE
    bindings = () if "nccl" in libraries else (nccl.REPLACEMENTS,)
    return (*te, *bindings, *ALWAYS, *drawn)


def here() -> tuple[Replacements, ...]:
    """Return the replacements for this process."""
    return chosen(installed(), gpu=bool(os.environ.get(ON_GPU)), slices=bool(os.environ.get(responses.DRAWS)))


def install() -> None:
    """Register every replacement. Each applies right after its module's import."""
    for replacements in here():
        replacements.install()
