"""The tables of recipes/results/rehearsal.md, from `nemo-ada rehearse`. Needs the environments of `make rehearsal-env`.

    python recipes/benchmarks/bench_rehearsal.py models --out runs/rehearsal [NAME ...]
    python recipes/benchmarks/bench_rehearsal.py broken --out runs/rehearsal [NAME ...]
    python recipes/benchmarks/bench_rehearsal.py kills --out runs/rehearsal [NAME]
    python recipes/benchmarks/bench_rehearsal.py learning --out runs/rehearsal [NAME ...] --seeds 1 2 3 --rate .001

Each rehearsal keeps its folder below --out; the table is printed when all are done.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import measure

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import student_quantile
from nemo_ada.rehearsal import command, installation, problems
from nemo_ada.rehearsal import shrink as sizes
from nemo_ada.rehearsal.report import Events, compare_resumed
from nemo_ada.rehearsal.shrink import shrink
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.facts.site import read_site_setting
from nemo_ada.rules.gym import uses_gym

MATH_7B = "configs/qwen2.5-math-7b.yaml"
ASYNC = "configs/methods/async.yaml"
LLAMA_8B = "configs/llama-3.1-8b-instruct.yaml"
GYM_MATH = "configs/qwen3-4b-instruct-2507-gym-math.yaml"
DTENSOR = "${NEMO_RL_HOME}/examples/configs/grpo_math_1B.yaml"
DTENSOR_V1 = ("policy.dtensor_cfg._v2=false", "checkpointing.model_save_format=null")
MODELS: dict[str, tuple[str, ...]] = {
    "qwen2.5-math-7b": (MATH_7B,),
    "llama-3.1-8b-instruct": (LLAMA_8B,),
    "qwen3-30b-a3b": ("configs/qwen3-30b-a3b.yaml",),
    "qwen3-4b-instruct-2507": ("configs/qwen3-4b-instruct-2507.yaml",),
    "qwen2.5-math-1.5b": ("configs/qwen2.5-math-1.5b.yaml",),
    "llama-3.2-3b-instruct": ("configs/llama-3.2-3b-instruct.yaml",),
    "qwen2.5-32b": ("configs/qwen2.5-32b.yaml",),
    "llama-3.3-70b-instruct": ("configs/llama-3.3-70b-instruct.yaml",),
    "qwen2.5-72b": ("configs/qwen2.5-72b.yaml",),
    "qwen2.5-math-1.5b-async": ("configs/qwen2.5-math-1.5b.yaml", ASYNC),
    "qwen2.5-math-7b-async": (MATH_7B, ASYNC),
    "qwen3-30b-a3b-async": ("configs/qwen3-30b-a3b-async.yaml",),
    "qwen3-235b-a22b": ("configs/qwen3-235b-a22b.yaml",),
    # Over NeMo-Gym's servers. They need the interpreter of `make rehearsal-env GYM=1`.
    "gym-math": (GYM_MATH,),
    "gym-tools": ("configs/qwen3-4b-instruct-2507-gym-tools.yaml",),
    "gym-math-lean": (GYM_MATH, "reinforce_ada.preset=ada_seq_lean"),
    # The same path with other switches.
    "sync-engine": (MATH_7B, "policy.generation.vllm_cfg.async_engine=false"),
    "packing-off": (MATH_7B, "policy.sequence_packing.enabled=false"),
    "stock-grpo": (MATH_7B, "reinforce_ada=null", "data.default.env_name=math"),
    "plain-nemo-rl-megatron": ("${NEMO_RL_HOME}/examples/configs/grpo_math_1B_megatron.yaml",),
    "plain-nemo-rl-dtensor-v1": (DTENSOR, *DTENSOR_V1),
    "dtensor-v1": (
        DTENSOR, *DTENSOR_V1, "+reinforce_ada.preset=ada_seq_balance"),
}  # fmt: skip
BROKEN: dict[str, tuple[str, ...]] = {
    # phase that finds it, words of the cause, config, overrides; what `check` or the config finds needs no worker
    "TP 8 on 28 heads": ("check", "28 attention heads", MATH_7B, "policy.megatron_cfg.tensor_model_parallel_size=8"),
    "PP 3 on 32 layers": ("check", "32 layers", LLAMA_8B, "policy.megatron_cfg.pipeline_model_parallel_size=3"),
    "packing off with CP 2": (
        "check", "needs sequence packing",
        MATH_7B, "policy.sequence_packing.enabled=false", "policy.megatron_cfg.context_parallel_size=2"),
    "rows per update that do not divide": (
        "check", "500 does not divide", MATH_7B, "policy.train_global_batch_size=500"),
    "misspelled FP8 key": ("check", "fp8_recipe", MATH_7B, "+policy.megatron_cfg.fp8_cfg.fp8_recipy=blockwise"),
    "save format of DTensor v2 in v1": ("check", "model_save_format", DTENSOR, "policy.dtensor_cfg._v2=false"),
    "unknown environment": ("check", "ada_maths", MATH_7B, "data.default.env_name=ada_maths"),
    "unknown packing algorithm": (
        "check", "did you mean first_fit_decreasing?",
        MATH_7B, "policy.sequence_packing.algorithm=first_fit_increasing"),
}  # fmt: skip
KILLS = (("update", 2, 0.1), ("refit", 2, 0.3), ("save", 4, 0.02))
"""Phase, which of its begins, seconds after it. Every step has two `save` phases, one inside the other."""
KILLS_GYM = (("generate", 2, 3.0), ("log-probs", 2, 0.1), *KILLS[:2], ("validate", 2, 2.0), KILLS[2])
"""Over NeMo-Gym, where rollouts run on its servers while the driver waits."""
KILLS_AHEAD = (("generate", 3, 0.0), ("log-probs", 2, 0.1), *KILLS)
"""In asynchronous training. A `generate` phase is a wait for groups or for a refit."""


def rehearse(folder: Path, config: str, overrides: Sequence[str], steps: int, *, resume: bool) -> dict[str, Any]:
    """One rehearsal; its report, or the error that ended it before there was one."""
    shutil.rmtree(folder, ignore_errors=True)
    path = Path(config.replace("${NEMO_RL_HOME}", read_site_setting("NEMO_RL_HOME")))
    started = time.monotonic()
    try:
        code = command.rehearse(path, overrides, steps=steps, resume=resume, keep=folder, say=lambda text: None)
        report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except UserError as error:
        code, report = 2, {"passed": False, "failure": ("config", str(error)), "numbers": [], "layout": ""}
    report |= {"code": code, "seconds": time.monotonic() - started}
    print(
        f"{folder.name}: exit {code} after {report['seconds']:.0f} s, {report['failure'] or 'no failure'}", flush=True
    )
    return report


def table_of_models(out: Path, names: Sequence[str], steps: int, resume: bool) -> Iterator[str]:
    """One row per config: layout, verdict and the worst numbers."""
    yield "| config | layout | exit | seconds | worst numbers | failure | date |\n|---|---|---|---|---|---|---|"
    for name in names or MODELS:
        config, *overrides = MODELS[name]
        report = rehearse(out / name, config, overrides, steps, resume=resume)
        worst: dict[str, float] = {}
        for number in report["numbers"]:
            kind = number["name"].rpartition(": ")[2]
            worst[kind] = max(worst.get(kind, 0.0), number["value"])
        shown = "; ".join(f"{kind} {value:.3g}" for kind, value in worst.items())
        failure = " in ".join(reversed(report["failure"]))[:200].replace("\n", " ") if report["failure"] else ""
        command_line = " ".join(
            ["nemo-ada rehearse", config, *overrides, f"--steps {steps}", *([] if resume else ["--no-resume"])]
        )
        cells = (
            f"{name}: `{command_line}`",
            report["layout"],
            report["code"],
            f"{report['seconds']:.0f}",
            shown,
            failure,
        )
        yield f"| {' | '.join(map(str, cells))} | {datetime.date.today()} |"


def table_of_broken(out: Path, names: Sequence[str], steps: int) -> Iterator[str]:
    """One row per broken config: the phase that found it, and the cause that it names."""
    yield "| what is wrong | override | exit | seconds | phase | cause |\n|---|---|---|---|---|---|"
    for name in names or BROKEN:
        _, _, config, *overrides = BROKEN[name]
        report = rehearse(out / name.replace(" ", "-"), config, overrides, steps, resume=False)
        phase, cause = report["failure"] or ("none", "not found")
        text = " ".join(cause.split())[:200].replace("|", "/")
        yield f"| {name} | `{' '.join(overrides)}` | {report['code']} | {report['seconds']:.0f} | {phase} | {text} |"


def table_of_kills(out: Path, name: str, steps: int, phases: Sequence[str], *, reuse: bool) -> Iterator[str]:
    """Kill the driver in a phase and continue with resume=auto: loss, learning rate and rows as without the kill.

    In asynchronous training every prompt comes once.

    Args:
        out: Folder of the rehearsals.
        name: Name of MODELS.
        steps: Training steps.
        phases: Phases to kill in. All of them where it is empty.
        reuse: Whether the run of `models` below `out` is the one without a kill.
    """
    yield "| killed in | steps saved before | numbers compared | differ |\n|---|---|---|---|"
    path, *overrides = MODELS[name]
    base = out / (name if reuse else f"kills-{name}")
    if not (reuse and (base / "report.json").is_file()):
        rehearse(base, path, overrides, steps, resume=False)
    undisturbed = Events.read(base / "undisturbed.events.jsonl")
    config = load_config(Path(path), overrides)
    values = Values(config)
    installed = installation.find(gym=uses_gym(values))
    ahead = Loop.of(Values(config)).draws_ahead
    for phase, count, delay in KILLS_AHEAD if ahead else KILLS_GYM if installed.gym else KILLS:
        if phases and phase not in phases:
            continue
        name = f"killed-in-{phase}"
        shutil.rmtree(base / name, ignore_errors=True)
        for run in (name, f"{name}-resumed"):  # events are appended
            (base / f"{run}.events.jsonl").unlink(missing_ok=True)
        shrinker, layout = shrink(config, model=base / "model", data=base / "data", out=base / name, steps=steps)
        rehearsal = command.Rehearsal(installed, base, layout, print)
        rehearsal.tick = killing(rehearsal, phase, count, delay)
        code, killed = rehearsal.run(name, {name: shrinker.config})
        rehearsal.tick = lambda name: None
        saved = sorted(path.name for path in (base / name / "checkpoints").glob("step_*"))
        _, again = rehearsal.run(f"{name}-resumed", {f"{name}-resumed": shrinker.config | {"resume": "auto"}})
        after = len(saved)
        before_it = killed if ahead else undisturbed
        results = compare_resumed(before_it, again, after, steps, "steps" if ahead else "rows")
        differ = [result.name for result in results if not result.passed]
        before = ", ".join(saved) or "none"
        inside = phase if phase in _unfinished(killed) else f"{phase}, too late"
        yield f"| {inside} (exit {code}) | {before} | {len(results)} | {'; '.join(differ) or 'none'} |"


def killing(rehearsal: command.Rehearsal, phase: str, count: int, delay: float) -> Callable[[str], None]:
    """Return a function that kills the driver `delay` seconds after `phase` has begun for the `count`-th time."""

    def look(name: str) -> None:
        begun = [line for line in Events.read(rehearsal.events_path(name)).of("begin") if line["phase"] == phase]
        if len(begun) >= count and time.time() >= begun[count - 1]["time"] + delay:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(begun[count - 1]["pid"]), signal.SIGKILL)

    return look


def _unfinished(events: Events) -> set[str]:
    """Phases that began and did not end."""
    began, ended = (Counter(line["phase"] for line in events.of(kind)) for kind in ("begin", "end"))
    return set(began - ended)


def table_of_learning(
    out: Path, names: Sequence[str], steps: int, seeds: Sequence[int], *, reuse: bool
) -> Iterator[str]:
    """One row per config and seed: rewards, validation accuracies and the driver's CPU. Then the rise over the seeds.

    No checkpoint is written.

    Args:
        out: Folder of the rehearsals.
        names: Names of MODELS. By default Reinforce-Ada-Seq-balance and stock GRPO.
        steps: Training steps.
        seeds: A seed changes the order of the prompts. All runs start from the same weights.
        reuse: Whether a finished run of an earlier call with the same options is read and not made again.
    """
    yield "| config | seed | mean reward of each five steps | validations | driver's CPU per response, ms | exit |"
    yield "|---|---|---|---|---|---|"
    command.LIMIT_SECONDS = max(command.LIMIT_SECONDS, 120.0 * steps)
    for name in names or ("qwen2.5-math-7b", "stock-grpo"):
        config, *overrides = MODELS[name]
        fives = []
        for seed in seeds:
            folder = out / f"learning-{name}-{seed}"
            if reuse and (folder / "report.json").is_file():
                report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
                report["code"] = int(not report["passed"])
            else:
                more = (f"grpo.seed={seed}", "checkpointing.enabled=false")
                report = rehearse(folder, config, [*overrides, *more], steps, resume=False)
            events = Events.read(folder / "undisturbed.events.jsonl")
            metrics = events.steps()
            drawn = sum(step.get("ada/samples_drawn", 32.0) for step in metrics.values())
            cpu = sum(line["cpu"] for line in events.of("end") if line["phase"] == "generate")
            rewards = [step.get("ada/pass_rate", step.get("reward", 0.0)) for _, step in sorted(metrics.items())]
            fives.append([sum(rewards[i : i + 5]) / len(rewards[i : i + 5]) for i in range(0, len(rewards), 5)])
            shown = (", ".join(f"{value:.3f}" for value in values) for values in (fives[-1], _accuracies(events)))
            cells = (name, seed, *shown, f"{1000.0 * cpu / max(drawn, 1.0):.1f}", report["code"])
            yield f"| {' | '.join(map(str, cells))} |"
        if len(seeds) > 1 and all(fives):
            first, last = (np.array([each[place] for each in fives]) for place in (0, -1))
            parts = [f"{text} {_interval(values)}" for text, values in
                     (("first five", first), ("last five", last), ("rise", last - first))]  # fmt: skip
            yield f"| {name} | all | {'; '.join(parts)} | | | |"


def _accuracies(events: Events) -> list[float]:
    """Accuracy of each validation, in order."""
    found = [line["numbers"] for line in events.of("metrics") if line["prefix"] == "validation"]
    return [numbers["accuracy"] for numbers in found if "accuracy" in numbers]


def _interval(values: np.ndarray) -> str:
    """Mean over the seeds and its 95 % interval by Student's t, which takes the seeds as the sample."""
    half = student_quantile(len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.3f} ±{half:.3f}"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("models", "broken", "kills", "learning"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/rehearsal"))
    parser.add_argument("--steps", type=int, default=0, help="default: 3, and 30 for learning")
    parser.add_argument("--no-resume", action="store_true", help="models: the undisturbed run only")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42], help="learning: a run for each")
    parser.add_argument("--rate", type=float, default=3e-3, help="learning: at the rehearsal's own .01 both collapse")
    parser.add_argument("--largest", type=int, default=problems.LARGEST, help="learning: the largest answer of a sum")
    parser.add_argument("--tokens", type=int, default=sizes.NEW_TOKENS, help="learning: tokens of a turn at most")
    parser.add_argument("--phases", nargs="+", default=[], help="kills: these phases only")
    parser.add_argument(
        "--reuse", action="store_true",
        help="learning: finished runs below --out are read; kills: the run of `models` there is the one without a kill",
    )  # fmt: skip
    asked = parser.parse_intermixed_args()
    steps = asked.steps or (30 if asked.what == "learning" else 3)
    if asked.what == "learning":
        sizes.LEARNING_RATE = asked.rate / min(1.0, sizes.FULL_STEPS / steps)  # a longer rehearsal divides it
        sizes.NEW_TOKENS, problems.LARGEST = asked.tokens, asked.largest
    tables = {
        "models": lambda: table_of_models(asked.out, asked.names, steps, not asked.no_resume),
        "broken": lambda: table_of_broken(asked.out, asked.names, steps),
        "kills": lambda: table_of_kills(
            asked.out, (asked.names or ["qwen2.5-math-7b"])[0], steps, asked.phases, reuse=asked.reuse
        ),
        "learning": lambda: table_of_learning(asked.out, asked.names, steps, asked.seeds, reuse=asked.reuse),
    }
    lines = []
    with contextlib.suppress(KeyboardInterrupt):
        for line in tables[asked.what]():
            lines.append(line)
            asked.out.mkdir(parents=True, exist_ok=True)
            (asked.out / f"{asked.what}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    measure(main)
