"""Responses from the embedded vLLM engine, in this process."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_ada.data.measure import Request, Response, ResponseProvider
from nemo_ada.data.prompting import ModelTokenizer, positions
from nemo_ada.errors import InvariantError, UserError

if TYPE_CHECKING:
    from nemo_ada.embedded.engine import Engine, Sampling

log = logging.getLogger(__name__)

SAMPLED_BYTES, SAMPLES = 1 << 16, 16


def model_fingerprint(folder: Path) -> str:
    """16 hex digits: configuration and tokenizer as a whole, weights by size and samples all over them (a checkpoint
    of 100 GB is not read)."""
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


def room(folder: Path, max_prompt_tokens: int, max_new_tokens: int) -> int:
    """Longest sequence, tokens: prompt and response, or the model's positions where they are fewer.

    Then a long prompt's response ends before max_new_tokens (Qwen2.5-Math has 4096 positions in all), which is logged.
    Raises UserError where the longest prompt leaves no room for a response.
    """
    wanted = max_prompt_tokens + max_new_tokens
    limit = positions(folder)
    if limit is None or wanted <= limit:
        return wanted
    if limit <= max_prompt_tokens:
        raise UserError(
            f"max_prompt_tokens={max_prompt_tokens} leaves no room for a response in the {limit} positions of "
            f"{folder}; lower it"
        )
    log.warning("%s has %d positions: a response ends there, also before %d tokens", folder, limit, max_new_tokens)
    return limit


class EngineProvider:
    """A Hugging Face folder behind `nemo_ada.embedded.engine`, which starts with the first request.

    Raises UserError where the longest prompt leaves no room for a response (see `room`).
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: ModelTokenizer,
        *,
        max_prompt_tokens: int,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_num_seqs: int = 256,
    ) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.name, self.fingerprint = folder.name, model_fingerprint(folder)
        self._max_new_tokens, self._temperature, self._top_p = max_new_tokens, temperature, top_p
        self._max_num_seqs = max_num_seqs
        self._length = room(folder, max_prompt_tokens, max_new_tokens)
        self._engine: Engine | None = None

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """Draw all of them together."""
        engine, sampling = self._started()
        for number, request in enumerate(requests):
            limit = min(sampling.max_new_tokens, self._length - len(request.prompt))
            engine.add(number, request.prompt, replace(sampling, max_new_tokens=limit, seed=request.seed))
        found: dict[Hashable, Response] = {}
        while engine.in_flight:
            for done in engine.step():
                if done.payload is None:
                    raise InvariantError(f"the engine gave no response: {done.error}")
                ids = done.payload.token_ids.tolist()
                text = self.tokenizer.decode(ids[:-1] if done.payload.finished else ids)
                found[done.request_id] = Response(text, len(ids), done.payload.finished)
        return [found[number] for number in range(len(requests))]

    def close(self) -> None:
        """Release the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _started(self) -> tuple[Engine, Sampling]:
        from nemo_ada.embedded.engine import Engine, EngineConfig, Sampling

        if self._engine is None:
            config = EngineConfig(self.folder, max_model_len=self._length, max_num_seqs=self._max_num_seqs)
            self._engine = Engine(config)
        stop = self.tokenizer.stop_token
        return self._engine, Sampling(self._max_new_tokens, self._temperature, self._top_p, stop_token=stop)


def open_provider(server: str | None, folder: Path, tokenizer: ModelTokenizer, **options: Any) -> ResponseProvider:
    """The model behind a server where one is named, else the engine in this process. options: of both."""
    if server is None:
        return EngineProvider(folder, tokenizer, **options)
    from nemo_ada.data.server_provider import ServerProvider

    return ServerProvider(server, folder, **options)
