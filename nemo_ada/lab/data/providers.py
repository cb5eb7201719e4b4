"""Models that answer requests: a Hugging Face folder behind the engine of this process or behind a server.

The server speaks OpenAI's completions interface (`vllm serve` on GPUs). Prompts are sent as token ids, so the chat
template is applied here and only once. A server that batches in half precision may round differently between runs:
then equal seeds can give different responses.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast

from nemo_ada.config.parsing import Size
from nemo_ada.core.schema import STRICT, Bounds
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.files import MAX_TEXT, open_to_read, read_bounded
from nemo_ada.tasks.prompting import ModelTokenizer, read_max_positions

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from nemo_ada.cpu.engine.vllm_engine import Engine, Sampling

log = logging.getLogger(__name__)

RETRIES, FIRST_RETRIES = 7, 3
"""How often a request is repeated. Seven pauses take half a minute. A wrong address is likely at the first request."""
ANSWER_SECONDS, CONNECT_SECONDS = 1800.0, 30.0
NO_KEY = "EMPTY"  # the library wants a key, and `vllm serve` without one ignores it
SAMPLED_BYTES, SAMPLES = 1 << 16, 16
Key = TypeVar("Key")
Answer = TypeVar("Answer")


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


class ResponseProvider(ABC):
    """A model that answers. It starts with the first request.

    Attributes:
        name: The name of the model in cards.
        fingerprint: A hash of the model for cards.
        limits: The limits of all requests.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        """Raises UserError where the longest prompt leaves no room for a response."""
        self.folder, self.limits = folder, limits
        self.name, self.fingerprint = folder.name, compute_fingerprint(folder)
        self.length = _choose_length(folder, limits.max_prompt_tokens, limits.max_new_tokens)

    def new_tokens(self, request: Request) -> int:
        """Return the length of the longest possible response to this request, in tokens."""
        return min(request.max_new_tokens, self.length - len(request.prompt))

    @abstractmethod
    def respond(self, requests: Iterable[tuple[Key, Request]]) -> Iterator[list[tuple[Key, MeasuredResponse]]]:
        """Answer requests, and keep the model busy. Yields what has ended, with the key of its request, in any order.

        The model is released at the end.
        """


class EngineProvider(ResponseProvider):
    """The CPU's vLLM engine, in this process."""

    def __init__(self, folder: Path, tokenizer: ModelTokenizer, limits: Limits) -> None:
        super().__init__(folder, limits)
        self.tokenizer = tokenizer

    def respond(self, requests: Iterable[tuple[Key, Request]]) -> Iterator[list[tuple[Key, MeasuredResponse]]]:
        """Step the engine until all requests have ended."""
        asked, number, keys = iter(requests), 0, dict[int, Key]()
        engine, sampling = self._start_engine()
        try:
            while True:
                for key, request in islice(asked, self.limits.max_num_seqs - len(keys)):
                    options = replace(sampling, max_new_tokens=self.new_tokens(request), seed=request.seed)
                    engine.add(number, request.prompt, options)
                    keys[number] = key
                    number += 1
                if not keys:
                    return
                ended = [(keys.pop(cast(int, done.request_id)), self._read_response(done)) for done in engine.step()]
                if ended:
                    yield ended
        finally:
            engine.close()

    def _read_response(self, done: Any) -> MeasuredResponse:
        if done.payload is None:
            raise InvariantError(f"the engine gave no response: {done.error}")
        ids = done.payload.token_ids.tolist()
        text = self.tokenizer.decode(ids[:-1] if done.payload.finished else ids)
        return MeasuredResponse(text, len(ids), done.payload.finished)

    def _start_engine(self) -> tuple[Engine, Sampling]:
        limits = self.limits
        try:
            from nemo_ada.cpu.engine.vllm_engine import Engine, EngineConfig, Sampling

            engine = Engine(EngineConfig(self.folder, max_model_len=self.length, max_num_seqs=limits.max_num_seqs))
        except ImportError as problem:
            raise UserError(
                f"the CPU engine, vLLM, cannot be imported here ({problem}); start the model with `vllm serve "
                f"{self.folder}` and repeat the command with --server http://HOST:8000, or run make install"
            ) from None
        stops = self.tokenizer.stop_ids
        return engine, Sampling(limits.max_new_tokens, limits.temperature, limits.top_p, stop_tokens=stops)


class ServerProvider(ResponseProvider):
    """A model on a server. UserError is raised where the server has another model, or does not answer.

    Args:
        access: The address of the server, the served model and the key.
        folder: The same model, for its card and its number of positions.
        limits: The limits of all requests.
        stop_ids: The ids that end a response, as for the engine of this process.
    """

    def __init__(self, access: Access, folder: Path, limits: Limits, stop_ids: Sequence[int] = ()) -> None:
        super().__init__(folder, limits)
        self._url = str(access.server).rstrip("/").removesuffix("/v1")
        self._access, self._key = access, access.read_key()
        # vLLM takes unset options from the model's generation_config.json, which often narrows the distribution.
        whole: dict[str, Any] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        if stop_ids:
            whole["stop_token_ids"] = list(stop_ids)
        self._options = {"temperature": limits.temperature, "top_p": limits.top_p, "n": 1, "extra_body": whole}

    def respond(self, requests: Iterable[tuple[Key, Request]]) -> Iterator[list[tuple[Key, MeasuredResponse]]]:
        """Send requests as long as there is room, and wait for answers. What ended comes before an error."""
        asked, keys = iter(requests), dict[asyncio.Task[MeasuredResponse], Key]()
        client = _make_client(f"{self._url}/v1", self._key)
        with asyncio.Runner() as runner:  # its end cancels what is not answered yet
            model = runner.run(self._await_answer(self._find_served(client)))
            while True:
                for key, request in islice(asked, self.limits.max_num_seqs - len(keys)):
                    response = self._await_answer(self._respond(client, model, request))
                    keys[runner.get_loop().create_task(response)] = key
                if not keys:
                    return
                done, _ = runner.run(asyncio.wait(keys, return_when=asyncio.FIRST_COMPLETED))
                failed = [task for task in done if task.exception() is not None]
                yield [(keys.pop(task), task.result()) for task in done if task not in failed]
                if failed:
                    failed[0].result()

    async def _find_served(self, client: AsyncOpenAI) -> str:
        """Return the id of the folder's model on the server."""
        listed = await client.with_options(max_retries=FIRST_RETRIES).models.list()
        models = [dict(model) for model in listed.data]
        wanted = self._access.served_model
        fits = [str(m["id"]) for m in models if (m["id"] == wanted if wanted else self._is_folder(m))]
        if not fits:
            served = "; ".join(f"{model['id']!r} (root {model.get('root')!r})" for model in models)
            raise UserError(
                f"--server={self._url} serves {served or 'no model'}, not {wanted or self.folder}; serve that folder, "
                "or name the model that holds the same weights with --served-model ID"
            )
        return fits[0]

    def _is_folder(self, model: dict[str, Any]) -> bool:
        """Return whether a served model has the name of this folder. The server may have it at another place."""
        names = {str(self.folder), self.folder.name, self.folder.resolve().name}
        root = str(model.get("root") or model["id"]).rstrip("/")
        return model.get("parent") is None and bool(names & {root, root.rpartition("/")[2]})

    async def _respond(self, client: AsyncOpenAI, model: str, request: Request) -> MeasuredResponse:
        content = {"model": model, "prompt": list(request.prompt), "seed": request.seed} | self._options
        answer: Any = await client.completions.create(**content, max_tokens=self.new_tokens(request))
        chosen, tokens = answer.choices[0], answer.usage.completion_tokens
        if chosen.finish_reason not in ("stop", "length") or not isinstance(chosen.text, str):
            raise ValueError(f"a response with finish_reason {chosen.finish_reason!r}")
        return MeasuredResponse(chosen.text, int(tokens), chosen.finish_reason == "stop")

    async def _await_answer(self, call: Awaitable[Answer]) -> Answer:
        """Return the answer to a call of the library, which has repeated it where that may help."""
        import openai

        again = f"start it with `vllm serve {self.folder}` and repeat the command, which continues its work"
        try:
            return await call
        except UserError:
            raise
        except (openai.AuthenticationError, openai.PermissionDeniedError) as problem:  # its text may hold the key
            raise UserError(
                f"--server={self._url} answered {problem.status_code}; put its API key into an environment variable "
                "and name it with --api-key-env NAME"
            ) from None
        except openai.OpenAIError as problem:
            text = problem.response.text[:500] if isinstance(problem, openai.APIStatusError) else ""
            raise UserError(f"--server={self._url} gave no answer ({problem} {text}); {again}") from None
        except (AttributeError, LookupError, TypeError, ValueError) as problem:
            raise UserError(
                f"--server={self._url} gave what is no answer of OpenAI's completions ({str(problem)[:200]}); {again}"
            ) from None


def _make_client(url: str, key: str | None) -> AsyncOpenAI:
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

    def read_key(self) -> str | None:
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


def compute_fingerprint(folder: Path) -> str:
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
        with open_to_read(path) as file:
            for part in range(SAMPLES):
                file.seek(part * size // SAMPLES)
                digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()[:16]


def _choose_length(folder: Path, max_prompt_tokens: int, max_new_tokens: int) -> int:
    """Return the tokens of prompt and response, or the model's positions where these are fewer, with a warning.

    Qwen2.5-Math has 4096 positions, for example. Responses to long prompts then end early.
    """
    wanted = max_prompt_tokens + max_new_tokens
    limit = read_max_positions(folder)
    if limit is None or wanted <= limit:
        return wanted
    if limit <= max_prompt_tokens:
        raise UserError(
            f"max_prompt_tokens={max_prompt_tokens} leaves no room for a response: {folder} has {limit} positions; "
            f"lower it to {limit // 2} or less"
        )
    log.warning("%s has %d positions, so responses may end before %d tokens", folder, limit, max_new_tokens)
    return limit
