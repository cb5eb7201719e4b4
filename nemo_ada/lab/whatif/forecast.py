"""What each way of sampling would have cost and given, from the pass rates of a log.

Rules that look at one prompt at a time, and the single stream, are computed exactly (`simulate.exact`), for every pass
rate. What depends on a whole step, `simulate` says: the estimation variant, caps of a step, and times.
Axes: J pass rates of the mixture, E endings of a pool, S shares of groups without signal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nemo_ada.config.ada import SequentialSampling
from nemo_ada.config.presets import load_presets, parse_ada_settings
from nemo_ada.core.arrays import FloatArray
from nemo_ada.core.learning.factor import compute_factors
from nemo_ada.core.learning.settings import RowSettings
from nemo_ada.core.sampling.paths import StopRule, find_endings
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import UNKNOWN, Estimate
from nemo_ada.lab.simulate import exact
from nemo_ada.lab.whatif.mixture import RATE_J, Mixture, compute_no_spread

GRPO, REFILL = "grpo", "dapo"
ERRORS = 2.0  # standard errors of the mean length that a bound of tokens adds
LABELS_J = np.stack([RATE_J, 1.0 - RATE_J])  # chances of a correct and of an incorrect response, [2, J]
MAX_BATCHES = 10  # of NeMo-RL's dynamic sampling, its default
REFILL_ROW = f"DAPO's refill, at most {MAX_BATCHES} batches"


@dataclass(frozen=True, slots=True)
class Row:
    """One way of sampling. Figures are per prompt of a step.

    Attributes:
        name: The preset, or the method of others.
        max_responses: Largest number of responses per prompt. None where there is none.
        responses: Responses.
        tokens: Generated tokens.
        zero_signal: Share of groups whose labels are all equal. NaN where equal labels teach.
        signal: Expected update along the gradient of the pass rate, relative to GRPO with n responses. NaN where the
            rows have other weights.
        signal_per_response: The same per response.
    """

    name: str
    max_responses: int | None
    responses: Estimate
    tokens: Estimate
    zero_signal: Estimate
    signal: Estimate
    signal_per_response: Estimate


@dataclass(frozen=True, slots=True)
class ByRate:
    """Expectations for each pass rate of the mixture.

    Attributes:
        answers_J: Correct and incorrect responses of a pool, [2, J].
        signal_J: Expected update of a group of n rows along the gradient of the pass rate.
        zero_J: Probability that all labels are equal. None where equal labels teach.
    """

    answers_J: FloatArray
    signal_J: FloatArray
    zero_J: FloatArray | None


def compute_by_rate(rule: StopRule, group: int) -> ByRate:
    """Compute the expectations of a rule."""
    found = []
    for p in RATE_J.tolist():
        summary, end = exact.summarise_rule(rule, p), find_endings(rule)
        inside = 0.0 < p < 1.0
        factor = float(compute_factors(RowSettings(group, rule), np.array([p]))[0]) if inside else 0.0
        pos = end.mean(end.pos_E, p)
        found.append((pos, summary.expected_samples - pos, summary.p_zero_signal, group * p * (1.0 - p) * factor))
    pos_J, neg_J, zero_J, signal_J = np.array(found).T
    return ByRate(np.stack([pos_J, neg_J]), signal_J, zero_J)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The training whose steps are asked for.

    Attributes:
        mixture: The pass rates.
        group: The group size n.
        prompts: Prompts per step.
        tokens_J: Mean tokens of a correct and of an incorrect response by pass rate, [2, J]. NaN where nobody knows.
        token_error: Relative standard error of the mean tokens.
    """

    mixture: Mixture
    group: int
    prompts: int
    tokens_J: FloatArray
    token_error: float = 0.0

    def row(self, name: str, cap: int, by_rate: ByRate, *, comparable: bool = True) -> Row:
        """Return the row of a rule with at most `cap` responses. Without `comparable` its rows have other weights."""
        mixture, responses_J = self.mixture, by_rate.answers_J.sum(axis=0)
        grpo_J = (self.group - 1) * RATE_J * (1.0 - RATE_J)
        signal = per_response = UNKNOWN
        if comparable:
            signal = mixture.mean(by_rate.signal_J, grpo_J)
            per_response = mixture.per_cost(by_rate.signal_J, grpo_J, responses_J).times(self.group)
        zero = UNKNOWN if by_rate.zero_J is None else mixture.share(by_rate.zero_J)
        responses = mixture.mean(responses_J)
        return Row(name, cap, responses, self.tokens(by_rate.answers_J), zero, signal, per_response)

    def tokens(self, answers_J: FloatArray) -> Estimate:
        """Return the mean tokens of so many correct and incorrect responses [2, J]."""
        if not np.isfinite(self.tokens_J).all():
            return UNKNOWN
        found, wider = self.mixture.mean((answers_J * self.tokens_J).sum(axis=0)), ERRORS * self.token_error
        return Estimate(found.value, found.low * max(0.0, 1.0 - wider), found.high * (1.0 + wider))


def make_rows(
    forecast: Forecast, names: Sequence[str] = (), max_responses: Sequence[int] = ()
) -> tuple[list[Row], list[str]]:
    """Compute the rows of presets and of DAPO's refill.

    Args:
        forecast: The training.
        names: Presets, and `dapo` for its refill. Without any, all that fit the group size.
        max_responses: Further caps, for presets that draw in waves until labels decide.

    Returns:
        The rows, and a note for each preset that was left out.

    Raises:
        UserError: A preset that was named does not fit.
    """
    found, left_out = list[Row](), list[str]()
    for name in names or (*load_presets(), REFILL):
        for cap in (None, *sorted(set(max_responses))):
            try:
                row = _make_refill_row(forecast) if name == REFILL else _make_row(forecast, name, cap)
            except UserError as unfit:
                if names and cap is None:
                    raise
                left_out.append(f"left out: {name}{'' if cap is None else f' with at most {cap} responses'}: {unfit}")
                continue
            if row is not None and row not in found:
                found.append(row)
    return found, left_out


def _make_row(forecast: Forecast, name: str, cap: int | None) -> Row | None:
    """Return the row of a preset. None where it has no cap that another one could replace.

    A single stream has as many responses as GRPO, each of a prompt of its own. A baseline that does not know the
    response's own label leaves the whole gradient, where the mean of a group leaves (n-1)/n of it. How much noise the
    baseline adds, no log of GRPO says.
    """
    settings, n = parse_ada_settings({"preset": name}), forecast.group
    sampling, single = settings.sampling, settings.advantage.baseline == "shrunk"
    if not isinstance(sampling, SequentialSampling):
        raise UserError(f"what it draws depends on the whole step, which `nemo-ada simulate --preset {name}` simulates")
    if cap is not None:
        if single or sampling.max_responses is None:
            return None
        settings = parse_ada_settings({"preset": name, "sampling": {"max_responses": cap}})
    if single:
        return forecast.row(name, 1, ByRate(n * LABELS_J, n * RATE_J * (1.0 - RATE_J), None))
    plan, comparable = settings.plan(n, 1), settings.advantage.weighting == "reference"
    return forecast.row(name, plan.stop.cap, compute_by_rate(plan.stop, n), comparable=comparable)


def _make_refill_row(forecast: Forecast) -> Row:
    """DAPO's refill: NeMo-RL draws whole batches until as many groups have both labels as a step has prompts.

    What is missing after the last batch counts as groups without signal.
    """
    from scipy.special import bdtr

    n, prompts = forecast.group, forecast.prompts
    zero = forecast.mixture.share(compute_no_spread(n))
    share_S = np.r_[zero.value, np.linspace(zero.low, zero.high, 50)]
    drawn = np.arange(1, MAX_BATCHES)  # another batch follows while fewer than `prompts` groups are mixed
    batches_S = 1.0 + np.array([bdtr(prompts - 1.0, drawn * prompts, 1.0 - share).sum() for share in share_S])
    short_S = np.array(
        [bdtr(np.arange(prompts), MAX_BATCHES * prompts, 1.0 - share).sum() / prompts for share in share_S]
    )  # the mean of what is missing is the sum of P(at most k found) over k below `prompts`
    most_S = np.full(len(share_S), float(MAX_BATCHES))  # where one group in many has both labels, all batches are drawn
    signal_S = np.divide(1.0 - short_S, 1.0 - share_S, out=most_S, where=share_S < 1.0 - 1e-9)
    each, count = forecast.tokens(n * LABELS_J), _enclose(batches_S)
    tokens = Estimate(each.value * count.value, each.low * count.low, each.high * count.high)
    return Row(
        REFILL_ROW, None, _enclose(n * batches_S), tokens, _enclose(short_S).clip(), _enclose(signal_S),
        _enclose(signal_S / batches_S),
    )  # fmt: skip


def _enclose(value_S: FloatArray) -> Estimate:
    """Return the first value, with bounds around all of them."""
    return Estimate(float(value_S[0]), float(value_S.min()), float(value_S.max()))
