"""`nemo-ada plan`: put the parts together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nemo_ada.cluster.site import site_setting
from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.presets import ada_settings, presets
from nemo_ada.config.yaml_file import read_yaml
from nemo_ada.errors import UserError
from nemo_ada.planning.assumptions import lengths_of, rates_of
from nemo_ada.planning.caps import EvenCap, StepCap, SuggestedCaps, even_cap, step_cap, suggest_caps
from nemo_ada.planning.forecast import (
    Bounds,
    Forecast,
    Pace,
    Time,
    drain_seconds,
    of_history,
    of_roofline,
    trained_tokens,
)
from nemo_ada.planning.history import MAX_VALUE, History
from nemo_ada.planning.job import COLD_START, Job
from nemo_ada.planning.roofline import PROMPT_TOKENS
from nemo_ada.planning.sampling import Phases, SimulatedJob, capped, variant
from nemo_ada.planning.slots import MAX_SECONDS, Slots, check_cold_start, clock, parse_time, plan_slots
from nemo_ada.rules.finding import Finding, error, ok, warning
from nemo_ada.simulate.steps import Variant

STEPS, STEPS_CAPPED = 24, 20
MAX_ATTEMPTS = 50  # jobs of a chain, where site.env does not set MAX_ATTEMPTS
MAX_SAVE_SHARE = 0.05
MIN_USEFUL = 0.7  # share of a slot's time that steps take, below which `check` warns
LONGER = ("08:00:00", "12:00:00", "1-00:00:00", "2-00:00:00")  # job lengths that `check` suggests instead


@dataclass(frozen=True, slots=True)
class Cost:
    """One preset on these prompts, per step.

    Attributes:
        name: the preset.
        responses: responses drawn.
        sampling: seconds of sampling.
        step: seconds of the whole step.
        zero_signal: share of groups without signal; None where every row has an advantage of its own.
        utilisation: share of the engine's places that are occupied.
    """

    name: str
    responses: float
    sampling: float
    step: float
    zero_signal: float | None
    utilisation: float
    source: str = "simulated"


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of `nemo-ada plan`.

    Attributes:
        rates: where the pass rates come from.
        lengths: where the lengths come from.
        forecast: seconds of a step.
        slots: job slots.
        caps: values for the budget. None under dynamic sampling, whose batches they would bound one by one, and in
            asynchronous training, where no longest response holds up a step.
        even: the cap that makes steps even; None as above.
        costs: this plan and the presets.
        left_out: presets that cannot run with this config, each with the reason.
        step_cap: the cap for --step-seconds; None where nobody asked.
        own_run: whether the plan was made from a run with this configuration.
        warnings: what will not work as its user may expect.
    """

    rates: str
    lengths: str
    forecast: Forecast
    slots: Slots
    caps: SuggestedCaps | None
    even: EvenCap | None
    costs: tuple[Cost, ...]
    left_out: tuple[tuple[str, str], ...]
    step_cap: StepCap | None
    own_run: bool
    warnings: tuple[str, ...]


def past_run(run_dir: Path, job: Job) -> tuple[Variant, int] | None:
    """What an earlier run sampled, for how many prompts per step: from its config.yaml, None where there is none."""
    path = run_dir / "config.yaml"
    config = read_yaml(path, "the run's configuration") if path.is_file() else {}
    section = config.get("reinforce_ada") if isinstance(config, dict) else None
    grpo = config.get("grpo", {}) if isinstance(config, dict) else {}
    if not isinstance(section, dict) or not isinstance(grpo, dict):
        return None
    group = grpo.get("num_generations_per_prompt", job.group)
    prompts = grpo.get("num_prompts_per_step", job.prompts)
    for key, value in (("num_generations_per_prompt", group), ("num_prompts_per_step", prompts)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MAX_VALUE:
            raise UserError(f"--run: {path}: grpo.{key}={str(value)[:40]} is no number of them; mend the file")
    return variant(ada_settings(section), group, job.longest), prompts


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
    step_seconds: float | None = None,
    steps: int = STEPS,
    compare: bool = True,
) -> Plan:
    """The plan for a configuration.

    Args:
        config: the YAML.
        overrides: key=value.
        time: length of a job slot, as SLURM writes it.
        run: an earlier run's folder.
        run_steps: use only the first steps of that run.
        pass_rates: file with one measured pass rate per line.
        cold_start: seconds from a job's start to its first step.
        median_tokens: median tokens of a response, where no run says.
        step_seconds: wanted longest step.
        steps: simulated steps.
        compare: simulate the presets, too.

    Raises:
        UserError: for what cannot be planned, with what would work.
    """
    if run is None and run_steps is not None:
        raise UserError(f"--run-steps={run_steps} needs --run with the folder of the run whose first steps it means")
    seconds, start = parse_time(time), None if cold_start is None else check_cold_start(cold_start)
    job = Job.read(config, overrides)
    if job.ahead and run is not None:
        raise UserError(
            "--run: a run of asynchronous training does not say how long sampling took, only how long the learner "
            "waited for it; plan without --run, or with the median of time/step in its metrics.jsonl"
        )
    history = None if run is None else History.read(run, steps=run_steps)
    rates, rates_said = rates_of(job.data, pass_rates, history, job.group)
    lengths, lengths_said = lengths_of(job.longest, history, median_tokens)
    simulated = SimulatedJob(job, rates, lengths, steps)
    asked = variant(job.ada, job.group, job.longest)
    asked.plan.check_first_waves(job.drawn, None if asked.allocation is None else job.drawn * job.group)
    past = None if run is None else past_run(run, job)
    own = asked, job.prompts
    forecast, work, pace = _forecast(simulated, asked, history, past or own)
    slots = plan_slots(
        forecast, seconds=seconds, steps=job.steps, val_period=job.val_period, save_period=job.save_period,
        gpus=job.gpus, cold_start=COLD_START[job.backend] if start is None else start,
        source="assumed" if start is None else "given",
    )  # fmt: skip
    caps, even = None, None
    if job.max_batches == 1 and not job.ahead:
        if not asked.plan.only_first_waves:
            caps = suggest_caps(
                forecast,
                samples_p95=float(np.quantile(work.responses_S, 0.95)),
                tokens_p95=float(np.quantile(work.tokens_S, 0.95)),
                first_wave=job.prompts * asked.plan.first_issue,
                drain=forecast.slow * drain_seconds(pace, work, job.longest),
                available=slots.kept,
            )
        even = even_cap(lambda cap: simulated.phases(capped(asked, cap), pace.clock, min(steps, STEPS_CAPPED)))
    bound = None if step_seconds is None else _step_cap(simulated, asked, forecast, work, pace, step_seconds)
    costs, left_out = _costs(simulated, forecast, work, pace) if compare else ((), ())
    return Plan(
        rates_said, lengths_said, forecast, slots, caps, even, costs, left_out, bound, past == own,
        tuple(_warnings(job, work, slots)),
    )  # fmt: skip


def _step_cap(
    simulated: SimulatedJob, asked: Variant, forecast: Forecast, work: Phases, pace: Pace, wanted: float
) -> StepCap:
    """The cap for --step-seconds. Raises UserError where a cap on seconds would not bound a step."""
    job = simulated.job
    if not 0 < wanted <= MAX_SECONDS:
        raise UserError(f"--step-seconds={wanted:g} must be above 0 and at most a year, e.g. 240")
    if job.ahead or job.max_batches > 1:
        why = (
            "in asynchronous training sampling and training overlap"
            if job.ahead
            else ("under dynamic sampling a step draws several batches, and the cap bounds each of them")
        )
        raise UserError(f"--step-seconds={wanted:g}: {why}, so no cap of reinforce_ada.budget bounds a step")
    first = simulated.phases(variant(ada_settings({"preset": "grpo"}), asked.plan.first_issue, job.longest), pace.clock)
    drain = forecast.slow * drain_seconds(pace, work, job.longest)
    return step_cap(forecast, wanted, drain, forecast.slow * float(pace.seconds(first).max()))


def walltime(config: Path, overrides: Sequence[str], time: str) -> list[Finding]:
    """Whether a job of this length has time for a step, and spends most of its time on steps.

    A short simulation: the number of steps does not matter.
    """
    try:
        slots = make_plan(config, overrides, time=time, steps=2, compare=False).slots
        text = f"--time={time}: {slots.steps} steps expected per job, which take {slots.useful:.0%} of its time"
        if not slots.steps:
            text = f"--time={time}: 0 steps expected per job, and the chain would never end"
            return [error("--time", f"{text}; `nemo-ada plan CONFIG --time` tries longer ones")]
        many = [warning("--time", said) for said in _too_many(slots)]
        if slots.useful >= MIN_USEFUL or slots.slots <= 1:
            return [*many, ok("--time", text)]
        others = [make_plan(config, overrides, time=other, steps=2, compare=False).slots for other in LONGER]
    except UserError as problem:
        return [error("--time", str(problem))]
    better = max(others, key=lambda other: other.useful)
    advice = next((other for other in others if other.useful >= MIN_USEFUL), better)
    return [
        *many,
        warning(
            "--time",
            f"{text}, for {slots.gpu_hours:.0f} GPU hours in all; --time={clock(advice.seconds)} spends "
            f"{advice.useful:.0%} on steps, for {advice.gpu_hours:.0f} GPU hours",
        ),
    ]


def _forecast(
    simulated: SimulatedJob, asked: Variant, history: History | None, past: tuple[Variant, int]
) -> tuple[Forecast, Phases, Pace]:
    """Forecast, simulated steps of the plan, and the pace. past: the run that `history` is of."""
    job, plan = simulated.job, asked.plan
    rows, save_seconds = job.prompts * job.group, job.save_seconds
    save = Time(save_seconds, 1.5 * save_seconds, 3 * save_seconds, "assumed")
    responses = job.max_batches * job.drawn * plan.max_responses
    bounds = Bounds(*simulated.worst(plan), responses, plan.caps.max_seconds, job.longest)
    if history is None:
        if job.roofline is None:
            raise UserError("the embedded back end has no forecast of its own; give --run with an earlier run's folder")
        pace = Pace.of_roofline(job.roofline, simulated.phases(capped(asked, None)).mean_tokens)
        work = simulated.phases(asked, pace.clock)
        made = of_roofline(
            job.roofline, pace, work, bounds, rows=rows, val_samples=job.val_samples, save=save,
            live=live_share(job, job.ada, work), ahead=job.ahead,
        )  # fmt: skip
        return made, work, pace
    pace = Pace.fit(history)
    past_variant, past_prompts = past
    theirs = replace(simulated, job=replace(job, prompts=past_prompts, drawn=past_prompts))
    ran = theirs.phases(past_variant, pace.clock)
    pace = pace.calibrated(history, ran)
    work = simulated.phases(asked, pace.clock)
    carried = None
    if past != (asked, job.prompts):
        carried = job.prompts * (1.0 - work.zero_signal) / max(past_prompts * (1.0 - ran.zero_signal), 1e-9)
    return of_history(history, pace, work, bounds, rows=rows, save=save, carried=carried), work, pace


def live_share(job: Job, ada: AdaSettings, work: Phases) -> float:
    """Share of a step's rows that the learner computes whole.

    Rows without advantage become placeholder rows under Reinforce-Ada, where nothing else of the loss has a gradient
    for them. A baseline of the prompt's own pass rate gives every row an advantage.
    """
    if not job.placeholders or ada.advantage.baseline == "shrunk":
        return 1.0
    return 1.0 - work.zero_signal


def _costs(
    simulated: SimulatedJob, forecast: Forecast, work: Phases, pace: Pace
) -> tuple[tuple[Cost, ...], tuple[tuple[str, str], ...]]:
    """This plan and all presets without caps, on these prompts; and the presets that cannot run, with the reason."""
    own = simulated.job
    prompt = 0.0 if own.roofline is None else PROMPT_TOKENS  # the CPU learner computes a prompt once for its rows
    base = prompt + trained_tokens(work, live_share(own, own.ada, work))

    def cost(name: str, work: Phases, job: Job, ada: AdaSettings) -> Cost:
        seconds = float(np.median(pace.seconds(work)))
        responses = float(np.median(work.responses_S))
        trained = (prompt + trained_tokens(work, live_share(job, ada, work))) / base
        step = forecast.with_sampling(seconds, trained * job.prompts * job.group / (own.prompts * own.group))
        zero_signal = None if ada.advantage.baseline == "shrunk" else work.zero_signal
        return Cost(name, responses, seconds, step, zero_signal, work.utilisation)

    costs, left_out = [cost("this plan", work, own, own.ada)], []
    for name in presets():
        ada = ada_settings({"preset": name})
        job, label = own, name
        if ada.advantage.baseline == "shrunk":  # single stream: one row per prompt, and as many prompts as rows
            job, label = (
                replace(own, prompts=own.prompts * own.group, drawn=own.drawn * own.group, group=1),
                f"{name} n=1",
            )
        try:
            compared = variant(ada, job.group, job.longest)
            phases = replace(simulated, job=job).phases(compared, pace.clock)
        except UserError as problem:
            left_out.append((name, str(problem)))
            continue
        costs.append(cost(label, phases, job, ada))
    return tuple(costs), tuple(left_out)


def _warnings(job: Job, work: Phases, slots: Slots) -> Iterator[str]:
    """What will not work as its user may expect."""
    if job.ahead:
        yield (
            "asynchronous training: the forecast takes the longer of sampling and learner, and sampling as if a step's "
            "groups all started at once; groups of the next step fill its end, so true steps may be shorter. No such "
            "run was measured"
        )
    if work.unfilled > 0:
        yield (
            f"{work.unfilled:.0%} of the steps do not find {job.prompts} groups with signal in {job.max_batches} "
            f"batches of {job.drawn} prompts, and NeMo-RL ends the run there: raise grpo.batch_multiplier or "
            "grpo.dynamic_sampling_max_gen_batches, or take easier prompts"
        )
    if 0 < slots.steps < min(job.save_period, job.steps):
        yield (
            f"checkpointing.save_period={job.save_period} is above the {slots.steps} steps of a slot: a node that "
            f"fails loses the whole slot; {max(1, slots.steps // 3)} would lose a third of it at most"
        )
    if slots.save_share > MAX_SAVE_SHARE:
        yield (
            f"saves take {slots.save_share:.0%} of a slot's steps (assumed speed of the file system); raise "
            f"checkpointing.save_period={job.save_period} to lower that"
        )
    yield from _too_many(slots)


def _too_many(slots: Slots) -> Iterator[str]:
    """Slots that are more than the jobs of a chain."""
    given = site_setting("MAX_ATTEMPTS")
    max_attempts = int(given) if given.isdecimal() else MAX_ATTEMPTS
    if slots.slots > max_attempts:
        yield (
            f"{slots.slots} slots are more than the {max_attempts} jobs of a chain: raise MAX_ATTEMPTS in "
            f"slurm/site.env to {slots.slots} or more, or ask for a longer --time"
        )
