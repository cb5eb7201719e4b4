"""Calls of calculate_rewards are joined, every response gets what it would get alone, and a cut one is wrong."""

import asyncio
import functools
from collections import Counter, UserDict
from typing import NamedTuple

import pytest
import torch

from nemo_ada.nemo.rollouts.response import read
from nemo_ada.nemo.rollouts.verdicts import Verdicts

SECOND_TASK = "other"


class Found(NamedTuple):
    """The fields of NeMo-RL's EnvironmentReturn (test_contract.py's harness has the real one)."""

    observations: list
    rewards: torch.Tensor
    answers: list | None


class Environment:
    """Counts its calls. The reward of a row follows from its text, and `other` has two rewards per row."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def calculate_rewards(self, batch, environments):
        self.rows.append(len(batch["task_name"]))
        assert environments == {"all": self}
        if "broken" in batch["text"]:
            raise ValueError("a broken environment")
        two = SECOND_TASK in batch["task_name"]
        rewards = torch.tensor([[len(text), 1.0] if two else len(text) for text in batch["text"]])
        return Found([{"content": text} for text in batch["text"]], rewards, None)

    def ask(self, text, task="task", **columns):
        """What NeMo-RL's rollout of a response awaits."""
        batch = UserDict(task_name=[task], text=[text], **columns)
        return asyncio.to_thread(self.calculate_rewards, batch, {"all": self})


def run(together):
    async def whole():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(Verdicts(loop))
        return await together()

    return asyncio.run(whole())


def test_calls_of_a_moment_become_one_and_each_gets_its_rows():
    environment = Environment()
    texts = ["a" * length for length in range(1, 41)]
    found = run(lambda: asyncio.gather(*map(environment.ask, texts)))
    assert environment.rows == [40]
    for text, one in zip(texts, found, strict=True):
        alone = Environment()
        expected = alone.calculate_rewards({"task_name": ["task"], "text": [text]}, {"all": alone})
        assert one.observations == expected.observations and one.answers is None
        assert torch.equal(one.rewards, expected.rewards)


def test_tasks_are_asked_apart():
    environment = Environment()
    first, second = run(lambda: asyncio.gather(environment.ask("ab"), environment.ask("abc", SECOND_TASK)))
    assert environment.rows == [1, 1]
    assert first.rewards.tolist() == [2] and second.rewards.tolist() == [[3.0, 1.0]]


def test_an_error_reaches_every_response_of_the_call():
    environment = Environment()
    found = run(lambda: asyncio.gather(environment.ask("a"), environment.ask("broken"), return_exceptions=True))
    assert [str(error) for error in found] == ["a broken environment"] * 2


def test_a_dropped_response_is_not_judged():
    environment = Environment()

    async def one_of_two():
        dropped, kept = (asyncio.ensure_future(environment.ask(text)) for text in ("ab", "abc"))
        await asyncio.sleep(0)
        dropped.cancel()
        return await kept

    assert run(one_of_two).rewards.tolist() == [3]
    assert environment.rows == [1]


@pytest.mark.parametrize("columns", [{"mask": torch.ones(1)}, {"length": 1}])
def test_a_batch_with_other_columns_than_lists_is_asked_as_it_is(columns):
    environment = Environment()
    run(lambda: asyncio.gather(*(environment.ask(text, **columns) for text in ("a", "ab"))))
    assert environment.rows == [1, 1]


def test_other_calls_run_as_they_are():
    counted = Counter()

    async def both():
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            asyncio.to_thread(counted.update, "ab"), loop.run_in_executor(None, functools.partial(counted.update, "a"))
        )

    run(both)
    assert counted == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("observed", "reward", "counted"),
    [("correct", 1.0, 0.0), ("correct", 0.5, 0.0), ("incorrect", 0.0, 0.0), ("Environment: correct", 1.0, 1.0)],
)
def test_a_response_that_was_cut_off_is_wrong_for_our_environment_as_on_the_cpu(observed, reward, counted):
    asked = {"role": "user", "content": "1 + 1?", "token_ids": torch.tensor([1, 2])}
    answered = {"role": "assistant", "content": "2 and", "token_ids": torch.tensor([3, 4])}
    said = {"role": "environment", "content": observed, "token_ids": torch.tensor([5])}
    assert read([asked], [asked, answered, said], reward, truncated=True).reward == counted
    assert str(read([asked], [asked, answered, said], reward, truncated=False).reward) == str(reward)
