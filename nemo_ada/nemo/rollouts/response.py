"""A response in NeMo-RL's message logs, and the short row that stands for a response outside the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nemo_ada.errors import InvariantError

Message = dict[str, Any]
PACKED = "PackedTensor"
"""NeMo-RL's class for the images or the audio of a message."""
ENGINE_ERROR = "engine_error"
GYM_ERROR = "gym_error"  # NeMo-Gym's agent, tools or verifier failed
ADA_MATH = "ada_math"  # name of the math environment (environment.py, which needs nemo_rl to be imported)
ROUTES = "routed_experts"
"""Key of a message: the experts of every token (policy.router_replay.enabled)."""
NO_VERDICT = "no verdict: "  # the observation of a NaN reward begins so, and the cause follows
CORRECT, INCORRECT = "correct", "incorrect"  # the observation of a reward above 0, and of 0


@dataclass(frozen=True, slots=True)
class Response:
    """A finished rollout.

    Attributes:
        prompt: messages of the prompt.
        generated: messages that follow the prompt.
        reward: reward of the environment. It is NaN without a verdict.
        truncated: whether the response ended at the token limit.
        tokens: tokens that the policy generated.
        complete: whether it ended by itself, at its limit or at the last turn. It is False after an error of the
            engine.
        failure: the cause of a response that NeMo-Gym did not finish. None for every other response.
        shaped: the reward after NeMo-RL's shaping inside the rollout. None where the rollout shapes nothing.
    """

    prompt: list[Message]
    generated: list[Message]
    reward: float
    truncated: bool
    tokens: int
    complete: bool = True
    failure: str | None = None
    shaped: float | None = None

    @property
    def cause(self) -> str | None:
        """The reason why this response has no label. None when it has one, or when the reason is unknown."""
        if self.failure is not None:
            return self.failure
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
        """Prompt and response. The messages are new ones, because NeMo-RL writes loss masks into them."""
        return [dict(message) for message in (*self.prompt, *self.generated)]


def read(prompt: Sequence[Message], message_log: Sequence[Message], reward: float, truncated: bool) -> Response:
    """Split a message log after its prompt.

    A response that was cut off is wrong under `ada_math`, as in CPU training. The environment itself does not hear of
    the cut, so its observation tells that the reward is its own. Other environments' rewards stay.

    Args:
        prompt: messages of the prompt.
        message_log: messages of the prompt and the response.
        reward: reward of the environment.
        truncated: whether the response ended at the token limit.

    Raises:
        InvariantError: the log does not start with the prompt.
    """
    start = len(prompt)
    same = len(message_log) >= start and all(
        torch.equal(ours["token_ids"], theirs["token_ids"]) for ours, theirs in zip(prompt, message_log, strict=False)
    )
    if not same:
        raise InvariantError("a rollout returned a message log that does not start with the prompt it was given")
    if any(ROUTES in message for message in message_log[:start]):  # NeMo-RL adds them to the prompt's messages
        prompt = message_log[:start]
    generated = list(message_log[start:])
    tokens = sum(len(message["token_ids"]) for message in generated if message["role"] == "assistant")
    observed = str(generated[-1].get("content")) if generated else ""
    if truncated and observed == CORRECT:
        reward = 0.0
    return Response(list(prompt), generated, float(reward), bool(truncated), int(tokens))


def has_media(message_log: Sequence[Message]) -> bool:
    """Return whether a message has packed images or audio."""
    return any(type(value).__name__ == PACKED for message in message_log for value in message.values())


def make_placeholder(prompt: Sequence[Message], generated: Sequence[Message] = ()) -> list[Message]:
    """Build a row of two tokens that keeps the shape of the batch.

    The row has the first token of the prompt and the first generated token. Without a generated token, the prompt's
    token stands for it. A row with images or audio stays whole, because the model wants a token for every part of them.

    Args:
        prompt: messages of the prompt.
        generated: messages of the response.
    """
    head = _get_first_token(prompt[0])
    if has_media(prompt) or has_media(generated):
        return [dict(message) for message in (*prompt, *(generated or _make_one_token(head)))]
    for message in generated:
        if message["role"] == "assistant" and len(message["token_ids"]):
            return [head, _get_first_token(message)]
    return [head, *_make_one_token(head)]


def _make_one_token(head: Message) -> list[Message]:
    """Build a response of one token, which is the prompt's first."""
    token_ids = head["token_ids"]
    routes = {ROUTES: head[ROUTES].clone()} if ROUTES in head else {}
    return [
        {
            "role": "assistant",
            "content": "",
            "token_ids": token_ids.clone(),
            "generation_logprobs": torch.zeros(1, dtype=torch.float32, device=token_ids.device),
            **routes,
        }
    ]


def _get_first_token(message: Message) -> Message:
    length = len(message["token_ids"])
    cut: Message = {}
    for key, value in message.items():
        per_token = torch.is_tensor(value) and value.ndim > 0 and value.shape[0] == length
        cut[key] = value[:1].clone() if per_token else value
    return cut | {"content": ""}
