"""What an asynchronous vLLM engine on a CPU answers, with a scheduler or with its own: `test_vllm.py` compares the two.

    python -m tests.vllm_scenarios MODEL OUT.json [SCHEDULER]

The file that it writes has an entry per scenario. Everything is seeded, and the cache is so small that requests are
preempted.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

BLOCKS, BLOCK = 40, 32
RESPONSES, DROPPED = 90, 12
LONG = 100


def prompt_of(number: int) -> list[int]:
    """A prompt that shares its first tokens with others, so that the prefix cache has work."""
    return [5 + number % 7] * (8 + number % 40)


class Scenarios:
    """An engine and what is asked of it."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.names = 0

    async def outputs(self, number: int, *, prompt: list[int] | None = None, **wanted: Any) -> list[Any]:
        """All outputs of one request, in order."""
        from vllm import SamplingParams

        self.names += 1
        options = {"temperature": 1.0, "seed": number, "logprobs": 0, "detokenize": False, **wanted}
        given = {"prompt_token_ids": prompt or prompt_of(number)}
        stream = self.engine.generate(given, SamplingParams(**options), request_id=f"{number}-{self.names}")
        return [described(output) async for output in stream]

    async def last(self, number: int, **wanted: Any) -> Any:
        """The last output of one request."""
        return (await self.outputs(number, **wanted))[-1]

    async def dropped(self, number: int) -> None:
        """A request that its caller gives up."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.last(1000 + number, max_tokens=LONG), 0.3)

    async def seeded(self) -> list[Any]:
        """Responses that end by a token or by length, with others beside them that are dropped."""
        stops = list(range(20, 40))
        asked = [self.last(i, max_tokens=20 + i % 60, stop_token_ids=stops) for i in range(RESPONSES)]
        return (await asyncio.gather(*asked, *(self.dropped(i) for i in range(DROPPED))))[:RESPONSES]

    async def columns(self) -> list[Any]:
        """Requests side by side that ask for 0, 2 and no log-probabilities, for the prompt's, and for given tokens'."""
        return await self.beside([
            {"logprobs": 0}, {"logprobs": 2}, {"logprobs": None}, {"prompt_logprobs": 1},
            {"logprobs": None, "logprob_token_ids": [5, 6, 7]},
        ])  # fmt: skip

    async def vocabulary(self) -> list[Any]:
        """The same with requests that ask for the log-probability of every token."""
        return await self.beside([{"logprobs": 0}, {"logprobs": -1}, {"logprobs": 2}, {"logprobs": None}])

    async def beside(self, kinds: list[dict[str, Any]]) -> list[Any]:
        """Responses to three requests of each kind, which begin in the same step."""
        await self.engine.pause_generation(mode="keep", clear_cache=False)
        count = len(kinds)
        asked = [asyncio.create_task(self.last(i, max_tokens=50, **kinds[i % count])) for i in range(3 * count)]
        await asyncio.sleep(0.5)
        await self.engine.resume_generation()
        return await asyncio.gather(*asked)

    async def watched(self) -> Any:
        """Outputs of requests whose tokens somebody reads one by one: a stream, and one with a stop string."""
        from vllm.sampling_params import RequestOutputKind

        stream = await self.outputs(1, max_tokens=40, output_kind=RequestOutputKind.DELTA)
        text = await self.outputs(2, max_tokens=LONG, detokenize=True, stop=["a", "1"], include_stop_str_in_output=True)
        tokens = [token for output in stream for token in output[0]]
        return {"stream": tokens, "stop string": text[-1]}, [len(stream), len(text)]

    async def aborted(self) -> Any:
        """What an abort from outside leaves of a response, and how many tokens its engine had drawn."""
        task = asyncio.create_task(self.last(3, max_tokens=LONG, prompt=[7] * 9))
        while not (states := self.engine.output_processor.request_states):
            await asyncio.sleep(0)
        (state,) = states.values()
        while state.detokenizer.num_output_tokens() < 40:
            await asyncio.sleep(0.001)
        await self.engine.abort(f"3-{self.names}")
        return await task

    async def paused(self) -> list[Any]:
        """Responses across a pause that keeps them, with a cache that is dropped."""
        asked = [asyncio.create_task(self.last(i, max_tokens=60, ignore_eos=True)) for i in range(8)]
        await asyncio.sleep(0.05)
        await self.engine.pause_generation(mode="keep", clear_cache=False)
        await asyncio.sleep(0.05)
        await self.engine.resume_generation()
        return await asyncio.gather(*asked)

    async def slept(self) -> list[Any]:
        """Responses before and after a sleep (level 0, which a CPU has) and a dropped prefix cache."""
        first = await self.last(5, max_tokens=40)
        await self.engine.sleep(level=0)
        await self.engine.wake_up()
        await self.engine.reset_prefix_cache()
        return [first, await self.last(5, max_tokens=40)]

    async def died(self) -> str:
        """The error of a request whose engine dies."""
        import psutil

        children = psutil.Process().children(recursive=True)
        task = asyncio.create_task(self.last(6, max_tokens=200, ignore_eos=True))
        while not self.engine.output_processor.request_states:
            await asyncio.sleep(0)
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
        try:
            await task
        except Exception as error:  # noqa: BLE001 - which error it is, is the result
            return type(error).__name__
        return "none"


def described(output: Any) -> Any:
    """Everything that a caller sees of an output. Log-probabilities keep all their bits."""
    one = output.outputs[0]
    logprobs = None if one.logprobs is None else [
        {token: (value.logprob.hex(), value.rank) for token, value in each.items()} for each in one.logprobs
    ]  # fmt: skip
    prompt = None if output.prompt_logprobs is None else [
        None if each is None else {token: value.logprob.hex() for token, value in each.items()}
        for each in output.prompt_logprobs
    ]  # fmt: skip
    return [list(one.token_ids), logprobs, one.finish_reason, one.stop_reason, one.text, prompt]


async def main(model: str, out: Path, scheduler: str | None) -> None:
    """Run all scenarios."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    options: dict[str, Any] = {} if scheduler is None else {"scheduler_cls": scheduler}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(
        model=model, max_model_len=256, max_num_seqs=64, enforce_eager=True, dtype="float32",
        logprobs_mode="processed_logprobs", enable_prefix_caching=True, num_gpu_blocks_override=BLOCKS,
        block_size=BLOCK, disable_log_stats=False, max_logprobs=-1, **options,
    ))  # fmt: skip
    scenarios, found = Scenarios(engine), {}
    for name in ("seeded", "columns", "vocabulary", "watched", "aborted", "paused", "slept", "died"):
        found[name] = await getattr(scenarios, name)()
    engine.shutdown()
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *([sys.argv[3]] if sys.argv[3:] else [None])))
