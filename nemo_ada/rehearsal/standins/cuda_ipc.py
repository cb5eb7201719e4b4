"""CUDA IPC, with which a policy worker hands a buffer of weights to the vLLM worker on the same GPU."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("CUDA IPC handles of the refit", "files in shared memory, read once")

FOLDER = "NEMO_ADA_REHEARSAL_SHARED"
_NUMBER = itertools.count()


@REPLACEMENTS.after(
    "nemo_rl.models.policy.utils",
    "get_handle_from_tensor",
    "rebuild_cuda_tensor_from_ipc",
    why="A handle names memory of a GPU; the sockets, packing and loading around it are NeMo-RL's own.",
)
def _replace_handles(names: Names) -> None:
    names.put("get_handle_from_tensor", write_handle)
    names.put("rebuild_cuda_tensor_from_ipc", read_handle)


def write_handle(tensor: Any) -> tuple[str]:
    """Write the tensor's bytes to a file. The file's path is the handle."""
    import torch

    folder = Path(os.environ.get(FOLDER, "/dev/shm"))
    path = folder / f"nemo-ada-{os.environ.get('NEMO_ADA_REHEARSAL', 'cpu')}-{os.getpid()}-{next(_NUMBER)}"
    path.write_bytes(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return (str(path),)


def read_handle(handle: tuple[str], device_id: int) -> Any:
    """Return the bytes behind a handle as a uint8 tensor. The file is removed."""
    import numpy as np
    import torch

    content = np.fromfile(handle[0], dtype=np.uint8)
    Path(handle[0]).unlink()
    return torch.from_numpy(content)
