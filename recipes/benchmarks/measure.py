"""The main block of every benchmark: `measure(main)`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from nemo_ada.errors import UserError


def measure(main: Callable[[], int | None]) -> None:
    """Run a benchmark and end the process: 0 or the code that `main` returns, 2 for an error of the user."""
    try:
        code = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)
