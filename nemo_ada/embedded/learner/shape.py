"""The size of the small Qwen2-style model.

Nothing here imports torch. So the command line can check a shape against a parallel layout before any actor starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run.files import read_json

MAX_SIZE, MAX_FLOAT = 10_000_000, 1e30  # above, a number of a config.json is a mistake
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
"""Fields of `PolicyShape` and their names in a Qwen2 config.json."""


@dataclass(frozen=True)
class PolicyShape:
    """A decoder like Qwen2: RMSNorm, rotary positions, grouped-query attention with q/k/v bias, SwiGLU.

    Counts are for the whole model; `max_position_embeddings` is in tokens. Raises `UserError` for parts that do not fit
    together.
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

    def __post_init__(self) -> None:
        for name in HF_NAMES:
            if not getattr(self, name) > 0:
                raise UserError(f"{name}={getattr(self, name)!r} must be positive")
        if self.hidden_size % (2 * self.num_attention_heads):
            step = 2 * self.num_attention_heads
            raise UserError(
                f"hidden_size={self.hidden_size} does not split into {self.num_attention_heads} heads of an even "
                f"width; {step * max(1, self.hidden_size // step)} would work"
            )
        if self.num_attention_heads % self.num_query_groups:
            raise UserError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of num_query_groups="
                f"{self.num_query_groups}; {_text(_divisors(self.num_attention_heads))} query groups would work"
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def check_parallel(self, tensor_parallel: int, pipeline_parallel: int) -> None:
        """Raise `UserError` unless the model splits evenly over these sizes; the message names sizes that work."""
        split = {
            "attention heads": self.num_attention_heads,
            "query groups (kv heads)": self.num_query_groups,
            "ffn_hidden_size": self.ffn_hidden_size,
            "vocab_size": self.vocab_size,
        }
        works = [n for n in _divisors(self.num_query_groups) if not any(size % n for size in split.values())]
        if tensor_parallel not in works:
            bad = [f"{size} {what}" for what, size in split.items() if tensor_parallel < 1 or size % tensor_parallel]
            raise UserError(f"{_TP_KEY}={tensor_parallel} does not divide {', '.join(bad)}; {_text(works)} would work")
        works = _divisors(self.num_layers)
        if pipeline_parallel not in works:
            raise UserError(
                f"{_PP_KEY}={pipeline_parallel} does not divide the model's {self.num_layers} layers; "
                f"{_text(works)} would work"
            )

    def hf_config(self) -> dict[str, Any]:
        """The content of `config.json` for transformers' and vLLM's Qwen2."""
        return {hf_name: getattr(self, name) for name, hf_name in HF_NAMES.items()} | {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied_embeddings,
            "attention_dropout": 0.0,
            "use_sliding_window": False,
            "use_cache": True,
            "torch_dtype": "float32",
        }

    @classmethod
    def read(cls, folder: Path) -> PolicyShape:
        """The shape of the model in a Hugging Face folder. Raises `UserError` for one that this learner cannot run."""
        return cls.from_hf_config(read_json(folder / "config.json"))

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any]) -> PolicyShape:
        """Read what `hf_config` wrote, or another Qwen2's. Raises `UserError` for anything but a plain Qwen2."""
        if config.get("model_type") != "qwen2":
            raise UserError(
                f"config.json: model_type is {config.get('model_type')!r}; the CPU learner runs 'qwen2' only"
            )
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rope, Mapping):
            raise UserError(f"config.json: rope_parameters is {str(rope)[:80]!r}, not a mapping")
        if rope.get("rope_type", "default") != "default" or config.get("use_sliding_window"):
            raise UserError("config.json: rope scaling and sliding windows are not supported by the CPU learner")
        content = {"initializer_range": cls.initializer_range, "rope_theta": rope.get("rope_theta"), **config}
        numbers = {name: _number(content, hf_name, cls.__annotations__[name]) for name, hf_name in HF_NAMES.items()}
        return cls(**numbers, tied_embeddings=bool(config.get("tie_word_embeddings", False)))


def _number(config: Mapping[str, Any], name: str, kind: str) -> Any:
    """A positive number of a config.json; kind: "int" or "float". Raises UserError for anything else."""
    value = config.get(name)
    types, bound = ((int,), MAX_SIZE) if kind == "int" else ((int, float), MAX_FLOAT)
    if not isinstance(value, types) or isinstance(value, bool) or not 0 < value <= bound:
        raise UserError(f"config.json: {name}={str(value)[:80]!r} must be a positive {kind} up to {bound:g}")
    return value


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _text(numbers: list[int]) -> str:
    return " or ".join(str(n) for n in numbers) if len(numbers) < 3 else ", ".join(str(n) for n in numbers)
