"""NeMo-RL's own NemoGym actor with a script in the place of Gym's servers. Its process need not import the loop.

Real: the actor's methods (what it makes of Gym's results, the retry on NaN). A script says what Gym's agent did:
`script(prompt, draw)` is a Rollout, or an error that it raises.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from nemo_rl.environments.nemo_gym import NemoGym

from nemo_support.tiny_model import tiny_tokenizer


@dataclass(frozen=True)
class Rollout:
    """What an agent did.

    Attributes:
        reward: reward of the verifier.
        turns: tokens of each assistant turn.
        cut: whether the last turn ended at its limit.
        nan: whether the engine's log-probabilities are NaN.
        missing: whether the actor returns nothing for the row.
        prefix: tokens that the agent writes before the prompt.
        facts: further keys of the result.
        seconds: what it took. None takes as long as the script's others.
    """

    reward: Any
    turns: tuple[int, ...] = (2,)
    cut: bool = False
    nan: bool = False
    missing: bool = False
    prefix: tuple[int, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None


FAILURES: dict[str, Callable[[], Any]] = {
    "raises": lambda: ValueError("the sandbox is gone"),
    "nothing": lambda: Rollout(1.0, missing=True),
    "no tokens": lambda: Rollout(1.0, turns=()),
    "no reward": lambda: Rollout(None),
    "not finite": lambda: Rollout(float("nan")),
    "nan log-probs": lambda: Rollout(1.0, nan=True),
}
"""Ways in which a rollout of Gym fails -> what a script answers then."""


def failing_once(how: str) -> Callable[[str, int], Any]:
    """A script whose third rollout of the prompt p12= fails in a way of FAILURES. All others are right."""
    return lambda prompt, draw: FAILURES[how]() if (prompt, draw) == ("p12=", 2) else Rollout(1.0)


Script = Callable[[str, int], Rollout | Exception]


class Helper:
    """Stands for Gym's RolloutCollectionHelper and its servers."""

    def __init__(self, script: Script, seconds: float) -> None:
        self.script, self.seconds, self.drawn = script, seconds, Counter[str]()
        self.calls: list[list[dict[str, Any]]] = []
        self.dead = ""
        self.cancelled = 0

    def run_examples(self, examples: list[dict[str, Any]], head_server_config: Any) -> Any:
        self.calls.append(json.loads(json.dumps(examples)))
        return asyncio.as_completed([asyncio.ensure_future(self._run(one)) for one in examples])

    async def _run(self, example: dict[str, Any]) -> Any:
        (message,) = example["responses_create_params"]["input"]
        prompt = message["content"]
        self.drawn[prompt] += 1
        did = self.script(prompt, example.get("draw", self.drawn[prompt] - 1))
        try:
            seconds = getattr(did, "seconds", None)
            await asyncio.sleep(self.seconds if seconds is None else seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(did, Exception):
            raise did
        return example, self._result(example, did)

    def _result(self, example: dict[str, Any], did: Rollout) -> dict[str, Any]:
        tokenizer, seen = tiny_tokenizer(), list(did.prefix)
        seen += tokenizer(example["responses_create_params"]["input"][0]["content"])["input_ids"]
        items: list[dict[str, Any]] = []
        for number, tokens in enumerate(did.turns):
            if number:
                items.append({"type": "function_call_output", "output": "42"})
                seen = [*seen, 5, 6]  # what the tool said
            new = [2 if did.reward else 3] * tokens
            items.append(
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "said"}],
                    "prompt_token_ids": list(seen),
                    "generation_token_ids": new,
                    "generation_log_probs": [float("nan") if did.nan else -1.0] * tokens,
                }
            )
            seen = [*seen, *new]
        details = {"reason": "max_output_tokens"} if did.cut else None
        return {
            "responses_create_params": example["responses_create_params"],
            "response": {"output": items, "incomplete_details": details},
            "reward": did.reward,
            "missing": did.missing,
            **did.facts,
        }

    def poll(self) -> None:
        """As RunHelper.poll, which raises when a server has ended."""
        if self.dead:
            raise RuntimeError(self.dead)

    def shutdown(self) -> None:
        """Nothing runs."""


class _Scripted(NemoGym.__ray_metadata__.modified_class):  # type: ignore[misc, name-defined]
    """NeMo-RL's actor. Its `_spinup` would start Gym's servers."""

    def __init__(self) -> None:
        super().__init__({"model_name": "tiny", "base_urls": [], "initial_global_config_dict": {}})

    def play(self, script: Script, seconds: float = 0.0, attempts: int = 1) -> None:
        """Begin anew with this script."""
        self.rh = self.rch = Helper(script, seconds)
        self.head_server_config = None
        self.rollout_max_attempts_to_avoid_lp_nan = attempts
        self.tokenizers: set[int] = set()

    def _postprocess_nemo_gym_to_nemo_rl_result(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._postprocess_nemo_gym_to_nemo_rl_result(*args, **kwargs)
        self.tokenizers.add(id(args[-1]))
        return None if result["full_result"].pop("missing") else result

    def facts(self) -> dict[str, Any]:
        """What the servers were asked."""
        return {
            "calls": self.rch.calls,
            "drawn": dict(self.rch.drawn),
            "tokenizers": len(self.tokenizers),
            "cancelled": self.rch.cancelled,
        }

    def die(self, cause: str) -> None:
        """From now on a server has ended."""
        self.rh.dead = cause

    def restart(self) -> None:
        """As after Ray has started the actor anew, which runs __init__ only."""
        self.rh = None


ScriptedGym = ray.remote(num_cpus=0)(_Scripted)
