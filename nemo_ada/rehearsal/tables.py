"""What a rehearsal on GPUs says: a forecast before the first slice, numbers with bounds, and tables beside it.

A slice is one driver process, whose events are in one file. A run is one training of a few steps. A slice may hold
several runs, which then share its workers, for example those of all presets (`runs.py`).
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import statistics
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.lab.plan.command import Plan, PlanOptions, make_plan
from nemo_ada.lab.plan.forecast import Time
from nemo_ada.rehearsal.command import find_repeated
from nemo_ada.rehearsal.report import (
    EXACT,
    Deviation,
    Events,
    Report,
    Table,
    compare_resumed,
    measure_run,
)
from nemo_ada.rehearsal.runs import GRPO, RESUMED, STOCK, Configs, kind_of
from nemo_ada.rehearsal.shrink import Shrinker
from nemo_ada.rules.facts.memory import GIB, estimate_learner_phase, estimate_logprob_phase, estimate_refit_phase
from nemo_ada.rules.facts.nemo_config import Loop, NemoConfig
from nemo_ada.run import start
from nemo_ada.run.files import write_atomically
from nemo_ada.run.provenance import describe_environment

ON_GPUS = {"token_mult_prob_error": 1.05, "gen_kl_error": 0.01, "engine": 1.0, "norm": 0.05}
"""The largest differences that pass in BF16 and FP8, by the names of `report.EXACT`, which says what each one measures.
1.05 is the bound of recipes/guide/health.md. The others were chosen without a GPU."""
PLANNED = {  # phase of `nemo-ada plan` -> timers of NeMo-RL's loop
    "sampling": ("generation", "exposed_generation"),
    "refit": ("prepare_for_generation/total", "weight_sync"),
    "log-probs": ("logprob_inference_prep", "policy_and_reference_logprobs"),
    "update": ("training_prep", "policy_training"),
    "step": ("total_step_time",),
}
SLOT = "04:00:00"  # `plan` asks for one; the seconds of a step, which are all that is read here, do not depend on it
LARGEST_RATE = 1e-3  # `plan` takes no larger learning rate, and a dry run has one
PHASES = ("set-up", "refit", "generate", "log-probs", "update", "save")


@dataclass
class Forecasts:
    """What `plan` and `check` say before the first slice.

    Attributes:
        plans: Run -> its plan.
        memory: Phase of `check` -> GiB.
        warnings: What could not be forecast.
    """

    plans: dict[str, Plan] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, made: Configs, folder: Path) -> Forecasts:
        """Make the forecast, with the pass rates and the lengths that are drawn."""
        own = cls()
        rates = folder / "pass_rates.txt"
        write_atomically(rates, "".join(f"{rate}\n" for rate in made.draws.rates))
        paths = {}
        for name, config in made.configs.items():
            paths[name] = folder / f"{name}.yaml"
            env = {key: _remove_reward(section) for key, section in config.get("env", {}).items()}
            lowered = Shrinker({**copy.deepcopy(config), "env": env})
            for key in ("lr", "min_lr"):
                lowered.lower(f"policy.megatron_cfg.optimizer.{key}", LARGEST_RATE)
            write_atomically(paths[name], json.dumps(lowered.config, default=str))  # JSON is YAML
        # A plan is seconds of simulation, so each run's has a process. These inherit the environment of this one, which
        # is therefore the listed one while they start (run/start.py).
        spawned = start.limit_environment(**start.SAFE)
        with spawned, ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as beside:
            plans = {name: beside.submit(_make_plan, path, rates) for name, path in paths.items()}
            for name, plan in plans.items():
                try:
                    own.plans[name] = plan.result()
                except UserError as problem:
                    own.warnings.append(f"nemo-ada plan, {name}: {problem}")
        try:
            typical = NemoConfig.of_megatron(made.typical)
            if made.shape is not None:
                phases = [
                    phase(typical, made.shape)
                    for phase in (estimate_learner_phase, estimate_logprob_phase, estimate_refit_phase)
                ]
                own.memory |= {estimate.name: estimate.gib for estimate in phases}
            own.memory["vLLM"] = typical.engine.memory_share * typical.card.gib
        except UserError as problem:
            own.warnings.append(f"nemo-ada check: {problem}")
        return own

    def as_dict(self) -> Mapping[str, Any]:
        """Return the content of forecast.json."""
        phases = {
            name: {phase: time.p50 for phase, time in list_times(plan).items()} for name, plan in self.plans.items()
        }
        return {"seconds": phases, "memory_gib": self.memory, "warnings": self.warnings}


def _remove_reward(environment: Any) -> Any:
    """Leave out the user's reward, which only a YAML in its own folder may name, and which `plan` does not ask."""
    if not isinstance(environment, Mapping):
        return environment
    return {key: value for key, value in environment.items() if key != "reward"}


def _make_plan(path: Path, rates: Path) -> Plan:
    return make_plan(path, [], PlanOptions(SLOT, pass_rates=rates, compare=False))


def list_times(plan: Plan | None) -> Mapping[str, Time]:
    """Phase of a step -> its time, and that of the whole step."""
    return {} if plan is None else {**plan.forecast.phases, "step": plan.forecast.step}


def fill_report(
    report: Report,
    events: Mapping[str, Events],
    failures: dict[str, str],
    forecast: Forecasts,
    made: Configs,
    steps: int,
) -> None:
    """Fill the report from what the slices noted: phases, numbers with their bounds, the first failure, and tables.

    Args:
        report: What the user gets.
        events: Slice -> what it noted.
        failures: Slice or run -> what failed. Runs that failed are added.
        forecast: What `plan` and `check` said before.
        made: Configs of the runs.
        steps: Training steps of a run.
    """
    config, saved = made.typical, made.saved
    runs = {run: one for of_slice in events.values() for run, one in of_slice.runs().items()}  # in order
    ahead = Loop.of(Values(config)).draws_ahead
    report.take_phases(*events.values())
    for name, of_run in runs.items():
        wanted = steps if name != RESUMED else 1
        report.measurements.append(Deviation(f"{name}: steps that are missing", abs(wanted - len(of_run.steps())), 0.0))
        # With responses of older weights a run is measured by a metric of our hooks and by probes. NeMo-RL's own GRPO
        # has neither of them, and a resumed run has no probes.
        if not (ahead and kind_of(name) in (GRPO, RESUMED)):
            found = measure_run(of_run, ahead=ahead, largest=EXACT if made.dry_run else ON_GPUS)
            report.measurements += [Deviation(f"{name}: {number.name}", number.value, number.bound) for number in found]
        if failed := of_run.failure():
            failures.setdefault(name, f"{failed[1]} (in {failed[0]})")
    if saved in runs and RESUMED in runs:
        report.phases["resume"] = (1, 0.0)  # its seconds are in the phases of its steps
        # On a GPU responses have no seeds, and a dry run of its slices is compared as they are.
        repeated = find_repeated(config, seeded=made.dry_run and made.full)
        report.measurements += compare_resumed(runs[saved], runs[RESUMED], steps - 1, steps, repeated)
    if failures:
        name, why = next(iter(failures.items()))
        report.failure = (name, why)
    report.tables = [
        _phases_table(runs, forecast),
        _methods_table(runs),
        _memory_table(events, runs, forecast),
        Table("Failures", ("slice or run", "what"), tuple(failures.items())),
        _versions_table(events),
    ]


def measure_seconds(events: Events, phase: str) -> float | None:
    """Median seconds of a phase over the steps but the first, which compiles and warms up. None if none was timed."""
    timings = events.steps("timing/train")
    late = [numbers for step, numbers in sorted(timings.items()) if step > min(timings)]
    sums = [sum(numbers.get(timer, 0.0) for timer in PLANNED[phase]) for numbers in late]
    return statistics.median(sums) if sums and any(sums) else None


def _phases_table(runs: Mapping[str, Events], forecast: Forecasts) -> Table:
    rows = []
    for name, events in runs.items():
        expected_times = list_times(forecast.plans.get(name))
        for phase in PLANNED:
            seconds = measure_seconds(events, phase)
            if seconds is None:
                continue
            expected = expected_times.get(phase)
            ratio = "" if expected is None or not expected.p50 else f"{seconds / expected.p50:.2f}"
            rows.append((name, phase, "" if expected is None else f"{expected.p50:.1f}", f"{seconds:.1f}", ratio))
    head = ("run", "phase", "plan, s", "measured, s", "measured / plan")
    return Table("Seconds of a step (median without the first) beside `nemo-ada plan`", head, tuple(rows))


COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("sampling, s", PLANNED["sampling"]),
    ("refit, s", PLANNED["refit"]),
    ("of it weights, s", ("prepare_for_generation/transfer_and_update_weights",)),
    ("log-probs, s", ("policy_and_reference_logprobs",)),
    ("update, s", ("policy_training",)),
    ("learner's return, s", ("logprob_inference_prep", "training_prep")),
    ("step, s", PLANNED["step"]),
)
"""Column -> timers of NeMo-RL's loop. In a refit the learner's optimizer goes to the CPU; later it returns, which is
`learner's return`."""


def _methods_table(runs: Mapping[str, Events]) -> Table:
    """Each method's steps, and its step over the median one of NeMo-RL's GRPO, with its default engine if that ran."""
    first = next((runs[name] for name in (STOCK, GRPO) if name in runs), None)
    rows, base = [], None if first is None else measure_seconds(first, "step")
    for name, events in runs.items():
        steps, timings = events.steps(), events.steps("timing/train")
        for number in sorted(timings):
            numbers, seconds = steps.get(number, {}), timings[number]
            spent = [sum(seconds.get(timer, 0.0) for timer in timers) for _, timers in COLUMNS]
            rate = numbers.get("ada/pass_rate", numbers.get("reward"))
            counts = ("samples_drawn", "tokens_drawn", "zero_signal_groups_if_grpo", "zero_signal_groups")
            rows.append((
                name, str(number), _cell(rate), *(_cell(numbers.get(f"ada/{key}")) for key in counts),
                _cell(numbers.get("loss")), _cell(numbers.get("grad_norm")),
                *(f"{value:.2f}" for value in spent), "" if not base else f"{spent[-1] / base:.2f}",
                _cell(numbers.get("token_mult_prob_error")), _cell(numbers.get("gen_kl_error")),
            ))  # fmt: skip
    head = ("run", "step", "pass rate", "responses", "tokens", "zero-signal groups if GRPO", "zero-signal groups",
            "loss", "gradient norm",
            *(name for name, _ in COLUMNS), "step / NeMo-RL's", "token_mult_prob_error", "gen_kl_error")  # fmt: skip
    return Table("Every step", head, tuple(rows))


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _memory_table(slices: Mapping[str, Events], runs: Mapping[str, Events], forecast: Forecasts) -> Table:
    """Return the memory of the card in each phase beside the estimate of `check`."""
    estimates = {"update": "learner", "log-probs": "log-probs", "refit": "refit", "generate": "vLLM"}

    def row(name: str, what: str, used: int, estimate: float | None) -> tuple[str, ...]:
        largest = used / GIB
        share = f"{largest / estimate:.2f}" if estimate else ""
        return name, what, "" if estimate is None else f"{estimate:.1f}", f"{largest:.1f}", share

    rows = []
    for name, events in slices.items():
        used = events.memory_by_phase()
        for phase in (phase for phase in PHASES if phase in used):
            rows.append(row(name, phase, used[phase], forecast.memory.get(estimates.get(phase, ""))))
    for name, events in runs.items():
        for peak in events.of("memory"):
            rows.append(row(name, "learner's tensors, so far", peak["allocated"], forecast.memory.get("learner")))
            rows.append(row(name, "and what torch's allocator keeps", peak["reserved"], None))
    head = ("slice or run", "phase", "check, GiB", "largest, GiB", "largest / check")
    return Table("Memory of the card in use, with what torch's allocator keeps", head, tuple(rows))


def _versions_table(events: Mapping[str, Events]) -> Table:
    """Versions in the driver of a run. Workers may have environments of their own."""
    found = next((line for of_run in events.values() for line in of_run.of("versions")), describe_environment())
    rows = [("nemo_ada", f"{found['nemo_ada']} {found['commit'] or ''}"), ("python", str(found["python"]))]
    rows += [(name, str(version)) for name, version in found["packages"].items()]
    cards = {peak["card"] for of_run in events.values() for peak in of_run.of("memory")}
    return Table("Versions", ("part", "version"), (*rows, ("card", ", ".join(sorted(cards)))))
