"""Train with NeMo-RL on GPUs: `python recipes/train_nemo_rl.py CONFIG [OVERLAY.yaml ...] [key=value ...]`.

CONFIG is a model's YAML in configs/, and NEMO_RL_HOME names NeMo-RL's checkout. The exit code is 0 when the run is
done, 1 when it failed, 2 for a user error, and 75 when it stopped with everything saved. Then resume=auto
continues. The program is `nemo-ada train` without the other commands.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from nemo_ada.errors import ProcessLostError, UserError
from nemo_ada.nemo.launch.command import run
from nemo_ada.run.job_control import EXIT_LOST, EXIT_USER_ERROR


def main(arguments: list[str]) -> int:
    """Run and report a user's error in one line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if not arguments:
        sys.stderr.write(f"{__doc__}\n")
        return EXIT_USER_ERROR
    try:
        return run(Path(arguments[0]), arguments[1:])
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USER_ERROR
    except ProcessLostError as error:
        sys.stderr.write(f"interrupted: {error}; resume=auto goes on from the last save\n")
        return EXIT_LOST


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
