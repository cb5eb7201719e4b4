"""NeMo-RL's rollout over NeMo-Gym: a seed for each response, which Gym's model server hands to the engine."""

from __future__ import annotations

import functools
import inspect
import json
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements
from nemo_ada.rehearsal.standins.responses import REQUESTS, take_seed

REPLACEMENTS = Replacements("vLLM's random state over NeMo-Gym", "a seed per response in the metadata of its request")

EXTRA = "extra_body"  # Gym adds this entry of a request's metadata to what it sends to the engine


@REPLACEMENTS.after(
    "nemo_rl.experience.rollouts",
    "run_async_nemo_gym_rollout",
    why="NeMo-RL gives an engine one seed at its start, so a resumed engine draws other responses.",
)
def _seed_requests(names: Names) -> None:
    rollout = names.get("run_async_nemo_gym_rollout")

    @functools.wraps(rollout)
    def run(*args: Any, **kwargs: Any) -> Any:
        give_seeds(kwargs["input_batch"]["extra_env_info"])
        return rollout(*args, **kwargs)

    @functools.wraps(rollout)
    async def stream(*args: Any, **kwargs: Any) -> Any:  # of NeMo-RL's main
        give_seeds(kwargs["input_batch"]["extra_env_info"])
        async for group in rollout(*args, **kwargs):
            yield group

    names.put("run_async_nemo_gym_rollout", stream if inspect.isasyncgenfunction(rollout) else run)


def give_seeds(rows: list[dict[str, Any]]) -> None:
    """Give each request a seed from its input and its number in this generation phase. All turns have this seed.

    A request that has one keeps it.
    """
    for row in rows:
        params = row["responses_create_params"]
        if EXTRA in (params.get("metadata") or {}):
            continue
        prompt = json.dumps([row.get("agent_ref"), params["input"]], sort_keys=True, default=str)
        extra = json.dumps({"seed": take_seed(REQUESTS, prompt.encode())})
        params["metadata"] = {**(params.get("metadata") or {}), EXTRA: extra}
