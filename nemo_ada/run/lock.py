"""One process at a time: a lock file that the kernel frees when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import time
from pathlib import Path
from typing import IO

from nemo_ada.errors import UserError

log = logging.getLogger(__name__)

LEASE_SECONDS = 120.0


def take(path: Path, what: str) -> IO[str]:
    """Lock `path` until the returned file is closed; `what` names the thing in the error.

    A shared file system frees the locks of a node that went down only after a while: a holder on another node is given
    LEASE_SECONDS. Where a file system has no locks, a warning says so. Raises UserError when another process holds it.
    """
    lock = path.open("a+", encoding="utf-8")
    deadline = time.monotonic() + LEASE_SECONDS
    try:
        while not locked(lock):
            lock.seek(0)
            holder = lock.read().strip()
            if holder.endswith(f" {platform.node()}") or time.monotonic() > deadline:
                lock.close()
                raise UserError(
                    f"{what} is in use by {holder or 'another process'}; two runs must not share it: end that one, or "
                    "name another"
                )
            time.sleep(1.0)
    except OSError as error:
        log.warning("%s cannot be locked (%s): start no second run there", what, error)
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {platform.node()}\n")
    lock.flush()
    return lock


def locked(file: IO[str]) -> bool:
    """Lock an open file; False when another process has it. Raises OSError where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
