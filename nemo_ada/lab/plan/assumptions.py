"""Pass rates and response lengths of a plan: measured, given on the command line, published, or assumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nemo_ada.errors import UserError
from nemo_ada.lab.plan.history import History
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.lab.simulate.steps import BetaRates, MeasuredRates, RateDistribution

MEDIAN_SHARE, SIGMA, WRONG_FACTOR = 0.3, 0.7, 1.3  # of the log-normal (`LengthModel`); the first of max_new_tokens
SPREAD = f"sigma {SIGMA:g}, wrong answers x{WRONG_FACTOR:g}"
EASY, HARD = tuple(k / 16 for k in range(1, 6)), (1 / 16, 2 / 16)  # pass rates of the authors' two kinds of data sets


def choose_rates(data: str, measured: Path | None, history: History | None, group: int) -> tuple[RateDistribution, str]:
    """Pass rates and their origin. `data`: name of the training set."""
    if measured is not None:
        return MeasuredRates.read(measured), f"measured: {measured}"
    if history is not None:
        a, b = history.beta(group)
        return BetaRates(a, b), f"Beta({a:.2f}, {b:.2f}) fitted to the run"
    if "reinforce_ada" in data and "hard" in data:
        return MeasuredRates(HARD), "published: hard set, 1 or 2 of 16 correct"
    if "reinforce_ada" in data:
        return MeasuredRates(EASY), "published: easy set, 1 to 5 of 16 correct"
    return BetaRates(0.6, 1.5), "assumed: Beta(0.6, 1.5); give --pass-rates"


def choose_lengths(longest: int, history: History | None, median: float | None) -> tuple[LengthModel, str]:
    """Lengths of responses of at most `longest` tokens, and their origin. Raises UserError for an impossible median."""
    if median is not None:
        if history is not None:
            raise UserError("--median-tokens: the run of --run has lengths of its own; give one of the two")
        if not 1 <= median <= longest:
            raise UserError(f"--median-tokens={median:g} must lie between 1 and max_new_tokens={longest}")
        origin = f"given: log-normal, median {median:g} tokens (--median-tokens), {SPREAD} (assumed)"
        return LengthModel(float(median), SIGMA, WRONG_FACTOR, longest), origin
    if history is None:
        median = MEDIAN_SHARE * longest
        return LengthModel(median, SIGMA, WRONG_FACTOR, longest), (
            f"assumed: log-normal, median {MEDIAN_SHARE:g} x max_new_tokens ({longest}) = {median:.0f} tokens, "
            f"{SPREAD}; give --median-tokens or --run"
        )
    if len(history.lengths_L):
        lengths = np.minimum(history.lengths_L, longest)
        return LengthModel(measured=tuple(lengths.tolist())), f"measured: {len(lengths)} of the run's responses"
    return (  # exp(0.67^2 / 2) = 1.25, so the log-normal with this median has the run's mean
        LengthModel(history.mean_length / 1.25, 0.67, 1.0, longest),
        f"log-normal with the run's mean of {history.mean_length:.0f} tokens; its spread is assumed",
    )
