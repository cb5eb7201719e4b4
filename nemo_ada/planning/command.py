"""`nemo-ada plan`: put the parts together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from nemo_ada.config.presets import ada_settings
from nemo_ada.errors import UserError
from nemo_ada.planning import phase
from nemo_ada.planning.calibration import Calibration, fp8_said, mean_tokens
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
from nemo_ada.planning.history import History, PastRun
from nemo_ada.planning.lengths import lengths_of
from nemo_ada.planning.model import Model, capped, variant
from nemo_ada.planning.notes import notes
from nemo_ada.planning.presets import COMPARED, Advice, Cost, advise
from nemo_ada.planning.published import FP8, GROUP, SAMPLING_SHARE
from nemo_ada.planning.slots import Slots, check_cold_start, parse_time, plan_slots
from nemo_ada.simulate.steps import Variant

STEPS, STEPS_CAPPED = 24, 20
CHANGED = 0.005  # of a figure, above which it is no longer the published one

Price = Callable[[str | None, phase.Phases], float]
"""Seconds of the first phase of a step under a preset, from its simulated phases."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is said. own_run: the plan was made from the run that it is for. caps, even: None under dynamic
    sampling, whose batches they would bound one by one."""

    rates: str
    lengths: str
    forecast: Forecast
    slots: Slots
    caps: SuggestedCaps | None
    even: EvenCap | None
    costs: tuple[Cost, ...]
    advice: Advice
    own_run: bool
    notes: tuple[str, ...]


def make_plan(
    config: Path,
    overrides: Sequence[str],
    *,
    time: str,
    run: Path | None = None,
    run_steps: int | None = None,
    pass_rates: Path | None = None,
    cold_start: float | None = None,
    median_tokens: float | None = None,
    steps: int = STEPS,
) -> Plan:
    """The plan for a configuration. run: an earlier run's folder; run_steps: use its first steps only; cold_start:
    seconds; median_tokens: of a response, where no run says. steps: simulated ones. Raises UserError."""
    if run is None and run_steps is not None:
        raise UserError(f"--run-steps={run_steps} needs --run with the folder of the run whose first steps it means")
    seconds, start = parse_time(time), None if cold_start is None else check_cold_start(cold_start)
    facts = read(config, overrides)
    history = None if run is None else History.read(run, steps=run_steps)
    beta = None if history is None else history.beta(facts.group)
    rates, mean_rate, rates_said = rates_of(facts, pass_rates, beta)
    lengths, lengths_said = lengths_of(facts.longest, history, median_tokens)
    model = Model(facts, rates, lengths, steps)
    asked = variant(facts.ada, facts.group, facts.longest)
    asked.plan.check_first_waves(facts.drawn, None if asked.allocate is None else facts.drawn * facts.group)
    save = Time(facts.save_seconds, 1.5 * facts.save_seconds, 3 * facts.save_seconds, "assumed")
    ran = None if run is None else PastRun.read(run, facts)
    if history is not None:
        forecast, this, clock = _measured(facts, model, asked, ran, history, save)
        drain = clock[0] + clock[1] * tokens_per_engine_step(history)
        unit = forecast.sampling.p50 / max(float(np.median(this.engine_steps_S)), 1.0)
        price: Price = lambda _preset, found: unit * float(np.median(found.engine_steps_S))  # noqa: E731
        published_run = None
    else:
        calibration = Calibration.of(facts, steps)
        forecast, this, clock, price = _published(facts, model, asked, save, calibration)
        drain, published_run = clock[0], calibration.run_said
    costs = _costs(facts, model, forecast, this, price)
    response = forecast.sampling.p50 / float(np.median(this.responses_S))
    advice = advise(costs, mean_rate, response, forecast.phases["update"].p50 / (facts.prompts * facts.group))
    slots = plan_slots(
        forecast, seconds=seconds, steps=facts.steps, val_period=facts.val_period,
        save_period=facts.save_period, gpus=facts.gpus,
        cold_start=COLD_START[facts.backend] if start is None else start,
        source="assumed" if start is None else "given",
    )  # fmt: skip
    caps, even = None, None
    if facts.dynamic is None:
        if not asked.plan.only_first_waves:
            caps = suggest_caps(
                forecast,
                samples_p95=float(np.quantile(this.responses_S, 0.95)),
                tokens_p95=float(np.quantile(this.tokens_S, 0.95)),
                first_wave=facts.prompts * asked.plan.first_issue,
                drain=facts.longest * drain,
                available=slots.kept,
            )
        even = even_cap(lambda cap: model.phases(capped(asked, cap), clock, min(steps, STEPS_CAPPED)))
    return Plan(
        rates_said, lengths_said, forecast, slots, caps, even, costs, advice, ran == PastRun(asked, facts.prompts),
        tuple(notes(facts, asked, this, slots, published_run)),
    )  # fmt: skip


def _measured(
    facts: Facts, model: Model, asked: Variant, ran: PastRun | None, history: History, save: Time
) -> tuple[Forecast, phase.Phases, tuple[float, float]]:
    """Forecast, simulated phases and the clock (seconds per engine step, and per running response) from a run."""
    ran, pace = ran or PastRun(asked, facts.prompts), Pace.fit(history)
    theirs = replace(model, facts=replace(facts, prompts=ran.prompts))
    own = theirs.phases(ran.variant, pace.clock)
    pace = pace.calibrated(history, own)
    this = model.phases(asked, pace.clock)
    carried = ran != PastRun(asked, facts.prompts)
    live = facts.prompts * (1.0 - this.zero_signal) / max(ran.prompts * (1.0 - own.zero_signal), 1e-9)
    forecast = from_history(
        history, pace, this, asked.plan, prompts=facts.prompts, longest=facts.longest, worst=model.worst(asked.plan),
        save=save, carried=live if carried else None,
    )  # fmt: skip
    return forecast, this, pace.clock


def _published(
    facts: Facts, model: Model, asked: Variant, save: Time, calibration: Calibration
) -> tuple[Forecast, phase.Phases, tuple[float, float], Price]:
    """The same from published step times, and what other presets cost: under their seconds per engine step max_seconds
    is simulated."""
    step, preset = calibration.step, facts.ada.preset
    this = model.phases(capped(asked, None))
    speed = FP8 if facts.fp8_rollout else 1.0

    four = replace(model, facts=replace(facts, group=GROUP, dynamic=None))
    grpo = four.phases(variant(ada_settings({"preset": "grpo"}), GROUP, facts.longest))
    changes = {
        "rows per prompt": facts.group / GROUP,
        "lengths": mean_tokens(grpo) / calibration.tokens,
        "FP8": FP8 if facts.fp8_train else 1.0,
    }
    update = step.update * prod(changes.values())
    tokens = changes["rows per prompt"] * changes["lengths"]

    def price(name: str | None, found: phase.Phases) -> float:
        return speed * calibration.sampling(name, tokens, float(np.median(found.engine_steps_S)))

    clock = (speed * calibration.factor(preset) * calibration.per_step, 0.0)
    fixed = speed * calibration.sampling(preset, tokens, 0.0)
    differs = calibration.differences(facts, asked, model.rates, model.lengths)
    fp8 = fp8_said(facts)
    cap = asked.plan.caps.max_seconds
    if cap is not None:
        this = model.phases(asked, clock)
    said, update_said = _said(calibration, preset, differs, fp8), step.update_said
    changed = [f"{what} x{factor:.2f}" for what, factor in changes.items() if abs(factor - 1.0) > CHANGED]
    if changed:
        update_said = f"extrapolated by {', '.join(changed)}; {update_said}"
    sampling = calibration.sampling("grpo", changes["lengths"], float(np.median(grpo.engine_steps_S)))
    seconds = speed * sampling + update / changes["rows per prompt"]
    evaluation = Time(seconds / 2, seconds, 2 * seconds, "assumed: half a step of GRPO n = 4")
    forecast = from_published(
        Published(clock[0], fixed, f"{said} ({step.published.source})"), (update, update_said), this,
        model.worst(asked.plan)[0], longest=facts.longest, evaluation=evaluation, save=save, cap=cap,
    )  # fmt: skip
    return forecast, this, clock, price


def _said(calibration: Calibration, preset: str | None, differs: Sequence[str], fp8: str) -> str:
    """How the seconds of the first phase were come by."""
    step = calibration.step
    if not (differs or fp8 or step.by):
        ratio = calibration.ratio(preset)
        return f"published: {step.seconds * ratio:.0f} s less the update"
    how = [f"in proportion to {', '.join(step.by)}"] if step.by else []
    how += [f"by simulation of its own {', '.join(differs)}"] if differs else []
    how += [fp8] if fp8 else []
    share = "" if calibration.factors else f"; {SAMPLING_SHARE:.0%} of it (assumed) follows the engine"
    return f"extrapolated from {step.name}'s published {step.published.seconds:.0f} s: {', '.join(how)}{share}"


def _costs(facts: Facts, model: Model, forecast: Forecast, this: phase.Phases, price: Price) -> tuple[Cost, ...]:
    """This plan, and presets without caps, on these prompts."""
    others = forecast.step.p50 - forecast.sampling.p50

    def cost(name: str, found: phase.Phases, seconds: float) -> Cost:
        responses = float(np.median(found.responses_S))
        return Cost(name, responses, seconds, seconds + others, found.zero_signal, found.utilisation)

    costs = [cost("this plan", this, forecast.sampling.p50)]
    for name in COMPARED:
        try:
            compared = variant(ada_settings({"preset": name}), facts.group, facts.longest)
        except UserError:  # a preset with waves of 4 has no place where groups of 8 are kept
            continue
        found = model.phases(compared)
        costs.append(cost(name, found, price(name, found)))
    return tuple(costs)
