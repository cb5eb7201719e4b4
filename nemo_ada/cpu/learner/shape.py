"""The shape of a model that the learner runs: Llama, Qwen2 or Qwen3, random or from a Hugging Face folder.

This module does not import torch. So the command line can check a shape against a parallel layout before actors start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_ada.config.parsing import find_divisors, join_numbers
from nemo_ada.errors import UserError
from nemo_ada.run.files import read_json

MAX_SIZE, MAX_FLOAT = 10_000_000, 1e30  # a larger number in a config.json is a mistake
_TP_KEY = "policy.megatron_cfg.tensor_model_parallel_size"
_PP_KEY = "policy.megatron_cfg.pipeline_model_parallel_size"


HF_NAMES = {
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_key_value_heads",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "initializer_range": "initializer_range",
}
"""Fields of `PolicyShape` and their names in a config.json."""

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""model_type of a config.json -> class that transformers and vLLM build."""

EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True)
class PolicyShape:
    """A decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU. Counts are for the whole model.

    Attributes:
        hidden_size: Width of the hidden state.
        ffn_hidden_size: Width of the feed-forward layers.
        num_layers: Number of layers.
        num_attention_heads: Number of query heads of a layer.
        num_query_groups: Number of key-value heads of a layer.
        vocab_size: Number of token ids.
        max_position_embeddings: Longest sequence in tokens.
        rope_theta: Base of the rotary positions.
        norm_eps: Epsilon of RMSNorm.
        tied_embeddings: Whether input and output embeddings are one tensor.
        initializer_range: Standard deviation of random weights.
        model_type: Qwen2 has biases on q, k and v. Qwen3 has a norm on the heads of q and k. Llama has neither.
        kv_channels: Width of an attention head. None means hidden_size / num_attention_heads.

    Raises:
        UserError: The parts do not fit together.
    """

    hidden_size: int = 128
    ffn_hidden_size: int = 256
    num_layers: int = 2
    num_attention_heads: int = 4
    num_query_groups: int = 2
    vocab_size: int = 64
    max_position_embeddings: int = 128
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    tied_embeddings: bool = False
    initializer_range: float = 0.02
    model_type: str = "qwen2"
    kv_channels: int | None = None

    def __post_init__(self) -> None:
        for name in HF_NAMES:
            if not getattr(self, name) > 0:
                raise UserError(f"{name}={getattr(self, name)!r} must be positive")
        if self.head_dim % 2 or (self.kv_channels is None and self.hidden_size % self.num_attention_heads):
            step = 2 * self.num_attention_heads
            raise UserError(
                f"hidden_size={self.hidden_size} does not split into {self.num_attention_heads} heads of an even "
                f"width; {step * max(1, self.hidden_size // step)} would work"
            )
        if self.num_attention_heads % self.num_query_groups:
            raise UserError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of num_query_groups="
                f"{self.num_query_groups}; {join_numbers(find_divisors(self.num_attention_heads))} query groups would "
                "work"
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections to q, k and v have biases."""
        return self.model_type == "qwen2"

    @property
    def qk_norm(self) -> bool:
        """Whether every head of q and k is normalised."""
        return self.model_type == "qwen3"

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(size) for size in list_hf_shapes(self).values())

    def check_parallel(self, tensor_parallel: int, pipeline_parallel: int) -> None:
        """Raise UserError unless the model splits evenly over these sizes. The message names sizes that work."""
        split = {
            "attention heads": self.num_attention_heads,
            "query groups (kv heads)": self.num_query_groups,
            "ffn_hidden_size": self.ffn_hidden_size,
            "vocab_size": self.vocab_size,
        }
        works = find_divisors(*split.values())
        if tensor_parallel not in works:
            bad = [f"{size} {what}" for what, size in split.items() if tensor_parallel < 1 or size % tensor_parallel]
            raise UserError(
                f"{_TP_KEY}={tensor_parallel} does not divide {', '.join(bad)}; {join_numbers(works)} would work"
            )
        works = find_divisors(self.num_layers)
        if pipeline_parallel not in works:
            raise UserError(
                f"{_PP_KEY}={pipeline_parallel} does not divide the model's {self.num_layers} layers; "
                f"{join_numbers(works)} would work"
            )

    def hf_config(self) -> dict[str, Any]:
        """Return the content of `config.json` for transformers and vLLM."""
        of_type: dict[str, dict[str, Any]] = {
            "llama": {"attention_bias": False, "mlp_bias": False},
            "qwen2": {"use_sliding_window": False},
            "qwen3": {"attention_bias": False, "use_sliding_window": False},
        }
        config = {hf_name: getattr(self, name) for name, hf_name in HF_NAMES.items()} | {
            "architectures": [ARCHITECTURES[self.model_type]],
            "model_type": self.model_type,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied_embeddings,
            "attention_dropout": 0.0,
            **of_type[self.model_type],
            "use_cache": True,
            "torch_dtype": "float32",
        }
        return config if self.kv_channels is None else config | {"head_dim": self.kv_channels}

    @classmethod
    def read(cls, folder: Path) -> PolicyShape:
        """Return the shape of the model in a Hugging Face folder.

        Raises UserError for one that this learner cannot run.
        """
        return cls.from_hf_config(read_json(folder / "config.json"))

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any]) -> PolicyShape:
        """Return the shape in a config.json. Raises UserError for a model that this learner cannot run."""
        kind = config.get("model_type")
        if kind not in ARCHITECTURES:
            raise UserError(
                f"config.json: model_type is {str(kind)[:80]!r}; the CPU learner runs {', '.join(ARCHITECTURES)}"
            )
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rope, Mapping):
            raise UserError(f"config.json: rope_parameters is {str(rope)[:80]!r}, not a mapping")
        if what := next(_find_unsupported(config, rope), None):
            raise UserError(f"config.json: {what}, which the CPU learner cannot run; choose a plain {kind} model")
        heads = config.get("num_attention_heads")
        defaults = {"initializer_range": cls.initializer_range, "rope_theta": cls.rope_theta}
        content = {**defaults, "num_key_value_heads": heads, **config}
        if "rope_theta" in rope:
            content["rope_theta"] = rope["rope_theta"]  # before the one outside, as transformers
        numbers = {name: _number(content, hf_name, cls.__annotations__[name]) for name, hf_name in HF_NAMES.items()}
        width = None if config.get("head_dim") is None else _number(content, "head_dim", "int")
        derived = numbers["hidden_size"] == (width or 0) * numbers["num_attention_heads"]
        if width is None and kind == "qwen3":
            width = 128  # transformers' own, where a config.json omits it
        return cls(
            **numbers,
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            model_type=kind,
            kv_channels=None if derived else width,
        )


def _find_unsupported(config: Mapping[str, Any], rope: Mapping[str, Any]) -> Iterator[str]:
    """Each feature of a config.json that the plain architectures lack."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        yield f"rotary positions of type {str(kind)[:80]!r}"
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        yield "sliding windows"
    if config["model_type"] != "qwen2" and (config.get("attention_bias") or config.get("mlp_bias")):
        yield "biases on the output projection or the feed-forward layer"
    if config.get("hidden_act", "silu") != "silu":
        yield f"the activation {str(config['hidden_act'])[:80]!r}"
    if config.get("quantization_config"):
        yield "quantised weights"


def _number(config: Mapping[str, Any], name: str, kind: str) -> Any:
    """Return a positive number of a config.json, of the kind "int" or "float". Raises UserError for anything else."""
    value = config.get(name)
    types, bound = ((int,), MAX_SIZE) if kind == "int" else ((int, float), MAX_FLOAT)
    if not isinstance(value, types) or isinstance(value, bool) or not 0 < value <= bound:
        raise UserError(f"config.json: {name}={str(value)[:80]!r} must be a positive {kind} up to {bound:g}")
    return value


def list_hf_shapes(shape: PolicyShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the Hugging Face model, in a fixed order."""
    head, hidden, ffn = shape.head_dim, shape.hidden_size, shape.ffn_hidden_size
    q, kv = shape.num_attention_heads * head, shape.num_query_groups * head
    sizes: dict[str, tuple[int, ...]] = {EMBEDDING: (shape.vocab_size, hidden)}
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            sizes[f"{prefix}self_attn.{name}_proj.weight"] = (rows, hidden)
            if shape.qkv_bias:
                sizes[f"{prefix}self_attn.{name}_proj.bias"] = (rows,)
        if shape.qk_norm:
            sizes[f"{prefix}self_attn.q_norm.weight"] = sizes[f"{prefix}self_attn.k_norm.weight"] = (head,)
        sizes[f"{prefix}self_attn.o_proj.weight"] = (hidden, q)
        sizes[f"{prefix}mlp.gate_proj.weight"] = (ffn, hidden)
        sizes[f"{prefix}mlp.up_proj.weight"] = (ffn, hidden)
        sizes[f"{prefix}mlp.down_proj.weight"] = (hidden, ffn)
        sizes[f"{prefix}input_layernorm.weight"] = (hidden,)
        sizes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    sizes["model.norm.weight"] = (hidden,)
    if not shape.tied_embeddings:
        sizes["lm_head.weight"] = (shape.vocab_size, hidden)
    return sizes
