"""The rollout actor has vLLM, the verifier and the sampler in one process, so a sampling decision costs no message.

The driver asks for a step and gets its training rows. All other responses of the step stay here and are dropped.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.sampler import AdaSampler, SampledStep
from nemo_ada.core.sampling.session import check_failures
from nemo_ada.cpu.engine.source import EngineSource, Verify
from nemo_ada.cpu.engine.vllm_engine import Engine, EngineConfig, Sampling
from nemo_ada.cpu.learner.batch import Rows
from nemo_ada.cpu.model_folder import read_shape
from nemo_ada.cpu.processes import actors as processes
from nemo_ada.cpu.settings import PolicySettings
from nemo_ada.errors import InvariantError
from nemo_ada.run.files import touch
from nemo_ada.tasks.prompting import ModelTokenizer
from nemo_ada.tasks.protocol import Prompt, Task, score_many
from nemo_ada.tasks.registry import build_task
from nemo_ada.tasks.settings import AnyTaskSettings
from nemo_ada.verify.boxed import last_boxed
from nemo_ada.verify.verdict import Verdict

VERDICT_GRACE_S = 1.0  # The engine waits this long for verdicts. It goes on while a slower answer is judged.
POLL_SECONDS = 0.2  # between two checks of the control files while sampling


@dataclass(frozen=True, slots=True)
class StepData(Rows):
    """A step's rows for the learner, and what sampling cost.

    Attributes:
        prompt_R: position of the row's prompt in the step.
        used: number of prompts that the step used up. The data position moves on by this number.
        metrics: numbers, and the lists of core/metrics.py.
        engine_steps: engine steps of the sampling phase.
        warnings: what the sampler's doctor says about the step.
    """

    prompt_R: IntArray
    used: int
    metrics: dict[str, Any]
    engine_steps: int
    warnings: tuple[str, ...] = ()


SAMPLES, SAMPLE_CHARACTERS = 4, 600  # The record of an evaluation keeps 4 answers, and 600 characters of each text.


@dataclass(frozen=True, slots=True)
class HeldoutScores:
    """Scores of k responses for each of P prompts.

    Attributes:
        reward_PK: reward of each response, 0 or 1.
        length_PK: tokens of each response.
        without_label: responses that count as wrong because their verifier failed.
        samples: the first response of the first prompts, as `problem`, `reference`, `response` and `reward`.
    """

    reward_PK: FloatArray
    length_PK: IntArray
    without_label: int = 0
    samples: tuple[dict[str, Any], ...] = ()


def load_tokenizer(policy: PolicySettings) -> ModelTokenizer | None:
    """Return the tokenizer of `policy.model_name`, or None when the run makes a small model.

    Raises:
        UserError: The folder has no model that can run here.
    """
    if policy.model_name is None:
        return None
    read_shape(policy.model_name)
    return ModelTokenizer(policy.model_name, policy.tokenizer)


def choose_max_new_tokens(policy: PolicySettings, task: Task) -> int:
    """Longest response in tokens."""
    return policy.generation.max_new_tokens or task.max_new_tokens


class Rollout:
    """One engine, one task and one sampler. It runs inside a Ray actor. Tests use it without Ray."""

    def __init__(self, task: AnyTaskSettings, cache_dir: str) -> None:
        self._settings, self._cache_dir = task, Path(cache_dir)
        self._task: Task = build_task(task, self._cache_dir)
        self._tokenizer: ModelTokenizer | None = None
        self._temperature = 1.0
        self._max_new_tokens = self._task.max_new_tokens
        self._stop_tokens: tuple[int, ...] = ()
        self._control_dir: Path | None = None
        self._engine: Engine | None = None
        self._sampler: AdaSampler | None = None

    def warm_up(self) -> int:
        """Import vLLM, which takes seconds, while the driver does something else. Returns the process id."""
        processes.prepare_actor("rollout")
        import vllm.v1.engine.llm_engine  # noqa: F401

        return os.getpid()

    def open(self, model_dir: str, sampler: AdaSampler, policy: PolicySettings, control_dir: str | None = None) -> None:
        """Load a model into the engine and take over a sampler.

        Args:
            model_dir: Hugging Face folder of the model.
            sampler: sampler of the run.
            policy: section `policy` of the run. The rollout uses its model, its tokenizer, `generation` and `threads`.
            control_dir: run directory. Its DROP file ends a sampling phase at once.
        """
        generation, own_tokenizer = policy.generation, load_tokenizer(policy)
        if own_tokenizer != self._tokenizer:
            self._task = build_task(self._settings, self._cache_dir, own_tokenizer)
        self._tokenizer = own_tokenizer
        self._temperature, self._max_new_tokens = generation.temperature, choose_max_new_tokens(policy, self._task)
        tokenizer, length = self._task.tokenizer, self._task.max_prompt_tokens + self._max_new_tokens
        config = EngineConfig(
            Path(model_dir), max_model_len=length, max_num_seqs=generation.max_num_seqs, threads=policy.threads
        )
        if self._engine is not None and not self._engine.reopen(config):
            self._engine.close()
            self._engine = None
        if self._engine is None:
            self._engine = Engine(config)
        self._sampler = sampler
        ends = tokenizer.line_ends() if generation.stop_at_line_end else ()
        self._stop_tokens = (*tokenizer.stop_ids, *ends)
        self._control_dir = None if control_dir is None else Path(control_dir)

    def refit(self, weights: Mapping[str, Any]) -> None:
        """Take over the learner's weights. `Engine.refit` explains how."""
        self._live_engine().refit(weights)

    def sampler_state(self) -> dict[str, Any]:
        """Return the state of the sampler, for a checkpoint."""
        return self._live_sampler().state_dict()

    def load_sampler_state(self, state: Mapping[str, Any]) -> None:
        """Restore the sampler's state."""
        self._live_sampler().load_state_dict(state)

    def sample(
        self, step: int, indices: Sequence[int], reserve: int, features_PF: FloatArray | None = None
    ) -> StepData | None:
        """Draw responses for training prompts and compute the rows.

        Args:
            step: number of the step.
            indices: positions of the prompts in the training set.
            reserve: number of reserve prompts, which come last.
            features_PF: prompt features for the value estimator.

        Returns:
            The rows, or None when the run's DROP file ended the step. Such a step changes nothing in the sampler.
        """
        prompts = [self._task.splits().train[i] for i in indices]
        engine, sampler = self._live_engine(), self._live_sampler()
        tokens_P = [self._task.tokenizer.encode(prompt.text) for prompt in prompts]
        sampling = self._sampling(self._temperature)
        boxes: list[bool] = []
        source = EngineSource(engine, tokens_P, self._verify(prompts, boxes), sampling, grace_s=VERDICT_GRACE_S)
        began = engine.steps
        try:
            sampled = sampler.run_step(
                step,
                [prompt.prompt_id for prompt in prompts],
                source,
                reserve=reserve,
                features_PF=features_PF,
                stop_check=_stop_check(self._control_dir),
                seen=lambda: {"no_box": 1.0 - float(np.mean(boxes))} if boxes else {},
            )
            return None if sampled is None else self._data(sampled, source, tokens_P, engine.steps - began)
        finally:
            source.close()

    def evaluate(self, indices: Sequence[int] | None, k: int, temperature: float, seed: int) -> HeldoutScores:
        """Draw and score responses for held-out prompts. A label below 1 and a failed verifier count as wrong.

        Args:
            indices: positions of the prompts in the held-out set. None takes all.
            k: responses per prompt.
            temperature: sampling temperature. 0 is greedy.
            seed: seed of the responses.

        Raises:
            FailedResponsesError: the verifier failed on too many responses.
        """
        prompts = self._task.splits().heldout
        return self._evaluate(prompts if indices is None else [prompts[i] for i in indices], k, temperature, seed)

    def measure_train(self, indices: Sequence[int], k: int, seed: int) -> HeldoutScores:
        """Draw and score responses for training prompts at temperature 1. They show the base model's pass rates.

        Args:
            indices: positions of the prompts in the training set.
            k: responses per prompt.
            seed: seed of the responses.
        """
        return self._evaluate([self._task.splits().train[i] for i in indices], k, 1.0, seed)

    def _evaluate(self, prompts: Sequence[Prompt], k: int, temperature: float, seed: int) -> HeldoutScores:
        tokens = [self._task.tokenizer.encode(prompt.text) for prompt in prompts]
        payloads_PK = self._live_engine().generate(tokens, k, self._sampling(temperature), seed)
        answers = [
            (prompt, self._text(payload.token_ids.tolist()), payload.finished)
            for prompt, payloads in zip(prompts, payloads_PK, strict=True)
            for payload in payloads
        ]
        verdicts = score_many(self._task, answers)
        failed = [(prompt.prompt_id, verdict.cause) for (prompt, _, _), verdict in zip(answers, verdicts, strict=True)
                  if verdict.label is None]  # fmt: skip
        causes, count = Counter(str(cause) for _, cause in failed), len(answers)
        share = self._live_sampler().plan.max_failed_share
        check_failures(causes, count, 0, share, "of an evaluation", [name for name, _ in failed])
        reward_N = np.array([float(verdict.label == 1.0) for verdict in verdicts], np.float64)
        length_N = np.array([len(payload) for payloads in payloads_PK for payload in payloads], np.int64)
        samples = tuple(
            {
                "problem": prompt.text[-SAMPLE_CHARACTERS:],
                "reference": prompt.answer[:SAMPLE_CHARACTERS],
                "response": text[:SAMPLE_CHARACTERS],
                "reward": verdict.label or 0.0,
            }
            for (prompt, text, _), verdict in list(zip(answers, verdicts, strict=True))[: SAMPLES * k : k]
        )
        reward_PK, length_PK = reward_N.reshape(len(prompts), k), length_N.reshape(len(prompts), k)
        return HeldoutScores(reward_PK, length_PK, len(failed), samples)

    def _verify(self, prompts: Sequence[Prompt], boxes: list[bool]) -> Verify:
        """Return the function that judges a response. With `math` it notes whether the response has a box."""
        boxed = getattr(self._settings, "verifier", None) == "math"

        def verify(position: int, token_ids: list[int], finished: bool) -> Verdict | Future[Verdict]:
            text = self._text(token_ids)
            if boxed and finished:
                boxes.append(last_boxed(text) is not None)
            return self._task.submit(prompts[position], text, finished)

        return verify

    def _text(self, token_ids: list[int]) -> str:
        stops = self._task.tokenizer.stop_ids
        return self._task.tokenizer.decode(token_ids[:-1] if token_ids and token_ids[-1] in stops else token_ids)

    def _sampling(self, temperature: float) -> Sampling:
        return Sampling(self._max_new_tokens, temperature, stop_tokens=self._stop_tokens)

    def _data(self, sampled: SampledStep, source: EngineSource, tokens_P: list[list[int]], steps: int) -> StepData:
        rows = sampled.rows
        payloads = [source.payload(n) if n >= 0 else None for n in rows.response_id_R.tolist()]
        prompt_lengths = [len(tokens_P[p]) for p in rows.prompt_R.tolist()]
        lengths = [n + (len(payload) if payload else 0) for n, payload in zip(prompt_lengths, payloads, strict=True)]
        tokens_RT = np.full((len(payloads), max(lengths)), self._task.tokenizer.pad_id, np.int64)
        logprob_RT = np.zeros(tokens_RT.shape, np.float32)
        for r, payload in enumerate(payloads):
            start, end = prompt_lengths[r], lengths[r]
            tokens_RT[r, :start] = tokens_P[rows.prompt_R[r]]
            if payload is not None:
                tokens_RT[r, start:end] = payload.token_ids
                logprob_RT[r, start:end] = payload.logprobs
        return StepData(
            tokens_RT=tokens_RT,
            length_R=np.array(lengths, np.int64),
            prompt_length_R=np.array(prompt_lengths, np.int64),
            advantage_R=rows.advantage_R.astype(np.float32),
            weight_R=rows.weight_R.astype(np.float32),
            old_logprob_RT=logprob_RT,
            prompt_R=rows.prompt_R,
            used=sampled.result.used,
            metrics={**sampled.metrics, **sampled.lists},
            engine_steps=steps,
            warnings=sampled.warnings,
        )

    def _live_engine(self) -> Engine:
        if self._engine is None:
            raise InvariantError("the rollout has no engine yet: call open first")
        return self._engine

    def _live_sampler(self) -> AdaSampler:
        if self._sampler is None:
            raise InvariantError("the rollout has no sampler yet: call open first")
        return self._sampler


def _stop_check(folder: Path | None) -> Callable[[], Literal["drain", "drop"] | None]:
    """The stop check of a run. Every POLL_SECONDS it touches the heartbeat and checks for the DROP file."""
    next_time = 0.0

    def check() -> Literal["drain", "drop"] | None:
        nonlocal next_time
        now = time.monotonic()
        if folder is None or now < next_time:
            return None
        next_time = now + POLL_SECONDS
        heartbeat = folder / "heartbeat"
        if heartbeat.exists():
            touch(heartbeat)
        return "drop" if (folder / "DROP").exists() else None

    return check
