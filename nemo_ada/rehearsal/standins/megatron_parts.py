"""Parts of megatron-core that a rehearsal's machine may lack: a compiled index, and a writer of checkpoints."""

from __future__ import annotations

import functools
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("nvidia-resiliency-ext and compiled helpers", "megatron-core's own writer, and no index")


@REPLACEMENTS.after(
    "megatron.core.datasets.utils",
    "compile_helpers",
    why="It compiles an index of pretraining data inside the checkout, and ends the worker where pybind11 is absent.",
)
def _compile_nothing(names: Names) -> None:
    names.answer(("compile_helpers",), None)


@REPLACEMENTS.after(
    "megatron.core.dist_checkpointing.strategies.torch",
    "get_async_strategy",
    why="Newer versions save with nvidia-resiliency-ext, made for CUDA; megatron-core has its own writer.",
)
def _use_own_writer(names: Names) -> None:
    choose = names.get("get_async_strategy")

    @functools.wraps(choose)
    def get_async_strategy(async_strategy: str = "mcore", *args: Any, **kwargs: Any) -> Any:
        return choose("mcore", *args, **kwargs)

    names.put("get_async_strategy", get_async_strategy)
