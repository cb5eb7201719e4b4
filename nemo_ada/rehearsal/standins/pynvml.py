"""pynvml, NVIDIA's driver library, which NeMo-RL asks for GPU ids and free memory."""

from __future__ import annotations

import os
from types import ModuleType, SimpleNamespace

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("NVML (GPU ids and memory)", "fixed answers for as many GPUs as the layout needs")

GIB = 2**30
TOTAL_BYTES, FREE_BYTES = 80 * GIB, 64 * GIB  # the refit's buffer is NRL_REFIT_BUFFER_MEMORY_RATIO of what is free


@REPLACEMENTS.after("nemo_rl.utils.nvml", "pynvml", why="NVML needs the GPU driver, which a CPU machine lacks.")
def _replace_pynvml(names: Names) -> None:
    names.put("pynvml", make_module())


def make_module() -> ModuleType:
    """Return a module with the functions that NeMo-RL calls."""
    nvml = ModuleType("pynvml")
    tag = os.environ.get("NEMO_ADA_REHEARSAL", "cpu")
    memory = SimpleNamespace(total=TOTAL_BYTES, used=TOTAL_BYTES - FREE_BYTES, free=FREE_BYTES)
    answers: dict[str, object] = {
        "NVMLError": type("NVMLError", (Exception,), {}),
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 16,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{tag}-{handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: memory,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [],
    }
    for name, answer in answers.items():
        setattr(nvml, name, answer)
    return nvml
