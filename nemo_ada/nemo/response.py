"""One response as NeMo-RL's message logs hold it: what came after the prompt, and its one-token placeholder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nemo_ada.errors import InvariantError

Message = dict[str, Any]
ENGINE_ERROR = "engine_error"
ADA_MATH = "ada_math"  # name of the math environment (environment.py, which needs nemo_rl to be imported)
NO_VERDICT = "no verdict: "  # an environment's observation that explains a reward which is not a number


@dataclass(frozen=True, slots=True)
class Response:
    """A finished rollout.

    Attributes:
        prompt: messages of the prompt.
        generated: messages after the prompt's.
        reward: reward of the environment, NaN without a verdict.
        truncated: whether the response ended at the token limit.
        tokens: tokens that the policy generated.
        complete: whether it ended by itself, at its limit or at the last turn. It is False after an error of the
            engine.
    """

    prompt: list[Message]
    generated: list[Message]
    reward: float
    truncated: bool
    tokens: int
    complete: bool = True

    @property
    def cause(self) -> str | None:
        """The cause why this response has no label. None when it has one, or when the cause is not known."""
        if self.tokens == 0 or not self.complete:
            return ENGINE_ERROR
        if self.reward != self.reward:
            for message in self.generated:
                content = message.get("content")
                if isinstance(content, str) and content.startswith(NO_VERDICT):
                    return content.removeprefix(NO_VERDICT)
        return None

    @property
    def message_log(self) -> list[Message]:
        """Prompt and response, as new messages (NeMo-RL writes loss masks into them)."""
        return [dict(message) for message in (*self.prompt, *self.generated)]


def read(prompt: Sequence[Message], message_log: Sequence[Message], reward: float, truncated: bool) -> Response:
    """Split a log after its prompt. Raises InvariantError when it does not start with that prompt."""
    start = len(prompt)
    same = len(message_log) >= start and all(
        torch.equal(ours["token_ids"], theirs["token_ids"]) for ours, theirs in zip(prompt, message_log, strict=False)
    )
    if not same:
        raise InvariantError("a rollout returned a message log that does not start with the prompt it was given")
    generated = list(message_log[start:])
    tokens = sum(len(message["token_ids"]) for message in generated if message["role"] == "assistant")
    return Response(list(prompt), generated, float(reward), bool(truncated), int(tokens))


def placeholder(prompt: Sequence[Message], generated: Sequence[Message] = ()) -> list[Message]:
    """A row that keeps the batch shape for the price of two tokens: the prompt's first and one of the response."""
    head = _first_token(prompt[0])
    for message in generated:
        if message["role"] == "assistant" and len(message["token_ids"]):
            return [head, _first_token(message)]
    token_ids = head["token_ids"]
    return [
        head,
        {
            "role": "assistant",
            "content": "",
            "token_ids": token_ids.clone(),
            "generation_logprobs": torch.zeros(1, dtype=torch.float32, device=token_ids.device),
        },
    ]


def _first_token(message: Message) -> Message:
    length = len(message["token_ids"])
    cut: Message = {}
    for key, value in message.items():
        per_token = torch.is_tensor(value) and value.ndim > 0 and value.shape[0] == length
        cut[key] = value[:1].clone() if per_token else value
    return cut | {"content": ""}
