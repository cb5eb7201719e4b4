"""One all-reduce over the job's nodes before Ray starts: all_reduce.py ADDRESS PORT RANK SECONDS FOLDER NODE...

NCCL where there are GPUs (one per node, after a small product on every GPU), gloo elsewhere. Prints one line. A node
that does not come gets FOLDER/bad-NODE, which takes it out of the next job.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def missing_nodes(store: dist.TCPStore, nodes: list[str], seconds: float) -> list[str]:
    """Nodes that have not put their name into the store in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        absent = [node for node in nodes if not store.check([node])]
        if not absent:
            return []
        time.sleep(0.2)
    return absent


def try_gpus() -> None:
    """A product on each GPU; raises where one does not compute or computes wrong."""
    for index in range(torch.cuda.device_count()):
        ones = torch.ones(1024, 1024, device=f"cuda:{index}")
        if float((ones @ ones).sum()) != 1024.0**3:
            raise ArithmeticError(f"GPU {index} computes a wrong product")


def main(address: str, port: int, rank: int, seconds: float, folder: Path, nodes: list[str]) -> int:
    """Exit code 0 when the sum over all nodes is right."""
    wait = timedelta(seconds=seconds)
    try:
        try_gpus()
    except (ArithmeticError, RuntimeError) as error:
        (folder / f"bad-{nodes[rank]}").write_text(f"{error}\n")
        raise
    store = dist.TCPStore(address, port, is_master=rank == 0, timeout=wait, wait_for_workers=False)
    store.set(nodes[rank], "here")
    absent = missing_nodes(store, nodes, seconds)
    if absent:
        for node in absent if rank == 0 else []:
            (folder / f"bad-{node}").write_text(f"did not come to the all-reduce within {seconds:.0f} s\n")
        sys.stdout.write(f"{', '.join(absent)} did not come within {seconds:.0f} s\n")
        return 1
    backend, device = ("nccl", "cuda:0") if torch.cuda.is_available() else ("gloo", "cpu")
    dist.init_process_group(
        backend, store=dist.PrefixStore("sum", store), rank=rank, world_size=len(nodes), timeout=wait
    )
    value = torch.full((1 << 20,), float(rank + 1), device=device)
    dist.all_reduce(value)
    right = bool((value == len(nodes) * (len(nodes) + 1) / 2).all())
    sys.stdout.write(f"all-reduce over {len(nodes)} node(s) by {backend}: {'right' if right else 'wrong sum'}\n")
    dist.barrier()
    dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    given = sys.argv
    sys.exit(main(given[1], int(given[2]), int(given[3]), float(given[4]), Path(given[5]), given[6:]))
