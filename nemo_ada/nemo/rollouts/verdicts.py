"""Verdicts of finished responses: the calls of NeMo-RL's `calculate_rewards` of a moment become one.

NeMo-RL's rollout of a response asks the environment in a thread, with a Ray call of its own. That call costs the driver
more than a millisecond. `calculate_rewards` takes any number of rows, as on the synchronous engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

WINDOW = 0.05
"""Seconds that a response waits for others. More than 1 / WINDOW calls per second and task are not made."""
THREADS = 256  # one waits for each call, and a call may wait for the deadline of its slowest answer
CALL = "calculate_rewards"


class Asked(NamedTuple):
    """A call of `calculate_rewards` that waits.

    Attributes:
        rewards: the function.
        batch: its rows. They are lists.
        environments: environment of each task.
        answer: what the rollout of the response waits for.
    """

    rewards: Callable[[Any, Any], Any]
    batch: Any
    environments: Any
    answer: Future[Any]


class Verdicts(ThreadPoolExecutor):
    """The default executor of a loop in which NeMo-RL's rollouts run. It runs every other call as it is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the executor of a loop, which alone may submit calls."""
        super().__init__(THREADS, thread_name_prefix="nemo-ada-verdicts")
        self._loop = loop
        self._waiting: list[Asked] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a call in a thread. One of `calculate_rewards` is joined with others of the next WINDOW."""
        given: tuple[Any, ...] = getattr(fn, "args", ())  # to_thread: partial(context.run, function, *arguments)
        if len(given) != 3 or getattr(given[0], "__name__", "") != CALL:
            return super().submit(fn, *args, **kwargs)
        asked = Asked(given[0], given[1], given[2], Future())
        if not all(isinstance(column, list) for column in asked.batch.values()):
            return super().submit(fn, *args, **kwargs)
        if not self._waiting:
            self._loop.call_later(WINDOW, self._ask)
        self._waiting.append(asked)
        return asked.answer

    def _ask(self) -> None:
        """Start one call per task. Calls of dropped responses are not made."""
        waiting, self._waiting = self._waiting, []
        by_task: dict[str, list[Asked]] = {}  # rewards of two tasks may differ in shape, and NeMo-RL stacks them
        for asked in waiting:
            if asked.answer.set_running_or_notify_cancel():
                by_task.setdefault(repr(asked.batch["task_name"]), []).append(asked)
        for together in by_task.values():
            super().submit(_answer, together)


def _answer(together: list[Asked]) -> None:
    """Ask for all rows at once, and give each call its rows of the answer."""
    try:
        first, columns = together[0], together[0].batch
        rows = type(columns)({name: [item for asked in together for item in asked.batch[name]] for name in columns})
        found = first.rewards(rows, first.environments)
        start = 0
        for asked in together:
            end = start + len(asked.batch["task_name"])
            asked.answer.set_result(type(found)(*(None if column is None else column[start:end] for column in found)))
            start = end
    except BaseException as error:  # noqa: BLE001 - the rollout of every response raises it
        for asked in together:
            if not asked.answer.done():
                asked.answer.set_exception(error)
