"""Hugging Face <-> Megatron weights: exact in both directions for every layout."""

from __future__ import annotations

import itertools

import pytest

from nemo_ada.cpu.learner.shape import PolicyShape, list_hf_shapes
from nemo_ada.errors import InvariantError
from tests.lazy import Lazy

torch, convert = Lazy("torch"), Lazy("nemo_ada.cpu.learner.convert")

SHAPE = PolicyShape(
    hidden_size=48, ffn_hidden_size=40, num_layers=4, num_attention_heads=8, num_query_groups=4, vocab_size=24
)


def _weights(shape: PolicyShape) -> convert.Weights:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(size, generator=generator) for name, size in list_hf_shapes(shape).items()}


def _shards(shape: PolicyShape, weights: convert.Weights, tp: int, pp: int) -> list[list[convert.Weights]]:
    return [
        [convert.shard(shape, weights.__getitem__, convert.Place(rank, tp, stage, pp)) for rank in range(tp)]
        for stage in range(pp)
    ]


@pytest.mark.parametrize(("tp", "pp"), list(itertools.product((1, 2, 4), (1, 2, 4))))
@pytest.mark.parametrize("tied", [False, True])
def test_round_trip_gives_the_same_bits(tp: int, pp: int, tied: bool) -> None:
    shape = PolicyShape(
        hidden_size=48, ffn_hidden_size=40, num_layers=4, num_attention_heads=8, num_query_groups=4, vocab_size=24,
        tied_embeddings=tied,
    )  # fmt: skip
    weights = _weights(shape)
    merged = convert.merge(shape, _shards(shape, weights, tp, pp))
    assert merged.keys() == weights.keys()
    assert all(torch.equal(merged[name], weights[name]) for name in weights)


def test_attention_rows_are_ordered_by_query_group() -> None:
    """Written out by hand from Megatron's layout: per group its q heads, then its k head, then its v head."""
    weights, head = _weights(SHAPE), SHAPE.head_dim
    q, k, v = (weights[f"model.layers.2.self_attn.{x}_proj.weight"] for x in "qkv")
    local = convert.shard(SHAPE, weights.__getitem__, convert.Place(1, 2, 1, 2))[
        "decoder.layers.0.self_attention.linear_qkv.weight"
    ]
    expected = []
    for group in (2, 3):  # the second of two tensor ranks holds the last two of four groups
        expected += [q[2 * group * head : (2 * group + 2) * head]]
        expected += [k[group * head : (group + 1) * head], v[group * head : (group + 1) * head]]
    assert torch.equal(local, torch.cat(expected))


def test_gate_and_up_are_joined_on_each_rank() -> None:
    weights = _weights(SHAPE)
    local = convert.shard(SHAPE, weights.__getitem__, convert.Place(0, 2, 0, 1))[
        "decoder.layers.3.mlp.linear_fc1.weight"
    ]
    gate, up = (weights[f"model.layers.3.mlp.{x}_proj.weight"] for x in ("gate", "up"))
    assert torch.equal(local, torch.cat([gate[:20], up[:20]]))


def test_copies_that_drifted_apart_are_reported() -> None:
    shards = _shards(SHAPE, _weights(SHAPE), 2, 2)
    shards[1][1]["decoder.final_layernorm.weight"] = shards[1][1]["decoder.final_layernorm.weight"] + 1e-6
    with pytest.raises(InvariantError, match="final_layernorm"):
        convert.merge(SHAPE, shards)


def test_random_weights_depend_on_the_seed_only() -> None:
    first, again, other = (convert.make_random_weights(SHAPE, seed) for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert first["lm_head.weight"].std().item() == pytest.approx(SHAPE.initializer_range, rel=0.1)
    assert torch.equal(first["model.norm.weight"], torch.ones(48))
