"""The loop between a session and a source, once for sources that are called and once for those that are awaited."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Literal, Protocol

from nemo_ada.core.arrays import IntArray
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import Outcomes, Requests, ResponseSource

StopCheck = Callable[[], Literal["drain", "drop", "give_up"] | None]
"""It is called before each decision. With None the session goes on. With "drain" it issues nothing more and finishes
what runs. With "drop" it stops what runs. With "give_up" it stops what runs and keeps the complete waves."""


class AsyncSource(Protocol):
    """A `ResponseSource` whose calls are awaited, for sessions that share an event loop and a budget."""

    def clock(self) -> float:
        """Return the time in seconds."""

    async def submit(self, requests: Requests) -> None:
        """Start responses. It may wait, for example while weights change."""

    async def poll(self) -> Outcomes:
        """Wait for responses, or for a moment, and return those that have ended."""

    async def abort(self, response_id_N: IntArray) -> IntArray:
        """Stop responses and return how many tokens each had generated."""

    async def wait(self) -> None:
        """Wait until another session of the budget has ended, or for a moment."""


def run_sampling(
    session: SamplingSession,
    source: ResponseSource,
    *,
    stop_check: StopCheck | None = None,
    wait: Callable[[], None] | None = None,
) -> SamplingResult:
    """Drive a session to its end.

    After "drop", which may follow "drain", `session.dropped` is True. Then the pools are incomplete and must not be
    trained on.

    Args:
        session: decides what to draw.
        source: draws and labels.
        stop_check: see `StopCheck`.
        wait: called when nothing runs and a shared budget serves other sessions first (budget.py).
    """
    loop = _decide(session, source.clock, stop_check, shared=wait is not None)
    answer = None
    while True:
        try:
            method, arguments = loop.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answer = wait() if method == "wait" and wait is not None else getattr(source, method)(*arguments)


async def run_sampling_async(
    session: SamplingSession, source: AsyncSource, *, stop_check: StopCheck | None = None
) -> SamplingResult:
    """Drive a session to its end as `run_sampling` does, with a source whose calls are awaited."""
    loop = _decide(session, source.clock, stop_check, shared=True)
    answer = None
    while True:
        try:
            method, arguments = loop.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answer = await getattr(source, method)(*arguments)


def _decide(
    session: SamplingSession, clock: Callable[[], float], stop_check: StopCheck | None, *, shared: bool
) -> Generator[tuple[str, tuple[Any, ...]], Any, SamplingResult]:
    """Say what to ask of a source next, as the name of its method with the arguments, and take in what it answers.

    It is a generator, so that calling and awaiting are the only difference between the two drivers.

    Args:
        session: decides what to draw.
        clock: the source's clock.
        stop_check: see `StopCheck`.
        shared: whether the budget serves other sessions, too, so that nothing may run and the session waits.
    """
    while True:
        order = stop_check() if stop_check is not None else None
        if order == "give_up":
            session.give_up()
        elif order is not None:
            session.stop(drain=order == "drain")
        dropped = session.take_aborts()
        if len(dropped):
            session.record_aborted(dropped, (yield "abort", (dropped,)), clock())
        requests = session.next_requests(clock())
        if len(requests):
            yield "submit", (requests,)
        if session.finished:
            return session.result()
        if shared and session.state.in_flight == 0:
            yield "wait", ()
        else:
            session.record((yield "poll", ()), clock())
