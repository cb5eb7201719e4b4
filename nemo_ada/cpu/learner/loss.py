"""The clipped policy-gradient loss, and log-probabilities from logits whose vocabulary is split over ranks.

B rows of a micro-batch, T tokens, V the vocabulary's share of this rank. All results are sums over tokens, so
micro-batches and data-parallel ranks add up to the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from nemo_ada.cpu.settings import LossSettings

METRICS = ("tokens", "loss", "clip_fraction", "mean_ratio", "approx_kl", "entropy")


class _VocabParallel(torch.autograd.Function):
    """log p(target) and the entropy of softmax(logits), where each rank of `group` has a part of the vocabulary."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup | None) -> Any:
        """Log-probability and entropy, both in the shape of `target`."""
        size = 1 if group is None else group.size()
        peak = logits.amax(-1)
        if size > 1:
            dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - peak.unsqueeze(-1)
        weight = shifted.exp()
        local = target - (0 if group is None else group.rank()) * logits.shape[-1]
        here = (local >= 0) & (local < logits.shape[-1])
        local = torch.where(here, local, 0).unsqueeze(-1)
        picked = shifted.gather(-1, local).squeeze(-1) * here
        sums = torch.stack([weight.sum(-1), picked, (weight * shifted).sum(-1)])
        if size > 1:
            dist.all_reduce(sums, group=group)
        log_total = sums[0].log()
        entropy = log_total - sums[2] / sums[0]
        log_p = shifted - log_total.unsqueeze(-1)
        ctx.save_for_backward(log_p, entropy, local, here)
        ctx.set_materialize_grads(False)
        return sums[1] - log_total, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Return the gradient in the logits, from those in the log-probability and the entropy."""
        log_p, entropy, local, here = ctx.saved_tensors
        grad_logprob, grad_entropy = grads
        p = log_p.exp()
        grad = torch.zeros_like(p)
        if grad_logprob is not None:
            grad = grad - p * grad_logprob.unsqueeze(-1)
            grad.scatter_add_(-1, local, (grad_logprob * here).unsqueeze(-1))
        if grad_entropy is not None:
            grad = grad - p * (log_p + entropy.unsqueeze(-1)) * grad_entropy.unsqueeze(-1)
        return grad, None, None


def compute_logprob_and_entropy(
    logits_BTV: torch.Tensor, target_BT: torch.Tensor, group: dist.ProcessGroup | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of `target_BT` and entropy in nats. Both are [B, T] and differentiable in the logits.

    Args:
        logits_BTV: This rank's share of the logits.
        target_BT: Token ids.
        group: The tensor-parallel group. Its rank i has the i-th equal share of the vocabulary. None means one rank.
    """
    return _VocabParallel.apply(logits_BTV, target_BT, group)


def compute_policy_loss(
    settings: LossSettings,
    current: tuple[torch.Tensor, torch.Tensor],
    old_logprob_BT: torch.Tensor,
    advantage_B: torch.Tensor,
    row_weight_B: torch.Tensor,
    mask_BT: torch.Tensor,
    denominator: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """PPO's clipped surrogate with an asymmetric interval, an optional dual clip and an optional entropy bonus.

    With ratio = pi / pi_old and the row's advantage A, the objective of a response token is
    min(ratio A, clip(ratio, 1 - ratio_clip_min, 1 + ratio_clip_max) A). For A < 0 it is at least `ratio_clip_c` A
    (arXiv 1912.09729, equation 5). The loss is minus the sum of the objectives, weighted by row, minus
    `entropy_coefficient` times the sum of the entropies of rows with a weight above 0. Both are divided by
    `denominator`. There is no KL term.

    Args:
        settings: Section `loss_fn` of the run.
        current: Log-probabilities and entropies of the current policy, as `compute_logprob_and_entropy` gives them.
        old_logprob_BT: Log-probabilities under the policy that generated the tokens.
        advantage_B: Advantages of the rows.
        row_weight_B: Weights of the rows. 0 marks a placeholder row.
        mask_BT: True on response tokens.
        denominator: Number of tokens by which sums are divided.

    Returns:
        The differentiable loss, and a sum over the tokens that count for each name in `METRICS`. clip_fraction
        counts tokens whose gradient a clip removed. approx_kl sums ratio - 1 - log ratio, whose mean estimates
        KL(old || new) and is never negative.
    """
    logprob_BT, entropy_BT = current
    live = mask_BT & (row_weight_B != 0).unsqueeze(-1)
    advantage = torch.where(row_weight_B != 0, advantage_B, 0).unsqueeze(-1)
    log_ratio = torch.where(live, logprob_BT - old_logprob_BT, 0)
    ratio = log_ratio.exp()
    low, high = 1 - settings.ratio_clip_min, 1 + settings.ratio_clip_max
    objective = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    clipped = ((advantage > 0) & (ratio > high)) | ((advantage < 0) & (ratio < low))
    if settings.ratio_clip_c is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, settings.ratio_clip_c * advantage), objective)
        clipped = clipped | ((advantage < 0) & (ratio > settings.ratio_clip_c))
    loss = -(torch.where(live, objective, 0) * row_weight_B.unsqueeze(-1)).sum() / denominator
    entropy = torch.where(live, entropy_BT if settings.entropy_coefficient else entropy_BT.detach(), 0).sum()
    if settings.entropy_coefficient:
        loss = loss - settings.entropy_coefficient * entropy / denominator
    with torch.no_grad():
        sums = {
            "tokens": live.sum().float(),
            "loss": loss.detach(),
            "clip_fraction": (clipped & live).sum().float(),
            "mean_ratio": torch.where(live, ratio, 0).sum(),
            "approx_kl": torch.where(live, ratio - 1 - log_ratio, 0).sum(),
            "entropy": entropy.detach(),
        }
    return loss, sums


def compute_supervised_loss(
    logprob_BT: torch.Tensor, entropy_BT: torch.Tensor, mask_BT: torch.Tensor, denominator: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Negative log-likelihood of the response tokens divided by `denominator`, and sums of tokens, loss and entropy."""
    loss = -torch.where(mask_BT, logprob_BT, 0).sum() / denominator
    entropy = torch.where(mask_BT, entropy_BT.detach(), 0).sum()
    return loss, {"tokens": mask_BT.sum().float(), "loss": loss.detach(), "entropy": entropy}


def compare_halves(first: torch.Tensor, second: torch.Tensor, tokens: tuple[float, float]) -> dict[str, float]:
    """Compare the gradients of two halves of an update, each summed over its T1 or T2 response tokens. Overwrites one.

    Returns:
        Nothing where a half has no gradient, else:

        - gradient_cosine: the cosine between the two.
        - gradient_signal: (g1 / T1) . (g2 / T2). Its mean is the squared norm of the expected gradient per token.
        - gradient_noise: |g1 / T1 - g2 / T2|^2 / (1 / T1 + 1 / T2). Its mean is the variance (the trace of the
          covariance) that one more token adds to the summed gradient. Tokens come as whole prompts and depend on each
          other there, so this is more than the variance of a single token's gradient.

        Noise / signal is the simple noise scale in tokens (arXiv 1812.06162, equation 2.9).
    """
    lengths = float(first.norm() * second.norm())
    if not lengths > 0:
        return {}
    product = float(first @ second)
    difference = float(first.div_(tokens[0]).sub_(second, alpha=1.0 / tokens[1]).norm())
    return {
        "gradient_cosine": product / lengths,
        "gradient_signal": product / (tokens[0] * tokens[1]),
        "gradient_noise": difference**2 / (1.0 / tokens[0] + 1.0 / tokens[1]),
    }
