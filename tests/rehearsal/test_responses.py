"""Drawn lengths and verdicts of responses: the same for every method, as likely as asked for, and within the limit."""

from __future__ import annotations

import asyncio
from collections import namedtuple
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.rehearsal.standins import responses
from nemo_ada.rehearsal.standins.replacing import Names
from nemo_ada.rehearsal.standins.responses import DRAWS, REPLACEMENTS, Draws

torch = pytest.importorskip("torch")
LENGTHS = LengthModel(median=30.0, sigma=0.7, wrong_factor=1.3, max_new_tokens=100)
Judged = namedtuple("Judged", ("rewards", "observations"))


def test_a_response_is_the_same_whoever_asks_and_differs_from_the_next_one() -> None:
    draws = Draws((0.2, 0.8), LENGTHS)
    one = [draws.draw(b"prompt", seed) for seed in range(50)]
    assert one == [draws.draw(b"prompt", seed) for seed in range(50)]
    assert len({tokens for _, tokens in one}) > 10
    assert Draws.read_environment() is None


def test_verdicts_have_the_prompts_rate_and_lengths_the_models_median(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRAWS, Draws((0.25,), LENGTHS).as_json())
    draws = Draws.read_environment()
    assert draws is not None and draws.lengths == LENGTHS
    drawn = [draws.draw(b"%d" % (number % 7), number) for number in range(4000)]
    assert np.mean([verdict for verdict, _ in drawn]) == pytest.approx(0.25, abs=0.03)
    right = [tokens for verdict, tokens in drawn if verdict]
    wrong = [tokens for verdict, tokens in drawn if not verdict]
    assert np.median(right) == pytest.approx(30, rel=0.1)
    assert np.median(wrong) == pytest.approx(39, rel=0.1), "wrong responses are longer, as in plan"
    assert max(right + wrong) == 100 and min(right + wrong) >= 1


class Engine:
    """Answers each row with as many tokens as its column asks for, at most 100."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def generate_async(self, data: Any, greedy: bool = False) -> Any:
        for row, length in enumerate(data["input_lengths"].tolist()):
            tokens = int(data[responses.TOKENS][row])
            self.asked.append(tokens)
            ids = torch.cat([data["input_ids"][row, :length], torch.arange(tokens)])[None]
            yield row, {"output_ids": ids, "unpadded_sequence_lengths": torch.tensor([length + tokens]),
                        "truncated": torch.tensor([True])}  # fmt: skip

    def generate(self, data: Any) -> Any:
        raise NotImplementedError

    def prepare_for_generation(self) -> None:
        """Begin a step."""


def applied(module: ModuleType) -> None:
    """Apply the replacements for a module of this name."""
    for change in REPLACEMENTS.changes:
        if change.module == module.__name__ and change.apply is not None:
            change.apply(Names(module, change.names))


def test_the_driver_stops_a_response_judges_it_as_drawn_and_calls_none_cut_that_ended_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DRAWS, Draws((0.5,), LENGTHS).as_json())
    generation = ModuleType("nemo_rl.models.generation.vllm.vllm_generation")
    rollouts = ModuleType("nemo_rl.experience.rollouts")
    engine_class = type("VllmGeneration", (Engine,), {})
    vars(generation)["VllmGeneration"] = engine_class
    vars(rollouts)["calculate_rewards"] = lambda batch, envs: Judged(
        torch.full((len(batch["message_log"]),), -1.0), None
    )
    applied(generation)
    applied(rollouts)
    engine = engine_class()

    async def ask() -> list[Any]:
        data = {"input_ids": torch.arange(40).reshape(20, 2), "input_lengths": torch.full((20,), 2)}
        return [output async for _, output in engine.generate_async(data)]

    outputs = asyncio.run(ask())
    assert len(set(engine.asked)) > 5
    cut = [bool(output["truncated"][0]) for output in outputs]
    assert cut == [tokens == 100 for tokens in engine.asked]
    logs = [
        [{"token_ids": output["output_ids"][0][:2]}, {"token_ids": output["output_ids"][0][2:]}] for output in outputs
    ]
    rewards = vars(rollouts)["calculate_rewards"]({"message_log": logs}, {}).rewards
    assert set(rewards.tolist()) == {0.0, 1.0}
    again = vars(rollouts)["calculate_rewards"]({"message_log": logs}, {}).rewards
    assert set(again.tolist()) == {-1.0}, "a verdict is given once, and what nobody drew keeps its own"
    first, engine.asked = engine.asked, []
    engine.prepare_for_generation()
    asyncio.run(ask())
    assert engine.asked == first, "a step repeats its draws, so every method sees the same responses"
