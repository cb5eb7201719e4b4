"""Shapes of models, from a local config.json of Hugging Face or from a table of published models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.rules.facts.hub import find_snapshot
from nemo_ada.run.files import json_of


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder with grouped-query attention and a gated feed-forward layer.

    Attributes:
        hidden: width of the hidden state.
        ffn: width of the feed-forward layer, or of one expert where there are experts.
        heads: attention heads.
        kv: key-value heads.
        layers: layers.
        vocab: embeddings.
        positions: tokens of the longest sequence.
        head_dim: width of one head.
        tied: whether the output layer uses the input embeddings.
        experts: experts of a layer. 0 for a dense model.
        top_k: experts that a token visits.
        qkv_bias: whether the projections of queries, keys and values have a bias.
        qk_norm: whether queries and keys are normalised.
    """

    hidden: int
    ffn: int
    heads: int
    kv: int
    layers: int
    vocab: int
    positions: int
    head_dim: int = 128
    tied: bool = False
    experts: int = 0
    top_k: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def query_width(self) -> int:
        """Width of all query heads together. It is not always `hidden`."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all keys together, and of all values together."""
        return self.kv * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Parameters of the query, key, value and output projections of one layer."""
        bias = self.query_width + 2 * self.kv_width if self.qkv_bias else 0
        return self.hidden * (2 * self.query_width + 2 * self.kv_width) + bias

    @property
    def ffn_parameters(self) -> int:
        """Parameters of the gate, up and down projections of one layer, of all experts together."""
        return 3 * self.hidden * self.ffn * max(self.experts, 1)

    @property
    def replicated_parameters(self) -> int:
        """Parameters of one layer that every tensor-parallel rank has: the norms and the router."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return norms + self.hidden * self.experts

    def padded_vocab(self, tensor_parallel: int) -> int:
        """Embeddings with Megatron's padding to a multiple of 128 * TP."""
        unit = 128 * tensor_parallel
        return ceil(self.vocab / unit) * unit

    @property
    def parameters(self) -> int:
        """Parameters of the model, without padding."""
        layer = self.attention_parameters + self.ffn_parameters + self.replicated_parameters
        return self.layers * layer + self.hidden + self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token visits."""
        idle = self.layers * 3 * self.hidden * self.ffn * (self.experts - self.top_k) if self.experts else 0
        return self.parameters - idle

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Return the shape by a config.json. Raises UserError for a missing key."""
        try:
            heads, kind = int(config["num_attention_heads"]), str(config.get("model_type", ""))
            experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
            return cls(
                hidden=int(config["hidden_size"]),
                ffn=int(config["moe_intermediate_size"] if experts else config["intermediate_size"]),
                heads=heads,
                kv=int(config.get("num_key_value_heads") or heads),
                layers=int(config["num_hidden_layers"]),
                vocab=int(config["vocab_size"]),
                positions=int(config["max_position_embeddings"]),
                head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
                tied=bool(config.get("tie_word_embeddings", False)),
                experts=experts,
                top_k=int(config.get("num_experts_per_tok") or 0) if experts else 0,
                qkv_bias=kind.startswith("qwen2"),
                qk_norm=kind.startswith("qwen3"),
            )
        except KeyError as missing:
            raise UserError(
                f"config.json has no {missing}: it does not describe a decoder that this project trains"
            ) from None


_QWEN25_7B = ModelShape(3584, 18944, 28, 4, 28, 152064, 32768, qkv_bias=True)
_QWEN25_32B = ModelShape(5120, 27648, 40, 8, 64, 152064, 131072, qkv_bias=True)
_QWEN25_72B = ModelShape(8192, 29568, 64, 8, 80, 152064, 131072, qkv_bias=True)
_QWEN25_HALF_B = ModelShape(896, 4864, 14, 2, 24, 151936, 32768, head_dim=64, tied=True, qkv_bias=True)
_QWEN25_1B = ModelShape(1536, 8960, 12, 2, 28, 151936, 131072, tied=True, qkv_bias=True)
_QWEN3_4B = ModelShape(2560, 9728, 32, 8, 36, 151936, 40960, tied=True, qk_norm=True)
_LLAMA_1B = ModelShape(2048, 8192, 32, 8, 16, 128256, 131072, head_dim=64, tied=True)
_LLAMA_8B = ModelShape(4096, 14336, 32, 8, 32, 128256, 131072)
_LLAMA_70B = ModelShape(8192, 28672, 64, 8, 80, 128256, 131072)
_QWEN3_30B = ModelShape(2048, 768, 32, 4, 48, 151936, 40960, experts=128, top_k=8, qk_norm=True)
_QWEN3_235B = ModelShape(4096, 1536, 64, 4, 94, 151936, 40960, experts=128, top_k=8, qk_norm=True)

TABLE: Mapping[str, ModelShape] = {
    "Qwen/Qwen2.5-Math-1.5B": replace(_QWEN25_1B, positions=4096),
    "Qwen/Qwen2.5-1.5B": _QWEN25_1B,
    "Qwen/Qwen2.5-0.5B": _QWEN25_HALF_B,
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN25_HALF_B,
    "Qwen/Qwen2.5-Math-7B": replace(_QWEN25_7B, positions=4096),
    "Qwen/Qwen2.5-7B": replace(_QWEN25_7B, positions=131072),
    "Qwen/Qwen2.5-7B-Instruct": _QWEN25_7B,
    "Qwen/Qwen3-4B": _QWEN3_4B,
    "Qwen/Qwen3-4B-Instruct-2507": replace(_QWEN3_4B, positions=262144),
    **dict.fromkeys(("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"), _LLAMA_1B),
    "meta-llama/Llama-3.2-3B-Instruct": ModelShape(3072, 8192, 24, 8, 28, 128256, 131072, tied=True),
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_8B,
    "Qwen/Qwen2.5-32B": _QWEN25_32B,
    "Qwen/Qwen3-32B": ModelShape(5120, 25600, 64, 8, 64, 151936, 40960, qk_norm=True),
    "meta-llama/Llama-3.3-70B-Instruct": _LLAMA_70B,
    "meta-llama/Llama-3.1-70B-Instruct": _LLAMA_70B,
    "Qwen/Qwen2.5-72B": _QWEN25_72B,
    "Qwen/Qwen3-30B-A3B": _QWEN3_30B,
    "Qwen/Qwen3-235B-A22B": _QWEN3_235B,
}


def find_shape(model_name: str) -> tuple[ModelShape, str] | None:
    """Return the shape of a model and its origin: the model's folder, the table or the hub's cache.

    None if it is unknown.
    """
    shape = TABLE.get(model_name)
    folder = Path(model_name) if Path(model_name).is_dir() else None if shape else find_snapshot(model_name)
    local = None if folder is None else folder / "config.json"
    if local is not None and local.is_file():
        try:
            return ModelShape.from_hf_config(json_of(local)), str(local)
        except ValueError as problem:
            raise UserError(f"policy.model_name={model_name}: {local}: {problem}", key="policy.model_name") from None
    return None if shape is None else (shape, "built-in table")
