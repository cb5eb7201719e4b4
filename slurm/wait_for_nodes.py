"""Wait until Ray runs on every node of the job, or say which ones are missing: wait_for_nodes.py SECONDS NODE..."""

from __future__ import annotations

import sys
import time

import ray

PERIOD_SECONDS = 2.0


def main(seconds: float, nodes: list[str]) -> int:
    """Exit code 0 when each node has registered its resource `slurm_node:<name>` (node.sh) in time."""
    deadline = time.monotonic() + seconds
    connected = False
    missing = nodes
    while time.monotonic() < deadline:
        try:
            if not connected:
                ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
                connected = True
            there = ray.cluster_resources()
        except (ConnectionError, RuntimeError):
            there = {}
        missing = [node for node in nodes if f"slurm_node:{node}" not in there]
        if not missing:
            return 0
        time.sleep(PERIOD_SECONDS)
    sys.stderr.write(
        f"error: after {seconds:.0f} s Ray runs on {len(nodes) - len(missing)} of {len(nodes)} nodes; missing: "
        f"{', '.join(missing)}. Look at node-<name>.log of these, or leave them out: "
        f"sbatch --exclude={','.join(missing)}\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
