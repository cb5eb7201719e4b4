"""GB/s of the learner's optimizer on its way to the CPU and back, tensor by tensor, as NeMo-RL moves it for a refit.

    python recipes/benchmarks/bench_optimizer_move.py                  # needs a GPU
    GLIBC_TUNABLES=... python recipes/benchmarks/bench_optimizer_move.py

NeMo-RL v0.7.0 copies each tensor into new memory of the CPU. Pinned memory that is made once is the limit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from measure import measure

from nemo_ada.errors import UserError

TENSOR_BYTES, TENSORS, ROUNDS = 64 << 20, 48, 3


def _seconds(work: Callable[[], list[torch.Tensor]]) -> tuple[list[torch.Tensor], float]:
    began = time.perf_counter()
    done = work()
    torch.cuda.synchronize()
    return done, time.perf_counter() - began


def _to_gpu(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.to("cuda") for tensor in tensors]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if not torch.cuda.is_available():
        raise UserError("this measures a GPU, and torch sees none; run it on a machine with one")
    states = [torch.empty(TENSOR_BYTES // 4, device="cuda").normal_() for _ in range(TENSORS)]
    torch.cuda.synchronize()
    size = TENSOR_BYTES * TENSORS / 1e9
    for number in range(ROUNDS):
        moved, there = _seconds(lambda: [state.to("cpu") for state in states])
        _, back = _seconds(partial(_to_gpu, moved))
        print(f"round {number}: to the CPU {size / there:.2f} GB/s, back {size / back:.2f} GB/s")
    pinned, made = _seconds(lambda: [torch.empty(TENSOR_BYTES // 4, pin_memory=True) for _ in states])
    _, there = _seconds(lambda: [to.copy_(state, non_blocking=True) for to, state in zip(pinned, states, strict=True)])
    _, back = _seconds(lambda: [state.copy_(to, non_blocking=True) for to, state in zip(pinned, states, strict=True)])
    print(f"pinned: made in {made:.2f} s, to the CPU {size / there:.2f} GB/s, back {size / back:.2f} GB/s")


if __name__ == "__main__":
    measure(main)
