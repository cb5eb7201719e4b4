"""Models that answer requests: a Hugging Face folder behind the engine of this process or behind a server.

The server speaks OpenAI's completions interface (`vllm serve` on GPUs). Prompts are sent as token ids, so the chat
template is applied here and only once. A server that batches in half precision may round differently between runs:
then equal seeds can give different responses.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.tasks.prompting import ModelTokenizer, positions

if TYPE_CHECKING:
    from nemo_ada.embedded.engine.vllm_engine import Engine, Sampling

log = logging.getLogger(__name__)

ATTEMPTS, PAUSE_SECONDS = 3, 2.0
ANSWER_SECONDS = 1800.0
SAMPLED_BYTES, SAMPLES = 1 << 16, 16


@dataclass(frozen=True, slots=True)
class MeasuredResponse:
    """text without its stop token. tokens: generated ones, stop token included. finished: ended by itself."""

    text: str
    tokens: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Request:
    """One response to sample: token ids of the whole prompt, and the seed."""

    prompt: Sequence[int]
    seed: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Longest prompt and response in tokens, how to sample, and how many responses decode at once."""

    max_prompt_tokens: int
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    max_num_seqs: int = 256


class ResponseProvider(Protocol):
    """A model that answers. `name` and `fingerprint` go into cards. It starts with the first request."""

    name: str
    fingerprint: str

    def respond(self, requests: Sequence[Request]) -> list[MeasuredResponse]:
        """Responses in the order of the requests."""
        ...

    def close(self) -> None: ...


class FolderProvider:
    """The base of both providers. Raises UserError where the longest prompt leaves no room for a response."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self.name, self.fingerprint = folder.name, model_fingerprint(folder)
        self.length = _longest_sequence(folder, limits.max_prompt_tokens, limits.max_new_tokens)

    def new_tokens(self, prompt: Sequence[int]) -> int:
        """Longest response to this prompt."""
        return min(self.limits.max_new_tokens, self.length - len(prompt))


class EngineProvider(FolderProvider):
    """The embedded vLLM engine, in this process."""

    def __init__(self, folder: Path, tokenizer: ModelTokenizer, limits: Limits) -> None:
        super().__init__(folder, limits)
        self.tokenizer = tokenizer
        self._engine: Engine | None = None

    def respond(self, requests: Sequence[Request]) -> list[MeasuredResponse]:
        """Sample all of them together."""
        engine, sampling = self._started()
        for number, request in enumerate(requests):
            own = replace(sampling, max_new_tokens=self.new_tokens(request.prompt), seed=request.seed)
            engine.add(number, request.prompt, own)
        responses: dict[Hashable, MeasuredResponse] = {}
        while engine.in_flight:
            for done in engine.step():
                if done.payload is None:
                    raise InvariantError(f"the engine gave no response: {done.error}")
                ids = done.payload.token_ids.tolist()
                text = self.tokenizer.decode(ids[:-1] if done.payload.finished else ids)
                responses[done.request_id] = MeasuredResponse(text, len(ids), done.payload.finished)
        return [responses[number] for number in range(len(requests))]

    def close(self) -> None:
        """Release the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _started(self) -> tuple[Engine, Sampling]:
        limits = self.limits
        try:
            from nemo_ada.embedded.engine.vllm_engine import Engine, EngineConfig, Sampling

            if self._engine is None:
                config = EngineConfig(self.folder, max_model_len=self.length, max_num_seqs=limits.max_num_seqs)
                self._engine = Engine(config)
        except ImportError as problem:
            raise UserError(
                f"the CPU engine, vLLM, cannot be imported here ({problem}); start the model with `vllm serve "
                f"{self.folder}` and repeat the command with --server http://HOST:8000, or run make install"
            ) from None
        stop = self.tokenizer.eos_id
        return self._engine, Sampling(limits.max_new_tokens, limits.temperature, limits.top_p, stop_tokens=(stop,))


class ServerProvider(FolderProvider):
    """The first model that `url` serves. `folder` holds the same model, for its card and its positions."""

    def __init__(self, url: str, folder: Path, limits: Limits) -> None:
        super().__init__(folder, limits)
        self._url = url.rstrip("/").removesuffix("/v1")
        # vLLM takes unset options from the model's generation_config.json, which often narrows the distribution.
        whole = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        self._options = {"temperature": limits.temperature, "top_p": limits.top_p, "n": 1} | whole
        self._served: str | None = None

    def respond(self, requests: Sequence[Request]) -> list[MeasuredResponse]:
        """Send all of them, at most `max_num_seqs` at once."""
        if self._served is None:
            self._served = str(self._call("/v1/models", None)["data"][0]["id"])
        with ThreadPoolExecutor(self.limits.max_num_seqs) as threads:
            return list(threads.map(self._respond, requests))

    def close(self) -> None:
        """Nothing is held between requests."""

    def _respond(self, request: Request) -> MeasuredResponse:
        content = {"model": self._served, "prompt": list(request.prompt), "seed": request.seed}
        content["max_tokens"] = self.new_tokens(request.prompt)
        answer = self._call("/v1/completions", content | self._options)
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
                        f"--server={self._url}: no answer from {path} in {ATTEMPTS} attempts ({problem}); start the "
                        "server with vllm serve MODEL and repeat the command, which continues its work"
                    ) from None
                time.sleep(PAUSE_SECONDS * attempt)
        raise InvariantError("unreachable")


def open_provider(server: str | None, folder: Path, tokenizer: ModelTokenizer, limits: Limits) -> ResponseProvider:
    """The model behind a server where one is named, else the engine of this process."""
    if server is None:
        return EngineProvider(folder, tokenizer, limits)
    return ServerProvider(server, folder, limits)


def model_fingerprint(folder: Path) -> str:
    """16 hex digits of the configuration, the tokenizer, and samples of the weights.

    Only samples, because a checkpoint may have 100 GB.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        if path.name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            digest.update(path.name.encode() + path.read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            for part in range(SAMPLES):
                file.seek(part * size // SAMPLES)
                digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()[:16]


def _longest_sequence(folder: Path, max_prompt_tokens: int, max_new_tokens: int) -> int:
    """Tokens of prompt and response, or the model's positions where these are fewer (logged).

    Example: Qwen2.5-Math has 4096 positions, so responses to long prompts end early.
    """
    wanted = max_prompt_tokens + max_new_tokens
    limit = positions(folder)
    if limit is None or wanted <= limit:
        return wanted
    if limit <= max_prompt_tokens:
        raise UserError(
            f"max_prompt_tokens={max_prompt_tokens} leaves no room for a response: {folder} has {limit} positions; "
            "lower it"
        )
    log.warning("%s has %d positions, so responses may end before %d tokens", folder, limit, max_new_tokens)
    return limit
