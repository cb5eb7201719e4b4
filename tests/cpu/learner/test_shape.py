"""Model shapes and learner settings: what is refused, and that checking them needs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nemo_ada.cpu.learner.shape import PolicyShape
from nemo_ada.errors import UserError


def test_hf_config_round_trip() -> None:
    shape = PolicyShape(hidden_size=96, num_attention_heads=6, num_query_groups=3, rope_theta=5e5, tied_embeddings=True)
    assert PolicyShape.from_hf_config(shape.hf_config()) == shape
    for kind, width in (("llama", None), ("llama", 24), ("qwen3", 40)):
        other = PolicyShape(model_type=kind, kv_channels=width)
        assert PolicyShape.from_hf_config(other.hf_config()) == other
    newer = {k: v for k, v in shape.hf_config().items() if k != "rope_theta"}
    newer["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e5}
    assert PolicyShape.from_hf_config(newer) == shape


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((3, 1), ["tensor_model_parallel_size=3", "4 attention heads", "2 query groups", "1 or 2 would work"]),
        ((4, 1), ["tensor_model_parallel_size=4", "2 query groups", "1 or 2 would work"]),
        ((0, 1), ["tensor_model_parallel_size=0", "would work"]),
        ((1, 3), ["pipeline_model_parallel_size=3", "4 layers", "1, 2 or 4 would work"]),
    ],
)
def test_layouts_that_do_not_divide_the_model_are_refused(sizes: tuple[int, int], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        PolicyShape(num_layers=4).check_parallel(*sizes)
    for word in words:
        assert word in str(error.value)


def test_layouts_that_divide_are_accepted() -> None:
    for sizes in ((1, 1), (2, 1), (1, 2), (2, 2), (2, 4)):
        PolicyShape(num_layers=4).check_parallel(*sizes)


@pytest.mark.parametrize("bad", [{"hidden_size": 130}, {"num_query_groups": 3}, {"vocab_size": 0}, {"norm_eps": 0.0}])
def test_shapes_that_cannot_be_built_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(bad))):
        PolicyShape(**bad)  # type: ignore[arg-type]


def test_foreign_models_are_refused() -> None:
    with pytest.raises(UserError, match="'gpt2'; the CPU learner runs llama, qwen2, qwen3"):
        PolicyShape.from_hf_config({"model_type": "gpt2"})
    with pytest.raises(UserError, match="hidden_size"):
        PolicyShape.from_hf_config({"model_type": "qwen2"})
    for name, bad in (("intermediate_size", 1.5), ("vocab_size", True), ("rope_theta", "x"), ("rms_norm_eps", -1)):
        with pytest.raises(UserError, match=f"{name}='{bad}' must be a positive"):
            PolicyShape.from_hf_config(PolicyShape().hf_config() | {name: bad})


def test_the_driver_imports_neither_torch_nor_what_needs_it() -> None:
    heavy = {"torch", "megatron", "vllm", "transformers"}
    code = f"import sys, nemo_ada.cpu.trainer; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
