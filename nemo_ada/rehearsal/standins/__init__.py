"""Stand-ins for the GPU's libraries in the interpreters of a rehearsal. There is one file per library.

No file imports its library. Each names the module after whose import its replacements apply.
"""

from __future__ import annotations

from nemo_ada.rehearsal.standins import (
    cuda_ipc,
    megatron_bridge,
    megatron_core,
    nemo_rl_gym,
    nemo_rl_vllm,
    pynvml,
    ray_placement,
    torch_cuda,
    torch_distributed,
    transfer_queue,
    vllm_cpu,
    vllm_http,
)
from nemo_ada.rehearsal.standins.replacing import Replacements

FILES: tuple[Replacements, ...] = (
    torch_cuda.REPLACEMENTS,
    torch_distributed.REPLACEMENTS,
    pynvml.REPLACEMENTS,
    cuda_ipc.REPLACEMENTS,
    megatron_core.REPLACEMENTS,
    megatron_bridge.REPLACEMENTS,
    vllm_cpu.REPLACEMENTS,
    vllm_http.REPLACEMENTS,
    nemo_rl_vllm.REPLACEMENTS,
    nemo_rl_gym.REPLACEMENTS,
    ray_placement.REPLACEMENTS,
    transfer_queue.REPLACEMENTS,
)


def install() -> None:
    """Register every replacement. Each applies right after its module's import."""
    for replacements in FILES:
        replacements.install()
