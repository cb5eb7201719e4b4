"""What a back end offers the sampler: a place that takes requests and reports outcomes.

Only numbers pass through this interface. Tokens and log-probabilities stay in the source, under the `response_id` that
the session gave each response. So no response can be credited to another prompt. N is the number of responses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from nemo_ada.core.arrays import FloatArray, IntArray

MASKED = "masked"
"""Cause of a response that its environment takes out of training. That is the environment's word and no failure of the
machinery, so another response is drawn, and the share of failures does not count it."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Responses to be drawn.

    Attributes:
        response_id_N: id of the response in the session.
        prompt_N: position of its prompt in the step.
        index_N: issue order within the prompt.
        wave_N: number of its wave, from 0.
        seed_N: sampling seed, for engines that take one per request.
    """

    response_id_N: IntArray
    prompt_N: IntArray
    index_N: IntArray
    wave_N: IntArray
    seed_N: IntArray

    def __len__(self) -> int:
        return len(self.response_id_N)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Finished responses with their rewards.

    Attributes:
        response_id_N: id of the response in the session.
        reward_N: reward. It has no meaning for a response without a label.
        tokens_N: generated tokens, also those of failed responses.
        failures: cause by response_id, for responses without a label.
    """

    response_id_N: IntArray
    reward_N: FloatArray
    tokens_N: IntArray
    failures: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.response_id_N)


class ResponseSource(Protocol):
    """An engine with a verifier behind it. One contract suite tests every implementation."""

    def submit(self, requests: Requests) -> None:
        """Start drawing these responses. Return without waiting for them."""
        ...

    def poll(self) -> Outcomes:
        """Wait until a submitted response has finished. Report all that have finished, each exactly once."""
        ...

    def abort(self, response_id_N: IntArray) -> IntArray:
        """Stop these running responses and never report them.

        Returns:
            Tokens that each one had generated, [N]. The budget pays for them.
        """
        ...

    def clock(self) -> float:
        """Return seconds, or engine steps in the discrete-event model. Never decreases."""
        ...
