"""Convert weights between Hugging Face's names and Megatron's, for any tensor and pipeline layout, and read files.

A rank has the layers of its pipeline stage, numbered from 0, and its share of every split tensor. Megatron stores q, k
and v of an attention block in one tensor, ordered by query group: the group's q heads, its k head, its v head. Gate and
up of an MLP share a tensor too, as [gate; up] on each rank. This module only slices, reshapes and concatenates, so a
round trip gives the same bits. Adam's moments have their parameters' shapes and are converted in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open

from nemo_ada.cpu.learner.shape import EMBEDDING, PolicyShape, list_hf_shapes
from nemo_ada.cpu.model_folder import list_tensor_files
from nemo_ada.errors import InvariantError, UserError

Weights = dict[str, torch.Tensor]
Kind = Literal["replicated", "rows", "columns", "qkv", "gate_up"]


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's position in the layout.

    Attributes:
        tensor_rank: The rank among the tensor-parallel ranks.
        tensor_size: Number of tensor-parallel ranks.
        pipeline_rank: The rank's pipeline stage.
        pipeline_size: Number of pipeline stages.
    """

    tensor_rank: int = 0
    tensor_size: int = 1
    pipeline_rank: int = 0
    pipeline_size: int = 1


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor of Megatron's (`local`), the Hugging Face tensors that it contains, and how ranks split it."""

    local: str
    hf: tuple[str, ...]
    kind: Kind


_LAYER = (
    _Entry("input_layernorm.weight", ("input_layernorm.weight",), "replicated"),
    _Entry("self_attention.linear_qkv.weight", tuple(f"self_attn.{x}_proj.weight" for x in "qkv"), "qkv"),
    _Entry("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), "columns"),
    _Entry("pre_mlp_layernorm.weight", ("post_attention_layernorm.weight",), "replicated"),
    _Entry("mlp.linear_fc1.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight"), "gate_up"),
    _Entry("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), "columns"),
)
_QKV_BIAS = (_Entry("self_attention.linear_qkv.bias", tuple(f"self_attn.{x}_proj.bias" for x in "qkv"), "qkv"),)
_QK_NORM = tuple(
    _Entry(f"self_attention.{x}_layernorm.weight", (f"self_attn.{x}_norm.weight",), "replicated") for x in "qk"
)


def _walk_entries(shape: PolicyShape, pipeline_rank: int, pipeline_size: int) -> Iterator[_Entry]:
    """Yield the tensors of a pipeline stage, with their full names on both sides."""
    first, last = pipeline_rank == 0, pipeline_rank == pipeline_size - 1
    if first:
        yield _Entry("embedding.word_embeddings.weight", (EMBEDDING,), "rows")
    layer = _LAYER + (_QKV_BIAS if shape.qkv_bias else ()) + (_QK_NORM if shape.qk_norm else ())
    per_stage = shape.num_layers // pipeline_size
    for local in range(per_stage):
        prefix = f"model.layers.{pipeline_rank * per_stage + local}."
        for entry in layer:
            yield _Entry(f"decoder.layers.{local}.{entry.local}", tuple(prefix + name for name in entry.hf), entry.kind)
    if last:
        yield _Entry("decoder.final_layernorm.weight", ("model.norm.weight",), "replicated")
        if not shape.tied_embeddings:
            yield _Entry("output_layer.weight", ("lm_head.weight",), "rows")
        elif not first:
            yield _Entry("output_layer.weight", (EMBEDDING,), "rows")


def make_random_weights(shape: PolicyShape, seed: int) -> Weights:
    """Seeded initial weights with Hugging Face names. They are drawn before the split, so every layout has the same.

    Matrices come from N(0, initializer_range^2), biases are 0, and norms are 1.
    """
    generator = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    for name, size in list_hf_shapes(shape).items():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(size)
        elif name.endswith("bias"):
            weights[name] = torch.zeros(size)
        else:
            weights[name] = torch.randn(size, generator=generator) * shape.initializer_range
    return weights


def _group_qkv(shape: PolicyShape, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One tensor of q, k and v, ordered by query group."""
    groups, rest = shape.num_query_groups, q.shape[1:]
    return torch.cat([part.reshape(groups, -1, *rest) for part in (q, k, v)], dim=1).reshape(-1, *rest)


def _ungroup_qkv(shape: PolicyShape, merged: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors q, k and v of a tensor from `_group_qkv`."""
    rest, head = merged.shape[1:], shape.head_dim
    q_rows = shape.num_attention_heads // shape.num_query_groups * head
    parts = merged.reshape(shape.num_query_groups, q_rows + 2 * head, *rest).split([q_rows, head, head], dim=1)
    return [part.reshape(-1, *rest) for part in parts]


def shard(shape: PolicyShape, get: Callable[[str], torch.Tensor], place: Place) -> Weights:
    """Cut the tensors of one rank from whole tensors.

    Args:
        shape: Shape of the model.
        get: Returns a whole tensor by its Hugging Face name.
        place: The rank's position.

    Returns:
        Megatron's name -> tensor.
    """
    rank, size = place.tensor_rank, place.tensor_size
    local: Weights = {}
    for entry in _walk_entries(shape, place.pipeline_rank, place.pipeline_size):
        whole = [get(name) for name in entry.hf]
        match entry.kind:
            case "replicated":
                part = whole[0]
            case "columns":
                part = whole[0].chunk(size, dim=1)[rank]
            case "rows":
                part = whole[0].chunk(size)[rank]
            case "qkv":
                part = _group_qkv(shape, *whole).chunk(size)[rank]
            case "gate_up":
                part = torch.cat([tensor.chunk(size)[rank] for tensor in whole])
        local[entry.local] = part.contiguous()
    return local


def merge(shape: PolicyShape, shards: Sequence[Sequence[Mapping[str, torch.Tensor]]]) -> Weights:
    """Make whole tensors with Hugging Face names from those of all ranks. This is the inverse of `shard`.

    Args:
        shape: Shape of the model.
        shards: Tensors by pipeline rank and tensor rank.

    Raises:
        InvariantError: Copies of one tensor differ between ranks.
    """
    whole: Weights = {}
    for stage, ranks in enumerate(shards):
        for entry in _walk_entries(shape, stage, len(shards)):
            parts = [rank[entry.local] for rank in ranks]
            match entry.kind:
                case "replicated":
                    if not all(torch.equal(parts[0], other) for other in parts[1:]):
                        raise InvariantError(f"{entry.local} (stage {stage}) differs between tensor-parallel ranks")
                    tensors = [parts[0].clone()]
                case "columns":
                    tensors = [torch.cat(parts, dim=1)]
                case "rows":
                    tensors = [torch.cat(parts)]
                case "qkv":
                    tensors = _ungroup_qkv(shape, torch.cat(parts))
                case "gate_up":
                    halves = [part.chunk(2) for part in parts]
                    tensors = [torch.cat([half[i] for half in halves]) for i in range(2)]
            for name, tensor in zip(entry.hf, tensors, strict=True):
                if name in whole and not torch.equal(whole[name], tensor):
                    raise InvariantError(f"{name} differs between the first and the last pipeline stage")
                whole[name] = tensor
    return whole


def read_model(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """Read tensors of a Hugging Face folder in float32, from one file or several.

    Args:
        folder: The folder.
        shapes: Name of each tensor -> the shape that it must have.

    Raises:
        UserError: A tensor is missing or has another shape, or a file is damaged.
    """
    files = list_tensor_files(folder)
    place: dict[str, Path] = {}
    for file in files[1:]:
        with safe_open(file, "pt") as tensors:
            place.update(dict.fromkeys(tensors.keys(), file))
    whole: Weights = {}
    for file in files:
        mine = {name: shape for name, shape in shapes.items() if place.get(name, files[0]) == file}
        whole |= read_tensors(file, mine)
    return {name: tensor.float() for name, tensor in whole.items()}


def read_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype | None = None) -> Weights:
    """Read tensors of a safetensors file.

    Args:
        path: The file.
        shapes: Name of each tensor -> the shape that it must have.
        dtype: The type that each tensor must have. None takes any.

    Raises:
        UserError: A tensor is missing or has another shape or type, or the file is damaged.
    """
    tensors: Weights = {}
    try:
        with safe_open(path, "pt") as file:
            present = set(file.keys())
            missing = [name for name in shapes if name not in present]
            if missing:
                raise UserError(f"{path} has no tensor {missing[0]}" + (" and others" if len(missing) > 1 else ""))
            for name, shape in shapes.items():
                if tuple(file.get_slice(name).get_shape()) != shape:
                    raise UserError(f"{path}: {name} has the shape {file.get_slice(name).get_shape()}, not {[*shape]}")
                tensors[name] = file.get_tensor(name)
                if dtype is not None and tensors[name].dtype != dtype:
                    raise UserError(f"{path}: {name} holds {tensors[name].dtype}, not {dtype}")
    except UserError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise UserError(f"{path} is no safetensors file that can be read: {str(error)[:200]}") from None
    return tensors
