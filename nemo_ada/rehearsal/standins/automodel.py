"""NeMo Automodel, the learner of DTensor v2, without kernels of a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from nemo_ada.rehearsal.standins.replacing import Replacements

REPLACEMENTS = Replacements("Triton's search for the fastest LoRA kernel", "no search; torch multiplies")
KERNELS = "nemo_automodel.components._peft.lora_kernel"


@REPLACEMENTS.during(KERNELS, why="A newer Triton refuses a key that the kernel does not have. No GPU, no kernel.")
@contextmanager
def _skip_search() -> Iterator[None]:
    triton: Any = importlib.import_module("triton")

    def untouched(**options: Any) -> Callable[[Any], Any]:
        return lambda kernel: kernel

    with patch.object(triton, "autotune", untouched):
        yield
