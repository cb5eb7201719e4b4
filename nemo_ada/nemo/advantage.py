"""The advantage estimator that grpo_train calls. It checks the rows and returns the sampler's advantages."""

from __future__ import annotations

from typing import Any

import torch

from nemo_ada.core.metrics import add_prefix
from nemo_ada.errors import InvariantError
from nemo_ada.nemo import metrics as own_metrics
from nemo_ada.nemo.settings import NemoSettings
from nemo_ada.nemo.training_batch import COLUMNS


class AdaAdvantageEstimator:
    """Implements NeMo-RL's estimator interface. It reads the columns of `training_batch.build_batch`.

    Attributes:
        last_metrics: metrics of the step that this estimator has joined. Empty in synchronous training.
        counted: metrics of the last step's batch, after dynamic sampling.
        logged: metrics of the last rollout. The loop logs them again at the end of the step.
    """

    def __init__(self, settings: NemoSettings) -> None:
        self._settings = settings
        self.last_metrics: dict[str, float] = {}
        self.counted: dict[str, float] = {}
        self.logged: dict[str, Any] = {}

    def compute_advantage(
        self,
        *,
        rewards: torch.Tensor,
        mask: torch.Tensor,
        repeated_batch: Any,
        **_: Any,
    ) -> torch.Tensor:
        """Return the advantages, [R, T]. The value is constant over a row's tokens.

        Rows without advantage may have left the loss (`placeholder_rows`). With `denominator: all_rows` the other rows
        are then scaled by the share of each optimizer step's denominator that remains. So the update is the same as
        with all rows in the loss. (The clipped loss is positively homogeneous in the advantage.)

        Args:
            rewards: rewards in NeMo-RL's batch, [R].
            mask: which tokens are in the loss, [R, T].
            repeated_batch: NeMo-RL's batch with the columns of `training_batch.build_batch`.

        Raises:
            InvariantError: the rows do not match each other.
        """
        missing = [name for name in COLUMNS if name not in repeated_batch]
        if missing:
            raise InvariantError(f"the batch reached the advantages without {', '.join(missing)}: not Reinforce-Ada's")
        advantage_R = repeated_batch["ada_advantage"]
        if not len(advantage_R) == len(rewards) == len(mask):
            raise InvariantError(f"{len(rewards)} rewards, {len(mask)} rows, {len(advantage_R)} advantages")
        if not torch.equal(rewards.detach().cpu().float(), repeated_batch["ada_reward"]):
            raise InvariantError("the rewards changed, or changed places, after the advantages were computed")
        live_R = (advantage_R != 0) & (repeated_batch["ada_weight"] > 0)
        self.counted = add_prefix({"live_rows": float(live_R.sum())})
        if self._settings.dynamic:
            self.counted |= self._summarise_filtered(mask, repeated_batch)
            self.logged.update(self.counted)
        if self._settings.placeholder_rows and self._settings.keep_denominator:
            advantage_R = advantage_R * self._compute_remaining_share(mask, repeated_batch)
        return advantage_R.to(mask.device).unsqueeze(-1).expand(mask.shape).clone()

    def _summarise_filtered(self, mask: torch.Tensor, batch: Any) -> dict[str, float]:
        """Compute metrics of the rows that dynamic sampling kept.

        The rows may come from several rollout calls, so the metrics of one call do not show them.
        """
        weighed_R, counted_RT = batch["ada_weight"] > 0, (mask[:, 1:] != 0).cpu()
        skipped_R = weighed_R & (batch["ada_advantage"] == 0) & ~counted_RT.any(dim=1)
        reward = float(batch["ada_reward"][weighed_R].mean()) if weighed_R.any() else 0.0
        rows = {"tokens_trained": counted_RT.sum(), "tokens_skipped": batch["ada_saved"].sum(),
                "rows_skipped": skipped_R.sum()}  # fmt: skip
        return add_prefix({"batch_reward": reward}) | own_metrics.add_prefix(
            {name: float(n) for name, n in rows.items()}
        )

    def _compute_remaining_share(self, mask: torch.Tensor, batch: Any) -> torch.Tensor:
        """Compute the share of the loss's denominator that remains in each row's optimizer step, [R].

        It is the denominator without the rows that left the loss, divided by the denominator with them.
        """
        saved_R = batch["ada_saved"].to(torch.float64)
        counted_R = (mask[:, 1:] != 0).sum(dim=1).cpu().to(torch.float64)
        if not self._settings.token_loss:
            saved_R, counted_R = (saved_R > 0).to(torch.float64), (counted_R > 0).to(torch.float64)
        kept_placeholder_R = (saved_R > 0) & (counted_R > 0)  # a row that stays in the loss for NeMo-RL's metrics
        saved_R = torch.where(kept_placeholder_R, saved_R - counted_R, saved_R)
        share_R = torch.ones(len(saved_R), dtype=torch.float64)
        size = self._settings.global_batch
        for start in range(0, len(saved_R), size):
            part = slice(start, start + size)
            remaining = counted_R[part].sum()
            if remaining > 0:
                share_R[part] = remaining / (remaining + saved_R[part].sum())
        return share_R.to(torch.float32)
