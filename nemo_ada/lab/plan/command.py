"""The plan of a run, for `nemo-ada plan`, for the check of --time and for the options of sbatch.

`make_plan` puts the parts together. It reads the config, chooses pass rates and lengths, simulates the steps and makes
a forecast from them. Slots, caps and the costs of the presets follow from the forecast. `check_walltime` and
`find_useful_slot` make the same plan for other lengths of a job, without the presets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.presets import load_presets, parse_ada_settings
from nemo_ada.core.sampling.budget import SECONDS
from nemo_ada.core.schema import STRICT, Bounds
from nemo_ada.errors import UserError
from nemo_ada.lab.plan.assumptions import choose_lengths, choose_rates
from nemo_ada.lab.plan.caps import SteadyCap, StepCap, SuggestedCaps, find_steady_cap, find_step_cap, suggest_caps
from nemo_ada.lab.plan.forecast import (
    Forecast,
    SamplingTimeModel,
    StepWork,
    Time,
    compute_drain,
    count_trained_tokens,
    forecast_from_history,
    forecast_from_roofline,
)
from nemo_ada.lab.plan.history import MAX_VALUE, MIN_STEPS, History
from nemo_ada.lab.plan.job_slots import MAX_SECONDS, JobSlots, format_time, parse_time, plan_slots
from nemo_ada.lab.plan.planned_run import COLD_START, PlannedRun
from nemo_ada.lab.plan.roofline import FAR, LEVERS, NEAR, PROMPT_TOKENS, Roofline
from nemo_ada.lab.plan.sampling import SimulatedRun, SimulatedSteps, cap_seconds, make_variant
from nemo_ada.lab.simulate.steps import Variant
from nemo_ada.rules.finding import Finding, error, ok, warning
from nemo_ada.run.yaml_file import read_yaml

STEPS, STEPS_CAPPED = 24, 20  # simulated steps of the plan, and of each cap on seconds that is tried
MAX_SAVE_SHARE = 0.05  # of a slot's steps, above which a warning advises fewer saves
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
        zero_signal: share of groups without signal. None where every row has an advantage of its own.
        utilisation: share of the engine's places that are occupied.
        trained: tokens that the update computes, relative to those of this plan.
        over_grpo: the step's range over a step of `grpo`. None where a run was measured.
        origin: where these figures come from.
    """

    name: str
    responses: float
    sampling: float
    step: float
    zero_signal: float | None
    utilisation: float
    trained: float = 1.0
    over_grpo: tuple[float, float] | None = None
    origin: str = "simulated"


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
        steady: the cap that makes steps take equal time. None as above.
        costs: this plan and the presets.
        left_out: presets that cannot run with this config, each with the reason.
        step_cap: the cap for --step-seconds. None without this option.
        teaches: the objective that the mean update follows, under the config's own caps.
        warnings: what will not work as its user may expect.
    """

    rates: str
    lengths: str
    forecast: Forecast
    slots: JobSlots
    caps: SuggestedCaps | None
    steady: SteadyCap | None
    costs: tuple[Cost, ...]
    left_out: tuple[tuple[str, str], ...]
    step_cap: StepCap | None
    teaches: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of `nemo-ada plan`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    time: str
    """Length of a job slot, as SLURM writes it."""
    run: Path | None = None
    """Folder of an earlier run to measure from."""
    run_steps: Annotated[int, Bounds(ge=MIN_STEPS)] | None = None
    """Use only the first steps of that run."""
    pass_rates: Path | None = None
    """File with one measured pass rate per line."""
    median_tokens: float | None = None
    """Median length of a response (default: 0.3 x max_new_tokens)."""
    cold_start: Annotated[float, Bounds(ge=0, le=MAX_SECONDS)] | None = None
    """Seconds from the job's start to its first step."""
    step_seconds: Annotated[float, Bounds(gt=0, le=MAX_SECONDS)] | None = None
    """Print the cap under which no step takes longer than this."""
    steps: int = STEPS
    """Simulated steps."""
    compare: bool = True
    """Whether the presets are simulated, too."""


def read_past_run(run_dir: Path, run: PlannedRun) -> tuple[Variant, int] | None:
    """The sampling plan of an earlier run and its prompts per step, by its config.yaml.

    None where the folder has no such file, or the file does not say it.
    """
    path = run_dir / "config.yaml"
    config = read_yaml(path, "the run's configuration") if path.is_file() else {}
    section = config.get("reinforce_ada") if isinstance(config, dict) else None
    grpo = config.get("grpo", {}) if isinstance(config, dict) else {}
    if not isinstance(section, dict) or not isinstance(grpo, dict):
        return None
    group = grpo.get("num_generations_per_prompt", run.rollout.group)
    prompts = grpo.get("num_prompts_per_step", run.rollout.prompts_per_step)
    for key, value in (("num_generations_per_prompt", group), ("num_prompts_per_step", prompts)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MAX_VALUE:
            raise UserError(f"--run: {path}: grpo.{key}={str(value)[:40]} is no number of them; mend the file")
    return make_variant(parse_ada_settings(section), group, run.rollout.longest), prompts


def make_plan(config: Path, overrides: Sequence[str], options: PlanOptions) -> Plan:
    """Return the plan for a configuration: a YAML and key=value overrides.

    Raises:
        UserError: for what cannot be planned, with what would work.
    """
    if options.run is None and options.run_steps is not None:
        raise UserError(
            f"--run-steps={options.run_steps} needs --run with the folder of the run whose first steps it means"
        )
    seconds = parse_time(options.time)
    run = PlannedRun.read(config, overrides)
    if run.draws_ahead and options.run is not None:
        raise UserError(
            "--run: a run of asynchronous training does not say how long sampling took, only how long the learner "
            "waited for it; plan without --run, or with the median of time/step in its metrics.jsonl"
        )
    history = None if options.run is None else History.read(options.run, steps=options.run_steps)
    rates, rates_origin = choose_rates(run.data, options.pass_rates, history, run.rollout.group)
    lengths, lengths_origin = choose_lengths(run.rollout.longest, history, options.median_tokens)
    simulated = SimulatedRun(run, rates, lengths, options.steps)
    planned = make_variant(run.ada, run.rollout.group, run.rollout.longest)
    same, plan = (planned, run.rollout.prompts_per_step), planned.plan
    plan.check_first_waves(run.rollout.prompts, run.rollout.count_divided_responses(run.ada))
    past = None if options.run is None else read_past_run(options.run, run)
    # A run whose folder does not say how it sampled is taken for one of this plan.
    forecast, work, model = _make_forecast(simulated, planned, history, past or same)
    slots = plan_slots(
        forecast, run.schedule, seconds=seconds, gpus=run.gpus,
        cold_start=COLD_START[run.backend] if options.cold_start is None else options.cold_start,
        origin="assumed" if options.cold_start is None else "given",
    )  # fmt: skip
    caps, steady = None, None
    if run.rollout.max_calls == 1 and not run.draws_ahead:
        if not plan.stop.one_wave:
            caps = suggest_caps(
                forecast,
                samples_p95=float(np.quantile(work.responses_S, 0.95)),
                tokens_p95=float(np.quantile(work.tokens_S, 0.95)),
                first_wave=run.rollout.first_wave(run.ada),
                drain=forecast.slow * compute_drain(model, work, run.rollout.longest),
                available=slots.step_seconds,
            )
        few = min(options.steps, STEPS_CAPPED)
        steady = find_steady_cap(lambda cap: simulated.steps_of(cap_seconds(planned, cap), model.clock, few))
    limit = None
    if options.step_seconds is not None:
        limit = _choose_step_cap(simulated, planned, forecast, work, model, options.step_seconds)
    costs, left_out = (
        _compare_costs(simulated, forecast, work, model, measured=history is not None) if options.compare else ((), ())
    )
    return Plan(
        rates_origin, lengths_origin, forecast, slots, caps, steady, costs, left_out, limit,
        run.ada.describe_objective(run.rollout.group), tuple(_find_warnings(run, work, slots)),
    )  # fmt: skip


def _choose_step_cap(
    simulated: SimulatedRun,
    planned: Variant,
    forecast: Forecast,
    work: SimulatedSteps,
    model: SamplingTimeModel,
    wanted: float,
) -> StepCap:
    """Return the cap for --step-seconds. Raises UserError where a cap on seconds would not bound a step."""
    run = simulated.run
    if run.draws_ahead or run.rollout.max_calls > 1:
        why = (
            "in asynchronous training sampling and training overlap"
            if run.draws_ahead
            else ("under dynamic sampling a step draws several batches, and the cap bounds each of them")
        )
        raise UserError(f"--step-seconds={wanted:g}: {why}, so no cap of reinforce_ada.budget bounds a step")
    # GRPO with groups of this size draws what the first waves draw, and nothing else.
    first_waves = make_variant(
        parse_ada_settings({"preset": "grpo"}), planned.plan.stop.first_wave, run.rollout.longest
    )
    first = simulated.steps_of(first_waves, model.clock)
    drain = forecast.slow * compute_drain(model, work, run.rollout.longest)
    return find_step_cap(forecast, wanted, drain, forecast.slow * float(model.seconds(first).max()))


def check_walltime(config: Path, overrides: Sequence[str], time: str) -> list[Finding]:
    """Return whether a job of this length has time for a step, and spends most of its time on steps.

    Two simulated steps are enough for that.
    """
    options = PlanOptions(time, steps=2, compare=False)
    try:
        slots = make_plan(config, overrides, options).slots
        text = f"--time={time}: {slots.steps} steps expected per job, which take {slots.useful:.0%} of its time"
        if not slots.steps:
            text = f"--time={time}: 0 steps expected per job, and the run would never end"
            return [error("--time", f"{text}; `nemo-ada plan CONFIG --time` tries longer ones")]
        if slots.useful >= MIN_USEFUL or slots.count <= 1:
            return [ok("--time", text)]
        advice = find_useful_slot(config, overrides, LONGER, options)[1].slots
    except UserError as problem:
        return [error("--time", str(problem))]
    return [
        warning(
            "--time",
            f"{text}, for {slots.gpu_hours:.0f} GPU hours in all; --time={format_time(advice.seconds)} spends "
            f"{advice.useful:.0%} on steps, for {advice.gpu_hours:.0f} GPU hours",
        ),
    ]


def find_useful_slot(
    config: Path, overrides: Sequence[str], times: Sequence[str], options: PlanOptions
) -> tuple[str, Plan]:
    """The shortest time that spends MIN_USEFUL of itself on steps, or the one that spends most, with its plan."""
    plans: dict[str, Plan] = {}
    for time in times:
        plans[time] = make_plan(config, overrides, replace(options, time=time, compare=False))
        if plans[time].slots.useful >= MIN_USEFUL:
            return time, plans[time]
    return max(plans.items(), key=lambda item: item[1].slots.useful)


def _make_forecast(
    simulated: SimulatedRun, planned: Variant, history: History | None, past: tuple[Variant, int]
) -> tuple[Forecast, SimulatedSteps, SamplingTimeModel]:
    """Return the forecast, the simulated steps of the plan and the model of their time.

    With a run, its own sampling is simulated, too, and the model is scaled until that takes the run's median seconds.
    So an error that the simulation makes in both, for example by wrong lengths, cancels out.

    `past`: what `history` sampled.
    """
    run, plan = simulated.run, planned.plan
    save_seconds = run.schedule.save_seconds
    save = Time(save_seconds, 1.5 * save_seconds, 3 * save_seconds, "assumed")
    responses = run.rollout.max_calls * run.rollout.prompts * plan.stop.cap

    def step_of(work: SimulatedSteps, live: float = 1.0) -> StepWork:
        bounds = (*simulated.worst(plan), responses, run.rollout.longest)
        return StepWork(work, *bounds, run.rollout.rows, plan.budget.caps().get(SECONDS), live, run.draws_ahead)

    if history is None:
        if run.roofline is None:
            raise UserError(
                "the CPU back end has no forecast of its own; train some steps with `nemo-ada train CONFIG "
                "grpo.max_num_steps=20 run_dir=RUN`, then `nemo-ada plan CONFIG --run RUN`"
            )
        uncapped = simulated.steps_of(cap_seconds(planned, None))
        model = SamplingTimeModel.of_roofline(run.roofline, uncapped.mean_tokens)
        work = simulated.steps_of(planned, model.clock)
        step = step_of(work, compute_live_share(run, run.ada, work))
        return (
            forecast_from_roofline(run.roofline, model, step, val_samples=run.schedule.val_samples, save=save),
            work,
            model,
        )
    past_variant, prompts = past
    rollout = replace(run.rollout, prompts_per_step=prompts, prompts=prompts)
    fitted = SamplingTimeModel.fit(history)
    ran = replace(simulated, run=replace(run, rollout=rollout)).steps_of(past_variant, fitted.clock)
    model = fitted.calibrate(history, ran)
    work = simulated.steps_of(planned, model.clock)
    carried = None
    if past != (planned, run.rollout.prompts_per_step):
        carried = run.rollout.prompts_per_step * (1.0 - work.zero_signal) / max(prompts * (1.0 - ran.zero_signal), 1e-9)
    return forecast_from_history(history, model, step_of(work), save=save, carried=carried), work, model


def compute_live_share(run: PlannedRun, ada: AdaSettings, work: SimulatedSteps) -> float:
    """Share of a step's rows that the learner computes whole.

    Rows without advantage become placeholder rows under Reinforce-Ada, where nothing else of the loss has a gradient
    for them. A baseline of the prompt's own pass rate gives every row an advantage.
    """
    if not run.placeholders or ada.advantage.baseline == "shrunk":
        return 1.0
    return 1.0 - work.zero_signal


def _compare_costs(
    simulated: SimulatedRun, forecast: Forecast, work: SimulatedSteps, model: SamplingTimeModel, *, measured: bool
) -> tuple[tuple[Cost, ...], tuple[tuple[str, str], ...]]:
    """This plan and all presets without caps, and NeMo-RL's GRPO as it is, on these prompts.

    Also the presets that cannot run, with the reason. With `measured` the forecast comes from a run, which says nothing
    of another engine.
    """
    planned = simulated.run
    prompt = 0.0 if planned.roofline is None else PROMPT_TOKENS  # the CPU learner computes a prompt once for its rows
    base = prompt + count_trained_tokens(work, compute_live_share(planned, planned.ada, work))

    def cost(name: str, work: SimulatedSteps, run: PlannedRun, ada: AdaSettings) -> Cost:
        seconds = float(np.median(model.seconds(work)))
        responses = float(np.median(work.responses_S))
        trained = (prompt + count_trained_tokens(work, compute_live_share(run, ada, work))) / base
        trained *= run.rollout.rows / planned.rollout.rows
        step = forecast.exchange_sampling(seconds, trained)
        zero_signal = None if ada.advantage.baseline == "shrunk" else work.zero_signal
        return Cost(name, responses, seconds, step, zero_signal, work.utilisation, trained)

    costs, left_out = [cost("this plan", work, planned, planned.ada)], []
    for name in load_presets():
        ada = parse_ada_settings({"preset": name})
        run, label = planned, name
        if ada.advantage.baseline == "shrunk":  # single stream: one row per prompt, and as many prompts as rows
            rollout = replace(
                planned.rollout,
                prompts_per_step=planned.rollout.rows,
                prompts=planned.rollout.prompts * planned.rollout.group,
                group=1,
            )
            run, label = replace(planned, rollout=rollout), f"{name} n=1"
        try:
            compared = make_variant(ada, run.rollout.group, run.rollout.longest)
            steps = replace(simulated, run=run).steps_of(compared, model.clock)
        except UserError as problem:
            left_out.append((name, str(problem)))
            continue
        costs.append(cost(label, steps, run, ada))
    if planned.roofline is not None and not measured:
        costs = _divide_by_grpo(costs, forecast, planned.roofline)
        costs += _add_levers(simulated, planned.roofline, forecast, prompt, base)
    return tuple(costs), tuple(left_out)


def _divide_by_grpo(costs: Sequence[Cost], forecast: Forecast, roofline: Roofline) -> list[Cost]:
    """Return the costs with the range of each step over that of `grpo`, by the spread of measured steps.

    No step has shown that the optimizer moves faster through pinned memory. So the near end has NeMo-RL's way.
    """
    ends = (NEAR, NEAR.refit * roofline.pull_levers(0).refit), (FAR, FAR.refit * roofline.refit)

    def steps(cost: Cost) -> list[float]:
        return [forecast.exchange_sampling(end.sampling * cost.sampling, cost.trained, refit) for end, refit in ends]

    grpo = next((steps(cost) for cost in costs if cost.name == "grpo"), None)
    if grpo is None:
        return list(costs)
    found = []
    for cost in costs:
        low, high = sorted(mine / base for mine, base in zip(steps(cost), grpo, strict=True))
        found.append(replace(cost, over_grpo=(low, high)))
    return found


def _add_levers(
    simulated: SimulatedRun, roofline: Roofline, forecast: Forecast, prompt: float, base: float
) -> Iterator[Cost]:
    """Yield the cost of GRPO in NeMo-RL without anything of ours, and then with one lever after the other.

    Levers need no adaptive sampling, and without it NeMo-RL trains on every row.
    """
    rollout, ada = simulated.run.rollout, parse_ada_settings({"preset": "grpo"})
    for count, name in enumerate(("GRPO, NeMo-RL as it is", *(f"+ {lever}" for lever in LEVERS))):
        other = roofline.pull_levers(count)
        model = SamplingTimeModel.of_roofline(other, simulated.lengths.mean_tokens)
        work = simulated.steps_of(make_variant(ada, rollout.group, rollout.longest), model.clock)
        seconds = float(np.median(model.seconds(work)))
        step = forecast.exchange_sampling(seconds, (prompt + count_trained_tokens(work, 1.0)) / base)
        step += other.refit - roofline.refit
        yield Cost(name, float(np.median(work.responses_S)), seconds, step, work.zero_signal, work.utilisation)


def _find_warnings(run: PlannedRun, work: SimulatedSteps, slots: JobSlots) -> Iterator[str]:
    """Yield what will not work as its user may expect."""
    if run.draws_ahead:
        yield (
            "asynchronous training: the forecast takes the longer of sampling and learner, and sampling as if a step's "
            "groups all started at once; groups of the next step fill its end, so true steps may be shorter. No such "
            "run was measured"
        )
    if run.dtensor:
        yield (
            "DTensor: the forecast's utilisation was fitted to Megatron's learners, and nobody has compared DTensor's; "
            "measure 10 steps and plan with --run"
        )
    if run.gym:
        yield (
            "NeMo-Gym: the forecast knows the engine and the learner. Add the seconds of agents, tools and verifiers. "
            "Lengths are of all turns of a response together"
        )
    rollout, save_period = run.rollout, run.schedule.save_period
    if work.unfilled > 0:
        yield (
            f"{work.unfilled:.0%} of the steps do not find {rollout.prompts_per_step} groups with signal in "
            f"{rollout.max_calls} batches of {rollout.prompts} prompts, and NeMo-RL ends the run there: raise "
            "grpo.batch_multiplier or grpo.dynamic_sampling_max_gen_batches, or take easier prompts"
        )
    if 0 < slots.steps < min(save_period, run.schedule.steps):
        yield (
            f"checkpointing.save_period={save_period} is above the {slots.steps} steps of a slot: a node that "
            f"fails loses the whole slot; {max(1, slots.steps // 3)} would lose a third of it at most"
        )
    if slots.save_share > MAX_SAVE_SHARE:
        yield (
            f"saves take {slots.save_share:.0%} of a slot's steps (assumed speed of the file system); raise "
            f"checkpointing.save_period={save_period} to lower that"
        )
