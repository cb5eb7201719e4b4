"""The loop between a session and a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import ResponseSource

StopCheck = Callable[[], Literal["drain", "drop", "give_up"] | None]
"""It is called before each decision. With None the session goes on. With "drain" it issues nothing more and finishes
what runs. With "drop" it stops what runs. With "give_up" it stops what runs and keeps the complete waves."""


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
    while True:
        order = stop_check() if stop_check is not None else None
        if order == "give_up":
            session.give_up()
        elif order is not None:
            session.stop(drain=order == "drain")
        dropped = session.take_aborts()
        if len(dropped):
            session.record_aborted(dropped, source.abort(dropped), source.clock())
        requests = session.next_requests(source.clock())
        if len(requests):
            source.submit(requests)
        if session.finished:
            return session.result()
        if wait is not None and session.state.in_flight == 0:
            wait()
        else:
            session.record(source.poll(), source.clock())
