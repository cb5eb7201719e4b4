"""NeMo-RL's NemoGym actor, as NeMo-RL's rollout function sees it for one response.

The function must run as it is, and three things about it are not wanted for single responses.

1. v0.7.0 blocks in `ray.get`. A thousand responses would need a thousand threads.
2. v0.7.0 sends the tokenizer with every call. NeMo-RL's main measured what that costs: 153 of 1,024 calls in 300 s,
   where all of them take 16 s without it. An object reference alone does not help, because the actor builds a tokenizer
   from it per call. So our argument is built once per process.
3. It shapes rewards (effort levels, penalties) before it returns them, and the exit rules need them as they were.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ray

from nemo_ada.errors import ProcessLostError
from nemo_ada.nemo.rollouts.engine_abort import SharedCheck

ENVIRONMENT = "nemo_gym"  # the name of the actor in task_to_env, which NeMo-RL's function looks for
CHECK_SECONDS = 60.0  # wait for the actor, which may be busy
SILENT_SECONDS = 60.0  # Gym asks a server that has died for ever, so silence of this length is looked into
INCOMPLETE = "max_output_tokens"  # the reason that Gym gives for a turn that was cut


@dataclass(slots=True)
class GymAnswer:
    """What Gym's servers said of one response.

    Attributes:
        rows: results that the actor returned. None where it returned no result for the row.
        reward: reward of the environment before NeMo-RL shapes it. It is NaN where there is none.
        cut: whether the last turn ended at its token limit.
        masked: whether the environment says that this rollout is not one to learn from (`mask_sample`).
    """

    rows: list[Any] = field(default_factory=list)
    reward: float = float("nan")
    cut: bool = False
    masked: bool = False

    def read(self, result: Any) -> None:
        """Remember a row's result."""
        self.rows.append(result)
        full = result.get("full_result") if isinstance(result, dict) else None
        if not isinstance(full, dict):
            return
        reward = full.get("reward")
        if isinstance(reward, bool | int | float):
            self.reward = float(reward)
        response = full.get("response")
        details = response.get("incomplete_details") if isinstance(response, dict) else None
        self.cut = isinstance(details, dict) and details.get("reason") == INCOMPLETE
        instance = full.get("instance_config")
        self.masked = isinstance(instance, dict) and bool(instance.get("mask_sample"))


class AskedError(Exception):
    """NeMo-RL's rollout function has reached the call of the actor. `arguments` are those of the call."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        super().__init__("the actor was called")
        self.arguments = arguments


def make_asking_actor() -> Any:
    """Return an actor that hands out the arguments of the first call, by AskedError, and runs nothing."""

    def remote(*arguments: Any) -> Any:
        raise AskedError(arguments)

    return SimpleNamespace(run_rollouts=SimpleNamespace(remote=remote))


def make_answered_actor(results: Any) -> Any:
    """Return an actor whose call has ended. `results` is the reference of what it returned."""
    return SimpleNamespace(run_rollouts=SimpleNamespace(remote=lambda *_: results))


def list_actors(environment: Any) -> list[Any]:
    """Return the actors of the environment, which is one actor or v0.8.0's set of them (`NemoGymShardSet`)."""
    return list(getattr(environment, "all_handles", [environment]))


def choose_actor(environment: Any, row: Any) -> Any:
    """Return the actor that serves a row. In a set the row's agent decides, as NeMo-RL does."""
    if not hasattr(environment, "pick_handle"):
        return environment
    from nemo_rl.environments.nemo_gym import get_nemo_gym_route_name

    return environment.pick_handle(get_nemo_gym_route_name(row))


class _Streaming:
    """An actor with another `run_rollouts`."""

    def __init__(self, actor: Any, options: Callable[..., Any]) -> None:
        self._actor, self.run_rollouts = actor, SimpleNamespace(options=options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)


def make_streaming_actor(actor: Any, answer: GymAnswer, started: Callable[[Any], None]) -> Any:
    """Return the actor of NeMo-RL's main, whose rows stream back. Each row is read into `answer` on its way.

    Its other methods are the actor's own. v0.8.0's rollout asks it for `rollout_config` and `health_check`.

    Args:
        actor: NeMo-RL's actor.
        answer: where the row is read into.
        started: gets the generator of the call.
    """

    async def rows(generator: Any) -> AsyncIterator[Any]:
        async for reference in generator:
            yield _read(reference, answer)

    def options(**wanted: Any) -> Any:
        def remote(*arguments: Any, **more: Any) -> Any:
            generator = actor.run_rollouts.options(**wanted).remote(*arguments, **more)
            started(generator)
            return rows(generator)

        return SimpleNamespace(remote=remote)

    return _Streaming(actor, options)


async def _read(reference: Any, answer: GymAnswer) -> Any:
    row = await reference  # its result comes before the timings, which are the last
    answer.read(row[-2])
    return row


async def await_result(work: Any, started: list[Any]) -> Any:
    """Return the result of a call. When the task is cancelled, the calls of the actor are given up, too.

    Args:
        work: what is awaited.
        started: references or generators of the calls.
    """
    try:
        return await work
    except asyncio.CancelledError:
        for reference in started:
            ray.cancel(reference)
        raise


class SharedTokenizer:
    """An argument that Ray builds once per process of the actor, however many calls have it."""

    def __init__(self, tokenizer: Any) -> None:
        self._reference, self._build = ray.put(tokenizer), _make_once()

    def __reduce__(self) -> Any:
        return self._build, (self._reference,)


def _make_once() -> Callable[[Any], Any]:
    """Make the function that gets an object once per process.

    Ray sends a nested function by value, so the actor's Python environment need not have this package.
    """

    def get(reference: Any) -> Any:
        import ray

        kept = vars(sys).setdefault("_nemo_ada_shared", {})
        name = reference.hex()
        if name not in kept:
            kept[name] = ray.get(reference)
        return kept[name]

    return get


class GymServers:
    """The processes behind the environment's actors. `check` says when they are lost."""

    def __init__(self, environment: Any) -> None:
        self._actors = list_actors(environment)

    def check(self) -> None:
        """Raise ProcessLostError when an actor has died, has started anew without servers, or lost a server.

        An actor that does not answer within CHECK_SECONDS may be busy, so it counts as alive.
        """
        for actor in self._actors:
            self._check(actor)

    def _check(self, actor: Any) -> None:
        if not hasattr(actor, "__ray_call__"):
            return
        try:
            cause = ray.get(actor.__ray_call__.remote(_make_server_check()), timeout=CHECK_SECONDS)
        except ray.exceptions.GetTimeoutError:
            return
        except ray.exceptions.RayActorError as error:
            cause = str(error).strip().splitlines()[0]
        if cause:
            raise ProcessLostError(f"NeMo-Gym is lost: {cause}")


class ServerWatch:
    """Awaits the rollouts of one event loop, and has the servers checked while none ends."""

    def __init__(self, environment: Any) -> None:
        self._check = SharedCheck(GymServers(environment).check)
        self._heard = time.monotonic()

    async def result(self, work: Coroutine[Any, Any, Any], started: list[Any]) -> Any:
        """Return the result of a rollout.

        Args:
            work: the rollout.
            started: generators of its calls, which are given up when the caller is cancelled.

        Raises:
            ProcessLostError: no rollout ends, and a server has died.
        """
        task = asyncio.ensure_future(await_result(work, started))
        try:
            while not (await asyncio.wait({task}, timeout=SILENT_SECONDS))[0]:
                if time.monotonic() - self._heard >= SILENT_SECONDS:
                    await self.check()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._heard = time.monotonic()
        return task.result()

    async def check(self) -> None:
        """Raise ProcessLostError when a server is lost."""
        await self._check()
        self._heard = time.monotonic()


def _make_server_check() -> Callable[[Any], str]:
    """Make the function that checks Gym's servers from within the actor. Ray sends it by value."""

    def dead(actor: Any) -> str:
        """The reason why no rollout can succeed, or an empty text."""
        helper = getattr(actor, "rh", None)
        if helper is None:
            return "its actor has started anew, and nothing starts its servers again"
        try:
            helper.poll()
        except Exception as error:  # noqa: BLE001 - Gym raises whatever says that a server ended
            return f"{type(error).__name__}: {error}"
        return ""

    return dead
