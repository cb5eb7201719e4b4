"""What a rollout over NeMo-Gym that failed becomes: a response without a label. The sampler draws another one."""

from __future__ import annotations

import logging

from nemo_ada.nemo.rollouts.response import GYM_ERROR, Response

log = logging.getLogger(__name__)

WARNINGS = 3  # failed rollouts whose reason is logged


class Failures:
    """The failed rollouts of a step or of a group. The log has the reasons of the first ones."""

    def __init__(self) -> None:
        self._count = 0

    def response(self, error: Exception) -> Response:
        """Return the response of a rollout that ended with this error."""
        self._count += 1
        if self._count <= WARNINGS:
            lines = str(error).strip().splitlines() or [""]
            log.warning("a rollout of NeMo-Gym failed and has no label: %s: %s", type(error).__name__, lines[-1][:300])
        return Response([], [], float("nan"), False, 0, failure=GYM_ERROR)
