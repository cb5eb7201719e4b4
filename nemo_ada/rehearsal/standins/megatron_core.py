"""megatron-core without Transformer Engine (TE). Its local layers compute what TE's layers compute."""

from __future__ import annotations

import functools
import inspect
from typing import Any
from unittest.mock import patch

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements("Transformer Engine layers", "megatron-core's local layers")

FUSIONS = (
    "apply_rope_fusion", "masked_softmax_fusion", "bias_dropout_fusion", "bias_activation_fusion", "persist_layer_norm",
    "gradient_accumulation_fusion", "cross_entropy_loss_fusion", "moe_permute_fusion", "fused_single_qkv_rope",
    "moe_router_fusion", "moe_grouped_gemm",
)  # fmt: skip


@REPLACEMENTS.after(
    "megatron.core.transformer.transformer_config",
    "TransformerConfig.__post_init__",
    why="Fusions are CUDA kernels; the same operations run one after the other.",
)
def _turn_fusions_off(names: Names) -> None:
    finish = names.get("TransformerConfig.__post_init__")

    def __post_init__(self: Any) -> None:
        for name in FUSIONS:
            if getattr(self, name, None):
                setattr(self, name, False)
        finish(self)

    names.put("TransformerConfig.__post_init__", __post_init__)


@REPLACEMENTS.after(
    "megatron.core.optimizer.distrib_optimizer",
    "DistributedOptimizer.state_dict",
    why="A resumed optimizer asks for its step before its first one, when torch's Adam, unlike TE's, has no state.",
)
def _make_state_before_first_step(names: Names) -> None:
    original = names.get("DistributedOptimizer.state_dict")

    @functools.wraps(original)
    def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        adam = self.optimizer
        if not adam.state:
            for parameter in (parameter for group in adam.param_groups for parameter in group["params"]):
                moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                adam.state[parameter] = {"step": torch.tensor(0.0), **moments}
        return original(self, *args, **kwargs)

    names.put("DistributedOptimizer.state_dict", state_dict)


@REPLACEMENTS.after(
    "megatron.core.optimizer.distrib_optimizer",
    "DistributedOptimizer.load_state_dict",
    why="Of torch's Adam, unlike TE's, it restores the step and then overwrites it with the one before the load.",
)
def _restore_step(names: Names) -> None:
    load = names.get("DistributedOptimizer.load_state_dict")

    @functools.wraps(load)
    def load_state_dict(self: Any, state_dict: Any) -> None:
        import torch

        step = float(state_dict["optimizer"]["param_groups"][0]["step"])  # read it first, because load moves the groups
        load(self, state_dict)
        for state in self.optimizer.state.values():
            state["step"] = torch.tensor(step)

    names.put("DistributedOptimizer.load_state_dict", load_state_dict)


@REPLACEMENTS.after(
    "megatron.core.transformer.torch_norm",
    "WrappedTorchNorm.__new__",
    why="The local norm refuses sequence parallelism, although it only lacks the mark that sums its gradient over TP.",
)
def _allow_norm_in_sequence_parallel(names: Names) -> None:
    create = names.get("WrappedTorchNorm.__new__")

    def __new__(cls: type, config: Any, *args: Any, **kwargs: Any) -> Any:
        with patch.object(config, "sequence_parallel", False):
            norm = create(cls, config, *args, **kwargs)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm

    names.put("WrappedTorchNorm.__new__", __new__)


@REPLACEMENTS.after(
    "megatron.core.transformer.dot_product_attention",
    "DotProductAttention.forward",
    why="Packed sequences are TE's; here the local attention sees each sequence of a pack by itself.",
)
def _attend_packed_sequences(names: Names) -> None:
    attend = names.get("DotProductAttention.forward")
    signature = inspect.signature(attend)

    @functools.wraps(attend)
    def forward(self: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Attention of a pack, whose query, key and value are [tokens of the pack, heads, width].

        Without packing they are [tokens, rows, heads, width], and the original computes.
        """
        import torch

        call = signature.bind(self, query, key, value, *args, **kwargs)
        packed_seq_params = call.arguments.pop("packed_seq_params", None)
        if packed_seq_params is None:
            return attend(self, query, key, value, *args, **kwargs)
        bounds = packed_seq_params.cu_seqlens_q_padded
        if bounds is None:
            bounds = packed_seq_params.cu_seqlens_q
        outputs = []
        for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            if end == first:
                continue
            parts = [tensor[first:end].transpose(0, 1)[None] for tensor in (query, key, value)]
            output = torch.nn.functional.scaled_dot_product_attention(
                *parts, is_causal=True, scale=self.softmax_scale, enable_gqa=True
            )
            outputs.append(output[0].transpose(0, 1).reshape(end - first, -1))
        return torch.cat(outputs)

    names.put("DotProductAttention.forward", forward)
