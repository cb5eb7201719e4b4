"""The loop between a session and a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import ResponseSource

StopCheck = Callable[[], Literal["drain", "drop", "give_up"] | None]
"""Asked before each decision. None: go on. "drain": issue nothing more and finish what runs. "drop": stop what runs.
"give_up": stop what runs and keep the complete waves."""


def run_sampling(
    session: SamplingSession,
    source: ResponseSource,
    *,
    stop_check: StopCheck | None = None,
    wait: Callable[[], None] | None = None,
) -> SamplingResult:
    """Drive a session to its end.

    wait: called when nothing runs and a shared budget serves other sessions first (budget.py).
    After "drop" (which may follow "drain"), `session.dropped` is True: the pools are incomplete, do not train on them.
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
        elif not session.aborting:
            session.record(source.poll(), source.clock())
