"""The processes of a run, found from inside and from outside."""

from __future__ import annotations

from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
MARK = "NEMO_ADA_DRILL"  # an environment variable that every descendant of a marked process inherits


def descendants(*names):
    """This process's descendants whose command line holds one of the names, oldest first."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if any(name in line for name in names):
            found.append(process)
    return sorted(found, key=lambda process: process.pid)


def marked(mark):
    """Processes that inherited the mark."""
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if process.info["status"] != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found
