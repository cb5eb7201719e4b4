"""What a back end offers the samplers: a place to send requests to and to collect outcomes from.

Only numbers cross this border. Tokens and log-probabilities stay in the source, keyed by the row that the session gave
each response, so a response can never be credited to another prompt. N is the number of responses in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from nemo_ada.core.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Requests:
    """Responses to be drawn.

    response_id_N: id of the response in the session; prompt_N: position of its prompt in the step; index_N: issue order
    within the prompt; wave_N: number of its wave; seed_N: sampling seed for engines that take one per request.
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
    """Responses that have finished and were scored.

    reward_N is meaningless where `failures` (row -> cause) names the row: such a response has no label.
    tokens_N counts generated tokens, also those of a failed response.
    """

    response_id_N: IntArray
    reward_N: FloatArray
    tokens_N: IntArray
    failures: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.response_id_N)


class ResponseSource(Protocol):
    """An engine with a verifier behind it. One shared contract suite runs on every implementation."""

    def submit(self, requests: Requests) -> None:
        """Start drawing these responses; returns without waiting for them."""
        ...

    def poll(self) -> Outcomes:
        """Wait until at least one submitted response has finished and report all that have, each exactly once."""
        ...

    def abort(self, response_id_N: IntArray) -> IntArray:
        """Stop these running responses; none of them is reported after this call.

        Returns the tokens that each had generated: they were paid for.
        """
        ...

    def clock(self) -> float:
        """Seconds (engine steps in the discrete-event model), never running backwards."""
        ...
