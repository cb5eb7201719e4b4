"""Prompt groups that were drawn independently of each other, and the step that trains on them.

Asynchronous training draws each group in a session of its own, ahead of the step. `result.join_results` makes one
result of their pools, so rows and metrics come from the same code in both modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.summary import mean


@dataclass(frozen=True, slots=True)
class GroupPool:
    """The pool of one prompt. It has numbers only, so it can be sent between processes.

    Attributes:
        step: number of the training step that trains on the pool.
        prompt_id: stable id of the prompt.
        result: result of a session with this one prompt.
        version_N: version of the weights under which each response was started.
        redrawn: whether an earlier attempt of the run had begun this group and did not finish it.
        given_up: whether the group took longer than max_group_seconds.
        features_F: features of the prompt, for the value estimator.
    """

    step: int
    prompt_id: str
    result: SamplingResult
    version_N: IntArray
    redrawn: bool = False
    given_up: bool = False
    features_F: FloatArray | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as numbers, strings, arrays and dictionaries of these."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"result": self.result.as_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GroupPool:
        """Restore the result of `as_dict`."""
        return cls(**{**values, "result": SamplingResult(**values["result"])})


def compute_group_metrics(pools: Sequence[GroupPool]) -> dict[str, float]:
    """Compute the metrics that only groups of asynchronous training have."""
    version_N = np.concatenate([pool.version_N for pool in pools])
    step_N = np.repeat([pool.step for pool in pools], [len(pool.version_N) for pool in pools])
    return {
        "groups_given_up": sum(pool.given_up for pool in pools),
        "groups_redrawn": sum(pool.redrawn for pool in pools),
        "pools_mixed_versions": mean(np.array([len(set(pool.version_N.tolist())) > 1 for pool in pools])),
        "response_age": mean(step_N - version_N),
    }
