"""The loop between a session and a source; the session's plan says whether rounds have a barrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import ResponseSource


def run_sampling(
    session: SamplingSession,
    source: ResponseSource,
    *,
    on_event: Callable[[], Literal["drain", "drop"] | None] | None = None,
) -> SamplingResult:
    """Drive a session to its end.

    on_event: called before each decision (heartbeat, stop file). "drain" asks to issue nothing more and to finish what
    runs, "drop" (also after "drain", when that takes too long) to stop what runs as well: `session.dropped` then says
    that the pools are incomplete and the step must not be trained on.
    """
    while True:
        order = on_event() if on_event is not None else None
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
