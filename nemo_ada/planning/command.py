"""`nemo-ada plan`: put the parts together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nemo_ada.config.presets import ada_settings
from nemo_ada.core.des import LengthModel
from nemo_ada.errors import UserError
from nemo_ada.planning import phase
from nemo_ada.planning.caps import EvenCap, SuggestedCaps, even_cap, suggest_caps
from nemo_ada.planning.facts import COLD_START, Facts, rates_of, read
from nemo_ada.planning.forecast import (
    Forecast,
    Pace,
    Published,
    Time,
    from_history,
    from_published,
    tokens_per_engine_step,
)
from nemo_ada.planning.history import History, Ran
from nemo_ada.planning.model import Model, capped, variant
from nemo_ada.planning.presets import COMPARED, Advice, Cost, advise
from nemo_ada.planning.published import GRPO, RATIO, SAMPLING_SHARE, grpo_step
from nemo_ada.planning.slots import Slots, parse_time, plan_slots
from nemo_ada.simulate import Variant

STEPS, STEPS_COMPARED, STEPS_CAPPED = 40, 8, 20


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is said. own_run: the plan was made from the run that it is for."""

    rates: str
    lengths: str
    forecast: Forecast
    slots: Slots
    caps: SuggestedCaps
    even: EvenCap
    costs: tuple[Cost, ...]
    advice: Advice
    own_run: bool


def make_plan(
    config: Path,
    overrides: Sequence[str],
    *,
    time: str,
    run: Path | None = None,
    run_steps: int | None = None,
    pass_rates: Path | None = None,
    cold_start: float | None = None,
    steps: int = STEPS,
) -> Plan:
    """The plan for a configuration. run: an earlier run's folder; run_steps: use its first steps only."""
    facts = read(config, overrides)
    history = None if run is None else History.read(run, steps=run_steps)
    beta = None if history is None else history.beta(facts.group)
    rates, mean_rate, rates_said = rates_of(facts, pass_rates, beta)
    lengths, lengths_said = _lengths(facts, history)
    model = Model(facts, rates, lengths, steps)
    asked = variant(facts.ada, facts.group, facts.longest)
    save = Time(facts.save_seconds, 1.5 * facts.save_seconds, 3 * facts.save_seconds, "assumed")
    ran = None if run is None else Ran.read(run, facts)
    if history is not None:
        forecast, this, clock = _measured(facts, model, asked, ran, history, save)
        drain = clock[0] + clock[1] * tokens_per_engine_step(history)
    else:
        forecast, this, clock = _published(facts, model, asked, save)
        drain = clock[0]
    costs = _costs(facts, model, forecast, this, asked)
    response = forecast.sampling.p50 / float(np.median(this.responses_S))
    advice = advise(costs, mean_rate, response, forecast.phases["update"].p50 / (facts.prompts * facts.group))
    slots = plan_slots(
        forecast, seconds=parse_time(time), steps=facts.steps, val_period=facts.val_period,
        save_period=facts.save_period, gpus=facts.gpus,
        cold_start=COLD_START[facts.backend] if cold_start is None else cold_start,
        source="assumed" if cold_start is None else "given",
    )  # fmt: skip
    caps = suggest_caps(
        forecast,
        samples_p95=float(np.quantile(this.responses_S, 0.95)),
        tokens_p95=float(np.quantile(this.tokens_S, 0.95)),
        first_wave=facts.prompts * asked.plan.first_issue,
        drain=facts.longest * drain,
        available=slots.seconds - slots.cold_start - save.worst - 30.0,
    )
    even = even_cap(lambda cap: model.phases(capped(asked, cap), clock, min(steps, STEPS_CAPPED)))
    return Plan(rates_said, lengths_said, forecast, slots, caps, even, costs, advice, ran == Ran(asked, facts.prompts))


def _lengths(facts: Facts, history: History | None) -> tuple[LengthModel, str]:
    if history is not None and len(history.lengths_L):
        lengths = np.minimum(history.lengths_L, facts.longest)
        return phase.MeasuredLengths(
            lengths=tuple(lengths.tolist())
        ), f"measured: {len(lengths)} of the run's responses"
    if history is not None:
        return (
            LengthModel(history.mean_length / 1.25, 0.67, 1.0, facts.longest),
            f"log-normal with the run's mean of {history.mean_length:.0f} tokens; its spread is assumed",
        )
    median = 0.3 * facts.longest
    return LengthModel(median, 0.7, 1.3, facts.longest), f"assumed: log-normal, median {median:.0f} tokens; give --run"


def _measured(
    facts: Facts, model: Model, asked: Variant, ran: Ran | None, history: History, save: Time
) -> tuple[Forecast, phase.Phases, tuple[float, float]]:
    """Forecast, simulated phases and the clock (seconds per engine step, and per running response) from a run."""
    ran, pace = ran or Ran(asked, facts.prompts), Pace.fit(history)
    theirs = replace(model, facts=replace(facts, prompts=ran.prompts))
    own = theirs.phases(ran.variant, pace.clock)
    pace = pace.calibrated(history, own)
    this = model.phases(asked, pace.clock)
    carried = ran != Ran(asked, facts.prompts)
    live = facts.prompts * (1.0 - this.zero_signal) / max(ran.prompts * (1.0 - own.zero_signal), 1e-9)
    forecast = from_history(
        history, pace, this, asked.plan, prompts=facts.prompts, longest=facts.longest, worst=model.worst(asked.plan),
        save=save, carried=live if carried else None,
    )  # fmt: skip
    return forecast, this, pace.clock


def _published(
    facts: Facts, model: Model, asked: Variant, save: Time
) -> tuple[Forecast, phase.Phases, tuple[float, float]]:
    """The same from published step times: their seconds per engine step, under which max_seconds is simulated."""
    if facts.shape is None:
        raise UserError("nothing was published for the embedded back end; give --run with an earlier run's folder")
    this = model.phases(capped(asked, None))
    mean_length = float(this.tokens_S.sum() / this.responses_S.sum())
    step = grpo_step(facts.model, facts.shape, facts.prompts * facts.group, facts.gpus, mean_length)
    grpo = variant(ada_settings({"preset": "grpo"}), facts.group, facts.longest)
    median = float(np.median(this.engine_steps_S))
    factor = median / float(np.median(model.phases(grpo, steps=STEPS_COMPARED).engine_steps_S))
    rest = step.seconds - step.update
    ratio = RATIO.get((facts.model, facts.ada.preset or ""))
    if ratio is not None and step.as_published and GRPO[facts.model].gpus == facts.gpus:
        sampling, said = step.seconds * ratio - step.update, f"published: {step.seconds * ratio:.0f} s less the update"
        fixed = max(0.0, rest - (sampling - rest) / max(factor - 1.0, 0.05))
    else:
        sampling, fixed = rest * (1.0 + SAMPLING_SHARE * (factor - 1.0)), rest * (1.0 - SAMPLING_SHARE)
        said = f"GRPO's step {step.said}, less the update; {SAMPLING_SHARE:.0%} (assumed) x{factor:.2f} by simulation"
    clock = ((sampling - fixed) / median, 0.0)
    cap = asked.plan.caps.max_seconds
    if cap is not None:
        this = model.phases(asked, clock)
    evaluation = Time(step.seconds / 2, step.seconds, 2 * step.seconds, "assumed: half a GRPO step")
    forecast = from_published(
        Published(clock[0], fixed, f"{said} ({step.source})"), (step.update, step.update_said), this,
        model.worst(asked.plan)[0], longest=facts.longest, evaluation=evaluation, save=save, cap=cap,
    )  # fmt: skip
    return forecast, this, clock


def _costs(facts: Facts, model: Model, forecast: Forecast, this: phase.Phases, asked: Variant) -> tuple[Cost, ...]:
    """This plan, and presets without caps, on these prompts; seconds in proportion to simulated engine steps."""
    sampling = forecast.sampling.p50
    others = forecast.step.p50 - sampling
    unit = (sampling - forecast.fixed) / max(float(np.median(this.engine_steps_S)), 1.0)

    def cost(name: str, found: phase.Phases) -> Cost:
        seconds = forecast.fixed + unit * float(np.median(found.engine_steps_S))
        responses = float(np.median(found.responses_S))
        return Cost(name, responses, seconds, seconds + others, found.zero_signal, found.utilisation)

    costs = [cost("this plan", this)]
    for name in COMPARED:
        try:
            compared = variant(ada_settings({"preset": name}), facts.group, facts.longest)
        except UserError:  # a preset with waves of 4 has no place where groups of 8 are kept
            continue
        costs.append(cost(name, model.phases(compared, steps=STEPS_COMPARED)))
    return tuple(costs)
