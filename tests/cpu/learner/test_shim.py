"""Megatron's modules get a torch whose CUDA names mean the CPU; each name is one that some tried version calls."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

SCRIPT = """
import megatron.core.distributed.param_and_grad_buffer as module
import torch
from nemo_ada.cpu.learner import shim
assert shim.install() > 0 and shim.install() == 0
assert module.torch is not torch and module.torch.zeros(1, device="cuda").device.type == "cpu"
assert module.torch.cuda.current_device().type == "cpu"
module.torch.cuda.synchronize()
module.torch.cuda.current_stream()  # megatron-core 0.19 asks for it before it sums gradients
"""


def test_megatron_finds_no_gpu_and_does_not_miss_it() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
