"""A driver that writes down which nodes Ray spans: ray_count.py CONFIG run_dir=DIR ..."""

from __future__ import annotations

import sys
from pathlib import Path

import ray

from nemo_ada.jobcontrol import JobControl


def main(arguments: list[str]) -> int:
    folder = Path(dict(argument.split("=", 1) for argument in arguments if "=" in argument)["run_dir"])
    ray.init(address="auto", log_to_driver=False)
    names = sorted(key.removeprefix("slurm_node:") for key in ray.cluster_resources() if key.startswith("slurm_node:"))
    (folder / "nodes.txt").write_text("\n".join(names))
    ray.shutdown()
    JobControl(folder, 1).status("done", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
