"""How many cores this process may use: those of its affinity, and no more than its container's CPU quota gives."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def count_usable_cores(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Return the number of cores, at least one. A container with a quota of 4 cores has 4, whatever its node has.

    Args:
        groups: Where the control groups are mounted.
        own: The file that says in which groups this process is.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, min([cores, *(math.ceil(quota) for quota in _read_quotas(groups, own))]))


def _read_quotas(groups: Path, own: Path) -> Iterator[float]:
    """Yield every quota above this process, in cores: of its own group and of those around it."""
    with suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            inside = Path(place.strip("/"))
            # Version 2 has no name and may stand beside version 1. A container often sees its own group as the root.
            for mounted in {controllers or "unified", "cpu", "."}:
                for group in (inside, *inside.parents):
                    yield from _read_quota(groups / mounted / group)


def _read_quota(group: Path) -> Iterator[float]:
    with suppress(OSError, ValueError, ZeroDivisionError):  # "max" is no limit
        limit, period = (group / "cpu.max").read_text().split()
        yield int(limit) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        limit, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if int(limit) > 0:
            yield int(limit) / int(period)
