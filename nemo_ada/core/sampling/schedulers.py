"""The loop between a session and a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import ResponseSource

StopCheck = Callable[[], Literal["drain", "drop"] | None]
"""Asked before each decision. None: go on. "drain": issue nothing more and finish what runs. "drop": stop what runs."""


def run_sampling(
    session: SamplingSession, source: ResponseSource, *, stop_check: StopCheck | None = None
) -> SamplingResult:
    """Drive a session to its end.

    After "drop" (which may follow "drain"), `session.dropped` is True: the pools are incomplete, do not train on them.
    """
    while True:
        order = stop_check() if stop_check is not None else None
        if order is not None:
            session.stop(drain=order == "drain")
        dropped = session.take_aborts()
        if len(dropped):
            session.record_aborted(dropped, source.abort(dropped), source.clock())
        requests = session.next_requests(source.clock())
        if len(requests):
            source.submit(requests)
        if session.finished:
            return session.result()
        if not session.aborting:
            session.record(source.poll(), source.clock())
