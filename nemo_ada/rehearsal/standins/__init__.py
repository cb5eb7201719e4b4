"""Stand-ins for what an interpreter of a rehearsal lacks. There is one file per library.

No file imports its library. Each names the module after whose import its replacements apply.
"""

from __future__ import annotations

import importlib.util
import os

from nemo_ada.rehearsal.standins import (
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
    vllm_cpu.REPLACEMENTS,
    vllm_http.REPLACEMENTS,
    nemo_rl_vllm.REPLACEMENTS,
    responses.SEEDED,
    nemo_rl_gym.REPLACEMENTS,
    ray_placement.REPLACEMENTS,
    transfer_queue.REPLACEMENTS,
)
"""On a CPU."""
OF_SLICES: tuple[Replacements, ...] = (responses.DRAWN, kept.REPLACEMENTS)
"""In the slices of a rehearsal on a GPU, and in their dry run on a CPU."""
ALWAYS = (megatron_parts.REPLACEMENTS, ray_placement.REPLACEMENTS)
"""On every machine."""
WITHOUT_TE = (megatron_core.REPLACEMENTS, megatron_bridge.REPLACEMENTS)


def has_te() -> bool:
    """Whether this interpreter has Transformer Engine with its part for torch."""
    return all(
        importlib.util.find_spec(name) is not None for name in ("transformer_engine", "transformer_engine_torch")
    )


def here() -> tuple[Replacements, ...]:
    """The replacements for this process."""
    slices = OF_SLICES if os.environ.get(responses.DRAWS) else ()
    if not os.environ.get(ON_GPU):
        seeded = (responses.SEEDED,) if slices else ()
        return (*(one for one in FILES if one not in seeded), *slices)
    te = () if has_te() else WITHOUT_TE
    bindings = () if importlib.util.find_spec("nccl") is not None else (nccl.REPLACEMENTS,)
    return (*te, *bindings, *ALWAYS, *slices)


def install() -> None:
    """Register every replacement. Each applies right after its module's import."""
    for replacements in here():
        replacements.install()
