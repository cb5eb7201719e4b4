"""NCCL's Python bindings, which NeMo-RL's refit between separate GPUs imports."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from nemo_ada.rehearsal.standins.replacing import Replacements

REPLACEMENTS = Replacements("NCCL's Python bindings (nccl4py)", "empty modules, where they are not installed")
REFIT_GROUP = "nemo_rl.distributed.stateless_process_group"


@REPLACEMENTS.during(REFIT_GROUP, why="It imports NCCL's Python bindings, which may not be here.")
@contextmanager
def _make_nccl_importable() -> Iterator[None]:
    contents: dict[str, tuple[str, ...]] = {
        "nccl": (), "nccl.core": ("SUM",), "nccl.core.communicator": ("Communicator",),
        "nccl.core.utils": ("UniqueId", "get_unique_id"),
    }  # fmt: skip
    if importlib.util.find_spec("nccl") is not None:
        contents = {}
    for name, values in contents.items():
        module = ModuleType(name)
        vars(module).update(dict.fromkeys(values))
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in contents:
            sys.modules.pop(name, None)
