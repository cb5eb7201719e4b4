"""A rehearsal over NeMo-Gym: which environments can be rehearsed, requests for them, and folders for Gym's servers.

The agents and the verifiers are Gym's own. The small model's vocabulary holds whole answers and whole calls of tools,
so a model with random weights sometimes answers correctly.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.rehearsal import problems

SECTION = "env.nemo_gym"
PATHS = f"{SECTION}.config_paths"
MATH, OFFICE = "math_with_judge", "workplace_assistant"
ENVIRONMENTS = (MATH, OFFICE)
COMMON_SERVERS = ("responses_api_agents/simple_agent", "responses_api_models/vllm_model")

EMAILS = ("00000373", "00000353", "00000389", "00000352", "00000387", "00000402")
"""Ids of emails that lie in the office as Gym's workplace_assistant fills it (its csv_data/processed/emails.csv)."""
DELETE, READ = "email_delete_email", "email_get_email_information_by_id"
OFFICE_PROMPTS = 20
"""Prompts per email. They differ in a number that the agent has no use for, because equal requests would be one
prompt."""


def find_environments(paths: Any) -> list[str]:
    """Return the names of Gym's environments in `env.nemo_gym.config_paths`.

    Raises:
        UserError: There are none, or one of them has no problems for a rehearsal.
    """
    parts = [str(path).split("/") for path in paths or []]
    names = [part[part.index("resources_servers") + 1] for part in parts if "resources_servers" in part]
    for name in names:
        if name not in ENVIRONMENTS:
            raise UserError(
                f"{PATHS}: {name} has no problems that a random model can solve; a rehearsal has them for "
                f"{' and '.join(ENVIRONMENTS)}, so rehearse your config with one of these"
            )
    if not names:
        raise UserError(f"{PATHS}: no environment; name one below resources_servers/, such as {MATH}")
    return list(dict.fromkeys(names))


def write_requests(folder: Path, names: Sequence[str]) -> list[str]:
    """Write requests for training and validation.

    Returns:
        The texts of all prompts, and the calls of tools that the small model can make.
    """
    rows = {MATH: _make_sums, OFFICE: _make_emails}
    each = [rows[name]() for name in names]
    # In turn, so that every step has each environment, and as many of each, so the longer lists lose their ends.
    mixed = [row for group in zip(*each, strict=False) for row in group]
    problems.write_rows(folder, mixed)
    texts = [message["content"] for row in mixed for message in row["responses_create_params"]["input"]]
    return [*(make_calls() if OFFICE in names else []), *texts]


def _make_request(name: str, text: str, **params: Any) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": text}], **params},
        "agent_ref": {"type": "responses_api_agents", "name": f"{name}_simple_agent"},
    }


def _make_sums() -> list[dict[str, Any]]:
    """Return the rehearsal's sums, which math-verify judges."""
    return [
        {**_make_request(MATH, row["problem"]), "question": row["problem"], "expected_answer": row["gt"]}
        for row in problems.make_problems()
    ]


def _make_emails() -> list[dict[str, Any]]:
    """Emails that one call deletes. The verifier compares the office afterwards with what it should be."""
    argument = {"email_id": {"type": "string", "description": "the email"}}
    field = {"field": {"type": "string", "description": "such as subject"}}
    tools = [
        {"type": "function", "name": name, "description": "", "strict": False,
         "parameters": {"type": "object", "properties": properties, "required": [*properties]}}
        for name, properties in ((DELETE, argument), (READ, {**argument, **field}))
    ]  # fmt: skip
    padding = " 0" * problems.ZEROS * 4  # as many tokens as the zeros of a sum, for the same reason (problems.ZEROS)
    return [
        {**_make_request(OFFICE, f"Please delete {number}{padding} email {email}", tools=tools),
         "id": OFFICE_PROMPTS * index + number, "category": "workplace_assistant_email", "environment_name": OFFICE,
         "ground_truth": [{"name": DELETE, "arguments": json.dumps({"email_id": email})}]}
        for number in range(OFFICE_PROMPTS) for index, email in enumerate(EMAILS)
    ]  # fmt: skip


def make_calls() -> list[str]:
    """Calls of tools as texts. An email that comes early has more spellings, so pass rates differ between prompts."""
    texts = []
    for index, email in enumerate(EMAILS):
        delete = {"name": DELETE, "arguments": {"email_id": email}}
        look = {"name": READ, "arguments": {"email_id": email, "field": "subject"}}
        endings = problems.ENDINGS[: 3 - index // 2]
        for call in (delete, look):  # transformers' tokenizer for Qwen would drop spaces
            text = json.dumps(call, separators=(",", ":"))
            texts += [f"<tool_call>{text}</tool_call>{end}" for end in endings]
    return texts


def link_servers(folder: Path, names: Sequence[str], python: Path) -> None:
    """Give each of Gym's servers a link to the one interpreter. Gym would make an environment per server."""
    for server in (*COMMON_SERVERS, *(f"resources_servers/{name}" for name in names)):
        place = folder / server
        place.mkdir(parents=True, exist_ok=True)
        if not (place / ".venv").is_symlink():
            (place / ".venv").symlink_to(python.parent.parent)  # of ENVIRONMENT/bin/python
