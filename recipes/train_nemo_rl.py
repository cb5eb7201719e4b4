"""Train with NeMo-RL on GPUs: python recipes/train_nemo_rl.py CONFIG [key=value ...]

CONFIG: a file of configs/ (not configs/cpu); NEMO_RL_HOME names NeMo-RL's checkout. Exit codes: 0 done, 1 failed,
2 user error, 75 stopped with everything saved (resume=auto continues). It is `nemo-ada train` without the rest.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from nemo_ada.errors import ProcessLostError, UserError
from nemo_ada.nemo.launch import run
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
