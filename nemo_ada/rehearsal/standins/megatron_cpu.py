"""Megatron without CUDA: its random state, its exchange of experts and its set-up ask for a GPU."""

from __future__ import annotations

import functools
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("Megatron's questions to a GPU", "answers of the CPU")


@REPLACEMENTS.after(
    "megatron.core.tensor_parallel.random",
    "_get_cuda_rng_state",
    "_set_cuda_rng_state",
    why="Dropout and initialisation draw from the CPU's generator.",
)
def _use_random_state_of_cpu(names: Names) -> None:
    import torch

    names.put("_get_cuda_rng_state", lambda *args, **kwargs: torch.get_rng_state())
    names.put("_set_cuda_rng_state", lambda state, *args, **kwargs: torch.set_rng_state(state))


@REPLACEMENTS.after(
    "megatron.core.transformer.moe.moe_utils",
    "maybe_move_tensor_to_cpu",
    why="It makes the arrays of the experts' exchange only of tensors that are on a GPU.",
)
def _make_arrays_of_exchange(names: Names) -> None:
    def maybe_move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and hasattr(tensor, "numpy") else tensor

    names.put("maybe_move_tensor_to_cpu", maybe_move_tensor_to_cpu)


@REPLACEMENTS.after(
    "megatron.bridge.training.initialize",
    "initialize_megatron",
    why="It asserts CUDA unless allow_no_cuda is true.",
)
def _initialize_without_cuda(names: Names) -> None:
    initialize = names.get("initialize_megatron")
    names.put("initialize_megatron", functools.partial(initialize, allow_no_cuda=True))
