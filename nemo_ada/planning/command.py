"""`nemo-ada plan`: put the parts together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nemo_ada.check.finding import Finding, error, ok
from nemo_ada.cluster.site import site_setting
from nemo_ada.config.presets import ada_settings
from nemo_ada.config.yaml_file import read_yaml
from nemo_ada.errors import UserError
from nemo_ada.planning.assumptions import lengths_of, rates_of
from nemo_ada.planning.caps import EvenCap, SuggestedCaps, even_cap, suggest_caps
from nemo_ada.planning.forecast import Bounds, Forecast, Pace, Time, drain_seconds, of_history, of_roofline
from nemo_ada.planning.history import MAX_VALUE, History
from nemo_ada.planning.job import COLD_START, Job
from nemo_ada.planning.sampling import Phases, SimulatedJob, capped, variant
from nemo_ada.planning.slots import Slots, check_cold_start, parse_time, plan_slots
from nemo_ada.simulate.steps import Variant

STEPS, STEPS_CAPPED = 24, 20
COMPARED = ("grpo", "ada_seq_lean", "ada_seq_idle", "ada_seq_balance", "ada_seq_positive")
MAX_ATTEMPTS = 50  # jobs of a chain, where site.env does not set MAX_ATTEMPTS
MAX_SAVE_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Cost:
    """One preset on these prompts, per step: responses, seconds of sampling and of all, groups without signal and
    occupancy of the engine (shares)."""

    name: str
    responses: float
    sampling: float
    step: float
    zero_signal: float
    utilisation: float
    source: str = "simulated"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is said. own_run: the plan was made from the run that it is for. caps, even: None under dynamic
    sampling, whose batches they would bound one by one, and in asynchronous training, which no longest response holds
    up."""

    rates: str
    lengths: str
    forecast: Forecast
    slots: Slots
    caps: SuggestedCaps | None
    even: EvenCap | None
    costs: tuple[Cost, ...]
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
    steps: int = STEPS,
) -> Plan:
    """The plan for a configuration. run: an earlier run's folder; run_steps: use its first steps only; cold_start:
    seconds; median_tokens: of a response, where no run says. steps: simulated ones. Raises UserError."""
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
                drain=drain_seconds(pace, work, job.longest),
                available=slots.kept,
            )
        even = even_cap(lambda cap: simulated.phases(capped(asked, cap), pace.clock, min(steps, STEPS_CAPPED)))
    return Plan(
        rates_said, lengths_said, forecast, slots, caps, even, _costs(simulated, forecast, work, pace), past == own,
        tuple(_warnings(job, work, slots)),
    )  # fmt: skip


def walltime(config: Path, overrides: Sequence[str], time: str) -> Finding:
    """Whether a job of this length has time for a step. A short simulation: the steps' number does not matter."""
    try:
        slots = make_plan(config, overrides, time=time, steps=2).slots
    except UserError as problem:
        return error("--time", str(problem))
    text = f"--time={time}: {slots.steps} steps expected per job"
    if slots.steps:
        return ok("--time", text)
    return error("--time", f"{text}, and the chain would never end; `nemo-ada plan CONFIG --time` tries longer ones")


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
            job.roofline, pace, work, bounds, rows=rows, val_samples=job.val_samples, save=save, ahead=job.ahead
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


def _costs(simulated: SimulatedJob, forecast: Forecast, work: Phases, pace: Pace) -> tuple[Cost, ...]:
    """This plan, and presets without caps, on these prompts."""
    job = simulated.job

    def cost(name: str, work: Phases) -> Cost:
        seconds = float(np.median(pace.seconds(work)))
        responses = float(np.median(work.responses_S))
        return Cost(name, responses, seconds, forecast.with_sampling(seconds), work.zero_signal, work.utilisation)

    costs = [cost("this plan", work)]
    for name in COMPARED:
        try:
            compared = variant(ada_settings({"preset": name}), job.group, job.longest)
        except UserError:  # a preset with waves of 4 has no place where groups of 8 are kept
            continue
        costs.append(cost(name, simulated.phases(compared, pace.clock)))
    return tuple(costs)


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
    given = site_setting("MAX_ATTEMPTS")
    max_attempts = int(given) if given.isdecimal() else MAX_ATTEMPTS
    if slots.slots > max_attempts:
        yield (
            f"{slots.slots} slots are more than the {max_attempts} jobs of a chain: raise MAX_ATTEMPTS in "
            f"slurm/site.env to {slots.slots} or more, or ask for a longer --time"
        )
