"""`nemo-ada accept` runs a config for a few steps on its own GPUs and judges what a rehearsal cannot show.

The runs follow each other, because each takes all GPUs:

stock    NeMo-RL's loop without our hooks
ours     the config as it is, with the rehearsal's probes
resumed  from the last but one checkpoint of `ours`
fp8      the config with FP8 (or `bf16`: without it), where the user asks for it

The same runs take place on a CPU with `--rehearse`: the config shrinks as in a rehearsal. So the whole path of this
command runs without a GPU. It has never run with one.
"""

from __future__ import annotations

import copy
import json
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from nemo_ada.config.load import shipped
from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.lab.plan.command import Plan, PlanOptions, make_plan
from nemo_ada.rehearsal import installation
from nemo_ada.rehearsal.command import LOGPROBS, Rehearsal, Say, check, failure_of, furnish
from nemo_ada.rehearsal.gym import PATHS, environments
from nemo_ada.rehearsal.report import (
    EXACT,
    Deviation,
    Events,
    Report,
    Table,
    Tolerance,
    compare_async_resumed,
    compare_resumed,
    compare_resumed_on_other_responses,
    measurements,
)
from nemo_ada.rehearsal.shrink import ConfigChange, Layout, Shrinker, shorten, shrink
from nemo_ada.rehearsal.standins import FILES
from nemo_ada.rules import rulebook
from nemo_ada.rules.facts.memory import GIB, learner_phase, logprob_phase, refit_phase
from nemo_ada.rules.facts.nemo_config import DEFAULT_RUN_DIR, Loop, NemoConfig, load_config
from nemo_ada.rules.gym import uses_gym
from nemo_ada.rules.method import uses_reinforce_ada
from nemo_ada.run.files import claim, duplicate, new_folder, remove, text_of, write_atomically
from nemo_ada.run.folder import BEFORE_A_RUN
from nemo_ada.run.job_control import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_USER_ERROR, STOP_FILE, JobControl, State
from nemo_ada.run.provenance import environment
from nemo_ada.run.redaction import hide

STOCK, OURS, RESUMED, FP8, BF16 = "stock", "ours", "resumed", "fp8", "bf16"
MIN_STEPS = 3
LIMIT_SECONDS = 4 * 3600.0
SLOT = "04:00:00"
ON_GPUS = Tolerance(probability=1.05, kl=0.01, logprob=1.0, norm=0.05)
"""For BF16 and FP8. 1.05 is the bound of recipes/guide/health.md. The others were chosen without a GPU."""
PLANNED = {  # phase of `nemo-ada plan` -> timers of NeMo-RL's loop
    "sampling": ("generation", "exposed_generation"),
    "refit": ("prepare_for_generation/total", "weight_sync"),
    "log-probs": ("logprob_inference_prep", "policy_and_reference_logprobs"),
    "update": ("training_prep", "policy_training"),
    "step": ("total_step_time",),
}
NEVER_RUN = (
    "Nobody has run `nemo-ada accept` on a GPU yet. Its bounds for BF16 and FP8 were chosen without one. Please attach "
    "this report to an issue, also if it failed."
)
ON_CPU = "This was a rehearsal of `nemo-ada accept` on a CPU: times and memory say nothing about GPUs."


@dataclass
class Acceptance:
    """The folder, the runs and the report of one acceptance.

    Attributes:
        rehearsal: Starts the runs.
        configs: Name of a run -> its config, in the order of the runs.
        report: What the user gets.
        control: Files that the batch script watches.
        largest: The largest differences that pass.
        events: Name of a run that ended -> its events.
        seconds: Name of a run that ended -> its duration.
        beat: When a run last showed progress, epoch seconds.
    """

    rehearsal: Rehearsal
    configs: dict[str, dict[str, Any]]
    report: Report
    control: JobControl
    largest: Tolerance
    events: dict[str, Events] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    beat: float = 0.0

    def tick(self, name: str) -> None:
        """Pass the batch script's request to stop on to a run, and show the script that the run makes progress."""
        stop = self.control.run_dir / STOP_FILE
        folder = Path(self.configs.get(name, self.configs[OURS])["run_dir"])
        if stop.exists() and folder.is_dir() and not (folder / STOP_FILE).exists():
            write_atomically(folder / STOP_FILE, "accept\n")
        newest = max((_modified(path) for path in (folder / "heartbeat", self.rehearsal.events_of(name))), default=0.0)
        if newest > self.beat:
            self.beat = newest
            self.control.heartbeat(len(self.events), name)

    def run(self, name: str, config: dict[str, Any], *arguments: str) -> int:
        """Make a run, or take the events of an earlier attempt's run that ended well. Returns its exit code."""
        earlier = Events.read(self.rehearsal.events_of(name))
        path = self.rehearsal.folder / f"{name}.json"
        text = json.dumps(config, indent=1, default=str)
        ended = any(line.get("code") == EXIT_DONE for line in earlier.of("done"))
        if ended and path.is_file() and text_of(path) == text:
            self.rehearsal.say(f"{name}: an earlier attempt has run it")
            self.events[name] = earlier
            return EXIT_DONE
        self.rehearsal.events_of(name).unlink(missing_ok=True)
        if name != RESUMED:  # its folder has the checkpoint that it continues
            remove(Path(config["run_dir"]))
        started = time.monotonic()
        self.control.heartbeat(len(self.events), name)
        code, self.events[name] = self.rehearsal.run(name, {name: config}, *arguments)
        self.seconds[name] = time.monotonic() - started
        self.report.failure = failure_of(code, self.events[name], self.rehearsal.folder / f"{name}.log")
        if self.report.failure is not None:
            phase, cause = self.report.failure
            self.report.failure = (name, f"{hide(cause)} (in {phase})")
        return code

    def _probes(self, name: str) -> tuple[str, str]:
        """The driver's argument for the probes: a file of this run's own, which they change."""
        logprobs = self.rehearsal.folder / f"{name}.{LOGPROBS}"
        remove(logprobs)
        if (shared := self.rehearsal.folder / LOGPROBS).exists():  # Hugging Face's, of the small model
            duplicate(shared, logprobs)
        return "--logprobs", str(logprobs)

    def runs(self) -> int:
        """Make all runs. Returns the exit code of the first that failed, or 0."""
        for name, config in self.configs.items():
            if code := self.run(name, config, *(() if name == STOCK else self._probes(name))):
                return code
            if name != OURS:
                continue
            steps = int(config["grpo"]["max_num_steps"])
            folder = self.rehearsal.folder / RESUMED
            remove(folder)
            resumed = self.rehearsal.checkpoint_of(config, steps - 1, folder)
            if code := self.run(RESUMED, resumed):
                return code
        return EXIT_DONE


def accept(
    path: Path, overrides: Sequence[str], *, steps: int, fp8: bool, rehearse: bool, out: Path | None, say: Say
) -> int:
    """Run a config and write a report.

    Args:
        path: YAML file of the config.
        overrides: Overlays and arguments of the form `key=value`.
        steps: Training steps of a run.
        fp8: Whether one more run has FP8, or BF16 where the config has FP8.
        rehearse: Whether everything runs on this machine's CPU, at a small size.
        out: Folder for all files. None takes the config's run_dir, or a temporary folder for a rehearsal.
        say: Shows a line to the user.

    Returns:
        Exit code: 0 when everything passed, 1 when something failed, 2 after a user error, 75 when the batch script
        stopped it. Runs that ended are not repeated in the same folder.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the run's processes end
    if steps < MIN_STEPS:
        raise UserError(f"--steps {steps} is too few: the first is slow, and a resumed run needs one to repeat; take 3")
    started = time.monotonic()
    config = load_config(path, overrides)
    values = Values(config)
    if not uses_reinforce_ada(values):
        raise UserError(f"{path}: accept takes configs with the section reinforce_ada:")
    findings = check(path, overrides, config)
    gym = environments(values.get(PATHS)) if rehearse and uses_gym(values) else []
    variants = {STOCK: stock(config), OURS: config}
    if fp8 and uses_fp8(config):
        variants[BF16] = in_bf16(config)
    elif fp8:
        words = [*overrides, str(shipped(Path("configs", "methods", "fp8.yaml")))]
        variants[FP8] = load_config(path, words)
        findings += [finding for finding in check(path, words, variants[FP8]) if finding not in findings]
    errors = [f"{finding.key}: {finding.message}" for finding in findings if finding.level == "error"]
    folder = (out or (new_folder("accept-") if rehearse else _run_dir(config))).resolve()
    controller = Loop.of(values) is Loop.CONTROLLER
    here = installation.here if not rehearse else partial(installation.find, gym=bool(gym), plane=controller)
    installed = None if errors else here()
    held = claim(folder, "accept", "--out", beside=BEFORE_A_RUN)
    configs, shrinker, layout = _short(variants, folder, steps, rehearse=rehearse)
    options = [*map(shlex.quote, overrides), f"--steps {steps}", *["--fp8"] * fp8, *["--rehearse"] * rehearse]
    report = Report(hide(str(path)), hide(f"nemo-ada accept {path} {' '.join(options)}"), layout, shrinker.changes,
                    FILES if rehearse else ())  # fmt: skip
    report.title, report.machine = "Acceptance", report.machine if rehearse else "GPUs"
    report.absent = {"check": "yes", "validate": "off", "export": "not a part of it"}
    report.notes = [*[ON_CPU] * rehearse, NEVER_RUN]
    report.warnings = [f"{finding.key}: {finding.message}" for finding in findings if finding.level == "warning"]
    control = JobControl(folder, steps)
    control.status("running", 0)
    code = EXIT_USER_ERROR
    if installed is None:
        report.failure = ("check", "\n".join(errors))
    else:
        say(f"{path}: {layout.text}; runs {', '.join(variants)} and {RESUMED}; files in {folder}")
        if rehearse:
            furnish(config, shrinker, layout, installed, folder, gym)
        rehearsal = Rehearsal(installed, folder, layout, say, limit=Rehearsal.limit if rehearse else LIMIT_SECONDS)
        acceptance = Acceptance(rehearsal, configs, report, control, EXACT if rehearse else ON_GPUS)
        rehearsal.tick = acceptance.tick
        try:
            code = acceptance.runs()
        finally:  # after Ctrl-C the run must not go on
            rehearsal.stop()
        judge(acceptance, steps, path, overrides, exact=rehearse)
    report.seconds = time.monotonic() - started
    write_atomically(folder / "report.md", report.markdown())
    write_atomically(folder / "report.json", json.dumps(report.as_dict(), indent=1, default=str))
    say(report.markdown())
    ended: State = "done" if report.passed else "stopped" if code == EXIT_STOPPED else "failed"
    control.status(ended, steps if report.passed else 0)
    held.close()
    return EXIT_DONE if report.passed else code or EXIT_FAILED


def layout_of(config: Mapping[str, Any]) -> Layout:
    """Return the processes of a config at its full size. Raises UserError as `NemoConfig.of` does."""
    own = NemoConfig.of(config)
    learner = own.learner
    kind: Literal["megatron", "dtensor"] = "dtensor" if own.dtensor else "megatron"
    return Layout(kind, learner.tp, learner.pp, learner.cp, learner.ep, learner.replicas)


def _short(
    variants: Mapping[str, Mapping[str, Any]], folder: Path, steps: int, *, rehearse: bool
) -> tuple[dict[str, dict[str, Any]], Shrinker, Layout]:
    """Shorten each run's config, and shrink it for a rehearsal.

    Returns:
        The configs by name, the shrinker of our run with all its changes, and the processes of a run.
    """
    configs: dict[str, dict[str, Any]] = {}
    ours, layout = Shrinker({}), layout_of(variants[OURS])
    for name, variant in variants.items():
        changes: list[ConfigChange] = []
        if rehearse:
            small, layout = shrink(
                variant, model=folder / "model", data=folder / "data", out=folder / name, steps=steps
            )
            variant, changes = small.config, small.changes
        short = shorten(variant, out=folder / name, steps=steps)
        configs[name] = short.config
        if name == OURS:
            ours = Shrinker(short.config, [*changes, *short.changes])
    configs[STOCK].setdefault("checkpointing", {})["enabled"] = False
    return configs, ours, layout


def _run_dir(config: Mapping[str, Any]) -> Path:
    return Path(str(config.get("run_dir", DEFAULT_RUN_DIR)))


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def stock(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same config for NeMo-RL's own loop and its GRPO, without our hooks."""
    return {key: copy.deepcopy(value) for key, value in config.items() if key != "reinforce_ada"}


def uses_fp8(config: Mapping[str, Any]) -> bool:
    """Return whether the learner or the engine of a config computes in FP8."""
    values = Values(config)
    engine = str(values.get("policy.generation.vllm_cfg.precision", ""))
    return engine.startswith("fp8") or values.get("policy.megatron_cfg.fp8_cfg.enabled", False) is True


def in_bf16(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same config, with learner and engine in BF16."""
    own = copy.deepcopy(dict(config))
    own["policy"]["generation"]["vllm_cfg"] |= {"precision": "bfloat16", "kv_cache_dtype": "auto"}
    own["policy"]["megatron_cfg"].setdefault("fp8_cfg", {})["enabled"] = False
    return own


def judge(acceptance: Acceptance, steps: int, path: Path, overrides: Sequence[str], *, exact: bool) -> None:
    """Compare the runs that ended, and fill the report.

    Args:
        acceptance: The runs.
        steps: Training steps of a run.
        path: YAML file of the config.
        overrides: Overlays and arguments of the form `key=value`.
        exact: Whether a resumed run must repeat rows and losses, as it does on a CPU.
    """
    report, events = acceptance.report, acceptance.events
    ahead = Loop.of(Values(acceptance.configs[OURS])).draws_ahead
    report.take_phases(*events.values())
    for name in (name for name in events if name != RESUMED):
        missing = set(range(1, steps + 1)) - set(events[name].steps())
        found = measurements(events[name], ahead=ahead and name != STOCK, largest=acceptance.largest)
        found = [] if ahead and name == STOCK else found  # responses of older weights
        report.measurements += [
            Deviation(f"{name}: steps that are missing", len(missing), 0.0),
            *(Deviation(f"{name}: {one.name}", one.value, one.bound) for one in found),
        ]
    if RESUMED in events:
        before, continued, after = events[OURS], events[RESUMED], steps - 1
        if ahead:
            report.measurements += compare_async_resumed(before, continued, after, steps)
        elif exact:
            report.measurements += compare_resumed(before, continued, after)
        else:
            report.measurements += compare_resumed_on_other_responses(before, continued, after, steps)
        report.phases["resume"] = (1, acceptance.seconds.get(RESUMED, 0.0))
    try:
        plan = make_plan(path, overrides, PlanOptions(SLOT))
    except UserError as problem:
        report.warnings.append(f"nemo-ada plan: {problem}")
        plan = None
    report.tables += [_runs(acceptance), _times(events, plan), _memory(events, path, overrides)]
    if precision := next((name for name in (FP8, BF16) if name in events), None):
        report.tables.append(_precisions(events, precision))
    report.tables.append(versions_table(events))


def _runs(acceptance: Acceptance) -> Table:
    rows = [
        (name, str(len(events.steps())), f"{acceptance.seconds[name]:.0f}" if name in acceptance.seconds else "earlier")
        for name, events in acceptance.events.items()
    ]
    return Table("Runs", ("run", "steps", "seconds"), tuple(rows))


def seconds_of(events: Events, phase: str) -> float | None:
    """Median seconds of a phase over the steps but the first, which compiles and warms up. None if none was timed."""
    timings = events.steps("timing/train")
    late = [numbers for step, numbers in sorted(timings.items()) if step > min(timings)]
    sums = [sum(numbers.get(timer, 0.0) for timer in PLANNED[phase]) for numbers in late]
    return statistics.median(sums) if sums and any(sums) else None


def _times(events: Mapping[str, Events], plan: Plan | None) -> Table:
    """Seconds of a step by phase beside those that `nemo-ada plan` expects, for our run and for the stock loop."""
    rows = []
    planned = {} if plan is None else {**plan.forecast.phases, "step": plan.forecast.step}
    expected = {phase: f"{time.p50:.1f}" for phase, time in planned.items()}
    if plan is not None:
        expected["step"] += f" ({plan.forecast.low:.0f} to {plan.forecast.high:.0f})"
    costs = {cost.name: cost for cost in plan.costs} if plan is not None else {}
    stock_s = {"sampling": costs["grpo"].sampling, "step": costs["grpo"].step} if "grpo" in costs else {}
    for phase in PLANNED:
        ours, theirs = (seconds_of(events[name], phase) if name in events else None for name in (OURS, STOCK))
        ratio = f"{ours / planned[phase].p50:.2f}" if ours is not None and phase in planned else ""
        rows.append(
            (phase, expected.get(phase, ""), _number(ours), ratio, _number(stock_s.get(phase)), _number(theirs))
        )
    head = ("phase", "plan, s", "ours, s", "ours / plan", "plan of GRPO, s", "stock, s")
    return Table("Seconds of a step (median without the first) beside `nemo-ada plan`", head, tuple(rows))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _memory(events: Mapping[str, Events], path: Path, overrides: Sequence[str]) -> Table:
    """Return the learner's memory beside the estimate of `nemo-ada check`."""
    estimate = ""
    try:
        config = NemoConfig.of_megatron(load_config(path, overrides))
        known = rulebook.model_shape(config.values)
        if known is not None:
            phases = [phase(config, known[0]) for phase in (learner_phase, logprob_phase, refit_phase)]
            largest = max(phases, key=lambda phase: phase.gib)
            estimate = f"{largest.gib:.1f} ({largest.name})"
    except UserError as problem:
        estimate = str(problem)
    rows = [
        (name, estimate if name != BF16 and name != FP8 else "", f"{peak['allocated'] / GIB:.1f}",
         f"{peak['reserved'] / GIB:.1f}", peak["card"])
        for name, of_run in events.items() for peak in of_run.of("memory")
    ]  # fmt: skip
    head = ("run", "check, GiB", "allocated, GiB", "reserved, GiB", "card")
    return Table("Largest memory of a learner's GPU beside `nemo-ada check`", head, tuple(rows))


def _precisions(events: Mapping[str, Events], other: str) -> Table:
    """Return the metrics of both precisions, step by step."""
    names = ("token_mult_prob_error", "gen_kl_error", "loss", "grad_norm", "reward")
    both = (events[OURS].steps(), events[other].steps())
    rows = [
        (str(step), name, *(f"{run[step][name]:.5g}" if name in run.get(step, {}) else "" for run in both))
        for step in sorted(both[0]) for name in names
    ]  # fmt: skip
    rows += [
        ("", f"{phase}, s", *(_number(seconds_of(events[run], phase)) for run in (OURS, other))) for phase in PLANNED
    ]
    return Table(f"{OURS} against {other}", ("step", "metric", OURS, other), tuple(rows))


def versions_table(events: Mapping[str, Events]) -> Table:
    """Versions in the driver of a run. Workers may have environments of their own."""
    found = next((line for of_run in events.values() for line in of_run.of("versions")), environment())
    rows = [("nemo_ada", f"{found['nemo_ada']} {found['commit'] or ''}"), ("python", str(found["python"]))]
    rows += [(name, str(version)) for name, version in found["packages"].items()]
    cards = {peak["card"] for of_run in events.values() for peak in of_run.of("memory")}
    return Table("Versions", ("part", "version"), (*rows, ("card", ", ".join(sorted(cards)))))
