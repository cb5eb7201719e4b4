"""`nemo-ada rehearse --gpu`: the first hour on GPUs. It runs a config for a few steps, and says what it saw.

On one GPU it has a model of the real shape and random weights, and nothing is downloaded. It runs in
slices. Each is a driver process that ends by itself, and they follow each other, the most valuable first:

grpo-sync  NeMo-RL's loop with GRPO and its default engine, without anything of ours
methods    NeMo-RL's loop with GRPO, then our loop with several presets, in one driver with the same workers
resumed    our loop again, from a checkpoint

A model folder with weights trains for real: nothing is drawn, the data are the config's, and each run has a learner of
its own that starts with these weights.

With `--full` the runs have the config's own size, GPUs and weights: NeMo-RL's loop with GRPO, the config as it is with
the rehearsal's probes, and the same resumed. Each takes all GPUs.

What a slice notes is on the disk at once, so a time limit loses nothing. The forecast of `plan` and the estimate of
`check` are written before the first slice. `--dry-run` runs the same slices on a CPU, at a small size.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.rehearsal import installation
from nemo_ada.rehearsal.command import (
    LIMIT_SECONDS,
    LOGPROBS,
    Rehearsal,
    Say,
    check_full_config,
    find_failure,
    find_installation,
    list_environments,
    make_inputs,
    read_command_line,
)
from nemo_ada.rehearsal.fit import fit_to_one_gpu
from nemo_ada.rehearsal.report import Events, Report
from nemo_ada.rehearsal.runs import (
    GRPO,
    RESUMED,
    RUNS,
    Configs,
    choose_runs,
    kind_of,
    make_variant,
    read_layout,
)
from nemo_ada.rehearsal.shrink import Shrinker
from nemo_ada.rehearsal.standins import responses
from nemo_ada.rehearsal.tables import Forecasts, fill_report
from nemo_ada.rules import rulebook
from nemo_ada.rules.facts.config_file import load_config, load_upstream_part
from nemo_ada.rules.facts.nemo_config import DEFAULT_RUN_DIR
from nemo_ada.rules.finding import Finding
from nemo_ada.rules.method import uses_reinforce_ada
from nemo_ada.run.files import claim_folder, duplicate, make_folder, remove, write_atomically
from nemo_ada.run.folder import BEFORE_A_RUN
from nemo_ada.run.job_control import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_USER_ERROR,
    STOP_FILE,
    JobControl,
    State,
)
from nemo_ada.run.redaction import hide

LEAST_SECONDS = 20.0  # a slice that has less time is left out
ENDING_SECONDS = 5.0  # kept back for the report
SCALE = 0.125  # one of eight GPUs
FULL_LIMIT_SECONDS = 4 * 3600.0  # of a run at full size
ON_ONE_GPU = (
    "more than one GPU: NCCL, tensor and pipeline parallelism, the network",
    "real weights and texts: lengths and verdicts are drawn, and no answer is parsed",
    "learning",
)
"""What one GPU cannot show. Real weights show all but the first."""
NEVER_RUN = (
    "Nobody has run `nemo-ada rehearse --gpu --full` on GPUs yet. Its bounds for BF16 and FP8 were chosen without one. "
    "Please attach this report to an issue, also if it failed."
)
ON_CPU = "This was a dry run on a CPU: times and memory say nothing about GPUs."


@dataclass
class Slices:
    """The folder, the runs and the results of one rehearsal on GPUs.

    Attributes:
        rehearsal: Starts the processes.
        control: Files that the batch script watches.
        deadline: When the last slice must have ended, by time.monotonic(). None leaves the limit of `rehearsal`.
        after_slice: Called after each slice.
        full: Whether each run takes all GPUs of the config. Then no slice follows a failure.
        code: Exit code of the first slice that failed, or 0.
        events: Slice -> its events.
        failures: Slice or run -> what failed, or why it was left out.
        running: Folders of the runs of the slice that runs.
        beat: When a run last showed progress, epoch seconds.
    """

    rehearsal: Rehearsal
    control: JobControl
    deadline: float | None
    after_slice: Callable[[Slices], None]
    full: bool = False
    code: int = EXIT_DONE
    events: dict[str, Events] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    running: list[Path] = field(default_factory=list)
    beat: float = 0.0

    def run(self, name: str, work: Callable[[], tuple[int, Events]]) -> None:
        """Run a slice, unless it must be left out, and note how it failed."""
        if why := self._why_left_out():
            self.failures[name] = f"left out: {why}"
            return
        if self.deadline is not None:
            self.rehearsal.limit = self.deadline - time.monotonic() - ENDING_SECONDS
        self.control.heartbeat(len(self.events), name)
        code, self.events[name] = work()
        self.code = self.code or code
        failure = find_failure(code, self.events[name], self.rehearsal.folder / f"{name}.log")
        if failure is not None:
            self.failures[name] = f"{failure[1]} (in {failure[0]})"
        self.after_slice(self)

    def train(self, name: str, configs: Mapping[str, Mapping[str, Any]], *arguments: str) -> None:
        """Make the runs of a driver as a slice.

        Args:
            name: Name of the slice.
            configs: Run -> its config, in the order of the runs.
            arguments: More arguments of the driver.
        """
        self.running = [Path(config["run_dir"]) for config in configs.values()]
        for folder in self.running:
            if name != RESUMED:  # its folder has the checkpoint that it continues
                remove(folder)
        self.run(name, lambda: self.rehearsal.run(name, configs, *arguments))

    def tick(self, name: str) -> None:
        """Pass the batch script's request to stop on to the runs, and show the script that they make progress."""
        stop = (self.control.run_dir / STOP_FILE).exists()
        for folder in self.running:
            if stop and folder.is_dir() and not (folder / STOP_FILE).exists():
                write_atomically(folder / STOP_FILE, "rehearse\n")
        signs = [self.rehearsal.events_path(name), *(folder / "heartbeat" for folder in self.running)]
        if (newest := max(map(_modified_at, signs))) > self.beat:
            self.beat = newest
            self.control.heartbeat(len(self.events), name)

    def _why_left_out(self) -> str:
        """Say why no slice may start now. Empty where one may."""
        if self.code == EXIT_STOPPED:
            return "the batch script stopped the rehearsal"
        if self.full and self.failures:
            return f"{next(iter(self.failures))} failed"
        if self.deadline is not None and self.deadline - time.monotonic() - ENDING_SECONDS < LEAST_SECONDS:
            return "no time was left"
        return ""


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """The options of `nemo-ada rehearse --gpu`.

    Attributes:
        steps: Training steps of each run.
        full: Whether the runs have the config's own size and GPUs, not one GPU.
        scale: Share of the config's prompts per step on one GPU. None takes SCALE.
        budget: Seconds after which the last slice must have ended. None leaves each run a limit of its own.
        runs: Those runs that take place, in their order. None takes the usual ones.
        dry_run: Whether everything runs on this machine's CPU, at a small size.
    """

    steps: int = 3
    full: bool = False
    scale: float | None = None
    budget: float | None = None
    runs: Sequence[str] | None = None
    dry_run: bool = False

    @property
    def share(self) -> float:
        """Share of the config's prompts per step on one GPU."""
        return SCALE if self.scale is None else self.scale


def rehearse_on_gpu(path: Path, overrides: Sequence[str], options: GpuOptions, *, keep: Path | None, say: Say) -> int:
    """Rehearse a config on one GPU, or on those that it asks for.

    Args:
        path: YAML file of the config.
        overrides: Overlays and arguments of the form `key=value`.
        options: What runs, and where.
        keep: Folder for all files. None takes the config's run_dir at full size. Otherwise it is a temporary folder,
            which stays, too.
        say: Shows a line to the user.

    Returns:
        Exit code: 0 when every slice passed, 1 when a number or a run failed or was left out, 2 after a user error, 75
        when the batch script stopped it.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the processes end
    started = time.monotonic()
    config, wanted = _read_request(path, overrides, options)
    findings = check_full_config(path, overrides, config)
    installed = _find_place(config, options)
    in_run_dir = options.full and not options.dry_run and keep is None
    run_dir = Path(str(config.get("run_dir", DEFAULT_RUN_DIR)))
    folder = (run_dir if in_run_dir else keep or make_folder("rehearsal-gpu-")).resolve()
    held = claim_folder(folder, "rehearse --gpu", "run_dir" if in_run_dir else "--keep", beside=BEFORE_A_RUN)
    for name in () if options.full else (*RUNS, *wanted):  # runs of an earlier rehearsal in this folder
        remove(folder / name)
    made = Configs.of(
        config, folder, steps=options.steps, scale=options.share, card=installed.card, dry_run=options.dry_run,
        runs=wanted, full=options.full,
    )  # fmt: skip
    report = _begin_report(path, options, made, installed.card, findings)
    control = JobControl(folder, options.steps)
    control.status("running", 0)
    code = EXIT_USER_ERROR
    if report.failure is None:
        where = "with " if options.full else "on "
        say(
            f"{path}: {', '.join(made.configs)}, {options.steps} steps each, {where}{report.machine}; files in {folder}"
        )
        rehearsal = Rehearsal(_add_draws(installed, made), folder, made.layout, say)
        _make_inputs(config, made, rehearsal, options)
        code = _run_and_judge(rehearsal, control, report, made, options, started)
    report.seconds = time.monotonic() - started
    report.write(folder)
    ended: State = "done" if report.passed else "stopped" if code == EXIT_STOPPED else "failed"
    control.status(ended, options.steps if report.passed else 0)
    held.close()
    say(report.markdown())
    return EXIT_DONE if report.passed else code or EXIT_FAILED


def _read_request(path: Path, overrides: Sequence[str], options: GpuOptions) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the config and the wanted runs. Raises UserError for what cannot run so, before anything is made."""
    if options.steps < 2:
        raise UserError(f"--steps {options.steps} is too few: a resumed run needs a step to repeat; take 2 or more")
    if options.full and options.scale is not None:
        raise UserError("--scale is a share of the prompts for one GPU, and --full takes all of them; leave one out")
    config = load_config(path, overrides)
    if not uses_reinforce_ada(Values(config)):
        raise UserError(f"{path}: --gpu takes configs with the section reinforce_ada:")
    wanted = choose_runs(options.runs, full=options.full)
    named = [name for name in wanted if kind_of(name) != name]
    upstream = load_upstream_part(path, overrides) if named else {}
    for name in named:
        _check_keys(config, name, upstream)
    if options.full:
        read_layout(config)
    else:
        fit_to_one_gpu(config, model=Path(), data=Path(), scale=options.share)
    return config, wanted


def _check_keys(config: Mapping[str, Any], name: str, upstream: Mapping[str, Any]) -> None:
    """Raise UserError for what `check` has against the keys in the name of a run."""
    before = rulebook.apply_rules(make_variant(config, kind_of(name)), upstream)
    for finding in rulebook.apply_rules(make_variant(config, name), upstream):
        if finding.level == "error" and finding not in before:
            raise UserError(f"--runs {name}: {finding.key}: {finding.message}")


def _find_place(config: Mapping[str, Any], options: GpuOptions) -> installation.Installation:
    """Return where the runs take place. Raises UserError for what is missing there."""
    if options.dry_run:
        return find_installation(config)
    return installation.use_own_environment() if options.full else installation.find_on_gpu()


def _begin_report(path: Path, options: GpuOptions, made: Configs, card: str, findings: Sequence[Finding]) -> Report:
    """Return the report before the first slice. It has failed already where `check` found an error."""
    place = "the config's GPUs" if options.full else card
    report = Report(
        hide(str(path)), read_command_line(), made.layout, made.changes, made.stand_ins,
        title="Rehearsal on a GPU" if not options.full else "Rehearsal at full size",
        machine="this machine's CPU (--dry-run)" if options.dry_run else place,
    )  # fmt: skip
    report.absent = {"check": "yes", "validate": "off", "export": "not a part of it"}
    report.take_findings(findings)
    if options.full:
        report.notes = [*[ON_CPU] * options.dry_run, NEVER_RUN]
    elif not options.dry_run:
        report.cannot_show = ON_ONE_GPU[:1] if made.real else ON_ONE_GPU
    return report


def _add_draws(installed: installation.Installation, made: Configs) -> installation.Installation:
    """Give the processes the lengths and verdicts that are drawn, where the model has random weights on one GPU."""
    drawn = {}
    if not (made.real or made.full):
        drawn = {responses.DRAWS: made.draws.as_json()}
    elif made.dry_run and not made.full:  # a real model's embeddings fit into a larger buffer only
        drawn = {"NRL_REFIT_BUFFER_MEMORY_RATIO": "0.1"}
    return replace(installed, extra={**drawn, **installed.extra})


def _make_inputs(config: Mapping[str, Any], made: Configs, rehearsal: Rehearsal, options: GpuOptions) -> None:
    """Make data, tokenizer and model, unless the runs have their own."""
    if made.real:
        return
    gym, least, layers = list_environments(config), 0, None
    if not made.full:
        least = made.count_problems(options.steps)
        layers = made.shape.layers if made.shape is not None and not made.dry_run else None
    shrinker = Shrinker(made.typical)
    make_inputs(config, shrinker, made.layout, rehearsal.installed, rehearsal.folder, gym, least=least, layers=layers)


def _run_and_judge(
    rehearsal: Rehearsal, control: JobControl, report: Report, made: Configs, options: GpuOptions, started: float
) -> int:
    """Make the forecast, run the slices and fill the report. Returns the exit code of the first slice that failed."""
    folder = rehearsal.folder
    forecast = Forecasts.of(made, folder)
    report.warnings += forecast.warnings
    write_atomically(folder / "forecast.json", json.dumps(forecast.as_dict(), indent=1))
    rehearsal.say(f"forecast before the first slice: {folder / 'forecast.json'}")
    rehearsal.limit = FULL_LIMIT_SECONDS if made.full else LIMIT_SECONDS * len(made.configs)

    def write_report(slices: Slices) -> None:
        report.measurements, report.failure = [], None
        fill_report(report, slices.events, slices.failures, forecast, made, options.steps)
        report.seconds = time.monotonic() - started
        report.write(folder)

    deadline = None if options.budget is None else started + options.budget
    slices = Slices(rehearsal, control, deadline, write_report, full=made.full)
    rehearsal.tick = slices.tick
    try:
        _run_slices(slices, made)
    finally:
        rehearsal.stop()
        write_report(slices)
    return slices.code


def _run_slices(slices: Slices, made: Configs) -> None:
    """Run the slices one after the other."""
    for name, configs in made.drivers().items():
        probed = made.full and kind_of(name) != GRPO
        learns = ("--learns",) if made.real and not made.full else ()
        slices.train(name, configs, *learns, *(_make_probe_arguments(slices.rehearsal.folder, name) if probed else ()))
        if made.saved in configs:
            _resume_slice(slices, configs[made.saved])


def _make_probe_arguments(folder: Path, name: str) -> tuple[str, str]:
    """The driver's argument for the probes: a file of this run's own, which they change."""
    logprobs = folder / f"{name}.{LOGPROBS}"
    remove(logprobs)
    if (shared := folder / LOGPROBS).exists():  # Hugging Face's, of the small model
        duplicate(shared, logprobs)
    return "--logprobs", str(logprobs)


def _resume_slice(slices: Slices, saved: Mapping[str, Any]) -> None:
    """Continue a run from the checkpoint before its last step."""
    after = int(saved["grpo"]["max_num_steps"]) - 1
    if not (Path(saved["checkpointing"]["checkpoint_dir"]) / f"step_{after}").is_dir():
        room = (
            "no checkpoint was saved" if saved["checkpointing"]["enabled"] else "the disk has no room for checkpoints"
        )
        slices.failures[RESUMED] = f"left out: {room}"
        return
    folder = slices.rehearsal.folder / RESUMED
    remove(folder)
    slices.train(RESUMED, {RESUMED: slices.rehearsal.copy_checkpoint(saved, after, folder)})
