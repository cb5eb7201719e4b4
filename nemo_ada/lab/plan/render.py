"""A plan as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from nemo_ada.lab.plan.caps import STEADY, SteadyCap, StepCap, SuggestedCaps
from nemo_ada.lab.plan.command import Cost, Plan
from nemo_ada.lab.plan.job_slots import JobSlots, format_time


def _format_hours(plan: Plan) -> list[float]:
    """Return the GPU hours of the whole run at the shortest and the longest median step that the forecast allows."""
    middle = plan.forecast.step.p50
    return [plan.slots.gpu_hours * step / middle for step in (plan.forecast.low, plan.forecast.high)] if middle else []


def _format_range(ends: Sequence[float], form: str) -> str:
    """Return two numbers as one text, once where they look alike."""
    return " to ".join(dict.fromkeys(format(end, form) for end in ends))


def render(plan: Plan, *, as_json: bool, price: float | None = None) -> str:
    """Return the text that `nemo-ada plan` prints. With the price of a GPU hour it says what all slots cost."""
    if as_json:
        hours = _format_hours(plan)
        cost = {"gpu_hours_range": hours} | ({} if price is None else {"price": plan.slots.gpu_hours * price or None})
        return json.dumps(asdict(plan) | cost, indent=1)
    forecast, slots = plan.forecast, plan.slots
    lines = [f"pass rates: {plan.rates}", f"lengths: {plan.lengths}", "", "seconds            p50      p95    worst"]
    named = {**forecast.phases, "step": forecast.step, "validation": forecast.evaluation, "save": forecast.save}
    lines += [f"{name[:14]:14}{t.p50:8.1f} {t.p95:8.1f} {t.worst:8.1f}   {t.origin}" for name, t in named.items()]
    if forecast.uncovered:
        lines += [
            f"median step: {forecast.low:.0f} to {forecast.high:.0f} s. No published step time that was fitted covers "
            f"{' or '.join(forecast.uncovered)}: trust a run's own time (--run, or time/step in its metrics.jsonl)"
        ]
    elif forecast.low != forecast.high:
        lines += [f"median step: {forecast.low:.0f} to {forecast.high:.0f} s, by the errors on published step times"]
    lines += [
        "",
        f"per slot of {format_time(slots.seconds)}: {slots.steps} steps expected, {slots.guaranteed} even if all are "
        "worst",
        f"slots: {slots.count}; ask for --time={format_time(slots.seconds)} --signal=B:USR1@{slots.lead} "
        f"(cold start {slots.cold_start:.0f} s, {slots.origin})"
        + (f"; {_format_range(_format_hours(plan), '.0f')} GPU hours" if slots.gpu_hours else "")
        + (
            f", {_format_range([hours * price for hours in _format_hours(plan)], ',.0f')} at {price:g} per GPU hour"
            if slots.gpu_hours and price is not None
            else ""
        ),
        f"of a slot's time steps take {slots.useful:.0%}, saves {slots.save_share:.1%}",
        *([] if plan.step_cap is None else [_describe_step(plan.step_cap)]),
        *([] if plan.caps is None else [_describe_caps(slots, plan.caps)]),
        *([] if plan.steady is None else [_describe_steady(plan.steady)]),
        "",
        "preset (simulated)   responses  sampling s   step s     x grpo   zero-signal  engine occupied",
    ]
    lines += [
        f"{c.name:20}{c.responses:10.0f} {c.sampling:11.1f} {c.step:8.1f} {_format_times(c):>10} "
        f"{_format_share(c.zero_signal):>13} {c.utilisation:16.0%}"
        for c in plan.costs
    ]
    lines += [f"left out: {name}: {why}" for name, why in plan.left_out]
    lines += [f"the mean update: {plan.teaches}", "which preset pays: recipes/guide/choosing.md"]
    lines += [f"warning: {text}" for text in plan.warnings]
    return "\n".join(lines)


def _describe_caps(slots: JobSlots, caps: SuggestedCaps) -> str:
    if caps.max_seconds is None:
        return "no cap makes the worst step fit: ask for a longer --time, or lower max_new_tokens or prompts per step"
    state = "fits the slot already" if slots.fits else "does not fit the slot without caps"
    return (
        f"the worst step {state}; reinforce_ada.budget.max_samples={caps.max_samples} max_tokens={caps.max_tokens} "
        f"max_seconds={caps.max_seconds:g} bound it to {caps.worst_step:.1f} s ({caps.origin})"
    )


def _format_times(cost: Cost) -> str:
    return "" if cost.over_grpo is None else "-".join(dict.fromkeys(f"{ratio:.2f}" for ratio in cost.over_grpo))


def _format_share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _describe_step(cap: StepCap) -> str:
    wanted = f"a step within {cap.wanted:g} s: "
    if cap.max_seconds is None:
        return (
            f"{wanted}no cap does it. In the worst case the phases beside sampling take {cap.others:.1f} s, and the "
            f"longest response in flight {cap.drain:.1f} s more; lower max_new_tokens or grpo.num_prompts_per_step"
        )
    first = (
        ""
        if cap.first_waves <= cap.max_seconds
        else (f" First waves are never cut, and they alone take {cap.first_waves:.1f} s in the worst simulated step.")
    )
    return (
        f"{wanted}reinforce_ada.budget.max_seconds={cap.max_seconds:g}. It bounds sampling: no wave starts later, "
        f"and a running response ends by itself. The phases beside it are not capped; their worst case of "
        f"{cap.others:.1f} s is left for them.{first}"
    )


def _describe_steady(cap: SteadyCap) -> str:
    spread = f"p95/p50 of the sampling phase without a cap on seconds: {cap.uncapped:.2f} ({cap.origin})"
    if cap.uncapped <= STEADY:
        return spread
    if cap.max_seconds is None:
        return f"{spread}; no cap makes it smaller: the first waves alone vary as much"
    rest = "" if cap.capped <= STEADY else f"; no cap brings it to {STEADY}: the first waves alone vary by more"
    return (
        f"{spread}; reinforce_ada.budget.max_seconds={cap.max_seconds:g} makes it {cap.capped:.2f} and refuses "
        f"{cap.cut:.0%} of the prompts another response{rest}"
    )
