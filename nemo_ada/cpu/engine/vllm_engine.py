"""vLLM inside this process. The caller adds requests, steps the engine and collects what has finished.

The samplers decide after every finished response what to draw or abort next, and an engine step of a small model takes
milliseconds. A second process or an event loop would cost more than the work between two decisions. A process has one
engine at a time, because vLLM keeps its parallel state in globals. It may start another one after a close.

`add` starts a request. Some `step`s later it ends with one `Finished`. After `abort` nothing comes. vLLM may still emit
an output for an aborted request on a later step. So every request gets a new id inside vLLM, and outputs of ids that
are not alive are dropped. `Engine.refit` explains how new weights reach the engine.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from nemo_ada.cpu.model_folder import CONFIG, is_copy, list_tensor_files, read_tensor_shapes
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.files import read_json

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length"]

# vLLM and torch read these while they are imported. In-process vLLM is ready in 12 s, three processes take 25 s.
# Without dynamo the first call saves 2 to 15 s of C++ compilation. With one thread the learner gets the other core.
ENVIRONMENT: dict[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment variables of a process with an engine."""

MIN_CACHE_BYTES, MAX_CACHE_BYTES = 1 << 28, 1 << 31
FLOAT_BYTES = 4


def prepare_process() -> None:
    """Set `ENVIRONMENT` in this process. Call it before anything imports vLLM.

    torch reads the variables only when it is imported. If it was imported before, its settings are changed directly.

    Raises:
        InvariantError: vLLM was imported under other settings.
    """
    stale = sorted(name for name, value in ENVIRONMENT.items() if os.environ.get(name) != value)
    if "vllm" in sys.modules and "VLLM_ENABLE_V1_MULTIPROCESSING" in stale:
        raise InvariantError(f"vLLM was imported before the engine could set {', '.join(stale)} in this process")
    os.environ.update(ENVIRONMENT)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)
    if "torch._dynamo" in sys.modules:
        import torch._dynamo

        torch._dynamo.config.disable = True


class RequestRejected(Exception):
    """The engine refused or failed this one request. The others go on."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine's settings.

    Attributes:
        model_dir: HuggingFace folder with config.json and safetensors. It needs no tokenizer, because the engine reads
            ids only.
        max_model_len: largest length of prompt plus response, in tokens.
        max_num_seqs: requests that run at the same time. Further requests wait.
        block_size: tokens per KV block. With vLLM's default on a CPU (128) short prompts never share a prefix.
        kv_cache_memory_bytes: memory for keys and values. With None it fits max_num_seqs sequences, and it is between
            MIN_CACHE_BYTES and MAX_CACHE_BYTES. vLLM always gets a size. Without one it would take a share of the
            machine's memory and make a warm-up.
        dtype: float32 makes the engine's log-probabilities equal the learner's to 1e-6.
        seed: seed of requests that have no seed.
        threads: CPU threads of the computation. Two halve the time of a model of 100 M parameters. They do not help a
            tiny model.
    """

    model_dir: Path
    max_model_len: int
    max_num_seqs: int = 256
    block_size: int = 32
    kv_cache_memory_bytes: int | None = None
    dtype: str = "float32"
    seed: int = 0
    threads: int = 1

    @property
    def max_num_batched_tokens(self) -> int:
        """Most tokens per engine step. At least one whole prompt fits, because prompts are never split over steps."""
        return max(8192, self.max_model_len, self.max_num_seqs)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one response is drawn.

    Attributes:
        max_new_tokens: tokens of the longest response.
        temperature: sampling temperature. 0 is greedy, 2 is vLLM's largest.
        top_p: 1 leaves the distribution whole.
        stop_tokens: ids that end the response. They are part of it. Without ids exactly max_new_tokens are drawn.
        seed: seed of the response. None uses vLLM's shared generator, whose numbers depend on the rest of the batch.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_tokens: tuple[int, ...] = ()
    seed: int | None = None

    def forced(self, length: int) -> Sampling:
        """Return the same settings for exactly `length` tokens. Replays of measured lengths use it."""
        return replace(self, max_new_tokens=length, stop_tokens=())


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """A finished response of T tokens.

    Attributes:
        token_ids: ids of the generated tokens, stop token included, [T].
        logprobs: log-probabilities of these tokens under the policy that drew them, [T], with the temperature that they
            were drawn at.
        finish_reason: `stop` after a stop token, `length` at the token limit.
    """

    token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    finish_reason: FinishReason

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def finished(self) -> bool:
        """Whether the response ended with a stop token."""
        return self.finish_reason == "stop"


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that ended.

    Attributes:
        request_id: id of the request.
        tokens: generated tokens.
        payload: the response. None after an error.
        error: message of the error. None with a payload.
    """

    request_id: Hashable
    tokens: int
    payload: Payload | None
    error: str | None = None


class Engine:
    """An in-process `vllm.v1.engine.llm_engine.LLMEngine`.

    Attributes:
        config: the settings.
        steps: engine steps so far.
        decoded_tokens: tokens of all requests that have ended, aborted ones included.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        prepare_process()
        self._shapes = read_tensor_shapes(config.model_dir)
        self._architecture = read_json(config.model_dir / CONFIG)
        self._llm: Any = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch, about vLLM's own use of it
            self._start()
        self._dead = False
        self._issued = 0
        self._request_by_vllm_id: dict[str, Hashable] = {}
        self._vllm_id_by_request: dict[Hashable, str] = {}
        self.steps = 0
        self.decoded_tokens = 0

    def _start(self) -> None:
        import torch
        from vllm import SamplingParams
        from vllm.engine.arg_utils import EngineArgs
        from vllm.exceptions import VLLMError
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
        from vllm.v1.engine.llm_engine import LLMEngine

        config, heads = self.config, CPUAttentionBackend.get_supported_head_sizes()
        width = self._architecture.get("head_dim") or (
            self._architecture["hidden_size"] // self._architecture["num_attention_heads"]
        )
        if width not in heads:  # vLLM would fail later, in its first step
            raise UserError(
                f"{config.model_dir}: attention heads of {width} do not work with vLLM on a CPU; "
                f"choose hidden_size and num_attention_heads for heads of one of {heads}"
            )
        torch.set_num_threads(config.threads)
        self._request_errors = (VLLMError, ValueError, TypeError)
        self._params_type = SamplingParams
        self._final_only = RequestOutputKind.FINAL_ONLY
        arguments = EngineArgs(
            model=str(config.model_dir),
            skip_tokenizer_init=True,
            generation_config="vllm",  # no sampling defaults from the model folder
            logprobs_mode="processed_logprobs",  # of the distribution that was drawn from, temperature included
            dtype=config.dtype,
            seed=config.seed,
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            # With a prompt split over two steps vLLM would rewind the request's generator. A CPU generator cannot.
            enable_chunked_prefill=False,
            block_size=config.block_size,
            kv_cache_memory_bytes=self._cache_bytes(width),
            enable_prefix_caching=True,
            enforce_eager=True,
            use_tqdm_on_load=False,
            async_scheduling=False,
            disable_log_stats=True,
        )
        self._llm = LLMEngine.from_engine_args(arguments)
        self._vocabulary: int = self._llm.model_config.get_vocab_size()

    def _cache_bytes(self, head_dim: int) -> int:
        """Compute the bytes for keys and values. Without a configured size they fit max_num_seqs sequences."""
        config, model = self.config, self._architecture
        if config.kv_cache_memory_bytes is not None:
            return config.kv_cache_memory_bytes
        heads = model.get("num_key_value_heads") or model["num_attention_heads"]
        per_token = 2 * int(model["num_hidden_layers"]) * int(heads) * head_dim * FLOAT_BYTES
        tokens = config.max_num_seqs * (config.max_model_len + config.block_size)
        return max(MIN_CACHE_BYTES, min(tokens * per_token, MAX_CACHE_BYTES))

    def reopen(self, config: EngineConfig) -> bool:
        """Load another checkpoint of the same model into this engine. That is faster than a new engine.

        Returns:
            Whether the checkpoint was loaded. When only a new engine can serve `config`, nothing changes.
        """
        same = replace(config, model_dir=self.config.model_dir) == self.config
        if self._dead or not same or read_json(config.model_dir / CONFIG) != self._architecture:
            return False
        from safetensors.torch import load_file

        tensors: dict[str, torch.Tensor] = {}
        for file in list_tensor_files(config.model_dir):
            tensors |= load_file(file)
        tied = bool(self._architecture.get("tie_word_embeddings", False))
        self.refit({name: tensor for name, tensor in tensors.items() if not is_copy(name, tied)})
        self.config = config
        return True

    @property
    def in_flight(self) -> int:
        """Number of requests that were added and neither finished nor aborted."""
        return len(self._request_by_vllm_id)

    def add(self, request_id: Hashable, prompt_token_ids: Sequence[int], sampling: Sampling) -> None:
        """Queue one request.

        Args:
            request_id: id that no request in flight has.
            prompt_token_ids: tokens of the prompt.
            sampling: how the response is drawn.

        Raises:
            RequestRejected: vLLM cannot serve the request, for example because the prompt is too long.
            InvariantError: the id is already in flight, or the engine is closed.
        """
        self._require_alive()
        if request_id in self._vllm_id_by_request:
            raise InvariantError(f"request {request_id!r} is already in flight")
        vllm_id = str(self._issued)
        self._issued += 1
        if prompt_token_ids and not 0 <= min(prompt_token_ids) <= max(prompt_token_ids) < self._vocabulary:
            # Without a tokenizer vLLM does not check ids. The model would fail in a step and lose every request.
            raise RequestRejected(f"the prompt has token ids outside the vocabulary 0..{self._vocabulary - 1}")
        if len(prompt_token_ids) + sampling.max_new_tokens > self.config.max_model_len:
            raise RequestRejected(
                f"a prompt of {len(prompt_token_ids)} tokens and {sampling.max_new_tokens} new ones do not fit into "
                f"max_model_len={self.config.max_model_len}"
            )
        try:
            parameters = self._params_type(
                max_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=sampling.seed,
                stop_token_ids=list(sampling.stop_tokens) or None,
                ignore_eos=True,
                detokenize=False,
                logprobs=0,
                flat_logprobs=True,
                output_kind=self._final_only,
            )
            self._llm.add_request(vllm_id, {"prompt_token_ids": list(prompt_token_ids)}, parameters)
        except self._request_errors as error:
            raise RequestRejected(str(error)) from error
        self._request_by_vllm_id[vllm_id] = request_id
        self._vllm_id_by_request[request_id] = vllm_id

    def step(self) -> list[Finished]:
        """Run the model once over all running requests. Returns the requests that ended.

        An exception from vLLM means that the engine is lost. It is raised, and later calls raise InvariantError.
        """
        self._require_alive()
        if not self._request_by_vllm_id:
            return []
        try:
            outputs = self._llm.step()
        except BaseException:
            self._dead = True
            raise
        self.steps += 1
        finished = []
        for output in outputs:
            if not output.finished:
                continue
            request_id = self._request_by_vllm_id.pop(output.request_id, None)
            if request_id is None:
                continue
            del self._vllm_id_by_request[request_id]
            finished.append(self._finished(request_id, output.outputs[0]))
        return finished

    def _finished(self, request_id: Hashable, completion: Any) -> Finished:
        tokens = len(completion.token_ids)
        self.decoded_tokens += tokens
        if completion.finish_reason not in ("stop", "length"):
            return Finished(request_id, tokens, None, f"vLLM ended it with finish_reason {completion.finish_reason!r}")
        payload = Payload(
            token_ids=np.asarray(completion.token_ids, dtype=np.int64),
            logprobs=np.asarray(completion.logprobs.logprobs, dtype=np.float32),
            finish_reason=completion.finish_reason,
        )
        if payload.token_ids.shape != payload.logprobs.shape:
            raise InvariantError(f"{payload.token_ids.shape} tokens came with {payload.logprobs.shape} logprobs")
        return Finished(request_id, tokens, payload)

    def abort(self, request_ids: Iterable[Hashable]) -> dict[Hashable, int]:
        """Stop these requests. Returns the number of tokens that each had generated.

        Ids that are not in flight are ignored, because a response may end just before. A lost engine ignores all.
        """
        if self._dead:
            return {}
        stopped = {r: self._vllm_id_by_request.pop(r) for r in request_ids if r in self._vllm_id_by_request}
        tokens: dict[Hashable, int] = {}
        for request_id, vllm_id in stopped.items():
            del self._request_by_vllm_id[vllm_id]
            state = next(iter(self._llm.output_processor.external_req_ids.get(vllm_id, ())), None)
            states = self._llm.output_processor.request_states
            tokens[request_id] = 0 if state is None else states[state].detokenizer.num_output_tokens()
        if stopped:
            self._llm.abort_request(list(stopped.values()), internal=False)
        self.decoded_tokens += sum(tokens.values())
        return tokens

    def refit(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the policy. Later responses come from `weights`, which has every tensor under its HuggingFace name.

        How a refit works, once per training step:
        1. The learner's ranks send their shards to rank 0, which merges them into whole tensors (learner/convert.py).
        2. Ray's object store passes the tensors to this process. No file is written (`Trainer._train_step`).
        3. vLLM's own loader reads them as it reads a checkpoint. A write into the model's parameters would change
           nothing: on a CPU, vLLM packs each linear layer's weight after loading and computes with the packed copy.
        4. The prefix cache is dropped, because its keys and values belong to the old weights.

        Raises:
            InvariantError: a tensor is missing, unknown or has another shape. (vLLM would only warn.) Or requests are
                in flight, whose responses would come from two policies.
        """
        self._require_alive()
        if self._request_by_vllm_id:
            raise InvariantError(f"refit with {len(self._request_by_vllm_id)} requests in flight")
        given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        if given != self._shapes:
            wrong = sorted(
                name for name in self._shapes.keys() | given.keys() if self._shapes.get(name) != given.get(name)
            )
            detail = "; ".join(f"{name}: expected {self._shapes.get(name)}, got {given.get(name)}" for name in wrong)
            raise InvariantError(f"the refit does not match the checkpoint {self.config.model_dir}: {detail}")
        self._llm.collective_rpc(_reload_weights, args=(weights,))
        if not self._llm.reset_prefix_cache():
            raise InvariantError("vLLM did not drop its prefix cache after a refit")

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling, seed: int = 0
    ) -> list[list[Payload]]:
        """Draw n responses for each prompt and wait for all of them. Evaluations use it.

        Args:
            prompts: token ids of each prompt.
            n: responses per prompt.
            sampling: how responses are drawn. Its seed is not used.
            seed: response i of prompt p has a seed derived from (seed, p, i).

        Returns:
            The n responses of each prompt.

        Raises:
            RequestRejected: a prompt cannot be served.
            InvariantError: other requests are in flight.
        """
        if self._request_by_vllm_id:
            raise InvariantError(f"generate with {len(self._request_by_vllm_id)} other requests in flight")
        seed_PN = np.random.default_rng(seed).integers(0, 2**62, size=(len(prompts), n))
        payloads: dict[Hashable, Payload] = {}
        try:
            for p, prompt in enumerate(prompts):
                for i in range(n):
                    self.add((p, i), prompt, replace(sampling, seed=int(seed_PN[p, i])))
            while self._request_by_vllm_id:
                for done in self.step():
                    if done.payload is None:
                        raise RequestRejected(f"response {done.request_id}: {done.error}")
                    payloads[done.request_id] = done.payload
        except RequestRejected:
            self.abort(list(self._vllm_id_by_request))
            raise
        return [[payloads[p, i] for i in range(n)] for p in range(len(prompts))]

    def close(self) -> None:
        """Release the engine. A second call does nothing."""
        if self._llm is not None:
            self._llm.engine_core.shutdown()
            self._llm = None
            self._dead = True
            gc.collect()

    def _require_alive(self) -> None:
        if self._dead:
            raise InvariantError("the engine is closed or has failed before")


def _reload_weights(worker: Any, weights: Mapping[str, torch.Tensor]) -> None:
    runner = worker.model_runner
    runner.reload_weights(weights_iterator=iter(weights.items()))
    model = runner.get_model()
    if model.config.tie_word_embeddings:  # The head has no tensor in `weights`, so vLLM would keep the old packed copy.
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
