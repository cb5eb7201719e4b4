"""`nemo-ada rehearse` shrinks a config, runs it, resumes it, compares both runs and writes a report.

The undisturbed run saves after every step. `nemo-ada export` makes a Hugging Face folder of its last checkpoint.
transformers and vLLM load that folder, and both must give the learner's log-probabilities. A second run gets an earlier
checkpoint and continues from there with resume=auto. Its steps must equal the undisturbed ones in loss, learning rate
and rows. The second run starts as soon as its checkpoint is complete and runs beside the first, because a run spends
most of its time on starting processes.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.rehearsal import installation, model, problems
from nemo_ada.rehearsal.gym import PATHS, find_environments, link_servers
from nemo_ada.rehearsal.gym import write_requests as write_requests
from nemo_ada.rehearsal.report import (
    MAX_LOGPROB_DIFFERENCE,
    Alike,
    Deviation,
    Events,
    Report,
    compare_resumed,
    measure_run,
)
from nemo_ada.rehearsal.shrink import GYM_ROW, LENGTH, STAGE_LAYERS, Layout, Shrinker, shrink, trains_adapters
from nemo_ada.rehearsal.standins import FOR_CPU
from nemo_ada.rules import rulebook
from nemo_ada.rules.check.command import examine, examine_nemo_rl
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.finding import Finding
from nemo_ada.rules.gym import uses_gym
from nemo_ada.rules.method import uses_reinforce_ada
from nemo_ada.run.files import (
    append,
    claim_folder,
    create_file,
    duplicate,
    make_folder,
    private_folder,
    remove,
    text_of,
    write_atomically,
)
from nemo_ada.run.job_control import EXIT_DONE, EXIT_FAILED, EXIT_USER_ERROR
from nemo_ada.run.redaction import hide
from nemo_ada.run.start import Popen, TimeoutExpired, begin, make_python_command
from nemo_ada.run.start import run as run_process

LIMIT_SECONDS = 1800.0
POLL_SECONDS = 0.2
TAIL_LINES = 25
LOGPROBS = "logprobs.pt"
RAYS_LONGEST = 40  # bytes of the path above Ray's folder, so that the paths of its sockets are short enough
Say = Callable[[str], None]


@dataclass
class Rehearsal:
    """The folder and the processes of one rehearsal.

    Attributes:
        installed: NeMo-RL's checkout and the interpreters.
        folder: All files of the rehearsal are below it.
        layout: Processes of a run.
        say: Shows a line to the user.
        lora: Whether adapters train.
        limit: Longest run, seconds.
        tick: Called about five times per second with the name of a run, while it runs.
        running: Name of a run -> its driver's process, while it runs.
        stopped: Set when no further run may start.
    """

    installed: installation.Installation
    folder: Path
    layout: Layout
    say: Say
    lora: bool = False
    limit: float = LIMIT_SECONDS
    tick: Callable[[str], None] = lambda name: None
    running: dict[str, Popen[bytes]] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, name: str, configs: Mapping[str, Mapping[str, Any]], *arguments: str) -> tuple[int, Events]:
        """Make training runs in one driver, in the policy interpreter.

        Args:
            name: Name of the log and of the events.
            configs: Run -> its config, in the order of the runs.
            arguments: More arguments of the driver.

        Returns:
            Exit code of the driver, and the events that its processes noted.
        """
        paths = [self.folder / f"{run}.json" for run in configs]
        for path, config in zip(paths, configs.values(), strict=True):
            write_atomically(path, json.dumps(config, indent=1, default=str))
        environment = self.installed.environment(
            name=f"{os.getpid()}-{name}",
            gpus=self.layout.gpus,
            events=self.events_path(name),
            conversions=self.folder / "megatron",
        )
        command = make_python_command(
            self.installed.policy, "-W", "ignore", "-m", "nemo_ada.rehearsal.driver", *paths, *arguments
        )
        command += [] if self.installed.stand_ins else ["--observe"]
        events = remove(self.events_path(name))
        self.say(f"{name}: log in {self.folder / name}.log")
        with (
            private_folder(RAYS_LONGEST) as ray_folder,
            create_file(remove(self.folder / f"{name}.log"), "wb") as log,
        ):
            environment["NEMO_ADA_REHEARSAL_RAY"] = str(ray_folder / "r")  # Ray opens it to all users of the machine
            process = begin(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            self.running[name] = process
            if self.stopped.is_set():  # `stop` may have run before the process was in `running`
                self.end(name)
            try:
                code = self._wait(name, process)
            except TimeoutExpired:
                code = EXIT_FAILED
                why = {"event": "failed", "kind": "TimeoutError", "message": f"no end after {self.limit:.0f} s"}
                append(events, json.dumps(why) + "\n")
            finally:
                self.end(name)
        return code, Events.read(events)

    def events_path(self, name: str) -> Path:
        """File with the events of a run."""
        return self.folder / f"{name}.events.jsonl"

    def _wait(self, name: str, process: Popen[bytes]) -> int:
        """Wait for a run's end. Returns its exit code, and raises TimeoutExpired after `limit` seconds."""
        end = time.monotonic() + self.limit
        while time.monotonic() < end:
            self.tick(name)
            with suppress(TimeoutExpired):
                return process.wait(POLL_SECONDS)
        raise TimeoutExpired(process.args, self.limit)

    def stop(self) -> None:
        """End every run. A run that starts later ends at once."""
        self.stopped.set()
        for name in list(self.running):
            self.end(name)

    def end(self, name: str) -> None:
        """Kill the processes of a run that still run."""
        process = self.running.pop(name, None)
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.wait()

    def export(self, run: Path) -> tuple[list[Deviation], float]:
        """Export the run's newest checkpoint and load it with transformers and vLLM.

        Adapters of LoRA are exported twice: merged into the model, and alone for PEFT.

        Returns:
            Per library, the largest difference of its log-probabilities to the learner's. The seconds that it took.

        Raises:
            UserError: The export or one of the libraries failed.
        """
        out, started = self.folder / "exported", time.monotonic()
        self.say(f"export: {out}")
        environment = self.installed.environment(
            name=f"{os.getpid()}-export", gpus=1, events=Path(os.devnull), conversions=self.folder / "megatron"
        )
        exported = make_python_command(self.installed.policy, "-m", "nemo_ada.cli", "export", run, "--out")
        _run_child([*exported, out], environment)
        libraries: dict[str, tuple[Path, list[Path]]] = {
            "transformers": (self.installed.policy, [out, self.folder / LOGPROBS]),
            "vllm": (self.installed.engine, [out, self.folder / LOGPROBS]),
        }
        if self.lora:
            adapter = self.folder / "adapter"
            _run_child([*exported, adapter, "--adapter"], environment)
            libraries["peft"] = (self.installed.policy, [adapter, self.folder / LOGPROBS, self.folder / "model"])
        differences = []
        for library, (interpreter, paths) in libraries.items():
            command = make_python_command(
                interpreter, "-W", "ignore", "-m", "nemo_ada.rehearsal.exported", library, *paths
            )
            lines = _run_child(command, self.installed.plain_environment())
            name = f"exported, in {library}: |log-prob - the learner's|, nats"
            differences.append(Deviation(name, float(lines[-1]), MAX_LOGPROB_DIFFERENCE))
        return differences, time.monotonic() - started

    def copy_checkpoint(self, config: Mapping[str, Any], step: int, out: Path) -> dict[str, Any]:
        """Make a run folder with only this step's checkpoint. Returns the config that continues from it."""
        old = Path(config["checkpointing"]["checkpoint_dir"])
        continued: dict[str, Any] = json.loads(json.dumps(config, default=str))
        continued |= {"run_dir": str(out), "resume": "auto"}
        continued["checkpointing"]["checkpoint_dir"] = str(out / "checkpoints")
        continued["logger"]["log_dir"] = str(out / "logs")
        duplicate(old / f"step_{step}", out / "checkpoints" / f"step_{step}", links=True)
        for file in Path(config["run_dir"]).glob("*.*"):  # without lock and heartbeat, which are the first run's own
            if file.is_file():
                duplicate(file, out / file.name)
        return continued


def _run_child(command: Sequence[str | Path], environment: Mapping[str, str]) -> list[str]:
    """Run a child process. Returns the lines of its output, and raises UserError with the end of its errors."""
    done = run_process(command, capture_output=True, text=True, env=dict(environment))
    if done.returncode:
        raise UserError("\n".join(done.stderr.strip().splitlines()[-TAIL_LINES:]))
    return done.stdout.strip().splitlines()


def rehearse(path: Path, overrides: Sequence[str], *, steps: int, resume: bool, keep: Path | None, say: Say) -> int:
    """Rehearse a config.

    Args:
        path: YAML file of the config.
        overrides: Arguments of the form `key=value`.
        steps: Training steps of a run.
        resume: Whether a second run continues from an earlier checkpoint.
        keep: Folder for all files of the rehearsal, which stays. Without it a temporary folder is used, and removed
            after a rehearsal that passed.
        say: Shows a line to the user.

    Returns:
        Exit code: 0 when the rehearsal passed, 1 when a measurement is out of bounds or a run failed, 2 after a user
        error.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the run's processes end
    if resume and steps < 2:
        raise UserError(f"--steps {steps} is too few: a resumed run needs a step to repeat; take 2 or more")
    started = time.monotonic()
    config = load_config(path, overrides)
    findings = check_full_config(path, overrides, config)
    gym = list_environments(config)
    installed = None if any(finding.level == "error" for finding in findings) else find_installation(config)
    folder = (keep or make_folder("rehearsal-")).resolve()
    held = claim_folder(folder, "rehearse", "--keep")
    shrinker, layout = shrink(
        config, model=folder / "model", data=folder / "data", out=folder / "undisturbed", steps=steps
    )
    report = Report(str(path), read_command_line(), layout, shrinker.changes, FOR_CPU)
    report.absent["check"] = "yes"  # it has no events to count, so the table shows this text
    report.take_findings(findings)
    code = EXIT_USER_ERROR
    if installed is not None:
        say(f"{path}: {layout.text}, {steps} steps; files in {folder}")
        make_inputs(config, shrinker, layout, installed, folder, gym)
        lora = trains_adapters(shrinker)
        code = _make_runs(Rehearsal(installed, folder, layout, say, lora), report, shrinker.config, resume=resume)
    report.seconds = time.monotonic() - started
    report.write(folder)
    say(report.markdown())
    held.close()
    if keep is None and report.passed:
        remove(folder)
    return EXIT_DONE if report.passed else code or EXIT_FAILED


def read_command_line() -> str:
    """Return the command line of this process, without secrets."""
    return hide(shlex.join(["nemo-ada", *sys.argv[1:]]))


def list_environments(config: Mapping[str, Any]) -> list[str]:
    """Return NeMo-Gym's environments of a config. There are none without NeMo-Gym. Raises UserError."""
    values = Values(config)
    return find_environments(values.get(PATHS)) if uses_gym(values) else []


def find_installation(config: Mapping[str, Any]) -> installation.Installation:
    """Find what a rehearsal of this config needs on a CPU. Raises UserError with all that is missing."""
    values = Values(config)
    second = values.get("policy.dtensor_cfg._v2", False) and not values.get("policy.megatron_cfg.enabled", False)
    return installation.find(gym=uses_gym(values), automodel=bool(second))


def choose_last_step_before_resume(steps: int) -> int:
    """Return the step whose checkpoint the second run continues. It repeats one or two steps."""
    return max(1, steps - 2)


def check_full_config(path: Path, overrides: Sequence[str], config: dict[str, Any]) -> list[Finding]:
    """Return what `nemo-ada check` finds in the config at its full size, before shrinking hides anything.

    A NeMo-RL config without the section `reinforce_ada` may not be meant for us, so only what concerns its learner and
    engine counts. The estimate of memory is for Megatron.
    """
    if config.get("backend") == "nemo_rl" or uses_reinforce_ada(Values(config)):
        findings = examine(path, overrides, verifier=False, site=False)
        return [_accept_missing_data(finding, config) for finding in findings]
    megatron = Values(config).get("policy.megatron_cfg.enabled", False)
    findings = examine_nemo_rl(config) if megatron else rulebook.apply_rules(config)
    keys = ("cluster", "policy") if megatron else ("cluster", "policy", "checkpointing")
    return [finding for finding in findings if finding.key.startswith(keys)]


def _accept_missing_data(finding: Finding, config: Mapping[str, Any]) -> Finding:
    """Make a warning of an error about a data set for NeMo-Gym that is not here. The rehearsal's data replace it."""
    if finding.level == "error" and finding.key.endswith(".data_path") and uses_gym(Values(config)):
        path = Values(config).get(finding.key)
        if isinstance(path, str) and not Path(path).exists():
            return replace(finding, level="warning")
    return finding


def _make_runs(rehearsal: Rehearsal, report: Report, config: dict[str, Any], *, resume: bool) -> int:
    """Make one run or both, and fill the report. Returns the exit code of the run that failed, or 0."""
    with ThreadPoolExecutor(2) as beside:
        first = beside.submit(
            rehearsal.run, "undisturbed", {"undisturbed": config}, "--logprobs", str(rehearsal.folder / LOGPROBS)
        )
        second = beside.submit(_run_resumed, rehearsal, config, first) if resume else None
        try:
            code, undisturbed = first.result()
            report.take_phases(undisturbed)
            report.failure = find_failure(code, undisturbed, rehearsal.folder / "undisturbed.log")
            report.measurements = measure_run(undisturbed, ahead=Loop.of(Values(config)).draws_ahead)
            if report.failure is not None:
                return code
            exporting = beside.submit(rehearsal.export, Path(config["run_dir"]))
            if second is None:
                report.absent["resume"] = "--no-resume"
            else:
                code = _compare_runs(rehearsal, report, config, undisturbed, second)
            try:
                differences, seconds = exporting.result()
            except UserError as error:
                report.failure = report.failure or ("export", str(error))
                return code or EXIT_FAILED
        finally:  # after a failure or Ctrl-C the other run must not go on
            rehearsal.stop()
    report.measurements += differences
    report.phases["export"] = (1, seconds)
    return code


def _run_resumed(rehearsal: Rehearsal, config: dict[str, Any], first: Future[tuple[int, Events]]) -> tuple[int, Events]:
    """Make the second run. It starts when the first run's checkpoint is complete.

    Returns:
        Exit code and events of the second run. Without a checkpoint of the first run there is no second one: the exit
        code is then EXIT_FAILED and there are no events.
    """
    after = choose_last_step_before_resume(int(config["grpo"]["max_num_steps"]))
    folder = Path(config["checkpointing"]["checkpoint_dir"]) / f"step_{after}"
    while not folder.is_dir():  # NeMo-RL renames a checkpoint to this name after it has written all files
        if first.done() and not folder.is_dir():
            return EXIT_FAILED, Events([])
        time.sleep(POLL_SECONDS)
    resumed = rehearsal.copy_checkpoint(config, after, rehearsal.folder / "resumed")
    return rehearsal.run("resumed", {"resumed": resumed})


def _compare_runs(
    rehearsal: Rehearsal,
    report: Report,
    config: dict[str, Any],
    undisturbed: Events,
    second: Future[tuple[int, Events]],
) -> int:
    """Wait for the second run and compare it with the first. Returns the second run's exit code."""
    code, again = second.result()
    failure = find_failure(code, again, rehearsal.folder / "resumed.log")
    if failure is not None:
        report.failure = ("resume", f"{failure[1]} (in {failure[0]})")
        return code
    steps = int(config["grpo"]["max_num_steps"])
    report.take_phases(undisturbed, again)
    report.phases["resume"] = (1, 0.0)  # its seconds are in the phases of its steps
    after = choose_last_step_before_resume(steps)
    report.measurements += compare_resumed(undisturbed, again, after, steps, find_repeated(config))
    return EXIT_DONE


def find_repeated(config: Mapping[str, Any], *, seeded: bool = True) -> Alike:
    """Return what a resumed run of this config repeats. `seeded`: whether responses get seeds."""
    values = Values(config)
    if Loop.of(values).draws_ahead:
        return "steps"
    # Ray wraps the method of the synchronous engine's actor before our seeds can reach it
    return "rows" if seeded and values.get("policy.generation.vllm_cfg.async_engine", False) else "prompts"


def find_failure(code: int, events: Events, log: Path) -> tuple[str, str] | None:
    """Phase and cause of a run's failure, from its events or the end of its log. None for a run that ended well."""
    if code == EXIT_DONE:
        return None
    failure = events.failure()
    if failure is not None:
        return failure
    tail = "\n".join(text_of(log, errors="replace").splitlines()[-TAIL_LINES:])
    return "set-up", f"the driver ended with exit code {code}; the end of its log:\n{hide(tail)}"


def make_inputs(
    config: Mapping[str, Any],
    shrinker: Shrinker,
    layout: Layout,
    installed: installation.Installation,
    folder: Path,
    gym: Sequence[str] = (),
    *,
    least: int = 0,
    layers: int | None = None,
) -> None:
    """Make data, tokenizer and model in the rehearsal's folder.

    Args:
        config: The user's config, which names the full model.
        shrinker: Holds the config of the rehearsal.
        layout: Processes of a run.
        installed: NeMo-RL's checkout and the interpreters.
        folder: Folder of the rehearsal.
        gym: NeMo-Gym's environments. There are none without NeMo-Gym.
        least: Problems that training needs at least.
        layers: Layers of a model of the real shape. None for a small model.

    Raises:
        UserError: The model's shape is not known, or the policy interpreter cannot make the model.
    """
    texts = write_requests(folder / "data", gym) if gym else problems.write_problems(folder / "data", least)
    if installed.gym is not None:
        link_servers(folder / "gym", gym, installed.gym)
    for key in ("data.default", "data.train", "data.validation"):
        for name in ("system_prompt_file", "prompt_file"):
            file = shrinker.get(f"{key}.{name}")
            if file and Path(file).is_file():
                texts.append(text_of(Path(file)))
    name = str(config.get("policy", {}).get("model_name", ""))
    if layers is None:
        positions = GYM_ROW if gym else 2 * LENGTH
        spec = model.ModelSpec.of(name, layers=STAGE_LAYERS * layout.pp, positions=positions)
    else:
        spec = model.ModelSpec.full(name, layers)
    path = folder / "model.json"
    write_atomically(path, model.spec_as_json(spec, problems.make_vocabulary(texts, spec.shape.vocab)))
    command = ("-m", "nemo_ada.rehearsal.model", path, folder / "model", folder / LOGPROBS)
    try:
        _run_child([installed.policy, "-W", "ignore", *command], installed.plain_environment())
    except UserError as error:
        raise UserError(f"the policy interpreter {installed.policy} cannot make the model:\n{error}") from error
