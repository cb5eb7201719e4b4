"""The request of a prompt over NeMo-Gym. It stands for the prompt, which has no tokens before its rollout.

NeMo-RL's data processor gives every row the same empty message. The row's `extra_env_info` holds what is sent to the
agent: `responses_create_params` (messages, tools), `agent_ref`, and what the verifier needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from nemo_ada.errors import UserError

PARAMS, AGENT = "responses_create_params", "agent_ref"


def write_canonical(row: Any) -> str:
    """Return the request as JSON text, which is equal for equal requests.

    Raises:
        UserError: the row has no request.
    """
    if not isinstance(row, Mapping) or not isinstance(row.get(PARAMS), Mapping):
        raise UserError(
            f"data: a row has no {PARAMS}, which NeMo-Gym's agents get; make the data with `ng_prepare_data`, or "
            "write one JSON object per line with responses_create_params and agent_ref"
        )
    return json.dumps(row[PARAMS], sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def compute_prompt_id(row: Mapping[str, Any]) -> str:
    """Return the id of a prompt. Equal requests to one agent have equal ids in all epochs and restarts."""
    agent = row.get(AGENT)
    name = agent.get("name") if isinstance(agent, Mapping) else None
    return f"{name}:{hashlib.sha256(write_canonical(row).encode()).hexdigest()[:16]}"
