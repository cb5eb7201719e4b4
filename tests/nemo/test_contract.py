"""One contract over the back ends: for the same responses the same pools, rows and advantages.

A script says label and length of draw k of a prompt. Four paths draw from it, in their own order of completion:

    bare      the sampler on a table, all at once
    embedded  the CPU back end's own Rollout, on a scripted engine that finishes the newest request first
    sync      the NeMo-RL hooks on whole-batch rollouts (stand-ins of NeMo-RL's types)
    async     the NeMo-RL hooks on one task per response

1. Pools (which draws, their rewards and lengths), kept rows and advantages of every step are equal on all paths.
2. The prompts of a step come to the learner in the order that the CPU back end's updates have.
3. What a path hands to its learner is what the sampler decided: weights, advantages, lengths of the live rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin import Checkpointer, Engine, config, loop_module, prompt_batch, step

from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.core.learning.rows import StepRows
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.source import Outcomes
from nemo_ada.core.seeds import shuffle_rows
from nemo_ada.cpu import rollout as embedded
from nemo_ada.cpu.settings import GenerationSettings, PolicySettings
from nemo_ada.nemo.features import WIDTH, compute_prompt_features
from nemo_ada.nemo.install import install_hooks
from nemo_ada.tasks.registry import build_task
from nemo_ada.tasks.settings import JsonlSettings
from tests.cpu.scripted_engine import ScriptedEngine

RATES = {11: 0.1, 12: 0.3, 13: 0.5, 14: 0.9, 15: 0.0, 16: 0.7}
PROMPTS = list(RATES)
SPARE = range(20, 26)  # what the embedded task holds out, with a seed that leaves it our six to train on
SPLIT_SEED = 1
LONGEST = 64
SEQUENTIAL = ("grpo", "ada_seq_positive", "ada_seq_balance", "ada_seq_lean", "ada_seq_log")
EVERYWHERE = [{"preset": name} for name in (*SEQUENTIAL, "ada_est_ema", "ada_est_value", "ada_single")]


def script(prompt, draw):
    """Label and length in tokens of a response, the same on every path."""
    random = np.random.default_rng([prompt, draw])
    return float(random.random() < RATES[prompt]), int(random.integers(2, 30))


def features():
    return compute_prompt_features(prompt_batch(PROMPTS)["message_log"])


@dataclass
class Case:
    """Settings and what a path needs to run."""

    ada: dict[str, Any]
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    steps: int = 3

    @property
    def group(self):
        return 1 if self.ada["preset"] == "ada_single" else 8 if "est" in self.ada["preset"] else 4

    def sampler(self):
        return parse_ada_settings(self.ada).sampler(self.group, LONGEST, run_seed=7, features=WIDTH)


@dataclass
class Trace:
    """What a sampler decided, step by step, and what its path then handed on: (advantages, weights, tokens) per row;
    tokens of rows without advantage are not compared, the paths shorten them differently."""

    decided: list[tuple[SamplingResult, StepRows]] = field(default_factory=list)
    handed: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)

    def watch(self, sampler):
        run_step = sampler.run_step

        def watched(*args, **options):
            sampled = run_step(*args, **options)
            assert sampled is not None
            self.decided.append((sampled.result, sampled.rows))
            return sampled

        sampler.run_step = watched
        return sampler


# -- the paths ---------------------------------------------------------------------------------------------------------


class TableSource:
    """A ResponseSource over a script. Draws of each prompt go on counting over the steps."""

    def __init__(self, script, drawn):
        self._script, self._drawn, self._prompts, self._waiting = script, drawn, list(drawn), []

    def submit(self, requests):
        for row, place in zip(requests.response_id_N.tolist(), requests.prompt_N.tolist(), strict=True):
            prompt = self._prompts[place]
            self._waiting.append((row, *self._script(prompt, self._drawn[prompt])))
            self._drawn[prompt] += 1

    def poll(self):
        taken, self._waiting = self._waiting, []
        columns = list(zip(*taken, strict=True))
        return Outcomes(np.array(columns[0]), np.array(columns[1]), np.array(columns[2]))

    def abort(self, response_id_N):
        self._waiting = [item for item in self._waiting if item[0] not in response_id_N]
        return np.zeros(len(response_id_N), np.int64)

    def clock(self):
        return 0.0


def bare(case):
    trace, drawn = Trace(), dict.fromkeys(PROMPTS, 0)
    own = trace.watch(case.sampler())
    for number in range(1, case.steps + 1):
        names = [f"prompt {prompt}" for prompt in PROMPTS]
        sampled = own.run_step(number, names, TableSource(script, drawn), features_PF=features())
        assert sampled is not None
        result, rows = sampled.result, sampled.rows
        tokens_R = np.where(rows.pool_R >= 0, result.tokens_N[rows.pool_R], 0)
        trace.handed.append((rows.advantage_R, rows.weight_R, tokens_R))
    return trace


def responses(tokenizer, answer):
    """Responses of the script. A right one is the answer and spaces."""
    drawn = dict.fromkeys(PROMPTS, 0)

    def respond(prompt_token_ids):
        prompt = int(tokenizer.decode(prompt_token_ids).rstrip("="))
        label, tokens = script(prompt, drawn[prompt])
        drawn[prompt] += 1
        text = answer(prompt) if label else "z"
        return [*tokenizer.encode(text.ljust(tokens - 1)), tokenizer.eos_id], "stop"

    return respond


def embedded_rollout(case):
    def answer(prompt):
        return str(prompt % 10)

    path = case.folder / "prompts.jsonl"
    lines = [json.dumps({"prompt": f"{p}=", "answer": answer(p)}) for p in (*PROMPTS, *SPARE)]
    path.write_text("\n".join(lines))
    settings = JsonlSettings(
        path=str(path), seed=SPLIT_SEED, heldout_fraction=0.1, supervision_fraction=0, max_new_tokens=LONGEST
    )
    task = build_task(settings, case.folder)
    places = {int(prompt.text[:-1]): i for i, prompt in enumerate(task.splits().train)}
    trace = Trace()
    engine = ScriptedEngine(responses(task.tokenizer, answer))
    case.monkeypatch.setattr(embedded, "Engine", lambda config: engine)
    rollout = embedded.Rollout(settings, str(case.folder))
    policy = PolicySettings(generation=GenerationSettings(max_new_tokens=LONGEST))
    rollout.open("no model", trace.watch(case.sampler()), policy)
    for number in range(1, case.steps + 1):
        data = rollout.sample(number, [places[prompt] for prompt in PROMPTS], 0, features())
        assert data is not None
        tokens_R = (data.length_R - data.prompt_length_R).astype(np.int64)
        trace.handed.append((data.advantage_R, data.weight_R, tokens_R))
    return trace


def nemo(case, *, asynchronous):
    trace = Trace()
    settings = config(case.group, len(PROMPTS), case.ada, asynchronous=asynchronous)
    engine = Engine(script, seconds_per_token=0.0002)
    loop, rollouts = loop_module(engine)
    with install_hooks(settings, Checkpointer(case.folder), loop, rollouts) as hooks:
        trace.watch(hooks.sampler)
        for _ in range(case.steps):
            record = step(loop, settings, PROMPTS, asynchronous)
            generated = [[m for m in log if m["role"] == "assistant"] for log in record.batch["message_log"]]
            tokens_R = np.array([sum(len(m["token_ids"]) for m in turns) for turns in generated])
            batch = record.batch
            result, rows = trace.decided[-1]
            order_R = shuffle_rows(rows.prompt_R, 7, len(trace.decided))
            assert batch["idx"] == [PROMPTS[p] for p in rows.prompt_R[order_R]]
            np.testing.assert_array_equal(batch["ada_uid"].numpy() & 0xFFFFFF, rows.prompt_R[order_R])
            np.testing.assert_array_equal(batch["total_reward"].numpy(), result.reward_N[rows.pool_R[order_R]])
            columns = (batch["ada_advantage"].numpy(), batch["ada_weight"].numpy(), tokens_R)
            trace.handed.append(tuple(column[np.argsort(order_R)] for column in columns))
    return trace


def sync(case):
    return nemo(case, asynchronous=False)


def one_by_one(case):
    return nemo(case, asynchronous=True)


# -- 1. to 3. ----------------------------------------------------------------------------------------------------------


def check_decided(found, expected):
    """Compare result and rows of a step."""
    of_result = ("prompt_N", "index_N", "reward_N", "tokens_N", "drawn_P", "resolved_P")
    of_rows = ("prompt_R", "pool_R", "weight_R", "advantage_R")
    for ours, theirs, names in zip(found, expected, (of_result, of_rows), strict=True):
        for name in names:
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)


def check_equal(path, reference):
    for found, expected in zip(path.decided, reference.decided, strict=True):
        check_decided(found, expected)
    for handed, (_, rows), expected in zip(path.handed, path.decided, reference.handed, strict=True):
        np.testing.assert_array_equal(handed[0], rows.advantage_R.astype(np.float32))
        np.testing.assert_array_equal(handed[1], rows.weight_R.astype(np.float32))
        np.testing.assert_array_equal(handed[2][rows.live_R], expected[2][rows.live_R])


@pytest.mark.parametrize("path", [embedded_rollout, sync, one_by_one])
@pytest.mark.parametrize("ada", EVERYWHERE, ids=lambda ada: "-".join([ada["preset"], *ada.get("advantage", ())]))
def test_every_path_gives_the_same_pools_rows_and_advantages(tmp_path, monkeypatch, ada, path):
    case = Case(ada, tmp_path, monkeypatch)
    check_equal(path(case), bare(case))
