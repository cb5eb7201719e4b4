"""Models that answer requests: a Hugging Face folder behind the engine of this process or behind a server.

The server speaks OpenAI's completions interface (`vllm serve` on GPUs). Prompts are sent as token ids, so the chat
template is applied here and only once. A server that batches in half precision may round differently between runs:
then equal seeds can give different responses.

A provider is asked in two steps, so that it stays full: `submit` requests as long as there is room, then `collect` what
has ended.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, cast

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.files import MAX_TEXT, opened_to_read, read_bounded
from nemo_ada.tasks.prompting import ModelTokenizer, positions

if TYPE_CHECKING:
    from nemo_ada.cpu.engine.vllm_engine import Engine, Sampling

log = logging.getLogger(__name__)

ATTEMPTS, PAUSE_SECONDS = 6, 1.0
"""Attempts at one request, and the pause after the first. Each further pause is twice as long, at most 16 s."""
FIRST_ATTEMPTS = 3  # a wrong address is the most likely cause
BUSY = (408, 425, 429, 500, 502, 503, 504)  # statuses that a later attempt may mend
DENIED = (401, 403)
ANSWER_SECONDS = 1800.0
SAMPLED_BYTES, SAMPLES = 1 << 16, 16


@dataclass(frozen=True, slots=True)
class MeasuredResponse:
    """A response of the model.

    Attributes:
        text: The text without its stop token.
        tokens: The number of generated tokens, with the stop token.
        finished: Whether the response ended by itself.
    """

    text: str
    tokens: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Request:
    """One response to sample.

    Attributes:
        prompt: The token ids of the whole prompt.
        seed: The seed of the response.
        max_new_tokens: The longest response in tokens.
    """

    prompt: Sequence[int]
    seed: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of all requests.

    Attributes:
        max_prompt_tokens: The longest prompt in tokens.
        max_new_tokens: The longest response in tokens.
        temperature: The sampling temperature.
        top_p: The share of the probability that is sampled from.
        max_num_seqs: The number of responses that decode at once.
    """

    max_prompt_tokens: int
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    max_num_seqs: int = 256


class ResponseProvider(Protocol):
    """A model that answers. It starts with the first request.

    Attributes:
        name: The name of the model in cards.
        fingerprint: A hash of the model for cards.
        capacity: The number of open requests that keep the model busy.
    """

    name: str
    fingerprint: str
    capacity: int

    def submit(self, number: int, request: Request) -> None:
        """Ask for a response. `number` names it among the open ones."""
        ...

    def collect(self) -> list[tuple[int, MeasuredResponse]]:
        """Wait until an open request has ended. Return all that have ended, in the order in which they ended."""
        ...

    def close(self) -> None:
        """Release the model."""
        ...


class FolderProvider:
    """The base of both providers. Raises UserError where the longest prompt leaves no room for a response."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits, self.capacity = folder, limits, limits.max_num_seqs
        self.name, self.fingerprint = folder.name, model_fingerprint(folder)
        self.length = _longest_sequence(folder, limits.max_prompt_tokens, limits.max_new_tokens)

    def new_tokens(self, request: Request) -> int:
        """Return the length of the longest possible response to this request, in tokens."""
        return min(request.max_new_tokens, self.length - len(request.prompt))


class EngineProvider(FolderProvider):
    """The CPU's vLLM engine, in this process."""

    def __init__(self, folder: Path, tokenizer: ModelTokenizer, limits: Limits) -> None:
        super().__init__(folder, limits)
        self.tokenizer = tokenizer
        self._engine: Engine | None = None

    def submit(self, number: int, request: Request) -> None:
        """Add the request to the engine's queue."""
        engine, sampling = self._started()
        options = replace(sampling, max_new_tokens=self.new_tokens(request), seed=request.seed)
        engine.add(number, request.prompt, options)

    def collect(self) -> list[tuple[int, MeasuredResponse]]:
        """Step the engine until a response has ended."""
        engine, _ = self._started()
        ended: list[tuple[int, MeasuredResponse]] = []
        while not ended and engine.in_flight:
            for done in engine.step():
                if done.payload is None:
                    raise InvariantError(f"the engine gave no response: {done.error}")
                ids = done.payload.token_ids.tolist()
                text = self.tokenizer.decode(ids[:-1] if done.payload.finished else ids)
                ended.append((cast(int, done.request_id), MeasuredResponse(text, len(ids), done.payload.finished)))
        return ended

    def close(self) -> None:
        """Release the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _started(self) -> tuple[Engine, Sampling]:
        limits = self.limits
        try:
            from nemo_ada.cpu.engine.vllm_engine import Engine, EngineConfig, Sampling

            if self._engine is None:
                config = EngineConfig(self.folder, max_model_len=self.length, max_num_seqs=limits.max_num_seqs)
                self._engine = Engine(config)
        except ImportError as problem:
            raise UserError(
                f"the CPU engine, vLLM, cannot be imported here ({problem}); start the model with `vllm serve "
                f"{self.folder}` and repeat the command with --server http://HOST:8000, or run make install"
            ) from None
        stops = self.tokenizer.stop_ids
        return self._engine, Sampling(limits.max_new_tokens, limits.temperature, limits.top_p, stop_tokens=stops)


class ServerProvider(FolderProvider):
    """A model on a server. UserError is raised where the server has another model, or too short a context.

    Args:
        url: The address of the server.
        folder: The same model, for its card and its number of positions.
        limits: The limits of all requests.
        access: Names the served model and the key.
        stop_ids: The ids that end a response, as for the engine of this process.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        limits: Limits,
        access: Access | None = None,
        stop_ids: Sequence[int] = (),
    ) -> None:
        super().__init__(folder, limits)
        self._url = url.rstrip("/").removesuffix("/v1")
        self._access = access or Access()
        self._key = self._access.key()
        # vLLM takes unset options from the model's generation_config.json, which often narrows the distribution.
        whole: dict[str, Any] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        self._options = {"temperature": limits.temperature, "top_p": limits.top_p, "n": 1} | whole
        if stop_ids:
            self._options["stop_token_ids"] = list(stop_ids)
        self._served: str | None = None
        self._waiting: SimpleQueue[tuple[int, Request] | None] = SimpleQueue()
        self._ended: SimpleQueue[tuple[int, MeasuredResponse | BaseException]] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, number: int, request: Request) -> None:
        """Give the request to a thread. There is one for each open request. The first request asks for the models."""
        if self._served is None:
            self._served = self._find_served()
        if len(self._threads) < self.capacity:
            # Daemons, because a command that fails must not wait for answers of half an hour.
            self._threads.append(threading.Thread(target=self._work, name="completions", daemon=True))
            self._threads[-1].start()
        self._waiting.put((number, request))

    def collect(self) -> list[tuple[int, MeasuredResponse]]:
        """Wait for a thread."""
        ended = [self._ended.get()]
        while not self._ended.empty():
            ended.append(self._ended.get())
        responses: list[tuple[int, MeasuredResponse]] = []
        for number, response in ended:
            if isinstance(response, BaseException):
                raise response
            responses.append((number, response))
        return responses

    def close(self) -> None:
        """End the threads that wait for a request."""
        for _ in self._threads:
            self._waiting.put(None)
        self._threads.clear()

    def _work(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            number, request = waiting
            try:
                self._ended.put((number, self._respond(request)))
            except BaseException as problem:  # noqa: BLE001 - `collect` raises it in the caller's thread
                self._ended.put((number, problem))

    def _find_served(self) -> str:
        """Return the id of the folder's model on the server."""
        answer = self._call("/v1/models", None, attempts=FIRST_ATTEMPTS)
        try:
            models = [dict(model) for model in answer["data"]]
            names = [str(model["id"]) for model in models]
        except (LookupError, TypeError, ValueError):
            raise self._odd("/v1/models", answer) from None
        wanted = self._access.served_model
        fits = [m for m, n in zip(models, names, strict=True) if (n == wanted if wanted else self._is_folder(m))]
        if not fits:
            served = "; ".join(f"{model['id']!r} (root {model.get('root')!r})" for model in models)
            raise UserError(
                f"--server={self._url} serves {served or 'no model'}, not {wanted or self.folder}; serve that folder, "
                "or name the model that holds the same weights with --served-model ID"
            )
        room = fits[0].get("max_model_len")
        if isinstance(room, int) and room < self.length:
            raise UserError(
                f"--server={self._url} has room for {room} tokens of prompt and response, but {self.length} may be "
                f"needed; start it with --max-model-len {self.length}, or lower --max-new-tokens"
            )
        return str(fits[0]["id"])

    def _is_folder(self, model: dict[str, Any]) -> bool:
        """Return whether a served model has the name of this folder. The server may have it at another place."""
        names = {str(self.folder), self.folder.name, self.folder.resolve().name}
        root = str(model.get("root") or model["id"]).rstrip("/")
        return model.get("parent") is None and bool(names & {root, root.rpartition("/")[2]})

    def _respond(self, request: Request) -> MeasuredResponse:
        content = {"model": self._served, "prompt": list(request.prompt), "seed": request.seed}
        content["max_tokens"] = self.new_tokens(request)
        path = "/v1/completions"
        for attempt in range(ATTEMPTS):
            answer = self._call(path, content | self._options)
            try:
                chosen = answer["choices"][0]
                text, reason, tokens = chosen["text"], chosen["finish_reason"], answer["usage"]["completion_tokens"]
            except (LookupError, TypeError):
                raise self._odd(path, answer) from None
            if reason in ("stop", "length"):
                if not isinstance(text, str) or isinstance(tokens, bool) or not isinstance(tokens, int):
                    raise self._odd(path, answer)
                return MeasuredResponse(text, tokens, reason == "stop")
            log.warning("%s ended a response with finish_reason %r; asking again", self._url, reason)
            if attempt + 1 < ATTEMPTS:
                _pause(attempt)
        raise UserError(
            f"--server={self._url} ended the same response {ATTEMPTS} times with finish_reason {reason!r}, which is no "
            "answer; see the server's log, then repeat the command, which continues its work"
        )

    def _odd(self, path: str, answer: Any) -> UserError:
        return UserError(
            f"--server={self._url}: the answer from {path} is not what a server of OpenAI's completions gives "
            f"({json.dumps(answer)[:200]}); use the address of `vllm serve`"
        )

    def _call(self, path: str, content: dict[str, Any] | None, attempts: int = ATTEMPTS) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        if self._key is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self._key}")
        why: object = None
        for attempt in range(attempts):
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as problem:
                with problem:
                    detail = problem.read(500).decode("utf-8", "replace")
                if problem.code in DENIED:
                    raise UserError(
                        f"--server={self._url} answered {problem.code} to {path}; put its API key into an environment "
                        "variable and name it with --api-key-env NAME"
                    ) from None
                if problem.code not in BUSY:
                    raise InvariantError(f"{self._url}{path} answered {problem.code}: {detail}") from None
                why = f"{problem.code} {detail}".strip()
            except (OSError, ValueError) as problem:
                why = problem
            if attempt + 1 < attempts:
                _pause(attempt)
        raise UserError(
            f"--server={self._url}: no answer from {path} in {attempts} attempts ({why}); start the "
            "server with vllm serve MODEL and repeat the command, which continues its work"
        )


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a model on a server.

    Attributes:
        served_model: The id of the model on the server, where it differs from the folder's name.
        key_variable: The environment variable that holds the API key. The key itself is not stored or written.
    """

    served_model: str | None = None
    key_variable: str | None = None

    def key(self) -> str | None:
        """Return the API key, or None where no variable is named. Raises UserError where the variable is not set."""
        if self.key_variable is None:
            return None
        key = os.environ.get(self.key_variable, "").strip()
        if not key or not key.isprintable():
            raise UserError(
                f"--api-key-env={self.key_variable}: this environment variable holds no key; set it to the API key"
            )
        return key


def _pause(attempt: int) -> None:
    """Wait before the next attempt, longer each time."""
    time.sleep(PAUSE_SECONDS * min(2.0**attempt, 16.0))


def open_provider(
    server: str | None, folder: Path, tokenizer: ModelTokenizer, limits: Limits, access: Access | None = None
) -> ResponseProvider:
    """Return the model on the server where one is named, else the engine of this process."""
    if server is not None:
        return ServerProvider(server, folder, limits, access, tokenizer.stop_ids)
    if access is not None and access != Access():
        raise UserError("--served-model and --api-key-env need --server URL")
    return EngineProvider(folder, tokenizer, limits)


def model_fingerprint(folder: Path) -> str:
    """Return 16 hex digits of a hash of the configuration, the tokenizer and samples of the weights.

    Samples are enough, and a checkpoint may have 100 GB.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        if path.name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            digest.update(path.name.encode() + read_bounded(path, MAX_TEXT))
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with opened_to_read(path) as file:
            for part in range(SAMPLES):
                file.seek(part * size // SAMPLES)
                digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()[:16]


def _longest_sequence(folder: Path, max_prompt_tokens: int, max_new_tokens: int) -> int:
    """Return the tokens of prompt and response, or the model's positions where these are fewer, with a warning.

    Qwen2.5-Math has 4096 positions, for example. Responses to long prompts then end early.
    """
    wanted = max_prompt_tokens + max_new_tokens
    limit = positions(folder)
    if limit is None or wanted <= limit:
        return wanted
    if limit <= max_prompt_tokens:
        raise UserError(
            f"max_prompt_tokens={max_prompt_tokens} leaves no room for a response: {folder} has {limit} positions; "
            f"lower it to {limit // 2} or less"
        )
    log.warning("%s has %d positions, so responses may end before %d tokens", folder, limit, max_new_tokens)
    return limit
