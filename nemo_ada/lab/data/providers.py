"""Models that answer requests: a Hugging Face folder behind the engine of this process or behind a server.

The server speaks OpenAI's completions interface (`vllm serve` on GPUs). Prompts are sent as token ids, so the chat
template is applied here and only once. A server that batches in half precision may round differently between runs:
then equal seeds can give different responses.

A provider is asked in two steps, so that it stays full: `submit` requests as long as there is room, then `collect` what
has ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, cast

from nemo_ada.config.parsing import Size
from nemo_ada.core.schema import STRICT, Bounds
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.files import MAX_TEXT, opened_to_read, read_bounded
from nemo_ada.tasks.prompting import ModelTokenizer, positions

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from nemo_ada.cpu.engine.vllm_engine import Engine, Sampling

log = logging.getLogger(__name__)

RETRIES, FIRST_RETRIES = 7, 3
"""How often a request is repeated. Seven pauses take half a minute. A wrong address is likely at the first request."""
SAME_RESPONSE, PAUSE_SECONDS = 6, 1.0
"""How often a response is asked for that the server gave up, and the pause before it is asked for again."""
BUSY = (408, 409, 429)  # statuses below 500 that the library takes for passing
ANSWER_SECONDS, CONNECT_SECONDS = 1800.0, 30.0
NO_KEY = "EMPTY"  # the library wants a key, and `vllm serve` without one ignores it
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


@dataclass(frozen=True)
class Limits:
    """Limits of all requests."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    max_prompt_tokens: int
    """Longest prompt, tokens."""
    max_new_tokens: Size
    """Longest response, tokens."""
    temperature: Annotated[float, Bounds(ge=0)] = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Bounds(gt=0, le=1)] = 1.0
    """Share of the probability that responses are sampled from."""
    max_num_seqs: Size = 256
    """Responses that decode at once."""


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

    All requests wait in the event loop of one thread.

    Args:
        access: The address of the server, the served model and the key.
        folder: The same model, for its card and its number of positions.
        limits: The limits of all requests.
        stop_ids: The ids that end a response, as for the engine of this process.
    """

    def __init__(
        self,
        access: Access,
        folder: Path,
        limits: Limits,
        stop_ids: Sequence[int] = (),
    ) -> None:
        super().__init__(folder, limits)
        self._url = str(access.server).rstrip("/").removesuffix("/v1")
        self._access, self._key = access, access.key()
        # vLLM takes unset options from the model's generation_config.json, which often narrows the distribution.
        whole: dict[str, Any] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        if stop_ids:
            whole["stop_token_ids"] = list(stop_ids)
        self._options = {"temperature": limits.temperature, "top_p": limits.top_p, "n": 1, "extra_body": whole}
        self._served: str | None = None
        self._ended: SimpleQueue[tuple[int, Future[MeasuredResponse]]] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, number: int, request: Request) -> None:
        """Send the request. The first request asks for the models before."""
        if self._loop is None:
            self._client, self._loop = _client(f"{self._url}/v1", self._key), asyncio.new_event_loop()
            # A daemon, because a command that fails must not wait for answers of half an hour.
            self._thread = threading.Thread(target=_run_until_stopped, args=(self._loop,), daemon=True)
            self._thread.start()
        if self._served is None:
            self._served = asyncio.run_coroutine_threadsafe(self._find_served(), self._loop).result()
        response = asyncio.run_coroutine_threadsafe(self._respond(request), self._loop)
        response.add_done_callback(lambda ended: self._ended.put((number, ended)))

    def collect(self) -> list[tuple[int, MeasuredResponse]]:
        """Wait for an answer."""
        ended = [self._ended.get()]
        while not self._ended.empty():
            ended.append(self._ended.get())
        return [(number, response.result()) for number, response in ended]

    def close(self) -> None:
        """Give up what is not answered yet."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop, self._ended = None, SimpleQueue()

    async def _find_served(self) -> str:
        """Return the id of the folder's model on the server."""
        answer = await self._answer("/v1/models", self._client.with_options(max_retries=FIRST_RETRIES).models.list())
        try:
            models = [dict(model) for model in answer.data]
            names = [str(model["id"]) for model in models]
        except (AttributeError, LookupError, TypeError, ValueError):
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

    async def _respond(self, request: Request) -> MeasuredResponse:
        content = {"model": self._served, "prompt": list(request.prompt), "seed": request.seed} | self._options
        content["max_tokens"] = self.new_tokens(request)
        for _ in range(SAME_RESPONSE):
            answer = await self._answer("/v1/completions", self._client.completions.create(**content))
            try:
                chosen = answer.choices[0]
                text, reason, tokens = chosen.text, chosen.finish_reason, answer.usage.completion_tokens
            except (AttributeError, LookupError, TypeError):
                raise self._odd("/v1/completions", answer) from None
            if reason in ("stop", "length"):
                if not isinstance(text, str) or isinstance(tokens, bool) or not isinstance(tokens, int):
                    raise self._odd("/v1/completions", answer)
                return MeasuredResponse(text, tokens, reason == "stop")
            log.warning("%s ended a response with finish_reason %r; asking again", self._url, reason)
            await asyncio.sleep(PAUSE_SECONDS)
        raise UserError(
            f"--server={self._url} ended the same response {SAME_RESPONSE} times with finish_reason {reason!r}, which "
            "is no answer; see the server's log, then repeat the command, which continues its work"
        )

    def _odd(self, path: str, answer: Any) -> UserError:
        return UserError(
            f"--server={self._url}: the answer from {path} is not what a server of OpenAI's completions gives "
            f"({str(answer)[:200]}); use the address of `vllm serve`"
        )

    async def _answer(self, path: str, call: Awaitable[Any]) -> Any:
        """Return the answer to a call of the library, which has repeated it where that may help."""
        import openai

        try:
            return await call
        except (openai.AuthenticationError, openai.PermissionDeniedError) as problem:
            raise UserError(
                f"--server={self._url} answered {problem.status_code} to {path}; put its API key into an environment "
                "variable and name it with --api-key-env NAME"
            ) from None
        except openai.APIStatusError as problem:
            why = f"{problem.status_code} {problem.response.text[:500]}".strip()
            if problem.status_code < 500 and problem.status_code not in BUSY:
                raise InvariantError(f"{self._url}{path} answered {why}") from None
        except openai.APIConnectionError as problem:
            why = repr(problem.__cause__ or problem)
        except (AttributeError, ValueError) as problem:  # what is no JSON, or JSON of another form
            raise self._odd(path, problem) from None
        raise UserError(
            f"--server={self._url}: no answer from {path} ({why}); start the server with "
            "vllm serve MODEL and repeat the command, which continues its work"
        )


def _client(url: str, key: str | None) -> AsyncOpenAI:
    """Return the client of a server. What the environment says about an account at OpenAI does not go there."""
    try:
        from openai import AsyncOpenAI, Omit, Timeout  # takes seconds
    except ImportError as problem:
        raise UserError(f"--server needs the package openai ({problem}); `pip install openai`") from None
    for name in ("httpx", "httpx2"):  # a line for each request would hide all others
        logging.getLogger(name).setLevel(logging.WARNING)
    account: dict[str, Any] = {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}
    wait = Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    return AsyncOpenAI(base_url=url, api_key=key or NO_KEY, default_headers=account, timeout=wait, max_retries=RETRIES)


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop. When it is stopped, its tasks are cancelled."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


@dataclass(frozen=True)
class Access:
    """How to reach a model on a server."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    server: str | None = None
    """URL of `vllm serve` with that model (default: own engine, vLLM on the CPU)."""
    served_model: str | None = None
    """Id of the model on the server, if not its folder."""
    api_key_env: str | None = None
    """Environment variable with the server's API key. The key itself is not stored or written."""

    def key(self) -> str | None:
        """Return the API key, or None where no variable is named. Raises UserError where the variable is not set."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key or not key.isprintable():
            raise UserError(
                f"--api-key-env={self.api_key_env}: this environment variable holds no key; set it to the API key"
            )
        return key


def open_provider(access: Access, folder: Path, tokenizer: ModelTokenizer, limits: Limits) -> ResponseProvider:
    """Return the model on the server where one is named, else the engine of this process."""
    if access.server is not None:
        return ServerProvider(access, folder, limits, tokenizer.stop_ids)
    if access != Access():
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
