"""Metrics that only this back end has, beside the table of nemo_ada.core.metrics. Same rule: no name, no metric."""

from __future__ import annotations

from collections.abc import Mapping

from nemo_ada.core.metrics import PREFIX
from nemo_ada.errors import InvariantError

TABLE: Mapping[str, str] = {
    "tokens_trained": "response tokens in the loss of this step",
    "tokens_spared": "response tokens of kept rows whose advantage is zero, which no pass computes",
    "rows_spared": "kept rows whose advantage is zero, replaced by rows of two tokens",
    "rollout_calls": "rollout calls of the step (synchronous engine)",
    "tokens_dropped_estimated": "tokens of dropped responses, estimated because the engine does not report them",
}


def named(values: Mapping[str, float]) -> dict[str, float]:
    """Prefix the metrics of a step; raises InvariantError for a name that the table does not know."""
    unknown = sorted(set(values) - set(TABLE))
    if unknown:
        raise InvariantError(f"metrics that are not in the table: {', '.join(unknown)}")
    return {PREFIX + name: float(value) for name, value in values.items()}
