"""Responses that can be compared: a seed for each on a CPU, and on a GPU a drawn length and a drawn verdict.

A model with random weights neither stops nor answers. So a rehearsal on a GPU draws the length and the verdict of each
response as `nemo-ada plan` assumes them. They depend on the prompt and on the number of the response in the step, and
not on time or method: every method sees the same responses to a prompt. NeMo-RL's environment still judges each
response. Its reward is replaced afterwards.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.rehearsal.standins.replacing import Names, Replacements

REPLACEMENTS = Replacements(
    "vLLM's random state", "a seed per response; for random weights on a GPU a length and a verdict as `plan` assumes"
)

DRAWS = "NEMO_ADA_REHEARSAL_DRAWS"
"""A `Draws` as JSON. Without it nothing is drawn, and responses get seeds."""
ON_GPU = "NEMO_ADA_REHEARSAL_ON_GPU"
"""Set in the processes of a rehearsal on a GPU."""
SEEDS, TOKENS = "rehearsal_seed", "rehearsal_tokens"
REQUESTS: Counter[bytes] = Counter()
"""Requests per prompt so far in this generation phase, on the driver."""
VERDICTS: dict[bytes, float] = {}
"""Tokens of a prompt and its response -> the drawn verdict, on the driver, until it is asked for."""
Change = Callable[[Any], None]
_CHANGES: contextvars.ContextVar[tuple[list[tuple[Change, ...]], bool] | None] = contextvars.ContextVar(
    "changes", default=None
)


def take_seed(requests: Counter[bytes], prompt: bytes) -> int:
    """Count a request for a prompt and return its seed in [0, 2**31).

    Args:
        requests: Requests per prompt so far in this generation phase.
        prompt: The prompt's tokens as bytes.
    """
    digest = hashlib.blake2b(prompt + b"/%d" % requests[prompt], digest_size=4).digest()
    requests[prompt] += 1
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True, slots=True)
class Draws:
    """What the responses of trained weights would be like.

    Attributes:
        rates: Pass rates. Each prompt has one of them.
        lengths: Lengths of responses.
    """

    rates: tuple[float, ...]
    lengths: LengthModel

    def as_json(self) -> str:
        """Return the content of the environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def read_environment(cls) -> Draws | None:
        """The draws of this process's environment, or None."""
        from pydantic import TypeAdapter

        text = os.environ.get(DRAWS)
        return TypeAdapter(cls).validate_json(text) if text else None

    def draw(self, prompt: bytes, seed: int) -> tuple[float, int]:
        """Return the verdict (0 or 1) and the length, in tokens, of a response.

        Args:
            prompt: The prompt's tokens as bytes.
            seed: The response's seed.
        """
        number = int.from_bytes(hashlib.blake2b(prompt, digest_size=8).digest(), "big")
        rng = np.random.default_rng(seed)
        positive = rng.random() < self.rates[number % len(self.rates)]
        tokens = self.lengths.tokens(np.array([positive]), rng.standard_normal(1))
        return float(positive), int(tokens[0])


def _prompt_bytes(data: Any) -> list[bytes]:
    """Return the tokens of each prompt of a request, as bytes."""
    rows = zip(data["input_ids"], data["input_lengths"], strict=True)
    return [row[:length].cpu().numpy().tobytes() for row, length in rows]


def _add_column(data: Any, name: str, values: Sequence[int]) -> Any:
    import torch

    return type(data)({**data, name: torch.tensor(values, dtype=torch.long)})


_GENERATION = (
    "nemo_rl.models.generation.vllm.vllm_generation",
    *(f"VllmGeneration.{name}" for name in ("generate", "generate_async", "prepare_for_generation")),
)


@REPLACEMENTS.after(
    *_GENERATION,
    why="An engine gets one seed at its start, so a resumed one draws other responses; random weights never stop.",
)
def _draw_on_driver(names: Names) -> None:
    generate, generate_async = names.get("VllmGeneration.generate"), names.get("VllmGeneration.generate_async")
    prepare, draws = names.get("VllmGeneration.prepare_for_generation"), Draws.read_environment()

    def prepare_request(data: Any) -> tuple[Any, Callable[[int, Any], None]]:
        """Return the request with a column of ours, and what to do with the output of each of its rows."""
        seeds = [take_seed(REQUESTS, prompt) for prompt in _prompt_bytes(data)]
        if draws is None:
            return _add_column(data, SEEDS, seeds), lambda row, output: None
        drawn = [draws.draw(prompt, seed) for prompt, seed in zip(_prompt_bytes(data), seeds, strict=True)]

        def keep_verdict(row: int, output: Any) -> None:
            verdict, tokens = drawn[row]
            VERDICTS[_hash_tokens(output["output_ids"][0][: int(output["unpadded_sequence_lengths"][0])])] = verdict
            if tokens < draws.lengths.max_new_tokens:  # it has ended by itself
                output["truncated"][:] = False

        data = _add_column(data, TOKENS, [tokens for _, tokens in drawn])
        # Seeds take a GPU's time. On a CPU responses are so short that some are equal, and a verdict is found by text.
        return (data if os.environ.get(ON_GPU) else _add_column(data, SEEDS, seeds)), keep_verdict

    @functools.wraps(generate)
    def generate_rows(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        data, keep = prepare_request(data)
        output = generate(self, data, *args, **kwargs)
        for row in range(len(data["input_ids"])):
            keep(row, output.slice(row, row + 1))
        return output

    @functools.wraps(generate_async)
    async def generate_row(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        data, keep = prepare_request(data)
        async for row, output in generate_async(self, data, *args, **kwargs):
            keep(row, output)
            yield row, output

    @functools.wraps(prepare)
    def prepare_for_generation(self: Any, *args: Any, **kwargs: Any) -> Any:
        REQUESTS.clear()
        return prepare(self, *args, **kwargs)

    names.put("VllmGeneration.generate", generate_rows)
    names.put("VllmGeneration.generate_async", generate_row)
    names.put("VllmGeneration.prepare_for_generation", prepare_for_generation)


def _hash_tokens(tokens: Any) -> bytes:
    return hashlib.blake2b(tokens.cpu().numpy().astype(np.int64).tobytes(), digest_size=16).digest()


@REPLACEMENTS.after(
    "nemo_rl.experience.rollouts",
    "calculate_rewards",
    why="Random weights never answer: each response has a drawn verdict, after the environment has judged it.",
)
def _give_drawn_verdicts(names: Names) -> None:
    calculate = names.get("calculate_rewards")

    @functools.wraps(calculate)
    def calculate_rewards(batch: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        judged = calculate(batch, *args, **kwargs)
        rewards = judged.rewards.clone()
        for row, log in enumerate(batch["message_log"]):
            key = _hash_tokens(torch.cat([message["token_ids"] for message in log]))
            if key in VERDICTS:
                rewards[row] = VERDICTS.pop(key)
        return judged._replace(rewards=rewards)

    names.put("calculate_rewards", calculate_rewards)


def _set_seed(seed: int) -> Change:
    def change(parameters: Any) -> None:
        parameters.seed = seed

    return change


def _set_length(tokens: int) -> Change:
    def change(parameters: Any) -> None:
        parameters.max_tokens = min(tokens, parameters.max_tokens)
        parameters.ignore_eos = True
        parameters.stop_token_ids = []

    return change


_KINDS: tuple[tuple[str, Callable[[int], Change]], ...] = ((SEEDS, _set_seed), (TOKENS, _set_length))


def _remember_changes(data: Any, *, many: bool) -> None:
    """Remember the changes of these rows for `_build_sampling_params`, which gives a list of parameters with `many`."""
    kinds = [[make(value) for value in data[name].tolist()] for name, make in _KINDS if name in data]
    _CHANGES.set((list(zip(*kinds, strict=True)), many) if kinds else None)


@REPLACEMENTS.after(
    "nemo_rl.models.generation.vllm.vllm_worker",
    "BaseVllmGenerationWorker._build_sampling_params",
    "VllmGenerationWorkerImpl.generate",
    why="The worker gives each request the seed or the length that came with its row.",
)
def _change_parameters_in_worker(names: Names) -> None:
    build, generate = (
        names.get("BaseVllmGenerationWorker._build_sampling_params"),
        names.get("VllmGenerationWorkerImpl.generate"),
    )

    @functools.wraps(build)
    def _build_sampling_params(self: Any, **kwargs: Any) -> Any:
        parameters, of_rows = build(self, **kwargs), _CHANGES.get()
        if of_rows is None:
            return parameters
        changes, many = of_rows
        each = []
        for of_row in changes:
            changed = parameters.clone()
            for change in of_row:
                change(changed)
            each.append(changed)
        return each if many else each[0]

    @functools.wraps(generate)
    def generate_rows(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        _remember_changes(data, many=True)
        return generate(self, data, *args, **kwargs)

    names.put("BaseVllmGenerationWorker._build_sampling_params", _build_sampling_params)
    names.put("VllmGenerationWorkerImpl.generate", generate_rows)


@REPLACEMENTS.after(
    "nemo_rl.models.generation.vllm.vllm_worker_async",
    "VllmAsyncGenerationWorkerImpl.generate_async",
    why="The asynchronous worker does the same for its single rows.",
)
def _change_parameters_in_async_worker(names: Names) -> None:
    generate = names.get("VllmAsyncGenerationWorkerImpl.generate_async")

    @functools.wraps(generate)
    async def generate_row(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        _remember_changes(data, many=False)
        async for result in generate(self, data, *args, **kwargs):
            yield result

    names.put("VllmAsyncGenerationWorkerImpl.generate_async", generate_row)
