"""Memory and processor time of a process with all its children, for the benchmarks."""

from __future__ import annotations

from collections.abc import Callable

import psutil


def memory_bytes(pid: int) -> int:
    """Memory of the process and its children, bytes. A page that several of them share counts once (Linux: PSS)."""
    return int(_total(pid, lambda process: process.memory_full_info().pss))


def processor_seconds(pid: int) -> float:
    """Processor seconds, of all cores, that the process and its living children have used."""
    return _total(pid, lambda process: sum(process.cpu_times()[:2]))


def _total(pid: int, of: Callable[[psutil.Process], float]) -> float:
    total = 0.0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            total += of(process)
        except psutil.Error:
            continue  # it ended in the meantime
    return total
