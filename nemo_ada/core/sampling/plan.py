"""The settings of a sampling session, as plain values.

GRPO, the sequential and the estimation variant are settings of one plan (algorithm.md sections 2, 3 and 5):

    GRPO              FixedExit(n), one wave of n, at most n responses
    Reinforce-Ada-Seq PositiveExit or BalancedExit, waves of M, at most N_max responses
    Reinforce-Ada-Est FixedExit(1) and a first wave of N_x responses per prompt, given to the session
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nemo_ada.core.sampling.budget import SAMPLES, TOKENS, Budget
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.errors import UserError

MAX_RESPONSES = 4096  # per prompt; exact path counts take O(its square) of memory


@dataclass(frozen=True)
class SamplingPlan:
    """Settings of a sampling session.

    Attributes:
        stop: when the pool of a prompt ends, if the budget does not end it: exit rule, waves and N_max.
        group_size: n, the rows kept per prompt.
        max_new_tokens: tokens of the longest response.
        positive_threshold: a response is correct when its reward is above this.
        scheduler: `rounds` waits for all prompts between waves, `continuous` does not.
        budget: what the batch may cost.
        max_failed_share: a larger share of responses without a label is an error. Those that their environment masks
            are not among them.
    """

    stop: StopRule
    group_size: int
    max_new_tokens: int
    positive_threshold: float = 0.7
    scheduler: Literal["rounds", "continuous"] = "continuous"
    budget: Budget = field(default_factory=Budget)
    max_failed_share: float = 0.05

    @property
    def prior_tokens(self) -> int:
        """Tokens reserved per response until a length has been seen."""
        budget = self.budget
        if budget.token_reservation == "worst_case" or budget.expected_tokens is None:
            return self.max_new_tokens
        return min(budget.expected_tokens, self.max_new_tokens)

    def check_first_waves(self, prompts: int, responses: int | None = None) -> None:
        """Check that the caps can hold the first waves of `prompts` prompts, `responses` in all.

        Raises:
            UserError: they cannot.
        """
        first = prompts * self.stop.first_wave if responses is None else responses
        each = f"{prompts} prompts x {first / max(prompts, 1):g} responses"
        caps = self.budget.caps()
        samples, reserved = caps.get(SAMPLES), caps.get(TOKENS)
        if samples is not None and samples < first:
            smaller = samples // max(prompts, 1)
            lower = f" or lower reinforce_ada.sampling.wave_size to {smaller}" if smaller else ""
            raise UserError(
                f"{SAMPLES.key}={samples} cannot hold the first waves: {each} = {first}; raise it to {first}{lower}"
            )
        tokens = first * self.prior_tokens
        if reserved is not None and reserved < tokens:
            fits = reserved // max(first, 1)
            setting = f"reinforce_ada.budget.expected_tokens to at most {fits} (with token_reservation: expected)"
            shorter = f", or set {setting} if responses are that short" if fits else ""
            raise UserError(
                f"{TOKENS.key}={reserved} cannot hold the first waves: {each} x "
                f"{self.prior_tokens} tokens reserved each = {tokens}; raise it to {tokens}{shorter}"
            )
