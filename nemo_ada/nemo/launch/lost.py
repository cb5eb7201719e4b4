"""Is a dead process behind an error? Then the next slot goes on, because another attempt may succeed.

Ray drops `__cause__` when it sends an error from one process to another. So a process that knows the whole chain says
what was lost before its error leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nemo_ada.errors import ProcessLostError, StallError

LOST = (
    "RayActorError",
    "WorkerCrashedError",
    "ObjectLostError",
    "NodeDiedError",
    "LocalRayletDiedError",
    "OutOfMemoryError",
    "RaySystemError",  # for example, the head node cannot be reached
    "RpcError",
)


def find_lost_process(error: BaseException | None) -> str | None:
    """Return Ray's message about the dead process or node behind an error. None for any other reason."""
    for cause in _walk_errors(error, set()):
        if any(cls.__module__ == "ray.exceptions" and cls.__name__ in LOST for cls in type(cause).__mro__):
            return str(cause).strip().splitlines()[0]
    return None


def _walk_errors(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    """Yield an error, the errors of a group, and their causes."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _walk_errors(inner, seen)
    yield from _walk_errors(error.__cause__, seen)
    if not error.__suppress_context__:
        yield from _walk_errors(error.__context__, seen)


@contextmanager
def raise_lost_process() -> Iterator[None]:
    """Within the block an error behind which a process has died becomes a ProcessLostError, which Ray can send."""
    try:
        yield
    except (ProcessLostError, StallError):
        raise
    except Exception as error:
        if (lost := find_lost_process(error)) is not None:
            raise ProcessLostError(lost) from error
        raise
