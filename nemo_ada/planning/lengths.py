"""Response lengths of a plan: measured in an earlier run, given by their median, or assumed by a rule."""

from __future__ import annotations

import numpy as np

from nemo_ada.errors import UserError
from nemo_ada.planning.history import History
from nemo_ada.planning.phase import MeasuredLengths
from nemo_ada.simulate.engine import LengthModel

MEDIAN_SHARE, SIGMA, WRONG_FACTOR = 0.3, 0.7, 1.3
SHAPE = f"sigma {SIGMA:g}, wrong answers x{WRONG_FACTOR:g}"


def by_rule(longest: int) -> LengthModel:
    """What is assumed where nothing is known. longest: tokens."""
    return LengthModel(MEDIAN_SHARE * longest, SIGMA, WRONG_FACTOR, longest)


def lengths_of(longest: int, history: History | None, median: float | None) -> tuple[LengthModel, str]:
    """Lengths of responses of at most `longest` tokens, and where they come from. Raises UserError for a median that
    cannot be."""
    if median is not None:
        if history is not None:
            raise UserError("--median-tokens: the run of --run has lengths of its own; give one of the two")
        if not 1 <= median <= longest:
            raise UserError(f"--median-tokens={median:g} must lie between 1 and max_new_tokens={longest}")
        said = f"given: log-normal, median {median:g} tokens (--median-tokens), {SHAPE} (assumed)"
        return LengthModel(float(median), SIGMA, WRONG_FACTOR, longest), said
    if history is None:
        found = by_rule(longest)
        return found, (
            f"assumed: log-normal, median {MEDIAN_SHARE:g} x max_new_tokens ({longest}) = {found.median:.0f} tokens, "
            f"{SHAPE}; give --median-tokens or --run"
        )
    if len(history.lengths_L):
        measured = np.minimum(history.lengths_L, longest)
        return MeasuredLengths(lengths=tuple(measured.tolist())), f"measured: {len(measured)} of the run's responses"
    return (
        LengthModel(history.mean_length / 1.25, 0.67, 1.0, longest),
        f"log-normal with the run's mean of {history.mean_length:.0f} tokens; its spread is assumed",
    )
