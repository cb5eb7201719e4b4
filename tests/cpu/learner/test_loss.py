"""The policy-gradient loss against plain Python, token by token. Its gradient: test_update_oracle.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from nemo_ada.cpu.settings import LossSettings
from tests.lazy import Lazy

torch, ours = Lazy("torch"), Lazy("nemo_ada.cpu.learner.loss")

B, T, V = 5, 7, 11
LOW, HIGH = 0.2, 0.28


def _example(seed: int = 0) -> dict[str, Any]:
    g = np.random.default_rng(seed)
    logits = torch.tensor(g.normal(size=(B, T, V)) * 2, dtype=torch.float64, requires_grad=True)
    target = torch.tensor(g.integers(0, V, (B, T)))
    now = torch.log_softmax(logits.detach(), -1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return {
        "logits": logits,
        "target": target,
        "old": now + torch.tensor(g.normal(size=(B, T)) * 0.6),  # ratios from about 0.2 to 5: every branch is taken
        "advantage": torch.tensor([1.3, -0.7, 0.4, -2.0, 0.9], dtype=torch.float64),
        "weight": torch.tensor([1.0, 1.0, 2.5, 0.5, 0.0], dtype=torch.float64),
        "mask": torch.tensor(g.random((B, T)) < 0.7),
    }


def _reference(
    e: dict[str, Any], c: float | None, coefficient: float, denominator: float
) -> tuple[float, dict[str, float]]:
    sums = dict.fromkeys(ours.METRICS, 0.0)
    for b in range(B):
        weight, advantage = float(e["weight"][b]), float(e["advantage"][b])
        for t in range(T):
            if weight == 0 or not bool(e["mask"][b, t]):
                continue
            row = e["logits"][b, t].tolist()
            log_z = math.log(math.fsum(math.exp(x) for x in row))
            probabilities = [math.exp(x - log_z) for x in row]
            entropy = -math.fsum(p * math.log(p) for p in probabilities)
            log_ratio = row[int(e["target"][b, t])] - log_z - float(e["old"][b, t])
            ratio = math.exp(log_ratio)
            bounded = min(max(ratio, 1 - LOW), 1 + HIGH)
            objective = min(ratio * advantage, bounded * advantage)
            flat = objective != ratio * advantage
            if c is not None and advantage < 0 and objective < c * advantage:
                objective, flat = c * advantage, True
            sums["tokens"] += 1
            sums["loss"] -= (weight * objective + coefficient * entropy) / denominator
            sums["clip_fraction"] += flat
            sums["mean_ratio"] += ratio
            sums["approx_kl"] += ratio - 1 - log_ratio
            sums["entropy"] += entropy
    return sums["loss"], sums


def _ours(e: dict[str, Any], c: float | None, coefficient: float, denominator: float) -> tuple[torch.Tensor, Any]:
    current = ours.compute_logprob_and_entropy(e["logits"], e["target"])
    settings = LossSettings(ratio_clip_min=LOW, ratio_clip_max=HIGH, ratio_clip_c=c, entropy_coefficient=coefficient)
    return ours.compute_policy_loss(settings, current, e["old"], e["advantage"], e["weight"], e["mask"], denominator)


@pytest.mark.parametrize("coefficient", [0.0, 0.03])
@pytest.mark.parametrize("c", [None, 1.5, 10.0])
def test_value_and_metrics_equal_the_reference(c: float | None, coefficient: float) -> None:
    for seed in range(3):
        example = _example(seed)
        loss, sums = _ours(example, c, coefficient, 23.0)
        expected, expected_sums = _reference(example, c, coefficient, 23.0)
        assert loss.item() == pytest.approx(expected, rel=1e-10)
        assert {name: float(value) for name, value in sums.items()} == pytest.approx(expected_sums, rel=1e-6)
        assert expected_sums["clip_fraction"] > 0


def test_rows_of_weight_zero_change_neither_loss_nor_gradient() -> None:
    results = []
    for value in (0.9, float("nan")):
        example = _example()
        example["advantage"][4] = value
        example["old"][4] = -1000.0 if value != value else example["old"][4]
        loss, sums = _ours(example, 1.5, 0.03, 23.0)
        loss.backward()
        results.append((loss.item(), example["logits"].grad, {k: float(v) for k, v in sums.items()}))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]
    assert not results[0][1][4].any()


def test_supervised_loss_is_the_negative_log_likelihood() -> None:
    example = _example()
    logprob, entropy = ours.compute_logprob_and_entropy(example["logits"], example["target"])
    loss, sums = ours.compute_supervised_loss(logprob, entropy, example["mask"], 9.0)
    whole = torch.nn.functional.cross_entropy(
        example["logits"].reshape(-1, V), example["target"].reshape(-1), reduction="none"
    )
    assert loss.item() == pytest.approx((whole * example["mask"].reshape(-1)).sum().item() / 9.0, rel=1e-12)
    assert float(sums["tokens"]) == int(example["mask"].sum())


def test_large_logits_stay_finite() -> None:
    logits = torch.tensor([[[1000.0, 0.0, -1000.0]]], requires_grad=True)
    logprob, entropy = ours.compute_logprob_and_entropy(logits, torch.tensor([[2]]))
    (logprob + entropy).sum().backward()
    assert logprob.item() == -2000.0
    assert entropy.item() == pytest.approx(0.0, abs=1e-6)
    assert torch.isfinite(logits.grad).all()
