"""The arguments of a rollout function of NeMo-RL, and the prompts of one such call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.nemo.gym.request import AGENT, compute_prompt_id, write_canonical
from nemo_ada.nemo.rollouts.response import PACKED, Message


@dataclass(frozen=True, slots=True)
class RolloutCall:
    """The arguments of NeMo-RL's rollout functions (v0.6 to main).

    Attributes:
        original: NeMo-RL's own rollout function.
        policy_generation: the engine.
        tokenizer: tokenizer of the policy.
        task_to_env: environment of each task.
        max_seq_len: largest length of prompt plus response, in tokens.
        max_rollout_turns: most turns of a response.
        greedy: whether responses are greedy.
        rest: arguments that newer versions pass, too.
    """

    original: Callable[..., tuple[Any, dict[str, Any]]]
    policy_generation: Any
    tokenizer: Any
    task_to_env: dict[str, Any]
    max_seq_len: int
    max_rollout_turns: int = 999999
    greedy: bool = False
    rest: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, original: Callable[..., Any], given: dict[str, Any]) -> RolloutCall:
        """Return the call of a rollout function. `given` are its arguments by name, without the batch."""
        names = {one.name for one in fields(cls)}
        rest = {name: value for name, value in given.items() if name not in names}
        return cls(original, **{name: value for name, value in given.items() if name in names}, rest=rest)

    def run(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Run NeMo-RL's own rollout on a batch."""
        return self.original(input_batch=batch, **self.arguments())

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments that are the same for every batch and every sample."""
        return {
            "policy_generation": self.policy_generation,
            "tokenizer": self.tokenizer,
            "task_to_env": self.task_to_env,
            "max_seq_len": self.max_seq_len,
            "max_rollout_turns": self.max_rollout_turns,
            "greedy": self.greedy,
            **self.rest,
        }


class Prompts:
    """The prompts of a call. This object keeps copies, because rollouts append to the message logs that they get.

    P prompts are sampled. The masked prompts have loss_multiplier 0 and are not sampled. NeMo-RL cuts a prompt above
    data.max_input_seq_length to four tokens, so its responses would mean nothing.

    Attributes:
        position_P: position of each sampled prompt in the batch, [P].
        masked: positions of the masked prompts in the batch.
        logs: message log of each sampled prompt, [P]. They must not be changed. Over NeMo-Gym they have no tokens.
        requests: request of each sampled prompt as JSON text, [P]. Empty without NeMo-Gym.
        ids: id of each sampled prompt, [P].
    """

    def __init__(self, repeated_batch: Any, group: int, *, whole: bool = True, gym: bool = False) -> None:
        """Copy the prompts of a batch.

        Args:
            repeated_batch: NeMo-RL's batch, with n contiguous rows per prompt.
            group: the group size n.
            whole: whether the batch is a whole step. All prompts of a part may be masked.
            gym: whether NeMo-Gym makes the prompts, so that only their requests are known.

        Raises:
            UserError: a column cannot be repeated, or all prompts of a whole step are masked.
        """
        if repeated_batch.size % group:
            raise InvariantError(f"{repeated_batch.size} rows are no multiple of the group size {group}")
        _refuse_packed(repeated_batch)
        self._pristine = self._copy_rows(repeated_batch, list(range(0, repeated_batch.size, group)))
        in_loss = (self._pristine["loss_multiplier"] > 0).tolist()
        self.position_P = [position for position, counts in enumerate(in_loss) if counts]
        self.masked = [position for position, counts in enumerate(in_loss) if not counts]
        if whole and not self.position_P:
            raise UserError(
                f"all {len(in_loss)} prompts of the batch are longer than data.max_input_seq_length; raise it, or "
                "remove such prompts from the data"
            )
        logs = self._pristine["message_log"]
        names = self._pristine["task_name"] if "task_name" in self._pristine else [None] * len(logs)
        self.logs: list[list[Message]] = [logs[position] for position in self.position_P]
        self.requests: list[str] = []
        if gym:
            rows = [self._pristine["extra_env_info"][position] for position in self.position_P]
            self.requests, self.ids = [write_canonical(row) for row in rows], [compute_prompt_id(row) for row in rows]
            self._pristine["agent_ref"] = [row.get(AGENT) for row in self._pristine["extra_env_info"]]
            return
        self.ids = [_compute_prompt_id(logs[position], names[position]) for position in self.position_P]

    def rows(self, prompts: list[int]) -> Any:
        """Return a new batch that a rollout may change. It has a row per entry of `prompts` (positions among the P)."""
        return self._copy_rows(self._pristine, [self.position_P[prompt] for prompt in prompts])

    def state(self, prompt: int) -> dict[str, Any]:
        """Return a prompt in the form of the asynchronous rollout, which copies what it changes."""
        state = {name: column[self.position_P[prompt]] for name, column in self._pristine.items()}
        state.setdefault("stop_strings", None)
        return state

    def tokens(self, prompt: int) -> list[int]:
        """Return the token ids of a prompt (position among the P)."""
        return [token for message in self.logs[prompt] for token in message["token_ids"].tolist()]

    def training_rows(self, positions: list[int]) -> Any:
        """Return one row per entry of `positions` (in the batch). The caller replaces its message log by a response.

        The message logs are not copies.
        """
        return self._pristine.select_indices(positions)

    @staticmethod
    def _copy_rows(batch: Any, positions: list[int]) -> Any:
        """Copy rows. select_indices alone would share list items between rows, and repeat_interleave copies them."""
        return batch.select_indices(positions).repeat_interleave(1)


def _compute_prompt_id(log: list[Message], task_name: Any) -> str:
    """Compute the id of a prompt. Equal prompts of a task have equal ids in all epochs, data sets and restarts."""
    digest = hashlib.sha256()
    for message in log:
        digest.update(message["token_ids"].to(torch.int64).cpu().numpy().tobytes())
        for packed in (message[key] for key in sorted(message) if type(message[key]).__name__ == PACKED):
            for part in packed.tensors:  # two questions about two images may have the same tokens
                digest.update(b"" if part is None else part.detach().float().cpu().numpy().tobytes())
    return f"{task_name}:{digest.hexdigest()[:16]}"


def _refuse_packed(batch: Any) -> None:
    """Refuse a column of packed images or audio. NeMo-RL repeats those of messages, and raises at a column of them."""
    for name, value in batch.items():
        if type(value).__name__ == PACKED:
            raise UserError(
                f"data: the column {name} holds packed images or audio, and NeMo-RL's repeat_interleave repeats them "
                "inside messages only; let the data's processor put them into its messages, as "
                "vlm_hf_data_processor does"
            )
