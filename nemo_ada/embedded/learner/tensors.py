"""Tensors of a safetensors file that may be damaged or of another model: what is wanted, or a UserError that says why.

No file is unpickled: safetensors holds a JSON header and raw numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from nemo_ada.errors import UserError

Tensors = dict[str, torch.Tensor]


def read_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype | None = None) -> Tensors:
    """The named tensors, whose shapes must be these; dtype: refuse any other (None takes all that hold numbers).

    Raises UserError.
    """
    found: Tensors = {}
    try:
        with safe_open(path, "pt") as file:
            there = set(file.keys())
            missing = [name for name in shapes if name not in there]
            if missing:
                raise UserError(f"{path} has no tensor {missing[0]}" + (" and others" if len(missing) > 1 else ""))
            for name, shape in shapes.items():
                if tuple(file.get_slice(name).get_shape()) != shape:
                    raise UserError(f"{path}: {name} has the shape {file.get_slice(name).get_shape()}, not {[*shape]}")
                found[name] = file.get_tensor(name)
    except UserError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise UserError(f"{path} is no safetensors file that can be read: {str(error)[:200]}") from None
    for name, tensor in found.items():
        if dtype is not None and tensor.dtype != dtype:
            raise UserError(f"{path}: {name} holds {tensor.dtype}, not {dtype}")
    return found
