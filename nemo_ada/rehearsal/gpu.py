"""`nemo-ada rehearse --gpu` runs a config on one GPU, with a model of its real shape and random weights.

Nothing is downloaded. The slices follow each other, the most valuable first, and each ends by itself:

engine   vLLM alone: tokens per second and CPU time of NeMo-RL's default engine, of its asynchronous one, and of ours
stock    NeMo-RL's loop with GRPO and its default engine, without anything of ours
methods  NeMo-RL's loop with GRPO, then our loop with several presets, in one driver with the same workers
resumed  our loop again, from a checkpoint

A model folder with weights trains for real: nothing is drawn, the data are the config's, and each run has a learner of
its own that starts with these weights.

What a slice notes is on the disk at once, so a time limit loses nothing. The forecast of `plan` and the estimate of
`check` for this card are written before the first slice. `--dry-run` runs the same slices on a CPU, at a small size.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.core.sampling.budget import SECONDS
from nemo_ada.errors import UserError
from nemo_ada.lab.plan.assumptions import lengths_of, rates_of
from nemo_ada.lab.plan.command import Plan, PlanOptions, make_plan
from nemo_ada.lab.plan.forecast import Time
from nemo_ada.lab.plan.planned_run import PlannedRun
from nemo_ada.lab.plan.roofline import Roofline
from nemo_ada.rehearsal import installation
from nemo_ada.rehearsal.accept import ON_GPUS, PLANNED, SLOT, seconds_of, stock, versions_table
from nemo_ada.rehearsal.command import LIMIT_SECONDS, Rehearsal, Say, check, check_tokenizer, failure_of, furnish
from nemo_ada.rehearsal.fit import ONE_GPU, fit, layers_that_fit
from nemo_ada.rehearsal.model import shape_of
from nemo_ada.rehearsal.pace import ENGINES, PROMPT_TOKENS, PaceSpec
from nemo_ada.rehearsal.report import (
    EXACT,
    Deviation,
    Events,
    Report,
    Table,
    compare_resumed_on_other_responses,
    measurements,
)
from nemo_ada.rehearsal.shrink import NEW_TOKENS, Layout, Shrinker, shorten, shrink
from nemo_ada.rehearsal.standins import OF_RUNS, ON_GPU, chosen, responses
from nemo_ada.rehearsal.standins.replacing import Replacements
from nemo_ada.rehearsal.standins.responses import Draws
from nemo_ada.rules.facts.cards import H100, KEY, named
from nemo_ada.rules.facts.memory import (
    GIB,
    VLLM_RESERVE_GIB,
    checkpoint_bytes,
    learner_phase,
    logprob_phase,
    refit_phase,
)
from nemo_ada.rules.facts.models import ModelShape
from nemo_ada.rules.facts.nemo_config import NemoConfig, load_config
from nemo_ada.rules.facts.site import CODE
from nemo_ada.rules.method import uses_reinforce_ada
from nemo_ada.run import start
from nemo_ada.run.files import claim, new_folder, remove, write_atomically
from nemo_ada.run.job_control import EXIT_DONE, EXIT_FAILED, EXIT_USER_ERROR

ENGINE, STOCK, METHODS, RESUMED = "engine", "grpo-sync", "methods", "resumed"
GRPO, BALANCE, SINGLE_4, CAPPED = "grpo", "balance", "single4", "balance-capped"
PRESETS: Mapping[str, str] = {
    BALANCE: "ada_seq_balance",
    "single": "ada_single",
    SINGLE_4: "ada_single",
    "lean": "ada_seq_lean",
    CAPPED: "ada_seq_balance",
}
"""Run -> preset, in the order of the runs. The first runs of all are NeMo-RL's own loop."""
RUNS = (ENGINE, STOCK, GRPO, *PRESETS, RESUMED)
"""All slices and runs that `--runs` can name."""
COUNTS, DRY_COUNTS = (64, 256, 1024), (2, 4)
SCALE = 0.125  # one of eight GPUs
RATES = 64  # pass rates that are drawn; each prompt has one of them
LEAST_SECONDS = 20.0  # a slice that has less time is left out
ENDING_SECONDS = 5.0  # kept back for the report
CAP_SHARE = 1.1  # seconds of sampling of the capped run, over the forecast of GRPO's
CANNOT_SHOW = (
    "more than one GPU: NCCL, tensor and pipeline parallelism, the network",
    "real weights and texts: lengths and verdicts are drawn, and no answer is parsed",
    "learning",
)
OUR_ENGINE = ("scheduler_cls", "max_num_seqs", "max_num_batched_tokens", "compilation_config")
"""Arguments of vLLM that our configs set."""
ENGINE_SHARE = 0.8  # of the card's memory, for all engines of the first slice together
PHASES = ("set-up", "refit", "generate", "log-probs", "update", "save")


@dataclass
class Slices:
    """The folder, the runs and the results of one rehearsal on a GPU.

    Attributes:
        rehearsal: Starts the processes.
        deadline: When the last slice must have ended, by time.monotonic(). None leaves the limit of `rehearsal`.
        ended: Called after each slice.
        events: Slice -> its events.
        failures: Slice or run -> what failed, or why it was left out.
    """

    rehearsal: Rehearsal
    deadline: float | None
    ended: Callable[[Slices], None]
    events: dict[str, Events] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def run(self, name: str, work: Callable[[], tuple[int, Events]]) -> None:
        """Run a slice, unless too little time is left, and note how it failed."""
        if self.deadline is not None:
            left = self.deadline - time.monotonic() - ENDING_SECONDS
            if left < LEAST_SECONDS:
                self.failures[name] = "left out: no time was left"
                return
            self.rehearsal.limit = left
        code, self.events[name] = work()
        failure = failure_of(code, self.events[name], self.rehearsal.folder / f"{name}.log")
        if failure is not None:
            self.failures[name] = f"{failure[1]} (in {failure[0]})"
        self.ended(self)

    def runs(self) -> dict[str, Events]:
        """The training runs by name, in order."""
        return {run: events for name, of_slice in self.events.items() if name != ENGINE
                for run, events in of_slice.runs().items()}  # fmt: skip


def rehearse_on_gpu(
    path: Path,
    overrides: Sequence[str],
    *,
    steps: int,
    scale: float,
    budget: float | None,
    keep: Path | None,
    dry_run: bool,
    say: Say,
    runs: Sequence[str] = RUNS,
) -> int:
    """Rehearse a config on one GPU.

    Args:
        path: YAML file of the config.
        overrides: Arguments of the form `key=value`.
        steps: Training steps of each run.
        scale: Share of the config's prompts per step.
        budget: Seconds after which the last slice must have ended. None gives a slice half an hour per run.
        keep: Folder for all files, which stays. Without it a temporary folder is used, which stays, too.
        dry_run: Whether everything runs on this machine's CPU, at a small size.
        say: Shows a line to the user.
        runs: Those of RUNS that take place, in their order.

    Returns:
        Exit code: 0 when every slice passed, 1 when one failed or was left out, 2 after a user error.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the processes end
    started = time.monotonic()
    if steps < 2:
        raise UserError(f"--steps {steps} is too few: a resumed run needs a step to repeat; take 2 or more")
    config = load_config(path, overrides)
    if not uses_reinforce_ada(Values(config)):
        raise UserError(f"{path}: --gpu takes configs with the section reinforce_ada:")
    check_tokenizer(config)
    wanted = _chosen(runs, config)
    nowhere = Path()
    fit(config, model=nowhere, data=nowhere, out=nowhere, steps=steps, scale=scale, te=True, apex=True)  # may refuse it
    findings = check(path, overrides, config)
    errors = [f"{finding.key}: {finding.message}" for finding in findings if finding.level == "error"]
    installed = installation.find() if dry_run else installation.on_gpu()
    machine = PRETENDED if dry_run else Machine.of(installed.policy)
    folder = (keep or new_folder("rehearsal-gpu-")).resolve()
    held = claim(folder, "rehearse --gpu", "--keep")
    for name in RUNS:  # runs of an earlier rehearsal in this folder
        remove(folder / name)
    made = Configs.of(config, folder, steps=steps, scale=scale, machine=machine, dry_run=dry_run, runs=wanted)
    options = [*map(shlex.quote, overrides), "--gpu", f"--steps {steps}", f"--scale {scale:g}"]
    options += [] if wanted == RUNS else [f"--runs {','.join(wanted)}"]
    options += [] if budget is None else [f"--budget {budget:g}"]
    options += ["--dry-run"] * dry_run
    report = Report(
        str(path), f"nemo-ada rehearse {path} {' '.join(options)}", made.layout, made.changes,
        made.stand_ins, title="Rehearsal on a GPU",
        machine="this machine's CPU (--dry-run)" if dry_run else machine.card,
    )  # fmt: skip
    report.absent = {"check": "yes", "validate": "off", "export": "not a part of it"}
    report.warnings = [f"{finding.key}: {finding.message}" for finding in findings if finding.level == "warning"]
    if not dry_run:
        report.cannot_show = CANNOT_SHOW[:1] if made.real else CANNOT_SHOW
    if errors:
        report.failure = ("check", "\n".join(errors))
    else:
        drawn = {responses.DRAWS: made.draws.as_json()}
        if made.real:  # a real model's embeddings fit into a larger buffer only
            drawn = {"NRL_REFIT_BUFFER_MEMORY_RATIO": "0.1"} if dry_run else {}
        installed = replace(installed, extra={**drawn, **machine.variables})
        say(f"{path}: {', '.join(made.configs)}, {steps} steps each, on {report.machine}; files in {folder}")
        if not made.real:
            furnish(config, Shrinker(made.typical), made.layout, installed, folder, least=made.problems(steps),
                    layers=None if dry_run else made.shape.layers)  # fmt: skip
        forecast = Forecasts.of(made, folder)
        report.warnings += forecast.warnings
        write_atomically(folder / "forecast.json", json.dumps(forecast.as_dict(), indent=1))
        say(f"forecast before the first slice: {folder / 'forecast.json'}")
        rehearsal = Rehearsal(installed, folder, made.layout, say, limit=LIMIT_SECONDS * len(made.configs))

        def ended(slices: Slices) -> None:
            report.measurements, report.failure = [], None
            judge(report, slices, forecast, made.saved, steps=steps, exact=dry_run)
            report.seconds = time.monotonic() - started
            write(report, folder)

        slices = Slices(rehearsal, None if budget is None else started + budget, ended)
        try:
            _run_slices(slices, made, wanted)
        finally:
            rehearsal.stop()
            ended(slices)
    report.seconds = time.monotonic() - started
    write(report, folder)
    held.close()
    say(report.markdown())
    return EXIT_DONE if report.passed else EXIT_USER_ERROR if errors else EXIT_FAILED


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine with a GPU has.

    Attributes:
        card: CUDA's name of the GPU.
        libraries: Those of the libraries that are installed on which a config depends.
        variables: Environment variables of the processes.
    """

    card: str
    libraries: frozenset[str]
    variables: Mapping[str, str]

    @classmethod
    def of(cls, python: Path) -> Machine:
        """Ask an interpreter."""
        look = (
            "import json, torch\n"
            "from nemo_ada.rehearsal.standins import installed\n"
            "capability = '.'.join(map(str, torch.cuda.get_device_capability()))\n"
            "print(json.dumps([torch.cuda.get_device_name(), installed(), capability]))"
        )
        path = os.pathsep.join([str(CODE), *start.users_path()])
        environment = start.environment(PYTHONPATH=path)
        done = start.run(start.python(python, "-c", look), capture_output=True, text=True, check=True, env=environment)
        card, names, capability = json.loads(done.stdout.splitlines()[-1])
        local = {"NCCL_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}  # there may be no network
        local["VLLM_DEEP_GEMM_WARMUP"] = "skip"  # it compiles 1,419 kernels for FP8: a quarter of them took 260 s
        return cls(card, frozenset(names), {ON_GPU: "1", "TORCH_CUDA_ARCH_LIST": capability, **local})

    @property
    def te(self) -> bool:
        """Whether Transformer Engine is installed, with its part for torch."""
        return {"transformer_engine", "transformer_engine_torch"} <= self.libraries


PRETENDED = Machine(H100.name, frozenset(), {})
"""That of a dry run."""


@dataclass(frozen=True)
class Configs:
    """The configs of a rehearsal's runs.

    Attributes:
        configs: Run -> its config, in the order of the runs.
        changes: What differs from the user's config.
        layout: Processes of a run.
        shape: Shape of the model that runs.
        draws: Lengths and verdicts of responses.
        counts: Responses at once in the engine's slice.
        stand_ins: What is replaced.
        dry_run: Whether everything runs on a CPU.
        real: Whether the model has weights of its own, with which each run starts.
        saved: The run that saves checkpoints, of which the last but one is resumed. None where no run does.
    """

    configs: dict[str, dict[str, Any]]
    changes: list[Any]
    layout: Layout
    shape: ModelShape
    draws: Draws
    counts: tuple[int, ...]
    stand_ins: tuple[Replacements, ...]
    dry_run: bool
    real: bool
    saved: str | None

    @property
    def typical(self) -> dict[str, Any]:
        """The config of the last run. In what this module reads from it, all runs are alike."""
        return list(self.configs.values())[-1]

    @classmethod
    def of(
        cls, config: Mapping[str, Any], folder: Path, *, steps: int, scale: float, machine: Machine, dry_run: bool,
        runs: Sequence[str] = RUNS,
    ) -> Configs:  # fmt: skip
        """Make the configs. Raises UserError for a config that cannot run on one GPU."""
        te, known = machine.te, named(machine.card)
        real = has_weights(config)
        user = {**config, KEY: known.name} if known is not None else dict(config)
        trained = [name for name in runs if name not in (ENGINE, RESUMED)]
        repeatable = [name for name in trained if name not in (STOCK, GRPO, CAPPED)]
        saved = repeatable[-1] if RESUMED in runs else None
        configs, changes, layout = {}, [], ONE_GPU
        model, data = (None, None) if real else (folder / "model", folder / "data")
        for name in trained:
            variant = variant_of(user, name)
            fitted = fit(variant, model=model, data=data, out=folder / name, steps=steps, scale=scale, te=te,
                         apex="apex" in machine.libraries)  # fmt: skip
            if dry_run:
                small, layout = shrink(fitted.config, model=model, data=data, out=folder / name, steps=steps)
                short = shorten(small.config, out=folder / name, steps=steps)
                fitted = Shrinker(short.config, [*fitted.changes, *small.changes, *short.changes])
                for key in ("lr", "min_lr"):  # `plan` takes no larger one
                    fitted.at_most("update", f"policy.megatron_cfg.optimizer.{key}", 1e-3)
            fitted.config["checkpointing"]["enabled"] = name == saved
            configs[name] = fitted.config
            changes = fitted.changes
        if dry_run:  # one process pretends to be a GPU, as there is one
            layout = ONE_GPU
            for one in configs.values():
                one["cluster"]["gpus_per_node"] = 1
        shape = shape_of(str(config["policy"]["model_name"]))
        if not dry_run:
            own = NemoConfig.of_megatron(next(iter(configs.values())))
            fits = layers_that_fit(own, shape)
            if real and fits < shape.layers:
                raise UserError(
                    f"policy.model_name={own.model_name}: {fits} of its {shape.layers} layers fit on a {own.card.name} "
                    "by the estimate of `check`; take a smaller model"
                )
            shape = replace(shape, layers=fits)
            if saved is not None and shutil.disk_usage(folder).free < (steps + 1) * checkpoint_bytes(own, shape):
                configs[saved]["checkpointing"]["enabled"] = False
        longest = int(next(iter(configs.values()))["policy"]["generation"]["max_new_tokens"])
        source = str((config.get("data", {}).get("train") or {}).get("data_path", ""))
        rates = rates_of(source, None, None, 0)[0].draw(RATES, 0)
        draws = Draws(tuple(round(float(rate), 4) for rate in rates), lengths_of(longest, None, None)[0])
        stand_ins = (
            *chosen(machine.libraries, gpu=not dry_run, slices=not real),
            *(OF_RUNS if len(configs) > 1 else ()),
        )
        counts = () if ENGINE not in runs else DRY_COUNTS if dry_run else COUNTS
        return cls(configs, changes, layout, shape, draws, counts, stand_ins, dry_run, real, saved)

    def problems(self, steps: int) -> int:
        """Problems that the longest run needs."""
        return steps * max(int(config["grpo"]["num_prompts_per_step"]) for config in self.configs.values())


def _chosen(runs: Sequence[str], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the wanted runs.

    Raises UserError for a name that is not known, a resumed run without a first one, or a capped one without a cap.
    """
    unknown = [name for name in runs if name not in RUNS]
    if unknown or not runs:
        raise UserError(f"--runs {','.join(runs)}: take some of {','.join(RUNS)}")
    if not set(runs) & {STOCK, GRPO, *PRESETS}:
        raise UserError(f"--runs {','.join(runs)}: add one that trains, such as {GRPO} or {BALANCE}")
    if RESUMED in runs and not set(runs) & (set(PRESETS) - {CAPPED}):
        raise UserError(f"--runs {','.join(runs)}: {RESUMED} repeats a step of our loop; add one such as {BALANCE}")
    if CAPPED in runs and GRPO not in runs and Values(config).get(SECONDS.key) is None:
        raise UserError(
            f"--runs {','.join(runs)}: {CAPPED} is capped at the forecast of {GRPO}'s sampling; add {GRPO}, or set "
            f"{SECONDS.key}"
        )
    return tuple(dict.fromkeys(runs))


def has_weights(config: Mapping[str, Any]) -> bool:
    """Return whether policy.model_name is a folder with weights on this machine."""
    return any(Path(str(Values(config).get("policy.model_name", ""))).expanduser().glob("*.safetensors"))


def variant_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the config of a run."""
    if name not in (STOCK, GRPO):
        return _with_preset(config, PRESETS[name], alone=name != SINGLE_4)
    own = stock(config)
    if name == STOCK:  # as a user of NeMo-RL has it, without what our presets need and without what makes it faster
        own["optimizer_offload"] = "pageable"
        generation = own["policy"]["generation"]
        generation["vllm_cfg"] |= {"async_engine": False}
        for key in OUR_ENGINE:
            generation.get("vllm_kwargs", {}).pop(key, None)
    return own


def _with_preset(config: Mapping[str, Any], preset: str, *, alone: bool) -> dict[str, Any]:
    """Return the config with another preset. `ada_single` has a response per prompt and as many prompts as rows.

    Without `alone` it keeps the prompts and the responses of the config's groups.
    """
    own = copy.deepcopy(dict(config))
    budget = own["reinforce_ada"].get("budget")
    own["reinforce_ada"] = {"preset": preset, **({"budget": budget} if budget else {})}
    if preset == "ada_single":
        own["reinforce_ada"].pop("budget", None)
    if preset == "ada_single" and alone:
        grpo = own["grpo"]
        grpo["num_prompts_per_step"] *= grpo["num_generations_per_prompt"]
        grpo["num_generations_per_prompt"] = 1
    return own


@dataclass
class Forecasts:
    """What `plan` and `check` say before the first slice.

    Attributes:
        plans: Run -> its plan.
        memory: Phase of `check` -> GiB.
        pace: Responses at once -> seconds by the roofline.
        warnings: What could not be forecast.
    """

    plans: dict[str, Plan] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    pace: dict[int, float] = field(default_factory=dict)
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
            known = {**config, "env": {key: _without_reward(one) for key, one in config.get("env", {}).items()}}
            write_atomically(paths[name], json.dumps(known, default=str))  # JSON is YAML
        spawned = start.listed(**start.SAFE)
        with spawned, ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as beside:
            plans = {name: beside.submit(_plan, path, rates) for name, path in paths.items()}
            for name, plan in plans.items():
                try:
                    own.plans[name] = plan.result()
                except UserError as problem:
                    own.warnings.append(f"nemo-ada plan, {name}: {problem}")
        if CAPPED in made.configs and GRPO in own.plans:
            seconds = round(CAP_SHARE * own.plans[GRPO].forecast.phases["sampling"].p50, 1)
            ours = made.configs[CAPPED]["reinforce_ada"]
            if Values(made.configs[CAPPED]).get(SECONDS.key) is None:  # a user's cap stays
                ours["budget"] = {**(ours.get("budget") or {}), SECONDS.name: seconds}
        try:
            typical = NemoConfig.of_megatron(made.typical)
            for phase in (learner_phase, logprob_phase, refit_phase):
                estimate = phase(typical, made.shape)
                own.memory[estimate.name] = estimate.gib
            own.memory["vLLM"] = typical.engine.memory_share * typical.card.gib
            roofline = PlannedRun.read(paths[next(reversed(paths))], []).roofline
            if roofline is not None:
                own.pace = {count: _roofline_seconds(roofline, pace_spec(made, folder).drawn(count))
                            for count in made.counts}  # fmt: skip
        except UserError as problem:
            own.warnings.append(f"nemo-ada check: {problem}")
        return own

    def as_dict(self) -> Mapping[str, Any]:
        """Return the content of forecast.json."""
        phases = {name: {phase: time.p50 for phase, time in planned(plan).items()} for name, plan in self.plans.items()}
        return {"seconds": phases, "memory_gib": self.memory, "engine_seconds": self.pace, "warnings": self.warnings}


def _without_reward(environment: Any) -> Any:
    """Leave out the user's reward, which only a YAML in its own folder may name, and which `plan` does not ask."""
    if not isinstance(environment, Mapping):
        return environment
    return {key: value for key, value in environment.items() if key != "reward"}


def _plan(path: Path, rates: Path) -> Plan:
    return make_plan(path, [], PlanOptions(SLOT, pass_rates=rates, compare=False))


def planned(plan: Plan | None) -> Mapping[str, Time]:
    """Phase of a step -> its time, and that of the whole step."""
    return {} if plan is None else {**plan.forecast.phases, "step": plan.forecast.step}


def _roofline_seconds(roofline: Roofline, lengths: Any) -> float:
    """Return seconds in which the roofline generates responses of these lengths, all at once, with their prompts."""
    step, each = roofline.clock(float(lengths.mean()))
    return float(step * lengths.max() + each * lengths.sum())


def pace_spec(made: Configs, folder: Path) -> PaceSpec:
    """Return what the engine's slice measures."""
    generation = made.typical["policy"]["generation"]
    length = int(generation["vllm_cfg"]["max_model_len"])
    lengths = made.draws.lengths
    config, each = NemoConfig.of_megatron(made.typical), ENGINE_SHARE / len(ENGINES)
    room = int((each * config.card.gib - VLLM_RESERVE_GIB) * GIB - 2 * made.shape.parameters)
    engine: dict[str, Any] = {
        "dtype": "bfloat16", "gpu_memory_utilization": 0.5 * each, "kv_cache_memory_bytes": room,
        "max_num_seqs": max(made.counts), "max_num_batched_tokens": 16384,
    }  # fmt: skip
    if made.dry_run:
        engine = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 1 << 28}
        length = PROMPT_TOKENS + 2 * NEW_TOKENS
    longest = max(length, PROMPT_TOKENS + lengths.max_new_tokens)
    return PaceSpec(str(made.typical["policy"]["model_name"]), made.counts, longest, lengths, engine, tuple(ENGINES))


def _run_slices(slices: Slices, made: Configs, wanted: Sequence[str]) -> None:
    """Run the slices one after the other."""
    rehearsal = slices.rehearsal
    folder, installed = rehearsal.folder, rehearsal.installed
    if ENGINE in wanted:
        spec = folder / "engine.json"
        write_atomically(spec, pace_spec(made, folder).as_json())
        command = [str(installed.engine), "-W", "ignore", "-m", "nemo_ada.rehearsal.pace", str(spec)]
        environment = {**installed.plain_environment(), "NEMO_ADA_REHEARSAL_EVENTS": str(rehearsal.events_of(ENGINE))}
        slices.run(ENGINE, lambda: rehearsal.process(ENGINE, command, environment))
    if STOCK in made.configs:  # in a driver of its own, because its engine and its learner are others
        slices.run(STOCK, lambda: rehearsal.run(STOCK, {STOCK: made.configs[STOCK]}))
    if together := {name: config for name, config in made.configs.items() if name != STOCK}:
        slices.run(METHODS, lambda: rehearsal.run(METHODS, together))
    if made.saved is None:
        return
    saved = made.configs[made.saved]
    after = int(saved["grpo"]["max_num_steps"]) - 1
    if not (Path(saved["checkpointing"]["checkpoint_dir"]) / f"step_{after}").is_dir():
        room = (
            "no checkpoint was saved" if saved["checkpointing"]["enabled"] else "the disk has no room for checkpoints"
        )
        slices.failures[RESUMED] = f"left out: {room}"
        return
    resumed = rehearsal.checkpoint_of(saved, after, folder / RESUMED)
    slices.run(RESUMED, lambda: rehearsal.run(RESUMED, {RESUMED: resumed}))


def judge(report: Report, slices: Slices, forecast: Forecasts, saved: str | None, *, steps: int, exact: bool) -> None:
    """Fill the report from what the slices noted. `saved` is the run that was resumed."""
    runs = slices.runs()
    report.take_phases(*slices.events.values())
    for name, events in runs.items():
        wanted = steps if name != RESUMED else 1
        report.measurements.append(Deviation(f"{name}: steps that are missing", abs(wanted - len(events.steps())), 0.0))
        found = measurements(events, largest=EXACT if exact else ON_GPUS)
        report.measurements += [Deviation(f"{name}: {one.name}", one.value, one.bound) for one in found]
        if failed := events.failure():
            slices.failures.setdefault(name, f"{failed[1]} (in {failed[0]})")
    if saved in runs and RESUMED in runs:
        report.measurements += compare_resumed_on_other_responses(runs[saved], runs[RESUMED], steps - 1, steps)
    if slices.failures:
        name, why = next(iter(slices.failures.items()))
        report.failure = (name, why)
    report.tables = [
        _pace_table(slices, forecast),
        _phases_table(runs, forecast),
        _methods_table(runs),
        _memory_table(slices, forecast),
        Table("Failures", ("slice or run", "what"), tuple(slices.failures.items())),
        versions_table({**slices.events}),
    ]


def _pace_table(slices: Slices, forecast: Forecasts) -> Table:
    rows = []
    for line in slices.events.get(ENGINE, Events([])).of("pace"):
        count, seconds, tokens = int(line["responses"]), float(line["seconds"]), int(line["tokens"])
        expected, cpu = forecast.pace.get(count), line["cpu"]
        rows.append((
            str(line["engine"]), str(count), str(tokens), str(line["longest"]), f"{seconds:.1f}",
            f"{tokens / seconds:.0f}",
            *(f"{cpu[process] / tokens * 1e6:.1f}" if process in cpu else "" for process in ("front", "core")),
            "" if expected is None else f"{expected:.1f}", "" if expected is None else f"{seconds / expected:.2f}",
        ))  # fmt: skip
    head = ("engine", "responses at once", "tokens", "longest", "seconds", "tokens/s", "front, CPU us/token",
            "core, CPU us/token", "roofline, s", "measured / roofline")  # fmt: skip
    return Table("vLLM alone", head, tuple(rows))


def _phases_table(runs: Mapping[str, Events], forecast: Forecasts) -> Table:
    rows = []
    for name, events in runs.items():
        expected_times = planned(forecast.plans.get(name))
        for phase in PLANNED:
            seconds = seconds_of(events, phase)
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
"""Column -> timers of NeMo-RL's loop. In a refit the learner's optimizer goes to the CPU; later it returns."""


def _methods_table(runs: Mapping[str, Events]) -> Table:
    """Each method's steps, and its step over the median one of NeMo-RL's GRPO, with its default engine if that ran."""
    first = next((runs[name] for name in (STOCK, GRPO) if name in runs), None)
    rows, base = [], None if first is None else seconds_of(first, "step")
    for name, events in runs.items():
        steps, timings = events.steps(), events.steps("timing/train")
        for number in sorted(timings):
            numbers, seconds = steps.get(number, {}), timings[number]
            spent = [sum(seconds.get(timer, 0.0) for timer in timers) for _, timers in COLUMNS]
            rate = numbers.get("ada/pass_rate", numbers.get("reward"))
            counts = ("samples_drawn", "tokens_drawn", "zero_signal_groups_if_grpo", "zero_signal_groups")
            rows.append((
                name, str(number), _cell(rate), *(_cell(numbers.get(f"ada/{key}")) for key in counts),
                *(f"{value:.2f}" for value in spent), "" if not base else f"{spent[-1] / base:.2f}",
                _cell(numbers.get("token_mult_prob_error")), _cell(numbers.get("gen_kl_error")),
            ))  # fmt: skip
    head = ("run", "step", "pass rate", "responses", "tokens", "zero-signal groups if GRPO", "zero-signal groups",
            *(name for name, _ in COLUMNS), "step / NeMo-RL's", "token_mult_prob_error", "gen_kl_error")  # fmt: skip
    return Table("Every step", head, tuple(rows))


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _memory_table(slices: Slices, forecast: Forecasts) -> Table:
    """Return the memory of the card in each phase beside the estimate of `check`."""
    estimates = {"update": "learner", "log-probs": "log-probs", "refit": "refit", "generate": "vLLM"}
    rows = []
    for name, events in slices.events.items():
        if name == ENGINE:
            continue
        used = events.used()
        for phase in PHASES:
            if phase in used:
                estimate = forecast.memory.get(estimates.get(phase, ""))
                rows.append((
                    name, phase, "" if estimate is None else f"{estimate:.1f}", f"{used[phase] / GIB:.1f}",
                    "" if not estimate else f"{used[phase] / GIB / estimate:.2f}",
                ))  # fmt: skip
    for name, events in slices.runs().items():
        for peak in events.of("memory"):
            estimate = forecast.memory.get("learner")
            largest = peak["allocated"] / GIB
            rows.append((
                name, "learner's tensors, so far", "" if estimate is None else f"{estimate:.1f}", f"{largest:.1f}",
                "" if not estimate else f"{largest / estimate:.2f}",
            ))  # fmt: skip
    head = ("slice or run", "phase", "check, GiB", "largest, GiB", "largest / check")
    return Table("Memory of the card in use, with what torch's allocator keeps", head, tuple(rows))


def write(report: Report, folder: Path) -> None:
    """Write report.md, report.json and a CSV file per table."""
    write_atomically(folder / "report.md", report.markdown())
    write_atomically(folder / "report.json", json.dumps(report.as_dict(), indent=1, default=str))
    for number, table in enumerate(report.tables):
        text = io.StringIO()
        csv.writer(text).writerows([table.head, *table.rows])
        write_atomically(folder / f"table{number}.csv", text.getvalue())
