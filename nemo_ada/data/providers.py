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
from nemo_ada.tasks.prompting import ModelTokenizer, positions

if TYPE_CHECKING:
    from nemo_ada.embedded.engine.vllm_engine import Engine, Sampling

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
    """text without its stop token. tokens: generated ones, stop token included. finished: ended by itself."""

    text: str
    tokens: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Request:
    """One response to sample: token ids of the whole prompt, the seed, and the longest response in tokens."""

    prompt: Sequence[int]
    seed: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Longest prompt and response of all requests in tokens, how to sample, and how many responses decode at once."""

    max_prompt_tokens: int
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    max_num_seqs: int = 256


class ResponseProvider(Protocol):
    """A model that answers. `name` and `fingerprint` go into cards. It starts with the first request.

    capacity: open requests that keep it full.
    """

    name: str
    fingerprint: str
    capacity: int

    def submit(self, number: int, request: Request) -> None:
        """Ask for a response. number: its name among the open ones."""
        ...

    def collect(self) -> list[tuple[int, MeasuredResponse]]:
        """Wait until at least one open request has its response; all that have, in the order in which they ended."""
        ...

    def close(self) -> None: ...


class FolderProvider:
    """The base of both providers. Raises UserError where the longest prompt leaves no room for a response."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits, self.capacity = folder, limits, limits.max_num_seqs
        self.name, self.fingerprint = folder.name, model_fingerprint(folder)
        self.length = _longest_sequence(folder, limits.max_prompt_tokens, limits.max_new_tokens)

    def new_tokens(self, request: Request) -> int:
        """Longest response to this request."""
        return min(request.max_new_tokens, self.length - len(request.prompt))


class EngineProvider(FolderProvider):
    """The embedded vLLM engine, in this process."""

    def __init__(self, folder: Path, tokenizer: ModelTokenizer, limits: Limits) -> None:
        super().__init__(folder, limits)
        self.tokenizer = tokenizer
        self._engine: Engine | None = None

    def submit(self, number: int, request: Request) -> None:
        """Add it to the engine's queue."""
        engine, sampling = self._started()
        own = replace(sampling, max_new_tokens=self.new_tokens(request), seed=request.seed)
        engine.add(number, request.prompt, own)

    def collect(self) -> list[tuple[int, MeasuredResponse]]:
        """Step the engine until a response has ended."""
        engine, _ = self._started()
        found: list[tuple[int, MeasuredResponse]] = []
        while not found and engine.in_flight:
            for done in engine.step():
                if done.payload is None:
                    raise InvariantError(f"the engine gave no response: {done.error}")
                ids = done.payload.token_ids.tolist()
                text = self.tokenizer.decode(ids[:-1] if done.payload.finished else ids)
                found.append((cast(int, done.request_id), MeasuredResponse(text, len(ids), done.payload.finished)))
        return found

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
    """A model behind `url`. `folder` holds the same model, for its card and its positions.

    access: which of the served models, and the key. Raises UserError where the server has another model, or less room.
    """

    def __init__(self, url: str, folder: Path, limits: Limits, access: Access | None = None) -> None:
        super().__init__(folder, limits)
        self._url = url.rstrip("/").removesuffix("/v1")
        self._access = access or Access()
        self._key = self._access.key()
        # vLLM takes unset options from the model's generation_config.json, which often narrows the distribution.
        whole = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        self._options = {"temperature": limits.temperature, "top_p": limits.top_p, "n": 1} | whole
        self._served: str | None = None
        self._waiting: SimpleQueue[tuple[int, Request] | None] = SimpleQueue()
        self._ended: SimpleQueue[tuple[int, MeasuredResponse | BaseException]] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, number: int, request: Request) -> None:
        """Hand it to a thread, one for each open request. The first one asks the server for its models before."""
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
        found: list[tuple[int, MeasuredResponse]] = []
        for number, response in ended:
            if isinstance(response, BaseException):
                raise response
            found.append((number, response))
        return found

    def close(self) -> None:
        """End the threads that wait for a request."""
        for _ in self._threads:
            self._waiting.put(None)
        self._threads.clear()

    def _work(self) -> None:
        while (asked := self._waiting.get()) is not None:
            number, request = asked
            try:
                self._ended.put((number, self._respond(request)))
            except BaseException as problem:  # noqa: BLE001 - `collect` raises it in the caller's thread
                self._ended.put((number, problem))

    def _find_served(self) -> str:
        """The id of the folder's model on the server."""
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
        """Whether a served model comes from a folder of this name. The server may have it at another place."""
        own = {str(self.folder), self.folder.name, self.folder.resolve().name}
        root = str(model.get("root") or model["id"]).rstrip("/")
        return model.get("parent") is None and bool(own & {root, root.rpartition("/")[2]})

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
    """served_model: id of the model on the server, where the folder's name does not say it.

    key_variable: the environment variable that holds the API key. The key itself is not stored, shown or written.
    """

    served_model: str | None = None
    key_variable: str | None = None

    def key(self) -> str | None:
        """The API key, if one is named. Raises UserError where its variable is not set."""
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
    """The model behind a server where one is named, else the engine of this process."""
    if server is not None:
        return ServerProvider(server, folder, limits, access)
    if access is not None and access != Access():
        raise UserError("--served-model and --api-key-env need --server URL")
    return EngineProvider(folder, tokenizer, limits)


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
