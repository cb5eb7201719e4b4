"""Responses from the embedded vLLM engine, in this process."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_ada.data.measure import MeasuredResponse, Request, ResponseProvider
from nemo_ada.data.model_folder import FolderProvider, Limits
from nemo_ada.data.prompting import ModelTokenizer
from nemo_ada.data.server_provider import ServerProvider
from nemo_ada.errors import InvariantError, UserError

if TYPE_CHECKING:
    from nemo_ada.embedded.engine.vllm_engine import Engine, Sampling


class EngineProvider(FolderProvider):
    """A Hugging Face folder behind `nemo_ada.embedded.engine.vllm_engine`, which starts with the first request."""

    def __init__(self, folder: Path, tokenizer: ModelTokenizer, limits: Limits) -> None:
        super().__init__(folder, limits)
        self.tokenizer = tokenizer
        self._engine: Engine | None = None

    def respond(self, requests: Sequence[Request]) -> list[MeasuredResponse]:
        """Draw all of them together."""
        engine, sampling = self._started()
        for number, request in enumerate(requests):
            own = replace(sampling, max_new_tokens=self.new_tokens(request.prompt), seed=request.seed)
            engine.add(number, request.prompt, own)
        found: dict[Hashable, MeasuredResponse] = {}
        while engine.in_flight:
            for done in engine.step():
                if done.payload is None:
                    raise InvariantError(f"the engine gave no response: {done.error}")
                ids = done.payload.token_ids.tolist()
                text = self.tokenizer.decode(ids[:-1] if done.payload.finished else ids)
                found[done.request_id] = MeasuredResponse(text, len(ids), done.payload.finished)
        return [found[number] for number in range(len(requests))]

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
                f"the engine of this process, vLLM on a CPU, cannot be imported here ({problem}); start the model with "
                f"`vllm serve {self.folder}` and repeat the command with --server http://HOST:8000, or install the CPU "
                "stack (make install)"
            ) from None
        stop = self.tokenizer.stop_token
        return self._engine, Sampling(limits.max_new_tokens, limits.temperature, limits.top_p, stop_token=stop)


def open_provider(server: str | None, folder: Path, tokenizer: ModelTokenizer, limits: Limits) -> ResponseProvider:
    """The model behind a server where one is named, else the engine in this process."""
    if server is None:
        return EngineProvider(folder, tokenizer, limits)
    return ServerProvider(server, folder, limits)
