"""Responses from a server with OpenAI's completions interface (`vllm serve` on GPUs): any model, any machine.

Prompts are sent as token ids, so the chat template is applied on our side, once. The seeds are ours too, but a server
that batches in half precision may round differently from run to run: its responses are reproducible up to that.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nemo_ada.data.measure import MeasuredResponse, Request
from nemo_ada.data.model_folder import FolderProvider, Limits
from nemo_ada.errors import InvariantError, UserError

ATTEMPTS, PAUSE_SECONDS = 3, 2.0
ANSWER_SECONDS = 1800.0


class ServerProvider(FolderProvider):
    """The model that `url` serves (its first one); `folder` names the same model, for its card and its positions."""

    def __init__(self, url: str, folder: Path, limits: Limits) -> None:
        super().__init__(folder, limits)
        self._url = url.rstrip("/").removesuffix("/v1")
        # vLLM takes what is not said from the model's generation_config.json, which often narrows the distribution
        whole = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        self._options = {"temperature": limits.temperature, "top_p": limits.top_p, "n": 1} | whole
        self._served: str | None = None

    def respond(self, requests: Sequence[Request]) -> list[MeasuredResponse]:
        """Ask for all of them at the same time, at most `max_num_seqs` at once."""
        if self._served is None:
            self._served = str(self._call("/v1/models", None)["data"][0]["id"])
        with ThreadPoolExecutor(self.limits.max_num_seqs) as threads:
            return list(threads.map(self._respond, requests))

    def close(self) -> None:
        """Nothing is held between requests."""

    def _respond(self, request: Request) -> MeasuredResponse:
        asked = {"model": self._served, "prompt": list(request.prompt), "seed": request.seed}
        asked["max_tokens"] = self.new_tokens(request.prompt)
        answer = self._call("/v1/completions", asked | self._options)
        chosen, used = answer["choices"][0], answer["usage"]
        return MeasuredResponse(chosen["text"], int(used["completion_tokens"]), chosen["finish_reason"] == "stop")

    def _call(self, path: str, content: dict[str, Any] | None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as problem:
                detail = problem.read(500).decode("utf-8", "replace")
                raise InvariantError(f"{self._url}{path} answered {problem.code}: {detail}") from None
            except (OSError, ValueError) as problem:
                if attempt == ATTEMPTS:
                    raise UserError(
                        f"--server={self._url}: {path} gave no answer in {ATTEMPTS} attempts ({problem}); start it "
                        "with vllm serve MODEL and repeat the command, which continues where it was"
                    ) from None
                time.sleep(PAUSE_SECONDS * attempt)
        raise InvariantError("unreachable")
