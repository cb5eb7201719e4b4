"""Wait until Ray runs on every node of the job, or say which ones are missing: wait_for_nodes.py SECONDS NODE..."""

from __future__ import annotations

import subprocess
import sys
import time

PERIOD_SECONDS = 2.0
ANSWER_SECONDS = 60.0
RESOURCES = """
import ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
print(*ray.cluster_resources(), sep="\\n")
"""


def resources() -> set[str]:
    """Names of Ray's resources; none while the head does not answer.

    A process of its own asks: where the head is slow, Ray ends the whole process that connects.
    """
    ask = [sys.executable, "-P", "-c", RESOURCES]  # no module of the working folder
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
        return set(done.stdout.split())
    except subprocess.SubprocessError:
        return set()


def main(seconds: float, nodes: list[str]) -> int:
    """Exit code 0 when each node has registered its resource `slurm_node:<name>` (node.sh) in time."""
    deadline = time.monotonic() + seconds
    while True:
        there = resources()
        missing = [node for node in nodes if f"slurm_node:{node}" not in there]
        if not missing:
            return 0
        if time.monotonic() >= deadline:
            break
        time.sleep(PERIOD_SECONDS)
    sys.stderr.write(
        f"error: after {seconds:.0f} s Ray runs on {len(nodes) - len(missing)} of {len(nodes)} nodes; missing: "
        f"{', '.join(missing)}. Look at node-<name>.log of these, or leave them out: "
        f"sbatch --exclude={','.join(missing)}\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
