"""`nemo-ada plan`: put the parts together and say it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from nemo_ada.config.ada import EstimationSampling
from nemo_ada.config.presets import ada_settings
from nemo_ada.core.des import LengthModel
from nemo_ada.core.plan import SamplingPlan
from nemo_ada.errors import UserError
from nemo_ada.planning import phase
from nemo_ada.planning.facts import COLD_START, Facts, rates_of, read
from nemo_ada.planning.forecast import Forecast, Pace, Time, from_history, from_published, pace_per_engine_step
from nemo_ada.planning.history import History
from nemo_ada.planning.presets import COMPARED, Advice, Cost, advise
from nemo_ada.planning.published import GRPO, RATIO, SAMPLING_SHARE, grpo_step
from nemo_ada.planning.slots import Slots, SuggestedCaps, clock, parse_time, plan_slots, suggest_caps
from nemo_ada.simulate import PassRates

MOST_PROMPTS = 64  # of the simulated step; engine and prompts are scaled down together
STEPS, STEPS_COMPARED = 40, 8


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is said."""

    rates: str
    lengths: str
    forecast: Forecast
    slots: Slots
    caps: SuggestedCaps
    costs: tuple[Cost, ...]
    advice: Advice


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
    small = min(facts.prompts, MOST_PROMPTS)
    engine_slots = max(1, facts.slots * small // facts.prompts)
    model = _Model(facts, rates, lengths, small, engine_slots, steps)
    plan = facts.ada.plan(facts.group, facts.longest)
    pace = None if history is None else Pace.fit(history)
    uncapped = replace(plan, caps=replace(plan.caps, max_seconds=None))  # engine steps have no seconds yet
    this = model.phases(uncapped if history is None else plan, _seconds(pace, history))
    save = Time(facts.save_seconds, 1.5 * facts.save_seconds, 3 * facts.save_seconds, "assumed")
    if history is not None:
        before = _plan_of(run, facts, plan)
        own = this if before is None else model.phases(before, (1.0, 0.0))
        forecast = from_history(
            history, own, this, plan, prompts=facts.prompts, slots=facts.slots, longest=facts.longest, save=save
        )  # fmt: skip
    else:
        forecast = _published(facts, model, plan, this, save)
    sampling = next(iter(forecast.phases.values()))
    per_step = sampling.p50 / max(float(np.median(this.engine_steps_S)), 1.0)
    costs = _costs(facts, model, forecast, this)
    rows = facts.prompts * facts.group
    response = sampling.p50 / (float(np.median(this.responses_S)) * facts.prompts / small)
    advice = advise(costs, mean_rate, response, forecast.phases["training"].p50 / rows)
    start = COLD_START[facts.backend] if cold_start is None else cold_start
    slots = plan_slots(
        forecast, seconds=parse_time(time), cold_start=start, steps=facts.steps, val_period=facts.val_period,
        save_period=facts.save_period, gpus=facts.gpus,
    )  # fmt: skip
    scale = facts.prompts / small
    caps = suggest_caps(
        forecast,
        samples_p95=float(np.quantile(this.responses_S, 0.95)) * scale,
        tokens_p95=float(np.quantile(this.tokens_S, 0.95)) * scale,
        first_wave=facts.prompts * plan.first_issue,
        drain=facts.longest * (per_step if history is None or pace is None else pace_per_engine_step(pace, history)),
        available=slots.seconds - start - save.worst - 30.0,
    )
    return Plan(rates_said, lengths_said, forecast, slots, caps, costs, advice)


@dataclass(frozen=True, slots=True)
class _Model:
    """The simulated engine: fewer prompts than the run's where that is large, with slots in proportion."""

    facts: Facts
    rates: PassRates
    lengths: LengthModel
    prompts: int
    slots: int
    steps: int

    def phases(self, plan: SamplingPlan, seconds: tuple[float, float], steps: int | None = None) -> phase.Phases:
        allocation = None
        if plan.exit.smallest_pool == 1 and isinstance(self.facts.ada.sampling, EstimationSampling):
            allocation = np.full(self.prompts, plan.group_size, np.int64)
        return phase.simulate(
            plan, self.rates, self.lengths, prompts=self.prompts, steps=steps or self.steps, slots=self.slots,
            step_seconds=seconds[0], row_seconds=seconds[1], allocation=allocation,
        )  # fmt: skip


def _seconds(pace: Pace | None, history: History | None) -> tuple[float, float]:
    """Duration of a simulated engine step, so that max_seconds means seconds."""
    if pace is None or history is None:
        return 1.0, 0.0
    return max(pace.per_step, 1e-9), pace.per_token


def _plan_of(run: Path | None, facts: Facts, plan: SamplingPlan) -> SamplingPlan | None:
    """The sampling plan of the earlier run, None where it is this one."""
    path = None if run is None else run / "config.yaml"
    if path is None or not path.is_file():
        return None
    before = yaml.safe_load(path.read_text(encoding="utf-8"))
    section, grpo = before.get("reinforce_ada"), before.get("grpo", {})
    if not isinstance(section, dict):
        return None
    other = ada_settings(section).plan(int(grpo.get("num_generations_per_prompt", facts.group)), facts.longest)
    return None if other == plan else other


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


def _published(facts: Facts, model: _Model, plan: SamplingPlan, this: phase.Phases, save: Time) -> Forecast:
    if facts.shape is None:
        raise UserError("nothing was published for the embedded back end; give --run with an earlier run's folder")
    mean_length = float(this.tokens_S.sum() / this.responses_S.sum())
    step, label = grpo_step(facts.model, facts.shape, facts.prompts * facts.group, facts.gpus, mean_length)
    grpo = model.phases(ada_settings({"preset": "grpo"}).plan(facts.group, facts.longest), (1.0, 0.0), STEPS_COMPARED)
    factor = float(np.median(this.engine_steps_S) / np.median(grpo.engine_steps_S))
    rest = step.seconds - step.update
    ratio = RATIO.get((facts.model, facts.ada.preset or ""))
    if ratio is not None and label == "published" and GRPO[facts.model].gpus == facts.gpus:
        total = step.seconds * ratio
        sampling, said = total - step.update, f"published: {total:.0f} s per step ({step.source})"
        fixed = max(0.0, rest - (sampling - rest) / max(factor - 1.0, 0.05))
    else:
        sampling, fixed = rest * (1.0 + SAMPLING_SHARE * (factor - 1.0)), rest * (1.0 - SAMPLING_SHARE)
        said = f"{label}; {SAMPLING_SHARE:.0%} of it x{factor:.2f} by simulation ({step.source})"
    worst, _ = phase.worst_work(plan, model.prompts, model.slots, facts.longest)
    evaluation = Time(step.seconds / 2, step.seconds, 2 * step.seconds, "assumed: half a GRPO step")
    return from_published(
        sampling, fixed, step.update, said, this, worst, evaluation=evaluation, save=save, cap=plan.caps.max_seconds
    )


def _costs(facts: Facts, model: _Model, forecast: Forecast, this: phase.Phases) -> tuple[Cost, ...]:
    """Presets on these prompts; seconds in proportion to simulated engine steps."""
    sampling = next(iter(forecast.phases.values())).p50
    others = forecast.step.p50 - sampling
    unit = (sampling - forecast.fixed) / max(float(np.median(this.engine_steps_S)), 1.0)
    scale = facts.prompts / model.prompts
    found = []
    for name in COMPARED:
        try:
            plan = ada_settings({"preset": name}).plan(facts.group, facts.longest)
        except UserError:  # a preset with waves of 4 has no place where groups of 8 are kept
            continue
        simulated = model.phases(plan, (1.0, 0.0), STEPS_COMPARED)
        seconds = forecast.fixed + unit * float(np.median(simulated.engine_steps_S))
        responses = float(np.median(simulated.responses_S)) * scale
        found.append(Cost(name, responses, seconds, seconds + others, simulated.zero_signal, simulated.utilisation))
    return tuple(found)


def render(plan: Plan, *, as_json: bool) -> str:
    """What is printed."""
    if as_json:
        return json.dumps(asdict(plan), indent=1)
    forecast, slots, caps = plan.forecast, plan.slots, plan.caps
    lines = [f"pass rates: {plan.rates}", f"lengths: {plan.lengths}", "", "seconds            p50      p95    worst"]
    named = {**forecast.phases, "step": forecast.step, "validation": forecast.evaluation, "save": forecast.save}
    lines += [f"{name[:14]:14}{t.p50:8.1f} {t.p95:8.1f} {t.worst:8.1f}   {t.source}" for name, t in named.items()]
    lines += [
        "",
        f"per slot of {clock(slots.seconds)}: {slots.steps} steps expected, {slots.guaranteed} even if all are worst",
        f"slots: {slots.slots}; ask for --time={clock(slots.seconds)} --signal=B:USR1@{slots.lead} "
        f"(cold start {slots.cold_start:.0f} s)" + (f"; {slots.gpu_hours:.0f} GPU hours" if slots.gpu_hours else ""),
        _caps_line(slots, caps),
        "",
        "preset               responses  sampling s   step s   zero-signal  engine occupied",
    ]
    lines += [
        f"{c.name:20}{c.responses:10.0f} {c.sampling:11.1f} {c.step:8.1f} {c.zero_signal:13.2f} {c.utilisation:16.0%}"
        for c in plan.costs
    ]
    advice = plan.advice
    lines += [
        f"prompts are {advice.difficulty}; start from {advice.best}: {advice.why}",
        f"expected gain of ada_seq_balance at equal seconds: {advice.gain:+.3f} accuracy area (extrapolated)",
    ]
    return "\n".join(lines)


def _caps_line(slots: Slots, caps: SuggestedCaps) -> str:
    if caps.max_seconds is None:
        return "no cap makes the worst step fit: ask for a longer --time, or lower max_new_tokens or prompts per step"
    state = "fits already" if slots.fits else "does not fit without caps"
    return (
        f"the worst step {state}; reinforce_ada.budget.max_samples={caps.max_samples} max_tokens={caps.max_tokens} "
        f"max_seconds={caps.max_seconds:g} bound it to {caps.worst_step:.1f} s"
    )
