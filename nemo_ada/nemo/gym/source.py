"""Single responses over NeMo-Gym. A response is one call of NeMo-RL's own rollout function with one row.

Gym cannot stop a rollout, so none is dropped but at the end of a job. A rollout that fails is a response without a
label, and the sampler draws another one. That holds for an agent, a tool or a verifier that fails, for a result without
tokens, for an actor that returns nothing for the row, and for a rollout that its environment masks, because the reward
beside the mask is no verdict on the answer (NeMo-RL issue 4061). The last ones are no failures that may end the run.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray

from nemo_ada.core.sampling.source import MASKED, Outcomes
from nemo_ada.errors import ProcessLostError, StallError
from nemo_ada.nemo.gym.actor import (
    ENVIRONMENT,
    SILENT_SECONDS,
    AskedError,
    GymAnswer,
    ServerWatch,
    SharedTokenizer,
    choose_actor,
    make_answered_actor,
    make_asking_actor,
    make_streaming_actor,
)
from nemo_ada.nemo.gym.metrics import compute_metrics
from nemo_ada.nemo.rollouts.batches import convert_outcomes
from nemo_ada.nemo.rollouts.call import Prompts, RolloutCall
from nemo_ada.nemo.rollouts.requests import STALL_SECONDS, AsyncSource, Responder
from nemo_ada.nemo.rollouts.response import GYM_ERROR, Response, read
from nemo_ada.rules.facts.upstream import PER_PROMPT

log = logging.getLogger(__name__)
HONOUR = "env.should_mask_flagged_samples"
HONOURS = "mask_env_flagged_samples"  # the argument by which NeMo-RL's loop hands that setting to its rollout
WARNINGS = 3  # failed rollouts whose reason is logged


class Failures:
    """The failed rollouts of a step or of a group. The log has the reasons of the first ones."""

    def __init__(self) -> None:
        self._count = 0

    def response(self, error: Exception) -> Response:
        """Return the response of a rollout that ended with this error."""
        lines = str(error).strip().splitlines() or [""]
        self._say(f"failed and has no label: {type(error).__name__}: {lines[-1][:300]}")
        return Response([], [], float("nan"), False, 0, failure=GYM_ERROR)

    def masked(self, response: Response) -> Response:
        """Return a response that its environment masks as one without a label. Its tokens were drawn all the same."""
        self._say(f"has no label, because its environment masks it (instance_config.mask_sample); {HONOUR}=false "
                  "takes its reward instead")  # fmt: skip
        return replace(response, reward=float("nan"), shaped=None, failure=MASKED)

    def _say(self, what: str) -> None:
        self._count += 1
        if self._count <= WARNINGS:
            log.warning("a rollout of NeMo-Gym %s", what)


class GymResponder(Responder):
    """Draws single responses on Gym's servers."""

    def __init__(self, call: RolloutCall, prompts: Prompts, rollout: Callable[..., Any]) -> None:
        """Prepare to draw.

        Args:
            call: arguments of the rollout. Its `task_to_env` has NeMo-RL's NemoGym actor, or a set of such actors.
            prompts: prompts of a step or of a group, which have requests.
            rollout: NeMo-RL's `run_async_nemo_gym_rollout`: a function (v0.7.0) or an asynchronous generator (main).
        """
        super().__init__(call, prompts, rollout)
        self._environment = call.task_to_env[ENVIRONMENT]
        self._servers = ServerWatch(self._environment)
        self._streams = inspect.isasyncgenfunction(rollout)
        self._tokenizer = None if self._streams else SharedTokenizer(call.tokenizer)
        self._failures = Failures()

    async def respond(self, response_id: int, prompt: int) -> tuple[Response, dict[str, Any]]:
        """Draw a response. Returns NeMo-RL's metrics of it, too.

        Raises:
            ProcessLostError: the response failed, or no rollout ends, and a process has died.
        """
        answer, calls = GymAnswer(), list[Any]()
        batch = self._prompts.rows([prompt])  # a copy, because NeMo-RL writes the sampling parameters into its rows
        work = (self._stream if self._streams else self._ask)(batch, answer, calls)
        try:
            result = await self._servers.result(work, calls)
        except ProcessLostError:
            raise
        except Exception as error:
            if not (answer.rows or isinstance(error, ray.exceptions.RayError)):
                raise  # NeMo-RL's function refused the call before any rollout began
            failed = self._failures.response(error)
            await self._check()
            await self._servers.check()
            return failed, {}
        return self._read_result(result, answer), result.rollout_metrics

    def _read_result(self, result: Any, answer: GymAnswer) -> Response:
        """Return the response of NeMo-RL's result of one row."""
        final = result.final_batch
        message_log = final["message_log"][0]
        # NeMo-RL calls a response truncated that fills the context. One turn may also end at its own limit.
        cut = bool(final["truncated"][0]) or answer.cut
        response = read(message_log[:1], message_log, answer.reward, cut)
        if answer.masked and self._call.arguments().get(HONOURS, True):
            return self._failures.masked(response)
        return replace(response, shaped=float(final["total_reward"][0]))

    def _make_arguments(self, batch: Any, actor: Any) -> dict[str, Any]:
        given = {**self._call.arguments(), "input_batch": batch, "task_to_env": {ENVIRONMENT: actor}}
        given.pop(PER_PROMPT, None)  # of the loop's own call; here a prompt has one row per call
        return given

    async def _ask(self, batch: Any, answer: GymAnswer, calls: list[Any]) -> Any:
        """Run v0.7.0's function, which would block, around a call that is awaited.

        It runs twice: the first time it hands out the arguments of its call and goes no further, and the second time
        the call has ended and it reads the result.
        """
        try:
            self._rollout(**self._make_arguments(batch, make_asking_actor()))
        except AskedError as asked:
            rows, _, *others = asked.arguments
        reference = self._environment.run_rollouts.remote(rows, self._tokenizer, *others)
        calls.append(reference)
        results, _ = await reference
        for result in results:
            answer.read(result)
        return self._rollout(**self._make_arguments(batch, make_answered_actor(reference)))

    async def _stream(self, batch: Any, answer: GymAnswer, calls: list[Any]) -> Any:
        """Run main's asynchronous generator, which yields one group of one row."""
        served = choose_actor(self._environment, batch["extra_env_info"][0])
        actor = make_streaming_actor(served, answer, calls.append)
        groups = self._rollout(**self._make_arguments(batch, actor), num_generations=1)
        return [group async for group in groups][-1]

    def joined(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """NeMo-RL's metrics of several responses together. A response that failed has none."""
        return compute_metrics([sample for sample in samples if sample])


class GymSource(AsyncSource):
    """A ResponseSource over Gym's servers.

    Attributes:
        patience: longest time until `poll` returns, in seconds. It reports nothing when no response has finished.
    """

    patience = SILENT_SECONDS
    kind = GymResponder
    _silent = 0.0  # seconds since a response finished

    def poll(self) -> Outcomes:
        """Wait for responses and report them. After `patience` without one, report none.

        Raises:
            StallError: no response has finished for STALL_SECONDS.
            ProcessLostError: a process has died.
        """
        found = super().poll()
        if len(found):
            self._silent = 0.0
        return found

    def _silence(self) -> Outcomes:
        self._silent += self.patience
        if self._silent < STALL_SECONDS:
            return convert_outcomes([], [])
        self._stalled = True
        raise StallError(f"no rollout of NeMo-Gym has finished for {self._silent:.0f} s")

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics that the session does not have."""
        return {}
