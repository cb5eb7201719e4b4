"""Generation behind NeMo-RL's ``GenerationInterface``: in process, on the CPU, and reproducible.

What makes its responses usable as evidence:

1. A response depends on the weights, the prompt and the *draw*: how often this prompt was drawn since the last refit.
   It depends neither on the batch it came in, nor on the order of the batches, nor on restarts of the process. So a
   resumed run repeats what an uninterrupted one would have drawn, and two ways to ask for sixteen responses of a prompt
   get the same sixteen.
2. Whether draw k of a prompt is right is chosen by the test (``labels``): the first character is forced to be RIGHT or
   WRONG, with the log-probability that the model gives it, and the environment looks at that character only.
3. Where training and generation share the device (``colocated``), generating outside ``prepare_for_generation`` ..
   ``finish_generation`` is an error, as on an engine that sleeps.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import ray
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation.interfaces import GenerationInterface
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from nemo_support.tiny_model import RIGHT, WRONG

Labels = Callable[[str, int], bool | str]
"""(prompt text, draw) -> whether that response is right, or the token that it starts with."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One response, as the engine saw it: ``draw`` counts the responses of this prompt since refit number ``refit``."""

    prompt: str
    draw: int
    refit: int
    response: str
    tokens: int


@dataclass(slots=True)
class WeightChannel:
    """What stands for the transfer of weights: the policy puts them in, the engine takes them out."""

    weights: dict[str, torch.Tensor] | None = None


@dataclass(slots=True)
class GenerationLog:
    """What the engine did."""

    draws: list[Draw] = field(default_factory=list)
    refits: int = 0


def _digest(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


def seeded_labels(rates: dict[str, float], seed: int = 0) -> Labels:
    """Labels from a table of pass rates per prompt; draw k of a prompt has the same label in every run."""

    def labels(prompt: str, draw: int) -> bool:
        return _digest(seed, prompt, draw) / 2**63 < rates[prompt]

    return labels


class TinyGeneration(GenerationInterface):
    """See the module. ``cfg`` is the section ``policy.generation``: the async rollout looks for it under that name.

    With ``seconds_per_token`` the responses of the async path finish in the order of their lengths. ``fails`` decides
    which draws raise an engine error.
    """

    def __init__(
        self,
        cfg: dict[str, Any],
        model: Qwen2ForCausalLM,
        tokenizer: PreTrainedTokenizerFast,
        channel: WeightChannel,
        *,
        max_length: int,
        labels: Labels | None,
        engines: int = 2,
        seconds_per_token: float = 0.0,
        fails: Callable[[str, int], bool] = lambda prompt, draw: False,
    ) -> None:
        self.cfg = cfg
        self.log = GenerationLog()
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._channel = channel
        self._max_length = max_length
        self._labels = labels
        self._engines = engines
        self._seconds_per_token = seconds_per_token
        self._fails = fails
        self._sleeps = bool(cfg["colocated"]["enabled"])
        self._awake = not self._sleeps
        self._weights_digest = 0
        self._drawn: Counter[str] = Counter()
        self._lock = threading.Lock()

    # -- the engine's life -------------------------------------------------------------------------------------------

    def init_collective(self, ip: str, port: int, world_size: int, **_: Any) -> list[ray.ObjectRef]:
        return []

    def prepare_refit_info(self, state_dict_info: dict[str, Any] | None) -> None:
        """The engine shares a process with the policy and needs no shapes in advance."""

    def prepare_for_generation(self, *args: Any, **kwargs: Any) -> bool:
        self._awake = True
        return True

    def finish_generation(self, *args: Any, **kwargs: Any) -> bool:
        self._awake = not self._sleeps
        return True

    def shutdown(self) -> bool:
        return True

    def update_weights_via_ipc_zmq(self) -> list[ray.ObjectRef]:
        return self._refit()

    update_weights_from_collective = update_weights_via_ipc_zmq

    def _refit(self) -> list[ray.ObjectRef]:
        weights = self._channel.weights
        if weights is None:
            raise RuntimeError("the engine was told to take new weights before the policy had sent any")
        self._channel.weights = None
        self._model.load_state_dict(weights)
        content = hashlib.blake2b(digest_size=8)
        for name in sorted(weights):
            content.update(weights[name].numpy().tobytes())
        with self._lock:
            self._weights_digest = int.from_bytes(content.digest(), "big")
            self._drawn.clear()
            self.log.refits += 1
        return [ray.put(True)]

    # -- generation --------------------------------------------------------------------------------------------------

    def generate(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        """All responses of a batch, spread over the engines as vLLM's are: uneven and empty shares are allowed."""
        shards = data.shard_by_batch_size(self._engines, batch_size=None, allow_uneven_shards=True)
        outputs = [
            self._complete(ids, length, text, self._take_draw(text), greedy)
            for shard in shards
            for ids, length in zip(shard["input_ids"], shard["input_lengths"], strict=True)
            for text in [self._text(ids, length)]
        ]
        return BatchedDataDict.from_batches(outputs, pad_value_dict={"output_ids": self._tokenizer.pad_token_id})

    async def generate_async(
        self, data: BatchedDataDict, greedy: bool = False
    ) -> AsyncIterator[tuple[int, BatchedDataDict]]:
        """One response; yields (0, output). The draw is taken before anything is awaited, hence in submission order."""
        if data.size != 1:
            raise ValueError(f"generate_async takes one sample per call, as vLLM's does; got {data.size}")
        text = self._text(data["input_ids"][0], data["input_lengths"][0])
        draw = self._take_draw(text)
        output = self._complete(data["input_ids"][0], data["input_lengths"][0], text, draw, greedy)
        output["gen_leader_worker_idx"] = [draw % self._engines]
        await asyncio.sleep(self._seconds_per_token * int(output["generation_lengths"][0]))
        yield 0, output

    def _text(self, tokens_T: torch.Tensor, length: torch.Tensor) -> str:
        return self._tokenizer.decode(tokens_T[: int(length)])

    def _take_draw(self, prompt: str) -> int:
        if not self._awake:
            raise RuntimeError("generation was asked for while the engine sleeps")
        with self._lock:
            draw = self._drawn[prompt]
            self._drawn[prompt] += 1
        if self._fails(prompt, draw):
            raise RuntimeError(f"the test made draw {draw} of prompt {prompt!r} fail")
        return draw

    @torch.no_grad()
    def _complete(
        self, padded_T: torch.Tensor, length: torch.Tensor, prompt: str, draw: int, greedy: bool
    ) -> BatchedDataDict:
        """Complete one row by itself: in a batch, the last bits of the logits would depend on the other rows."""
        tokens = padded_T[: int(length)].tolist()
        room = min(int(self.cfg["max_new_tokens"]), self._max_length - len(tokens))
        random = torch.Generator().manual_seed(_digest(self._weights_digest, prompt, draw))
        logprobs: list[float] = []
        end = self._tokenizer.eos_token_id
        for position in range(room):
            logits = self._model(torch.tensor([tokens]), use_cache=False).logits[0, -1].float()
            distribution = torch.log_softmax(logits, dim=-1)
            if position == 0 and self._labels is not None:
                label = self._labels(prompt, draw)
                first = label if isinstance(label, str) else RIGHT if label else WRONG
                token = self._tokenizer.convert_tokens_to_ids(first)
            elif greedy:
                token = int(distribution.argmax())
            else:
                token = int(torch.multinomial(distribution.exp(), 1, generator=random))
            tokens.append(token)
            logprobs.append(float(distribution[token]))
            if token == end:
                break
        response = self._tokenizer.decode(tokens[int(length) :], skip_special_tokens=True)
        with self._lock:
            self.log.draws.append(Draw(prompt, draw, self.log.refits, response, len(logprobs)))
        return BatchedDataDict(
            {
                "output_ids": torch.tensor([tokens]),
                "generation_lengths": torch.tensor([len(logprobs)]),
                "unpadded_sequence_lengths": torch.tensor([len(tokens)]),
                "logprobs": torch.tensor([[0.0] * int(length) + logprobs]),
                "truncated": torch.tensor([tokens[-1] != end]),
            }
        )
