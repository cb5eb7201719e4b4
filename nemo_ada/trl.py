"""The core's sampler in TRL's GRPOTrainer, for a model that fits one machine (recipes/guide/trl.md).

    ada = AdaRollout(reward, {"preset": "ada_seq_balance"})
    options = GRPOConfig(num_generations=n + 1, loss_type="dapo", scale_rewards="none", ...)
    GRPOTrainer(model, ada.rewards, options, train_dataset=data, rollout_func=ada.rollout).train()

TRL subtracts the mean reward of a group from the rewards of its rows. The core computes its advantages against other
baselines. So each group gets one more row, the counterweight. Its reward makes the mean of the group zero, and its mask
keeps its token out of the loss. The rewards of the other rows are the core's advantages, which TRL then leaves alone.

This module imports neither TRL nor torch. It was tried with TRL 1.16, of which it calls two private methods.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

import numpy as np

from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.errors import UserError
from nemo_ada.verify.judge import KINDS, make_judge

log = logging.getLogger(__name__)
Reward = Callable[..., Sequence[float | None]] | Callable[..., Awaitable[Sequence[float | None]]]
Given = Reward | str | Sequence[Reward | str]
MAX_ROWS = 5_000_000  # of a data set without a length, which is read once to its end
TRLS_OWN = ("prompt", "completion", "completion_ids")  # columns that TRL does not hand over
NEEDED = {
    "loss_type": "dapo",  # the mean over the tokens that the mask keeps
    "scale_rewards": "none",
    "multi_objective_aggregation": "sum_then_normalize",
    "accelerator.num_processes": 1,  # TRL draws in all processes at once, and waves differ in number
}
"""Settings of the trainer with which rewards of mean zero stay as they are."""


class AdaRollout:
    """The rollout function and the reward function of one GRPOTrainer. It is a `ResponseSource` of the core, too."""

    def __init__(self, reward: Given, section: Mapping[str, Any], weights: Sequence[float] = ()) -> None:
        """Make both.

        Args:
            reward: a reward function as TRL takes it, or several, whose weighted sum counts. It gets TRL's arguments.
                None stands for a response that it cannot judge. It may be an `async def`, or a name: `module:function`
                of one that gets a response and the row's `answer`, as on the other back ends, or a verifier's (`math`).
            section: the section `reinforce_ada:` of a YAML.
            weights: one for each of several rewards (TRL's `reward_weights`). Without them each counts once.

        Raises:
            UserError: the section is wrong, or TRL cannot carry a setting.
        """
        self.reward = Rewards(reward, weights)
        self.settings, self.clock = parse_ada_settings(section), time.perf_counter
        if self.settings.reserve_prompts:
            raise UserError("reinforce_ada.reserve_prompts: TRL chooses the prompts itself; leave this setting out")
        self.sampler: AdaSampler | None = None
        self.advantages: list[float] | None = None  # of the newest batch; None in an evaluation
        self.waiting: dict[int, int] = {}  # response id -> position of its prompt

    def rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Draw the rows of a generation batch. In an evaluation TRL's own sampling decides."""
        if not trainer.model.training:
            self.advantages, tokenized = None, trainer._tokenize_prompts(prompts)
            drawn = trainer._generate_single_turn(*tokenized, trainer.num_generations_eval)
            return {"prompt_ids": tokenized[0], "completion_ids": drawn[0], "logprobs": drawn[1]}
        self.sampler = self.sampler or self._begin(trainer)
        self.trainer, self.prompts, n = trainer, prompts[:: trainer.num_generations], self.sampler.rows.group
        self.prompt_ids = trainer._tokenize_prompts(self.prompts)[0]
        self.drawn: dict[int, tuple[list[int], Any]] = {-1: ([trainer.processing_class.eos_token_id], [0.0])}
        sampled: Any = self.sampler.run_step(trainer.state.global_step, [*map(json.dumps, self.prompts)], self)
        for text in sampled.warnings:
            log.warning("%s", text)
        rows, self.metrics, last = sampled.rows, sampled.metrics, ((0, 0), (0, 1))  # the counterweight comes last
        in_loss_R = rows.live_R if self.settings.advantage.denominator == "live_rows" else rows.weight_R > 0
        mask_R = np.pad(in_loss_R.reshape(-1, n), last).ravel().tolist()
        prompt_R = np.pad(rows.prompt_R.reshape(-1, n), last, mode="edge").ravel().tolist()
        response_R = np.pad(rows.response_id_R.reshape(-1, n), last, constant_values=-1).ravel().tolist()
        reward_GR = np.pad(np.where(rows.weight_R > 0, rows.advantage_R, np.nan).reshape(-1, n), last)
        reward_GR[:, -1] = -np.nansum(reward_GR, axis=1)
        self.advantages, drawn = reward_GR.ravel().tolist(), [self.drawn[response] for response in response_R]
        return {
            "prompt_ids": [self.prompt_ids[prompt] for prompt in prompt_R],
            "completion_ids": [tokens for tokens, _ in drawn],
            "logprobs": None if any(one is None for _, one in drawn) else [one for _, one in drawn],
            "env_mask": [[int(mask)] * len(tokens) for mask, (tokens, _) in zip(mask_R, drawn, strict=True)],
        }

    def rewards(self, **arguments: Any) -> Sequence[float | None]:
        """Give TRL the advantages of the rows and the metrics of the step. In an evaluation, give the rewards."""
        if self.advantages is None:
            return self.reward(arguments)
        for metric, value in self.metrics.items():
            arguments["log_metric"](metric, value)
        return self.advantages

    def _begin(self, trainer: Any) -> AdaSampler:
        """Check TRL's settings, read the columns of the data set, and make the sampler."""
        if wrong := [f"{key}={value!r}" for key, value in NEEDED.items() if attrgetter(key)(trainer) != value]:
            raise UserError(f"GRPOTrainer: set {', '.join(wrong)} (recipes/guide/trl.md says why)")
        self.rows = rows_of(trainer.train_dataset)
        self.settings.check_rows(n := trainer.num_generations - 1)
        self.reward.check(self.rows.values())
        log.warning("Reinforce-Ada trains groups of %d: num_generations=%d less the counterweight", n, n + 1)
        judged(self, trainer, [next(iter(self.rows.values()))], [[trainer.processing_class.eos_token_id]], [""])
        return self.settings.sampler(n, trainer.max_completion_length, run_seed=trainer.args.seed)

    def submit(self, requests: Requests) -> None:
        """Wait for the next `poll`, which draws all that was submitted."""
        self.waiting |= dict(zip(requests.response_id_N.tolist(), requests.prompt_N.tolist(), strict=True))

    def poll(self) -> Outcomes:
        """Draw and judge what was submitted."""
        ids, numbers, self.waiting = list(self.waiting), list(self.waiting.values()), {}
        drawn, logprobs = self.trainer._generate_single_turn([self.prompt_ids[i] for i in numbers], None, {}, 1)
        self.drawn |= dict(zip(ids, zip(drawn, logprobs or [None] * len(drawn), strict=True), strict=True))
        asked = [self.rows[json.dumps(self.prompts[i])] for i in numbers]
        texts = self.trainer.processing_class.batch_decode(drawn, skip_special_tokens=True)
        rewards = judged(self, self.trainer, asked, drawn, texts)
        return Outcomes(np.array(ids), np.array(rewards, np.float64), np.array([len(tokens) for tokens in drawn]))

    def abort(self, response_id_N: IntArray) -> IntArray:
        """Forget submitted responses. They have no tokens yet."""
        return np.array([0 * self.waiting.pop(response) for response in response_id_N.tolist()], np.int64)


class Rewards:
    """One reward or several. All coroutines of a run share one event loop, in a thread of its own.

    So an `async def` works in a notebook, too, whose own loop is running.

    Attributes:
        stops: token ids that end a response, once the trainer is known.
    """

    def __init__(self, given: Given, weights: Sequence[float] = ()) -> None:
        rewards = [given] if isinstance(given, str) or callable(given) else list(given)
        self.stops: set[int | None] = set()
        self.functions = [ByAnswer(one, self.stops_of) if isinstance(one, str) else one for one in rewards]
        self.weights = list(weights) or [1.0] * len(self.functions)
        self._loop: asyncio.AbstractEventLoop | None = None
        if not self.functions or len(self.weights) != len(self.functions):
            raise UserError(f"{len(self.weights)} weights do not fit {len(self.functions)} rewards; give one for each")

    def end_with(self, tokenizer: Any) -> None:
        """Take the tokens by which TRL, too, knows a response that ended by itself: the end, and padding."""
        self.stops = {tokenizer.eos_token_id, getattr(tokenizer, "pad_token_id", None)}

    def check(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Check the answers of a data set, where a judge will read them. Raises UserError."""
        for one in self.functions:
            if isinstance(one, ByAnswer):
                one.check(rows)

    def stops_of(self) -> set[int | None]:
        """Return the token ids that end a response. Empty before a trainer is known."""
        return self.stops

    def __call__(self, arguments: Mapping[str, Any]) -> list[float | None]:
        """Return the weighted sum of the rewards for each completion. None where no reward judges it."""
        given = [function(**arguments) for function in self.functions]
        waiting = [one for one in given if inspect.isawaitable(one)]
        settled = iter(self._wait(waiting) if waiting else [])
        values = [next(settled) if inspect.isawaitable(one) else one for one in given]
        columns = [_numbers(function, one, arguments) for function, one in zip(self.functions, values, strict=True)]
        sums: list[float | None] = []
        for row in zip(*columns, strict=True):
            there = [weight * value for weight, value in zip(self.weights, row, strict=True) if value is not None]
            sums.append(sum(there) if there else None)
        return sums

    def _wait(self, waiting: Sequence[Awaitable[Any]]) -> list[Any]:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="rewards", daemon=True).start()

        async def all_of() -> list[Any]:
            return list(await asyncio.gather(*waiting))

        return asyncio.run_coroutine_threadsafe(all_of(), self._loop).result()


class ByAnswer:
    """The reward function that TRL wants, from the name of what judges a response by its answer, on every back end.

    The answer is what the column `answer` has, also a list or an object. The judge is that of the other back ends: a
    reward runs in the verifier's processes with a deadline, and a response that was cut off is wrong.
    """

    def __init__(self, name: str, stops: Callable[[], set[int | None]] = set) -> None:
        """Take a name.

        Args:
            name: `module:function`, or a kind of verifier.
            stops: Returns the token ids that end a response. Where it gives none, all count as finished.

        Raises:
            UserError: There is no such function.
        """
        self.__name__, self._stops, self._tried = name, stops, False
        verifier = name in KINDS
        self._judge = make_judge(name if verifier else "math", None if verifier else name)

    def check(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Read every answer and try the function on the first. Raises UserError where one of both does not work."""
        for number, row in enumerate(rows):
            try:
                self._judge.read(_answers(self.__name__, row))
            except ValueError as problem:
                raise UserError(f"train_dataset: the `answer` of row {number} {problem}; leave the row out") from None
            if not self._tried:
                self._judge.try_on(row["answer"])
                self._tried = True

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]] = (), **columns: Any
    ) -> list[float | None]:
        """Return the reward of each completion, None where it could not be judged."""
        answers = _answers(self.__name__, columns)
        if not self._tried:
            self.check([{"answer": answers[0]}])
        texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
        prompts = columns.get("prompts") or [""] * len(texts)
        asked = [one if isinstance(one, str) else one[-1]["content"] for one in prompts]
        ends = self._stops()
        finished = [not ends or (bool(ids) and ids[-1] in ends) for ids in completion_ids] or [True] * len(texts)
        verdicts = self._judge.verdicts(list(zip(texts, answers, finished, asked, strict=True)))
        for cause in {verdict.cause for verdict in verdicts} - {None}:
            log.warning("%s: %s", self.__name__, cause)
        return [verdict.label for verdict in verdicts]


def _answers(name: str, row: Mapping[str, Any]) -> Any:
    """Return the column `answer`. Raises UserError where there is none."""
    if "answer" not in row:
        raise UserError(f"reward={name!r} needs a column `answer`, and train_dataset has none; rename your column")
    return row["answer"]


def rows_of(dataset: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the rows of a data set by their prompts as JSON. One without a length is read once to its end.

    Raises:
        UserError: a prompt occurs twice, or the data set does not end.
    """
    data = list(islice(dataset, MAX_ROWS + 1))
    if len(data) > MAX_ROWS:
        raise UserError(f"train_dataset: it goes on after {MAX_ROWS:,} rows; give one that ends, such as .take(N)")
    rows = {json.dumps(row["prompt"]): row for row in data}
    if len(rows) < len(data) or not rows:
        raise UserError("train_dataset: a prompt occurs twice, and TRL would not say which row it comes from"
                        if rows else "train_dataset: it has no row")  # fmt: skip
    return rows


def judged(
    ada: AdaRollout, trainer: Any, asked: Sequence[Mapping[str, Any]], drawn: Any, texts: list[str]
) -> list[float | None]:
    """Return the rewards of completions of these rows, with the arguments that TRL gives to a reward.

    They are prompts, completions, completion_ids, the columns of the data set, trainer_state, log_extra and log_metric.
    """
    ada.reward.end_with(trainer.processing_class)
    columns = {key: [row[key] for row in asked] for key in asked[0] if key not in TRLS_OWN}
    chat = [[{"role": "assistant", "content": text}] for text in texts]
    own = {
        "prompts": [row["prompt"] for row in asked],
        "completions": texts if isinstance(asked[0]["prompt"], str) else chat, "completion_ids": drawn,
        "trainer_state": trainer.state,
        "log_extra": getattr(trainer, "_log_completion_extra", _nowhere),
        "log_metric": getattr(trainer, "_log_metric", _nowhere),
    }  # fmt: skip
    return ada.reward(columns | own)


def _nowhere(*_: Any) -> None:
    """Take what a reward wants to log from a trainer without a log."""


def _numbers(reward: Reward, rewards: Any, arguments: Mapping[str, Any]) -> list[float | None]:
    """Return what a reward gave.

    Raises:
        UserError: It is no list with a number or None for each completion.
    """
    name, count = getattr(reward, "__name__", type(reward).__name__), len(arguments["completions"])
    if not hasattr(rewards, "__len__") or isinstance(rewards, (str, Mapping)) or len(rewards) != count:
        found = f"{len(rewards)} values" if hasattr(rewards, "__len__") else f"a {type(rewards).__name__}"
        raise UserError(
            f"the reward {name} gave {found} for {count} completion(s); return a list with a number for each of them"
        )
    try:
        return [None if value is None else float(value) for value in rewards]
    except (TypeError, ValueError) as problem:
        raise UserError(f"the reward {name} gave something else than numbers and None: {problem}") from None
