"""NeMo-Gym's own servers behind NeMo-RL's own NemoGym actor, with a policy that answers by a script over HTTP.

Needs the package nemo-gym in this interpreter. The servers run in it, too: Gym makes an environment per server with uv,
and finds links to this one instead.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ray
import uvicorn
from fastapi import FastAPI, Request
from nemo_rl.environments.nemo_gym import NemoGym, NemoGymConfig

from nemo_support.gym import ON_MAIN
from nemo_support.tiny_model import tiny_tokenizer

SERVERS = (
    "resources_servers/math_with_judge",
    "resources_servers/example_session_state_mgmt",
    "responses_api_agents/simple_agent",
    "responses_api_models/vllm_model",
)
CONFIGS = (
    "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml",
    "resources_servers/math_with_judge/configs/math_with_judge.yaml",
    "resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml",
)
USER, TOOL, BEGIN, SAID = [4, 5, 6], [7, 8], [9], [10, 11, 12, 13]  # tokens of messages; an answer has four
SAID_TOKENS = len(SAID)


def math_row(a: int, b: int) -> dict[str, Any]:
    """A sum for math_with_judge, whose answer math-verify compares."""
    question = f"What is {a} + {b}?"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"},
        "question": question,
        "expected_answer": str(a + b),
    }


def counter_row(first: int, second: int, start: int = 3) -> dict[str, Any]:
    """A task for a counter with two tools. The verifier looks at the counter that the tools left behind."""
    count = {"type": "object", "properties": {"count": {"type": "integer", "description": ""}}}
    tools = [
        {"name": "increment_counter", "parameters": {**count, "required": ["count"], "additionalProperties": False}},
        {
            "name": "get_counter_value",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    ]
    text = f"add {first} then add {second} then get the count"
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": text}],
            "tools": [{"type": "function", "strict": True, "description": "", **tool} for tool in tools],
        },
        "agent_ref": {"type": "responses_api_agents", "name": "example_session_state_mgmt_simple_agent"},
        "expected_count": start + first + second,
        "initial_count": start,
    }


class Policy:
    """An OpenAI endpoint with the token ids that NeMo-RL's has. Draw k of a prompt is right if rates[k % 4] is.

    Attributes:
        drawn: answers that began, by prompt.
        requests: requests for an answer so far.
    """

    RIGHT = (False, True, False, False)

    def __init__(self) -> None:
        self.drawn, self.requests = Counter[str](), 0
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self.chat)
        self.app.post("/tokenize")(self.tokenize)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        server = uvicorn.Server(uvicorn.Config(self.app, log_level="warning"))
        threading.Thread(target=server.run, args=([self._socket],), daemon=True).start()

    async def chat(self, request: Request) -> dict[str, Any]:
        """The next turn."""
        body = await request.json()
        self.requests += 1
        message, cut = self._next(body["messages"])
        logprobs = [{"token": f"token_id:{n}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for n in SAID]
        reason = "tool_calls" if message.get("tool_calls") else "length" if cut else "stop"
        return {
            "id": "one",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model", "tiny"),
            "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": {"content": logprobs}}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9},
        }

    def _next(self, messages: list[dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        prompt = str(next(one["content"] for one in messages if one["role"] == "user"))
        turn = sum(one["role"] == "tool" for one in messages)
        if turn == 0:
            self.drawn[prompt] += 1
        right = self.RIGHT[(self.drawn[prompt] - 1) % 4]
        numbers = [int(number) for number in re.findall(r"\d+", prompt)]
        if "add" not in prompt:
            answer = sum(numbers) if right else -1
            return {"role": "assistant", "content": f"It is \\boxed{{{answer}}}."}, self.drawn[prompt] % 4 == 3
        if turn == 3:
            return {"role": "assistant", "content": "Done."}, False
        name, arguments = "get_counter_value", {}
        if turn < 2:
            name, arguments = "increment_counter", {"count": numbers[turn] + (turn == 0 and not right)}
        call = {"id": f"call{self.requests}", "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)}}  # fmt: skip
        return {"role": "assistant", "content": None, "tool_calls": [call]}, False

    async def tokenize(self, request: Request) -> dict[str, Any]:
        """Tokens of the messages, and the mark after which the assistant speaks."""
        ids: list[int] = []
        for one in (await request.json())["messages"]:
            ids += {"assistant": BEGIN + SAID, "tool": TOOL}.get(one["role"], USER)
        return {"count": len(ids) + 1, "max_model_len": 4096, "tokens": ids + BEGIN, "token_strs": None}


def start(policy: Policy, folder: Path) -> Any:
    """NeMo-RL's actor with running servers. It takes up to minutes."""
    environment = Path(sys.prefix)
    for server in SERVERS:
        place = folder / server
        place.mkdir(parents=True)
        (place / ".venv").symlink_to(environment)
    config = NemoGymConfig(
        model_name="tiny",
        base_urls=[policy.url],
        initial_global_config_dict={
            "config_paths": list(CONFIGS),
            "skip_venv_if_present": True,
            "uv_venv_dir": str(folder),
            "default_host": "127.0.0.1",
        },
    )
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parent), str(here / "startup"), os.environ.get("PYTHONPATH", "")])
    options = {"py_executable": sys.executable, "env_vars": {"PYTHONPATH": path}}
    actor = NemoGym.options(runtime_env=options, num_cpus=0).remote(config)
    ray.get(actor._spinup.remote())
    if ON_MAIN:
        ray.get(actor.set_tokenizer.remote(tiny_tokenizer()))
    return actor
