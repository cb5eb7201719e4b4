"""What keeps a step from teaching: all its rewards equal, responses that were cut off, failures of the verifier.

The sampler asks after every step, so all back ends say the same. A dead step has no row with an advantage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nemo_ada.core.metrics import PREFIX
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.errors import UserError

MANY_CUT = 0.5
"""A first step with a larger share of responses that reached the limit is worth a sentence."""


@dataclass(slots=True)
class Doctor:
    """Counts dead steps in a row.

    Attributes:
        plan: how responses are drawn.
        stop_after: dead steps in a row that end the run. None never ends it.
        dead: dead steps so far, without a live one since.
        first: whether no step has been seen yet.
    """

    plan: SamplingPlan
    stop_after: int | None = None
    dead: int = 0
    first: bool = True

    def examine(self, step: int, result: SamplingResult, metrics: Mapping[str, float]) -> tuple[str, ...]:
        """Look at a step.

        Args:
            step: number of the step.
            result: its pools.
            metrics: its metrics, with prefixes.

        Returns:
            Sentences for the user. There are none where the step taught something, and for most of many dead steps.

        Raises:
            UserError: this was dead step number `stop_after` in a row.
        """
        first, self.first = self.first, False
        alive = metrics[f"{PREFIX}live_rows"] > 0 or not len(result.reward_N)
        self.dead = 0 if alive else self.dead + 1
        causes = self._describe_causes(result, metrics)
        if alive:
            one_sided = len(result.reward_N) > 0 and (result.positive_N.all() or not result.positive_N.any())
            told = first and (one_sided or metrics[f"{PREFIX}truncated"] > MANY_CUT)
            return (f"step {step}: {causes}",) if told else ()
        sentence = (
            f"step {step} taught nothing: of {int(metrics[f'{PREFIX}samples_drawn'])} responses none has an advantage, "
            f"{self.dead} such step(s) in a row; {causes}"
        )
        if self.stop_after is not None and self.dead >= self.stop_after:
            raise UserError(f"{sentence}; reinforce_ada.stop_after_dead_steps={self.stop_after} ends the run")
        return (sentence,) if self.dead & (self.dead - 1) == 0 else ()  # after 1, 2, 4, 8, ... of them

    def _describe_causes(self, result: SamplingResult, metrics: Mapping[str, float]) -> str:
        """Return what is seen in the responses, and what to look at."""
        causes = []
        count, cut = len(result.reward_N), metrics[f"{PREFIX}truncated"]
        if cut > 0:
            causes.append(
                f"{round(cut * count)} of {count} were cut at {self.plan.max_new_tokens} tokens (raise max_new_tokens "
                "if answers are longer)"
            )
        if (share := metrics.get(f"{PREFIX}no_box", 0.0)) > 0:
            causes.append(f"{round(100 * share)} % have no \\boxed{{}} (does the prompt ask for one?)")
        if result.failures:
            causes.append("without a label: " + ", ".join(f"{n} {cause}" for cause, n in result.failures.items()))
        low, high = (float(result.reward_N.min()), float(result.reward_N.max())) if count else (0.0, 0.0)
        if low == high:
            causes.append(f"every reward is {low:g}")
        elif result.positive_N.all() or not result.positive_N.any():
            side = "above" if result.positive_N.all() else "at or below"
            causes.append(
                f"rewards lie from {low:g} to {high:g}, all {side} "
                f"reinforce_ada.positive_threshold={self.plan.positive_threshold:g}"
            )
        return "; ".join(causes)
