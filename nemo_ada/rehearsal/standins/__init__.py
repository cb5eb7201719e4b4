"""Stand-ins for what an interpreter of a rehearsal lacks. There is one file per library.

No file imports its library. Each names the module after whose import its replacements apply.
"""

from __future__ import annotations

import os

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
from nemo_ada.rehearsal.standins.responses import ON_GPU

FOR_CPU: tuple[Replacements, ...] = (
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
    responses.REPLACEMENTS,
    nemo_rl_gym.REPLACEMENTS,
    ray_placement.REPLACEMENTS,
    transfer_queue.REPLACEMENTS,
)
"""In every process on a CPU."""
OF_SLICES: tuple[Replacements, ...] = (responses.REPLACEMENTS, kept.LEARNER)
"""In the slices of a rehearsal on a GPU with random weights, and in their dry run on a CPU."""
OF_RUNS: tuple[Replacements, ...] = (kept.ENGINE,)
"""In the driver of several runs, which installs them itself, because no other process knows that there are several."""
ALWAYS = (nccl.REPLACEMENTS, megatron_parts.REPLACEMENTS, ray_placement.REPLACEMENTS)
"""Also on a GPU, because they stand for parts of an installation and for a cluster, and not for a device."""


def choose_replacements(*, gpu: bool, slices: bool) -> tuple[Replacements, ...]:
    """Return the replacements for a process. The report lists the same ones.

    Args:
        gpu: Whether it computes on a GPU.
        slices: Whether it belongs to a rehearsal in slices.
    """
    of_slices = OF_SLICES if slices else ()
    if gpu:
        return (*ALWAYS, *of_slices)
    return (*FOR_CPU, *(group for group in of_slices if group not in FOR_CPU))


def choose_for_this_process() -> tuple[Replacements, ...]:
    """Return the replacements for this process."""
    return choose_replacements(gpu=bool(os.environ.get(ON_GPU)), slices=bool(os.environ.get(responses.DRAWS)))


def install() -> None:
    """Register every replacement, when an interpreter starts (startup/sitecustomize.py).

    Each applies right after its module's import.
    """
    for replacements in choose_for_this_process():
        replacements.install()
