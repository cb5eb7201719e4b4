"""The published update in plain PyTorch, on transformers' own model: an oracle that imports nothing of nemo_ada.

Per response token, ratio = pi / pi_old and A its row's advantage. The objective is
min(ratio A, clip(ratio, 1 - low, 1 + high) A), and for A < 0 at least c A (dual clip). A mini-batch's loss is minus the
sum over its rows' tokens, over a count of tokens, minus the entropy bonus over the same count. Then: gradient norm,
clipping by that norm, Adam without weight decay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.lazy import Lazy

TEMPERATURE = 1.3
"""Sampling temperature of the tests: the policy is the softmax of the logits divided by it."""

torch, transformers = Lazy("torch"), Lazy("transformers")


@dataclass(frozen=True)
class Row:
    """A training row: prompt and response tokens, old log-probabilities of the response's tokens, advantage.

    advantage None marks a placeholder row, which is no part of any loss or count.
    """

    prompt: Sequence[int]
    response: Sequence[int]
    old_logprobs: Sequence[float]
    advantage: float | None


@dataclass(frozen=True)
class Published:
    """Numbers of the loss and of the optimizer; all_rows: rows without advantage count in the denominator."""

    low: float
    high: float
    dual: float | None
    entropy: float
    all_rows: bool
    lr: float
    eps: float
    max_norm: float


@dataclass
class Updated:
    """Model weights after the updates; loss and gradient norm of each update."""

    weights: dict[str, np.ndarray]
    losses: list[float]
    norms: list[float]


def update(folder: Path, minibatches: list[list[Row]], published: Published) -> Updated:
    """One Adam step per mini-batch, from the model in `folder`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    adam = torch.optim.Adam(model.parameters(), lr=published.lr, betas=(0.9, 0.999), eps=published.eps)
    losses, norms = [], []
    for rows in minibatches:
        loss = minibatch_loss(model, rows, published)
        adam.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters()))
        if norm > published.max_norm:
            for parameter in model.parameters():
                parameter.grad *= published.max_norm / (norm + 1e-6)
        adam.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return Updated({name: p.detach().numpy() for name, p in model.named_parameters()}, losses, norms)


def minibatch_loss(model: torch.nn.Module, rows: list[Row], published: Published) -> torch.Tensor:
    real = [row for row in rows if row.advantage is not None]
    counted = [row for row in real if published.all_rows or published.entropy or row.advantage]
    count = sum(len(row.response) for row in counted)
    total = torch.zeros(())
    for row in real:
        logits = model(torch.tensor([[*row.prompt, *row.response]])).logits[0, len(row.prompt) - 1 : -1]
        log_p = torch.log_softmax(logits / TEMPERATURE, -1)
        total = total - published.entropy * -(log_p.exp() * log_p).sum()
        for position, (token, old) in enumerate(zip(row.response, row.old_logprobs, strict=True)):
            total = total - objective(torch.exp(log_p[position, token] - old), row.advantage, published)
    return total / count


def objective(ratio: torch.Tensor, advantage: float, published: Published) -> torch.Tensor:
    clipped = torch.clamp(ratio, 1 - published.low, 1 + published.high)
    value = torch.minimum(ratio * advantage, clipped * advantage)
    if published.dual is not None and advantage < 0:
        value = torch.maximum(value, torch.tensor(published.dual * advantage))
    return value
