"""A driver that writes down which nodes Ray spans: ray_count.py CONFIG run_dir=DIR ...

It fails where Ray also answers a process that does not know the job's token.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ray

from nemo_ada.run.job_control import JobControl


def main(arguments: list[str]) -> int:
    folder = Path(dict(argument.split("=", 1) for argument in arguments if "=" in argument)["run_dir"])
    ray.init(address="auto", log_to_driver=False)
    names = sorted(key.removeprefix("slurm_node:") for key in ray.cluster_resources() if key.startswith("slurm_node:"))
    (folder / "nodes.txt").write_text("\n".join(names))
    ray.shutdown()
    if os.environ.get("RAY_AUTH_MODE") == "token" and a_stranger_gets_in(folder):
        sys.stderr.write("Ray answered without the token\n")
        return 1
    JobControl(folder, 1).status("done", 1)
    return 0


def a_stranger_gets_in(home: Path) -> bool:
    """Whether another user of this machine, who sees the port but not the token, can join the cluster."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    program = (
        f"import ray; ray.init(address={os.environ['RAY_ADDRESS']!r}, log_to_driver=False); ray.cluster_resources()"
    )
    try:
        done = subprocess.run([sys.executable, "-c", program], env=known | {"HOME": str(home)}, timeout=40, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
