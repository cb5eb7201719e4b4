"""TRL's GRPOTrainer beside our CPU back end, at equal work: what `make bench-peers` runs.

    python recipes/benchmarks/peers.py [--pairs 3] [--steps 6] [--replay 10] [--seeds 2] [--curve-steps 40]
                                       [--config configs/cpu/mini_sudoku.yaml] [--threads N] [--trl-rows N]
                                       [--out runs/peers] [KEY=VALUE ...]

Both read the same config (with the overrides) and start from the same Hugging Face folder, in float32. They get the
same prompts in the same order, the same verifier, and one Adam update per step on all rows, with the same rate, clip
range, clipped gradient norm, token mean and temperature. There is no KL term and no division by the standard deviation.
`--config configs/cpu/smollm2.yaml --threads 2 --trl-rows 32` takes SmolLM2-135M, after `make smollm2`. 0 turns a part
off:

pairs   training with us and with TRL in turn, each a process of its own: seconds and processor seconds per step (all
        but the first), tokens per second, peak memory of all processes (shared pages count once). Processor seconds
        are what is left to compare on a machine that has other work.
replay  TRL trains on the responses of one of our runs: how far apart the two learners' weights are after each step.
seeds   training with responses of their own: accuracy on held-out problems, both measured by our engine.

Not equal: TRL draws from torch's generator and we from vLLM's, so runs of one seed share prompts, not responses. TRL
takes all rows in one forward pass, or --trl-rows at a time where they do not fit into memory; we take only rows with an
advantage. One of our processes computes at a time, with `policy.threads`; TRL has --threads. Both sampling phases
include the verifier and the advantages. Our update includes the engine's new weights.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from compare_cpu import ROOT, fresh_folder
from measure import measure
from process_tree import memory_bytes
from tables import markdown_table

from nemo_ada.cpu.base import choose_base_folder, prepare_base
from nemo_ada.cpu.rollout import choose_max_new_tokens
from nemo_ada.cpu.settings import RunConfig, load_run
from nemo_ada.cpu.stack import Stack, build_run_task
from nemo_ada.cpu.trainer import Trainer, check_run, compute_evaluation_seed
from nemo_ada.errors import UserError
from nemo_ada.lab.report.curves import compute_difference
from nemo_ada.run.folder import read_lines

HERE = Path(__file__).resolve().parent
CONFIG = ROOT / "configs" / "cpu" / "mini_sudoku.yaml"
PEER = ROOT / ".cache" / "peers" / "trl" / "bin" / "python"
OURS, TRL = "nemo-ada", "TRL"
POLL_SECONDS = 0.5
EVALUATIONS = 4  # of a learning curve, beside the one of the base
NO_EVALUATION = ["grpo.val_at_start=false", "grpo.val_period=0", "validation.max_prompts=1"]
RESPONSES = 8  # per held-out problem


@dataclass(frozen=True, slots=True)
class Timing:
    """Means over a run's steps but the first: seconds and processor seconds of a step, and of its phases.

    tokens_per_second: generated tokens by seconds of sampling. rest: seconds of the process outside its steps (start,
    end). peak_mib: the largest memory of all its processes.
    """

    step: float
    sampling: float
    update: float
    processor_step: float
    processor_sampling: float
    processor_update: float
    tokens_per_second: float
    rest: float
    peak_mib: float

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], wall: float, peak_mib: float) -> Timing:
        """The timing of a run's metrics.jsonl. Raises UserError where there is no second step."""
        if len(records) < 2:
            raise UserError(f"{len(records)} steps were recorded: the first is not counted, so give --steps at least 2")
        step, sampling, processor_step, processor_sampling, tokens = (
            float(np.mean([record[name] for record in records[1:]]))
            for name in ("time/step", "time/sampling", "cpu/step", "cpu/sampling", "ada/tokens_drawn")
        )
        return cls(
            step=step,
            sampling=sampling,
            update=step - sampling,
            processor_step=processor_step,
            processor_sampling=processor_sampling,
            processor_update=processor_step - processor_sampling,
            tokens_per_second=tokens / sampling,
            rest=wall - sum(record["time/step"] for record in records),
            peak_mib=peak_mib,
        )


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """theirs / ours over pairs: the geometric mean, the smallest and the largest."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"{mean:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def speed_table(pairs: Sequence[tuple[Timing, Timing]]) -> str:
    """A row per quantity: the mean of each trainer over the pairs, and the ratio with its spread."""
    names = {
        "seconds per step": "step",
        "sampling, seconds": "sampling",
        "update, seconds": "update",
        "processor seconds per step": "processor_step",
        "sampling, processor seconds": "processor_sampling",
        "update, processor seconds": "processor_update",
        "generated tokens per second of sampling": "tokens_per_second",
        "start and end, seconds": "rest",
        "peak memory, MiB": "peak_mib",
    }
    rows = []
    for title, name in names.items():
        ours, theirs = ([getattr(pair[i], name) for pair in pairs] for i in (0, 1))
        means = {OURS: float(np.mean(ours)), TRL: float(np.mean(theirs))}
        rows.append({"": title, **means, f"{TRL} / {OURS}, lowest to highest": ratio(ours, theirs)})
    return markdown_table(rows)


def curve_table(curves: Mapping[str, Sequence[Mapping[int, float]]]) -> str:
    """Mean over seeds at each point of both trainers' curves, and the paired difference with its interval.

    curves: trainer -> one curve per seed, seed i of each a pair; point -> score.
    """
    rows = []
    for point in curves[OURS][0]:
        ours, theirs = ([curve[point] for curve in curves[name]] for name in (OURS, TRL))
        gap = compute_difference([b - a for a, b in zip(ours, theirs, strict=True)])
        means = {OURS: float(np.mean(ours)), TRL: float(np.mean(theirs))}
        rows.append({"step": point, **means, f"{TRL} - {OURS}, 95 %": str(gap)})
    return markdown_table(rows)


def reward_curve(records: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """last step of each fourth of the run -> mean reward of its training responses."""
    ends = np.linspace(0, len(records), EVALUATIONS + 1).round().astype(int).tolist()
    reward = [record["ada/pass_rate"] for record in records]
    return {end: float(np.mean(reward[start:end])) for start, end in pairwise(ends)}


def measured(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """Run a command; its seconds, and the largest memory in MiB that its processes had together.

    Its output goes to FOLDER.log. Raises UserError where it fails.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".log")
    began, peak = time.perf_counter(), 0
    with path.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
        try:
            while process.poll() is None:
                peak = max(peak, memory_bytes(process.pid))
                time.sleep(POLL_SECONDS)
        finally:
            process.terminate()
    if process.returncode:
        raise UserError(f"{command[1]} ended with exit code {process.returncode}; its output is in {path}")
    return time.perf_counter() - began, peak / 2**20


class Bench:
    """The runs of one call: config, common overrides, folders, TRL's threads and rows per forward pass.

    Raises:
        UserError: the rows per forward pass do not divide the rows of a step.
    """

    def __init__(self, out: Path, config: Path, overrides: Sequence[str], threads: int, rows: int) -> None:
        self.out, self.overrides = out, ["reinforce_ada.preset=grpo", "logger.tensorboard=false", *overrides]
        self.base, self._path, self._rows = Path(), config, ["--rows-at-once", str(rows)]
        thread_names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        self._ours = {name: value for name, value in os.environ.items() if name not in thread_names}
        offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TRL_EXPERIMENTAL_SILENCE"), "1")
        self._trl = {**self._ours, **offline, **dict.fromkeys(thread_names, str(threads))}
        grpo = self.config("base", 1, 0).grpo
        step = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
        if rows and step % rows:
            raise UserError(f"--trl-rows {rows} does not divide the {step} rows of a step")

    def settings(self, name: str, steps: int, seed: int, *more: str) -> list[str]:
        """Overrides of a run in the folder `name`."""
        run = [f"grpo.max_num_steps={steps}", f"grpo.seed={seed}", f"run_dir='{self.out / name}'"]
        return [*self.overrides, *run, *more]

    def config(self, *arguments: Any) -> RunConfig:
        """The config of these `settings`."""
        return load_run(self._path, self.settings(*arguments))

    def train(self, name: str, steps: int, seed: int, *more: str) -> tuple[list[dict[str, Any]], float, float]:
        """Our trainer in a process of its own: records, seconds, peak MiB."""
        settings = self.settings(name, steps, seed, "checkpointing.enabled=false", *more)
        command = [sys.executable, str(HERE / "peers_ours.py"), str(self._path), *settings]
        cost = measured(command, self.out / name, self._ours)
        lines = (read_lines(self.out / name / f"{file}.jsonl") for file in ("metrics", "processor"))
        return [metrics | processor for metrics, processor in zip(*lines, strict=True)], *cost

    def train_trl(self, name: str, steps: int, seed: int, *options: str) -> tuple[list[dict[str, Any]], float, float]:
        """TRL's trainer likewise."""
        command = [str(PEER), str(HERE / "peers_trl.py"), *self._rows, *options, str(self.base), str(self._path)]
        cost = measured([*command, *self.settings(name, steps, seed)], self.out / name, self._trl)
        return read_lines(self.out / name / "metrics.jsonl"), *cost

    def speed(self, pairs: int, steps: int) -> str:
        """Alternating runs of both, and their table."""
        timings = []
        for seed in range(pairs):
            ours = Timing.of(*self.train(f"speed-ours-{seed}", steps, seed, *NO_EVALUATION))
            theirs = Timing.of(*self.train_trl(f"speed-trl-{seed}", steps, seed))
            print(f"pair {seed}: {ours.step:.2f} s and {theirs.step:.2f} s per step", flush=True)
            timings.append((ours, theirs))
        return f"## Speed: {pairs} alternating pairs of {steps} steps\n\n{speed_table(timings)}\n"

    def replay(self, steps: int) -> str:
        """TRL on our responses: the distance between the weights, as a share of that from the base."""
        saving = ["checkpointing.save_period=1", f"checkpointing.keep={steps}"]
        config = self.config("replay-ours", steps, 0, *NO_EVALUATION, *saving)
        with RecordingStack(config) as stack:
            trainer = Trainer(config, stack, build_run_task(config))
            trainer.run()
        rows = self.out / "rows.npz"
        arrays: dict[str, Any] = dict(stack.rows)
        np.savez(rows, **arrays)
        self.train_trl("replay-trl", steps, 0, "--save-every", "1", "--rows", str(rows))
        table, base = [], weights(self.base)
        for saved in trainer.run_dir.list_checkpoints():
            step = int(saved.name.removeprefix("step_"))
            ours, theirs = weights(saved / "hf"), weights(self.out / "replay-trl" / f"checkpoint-{step}")
            far, near = np.linalg.norm(ours - base), np.linalg.norm(theirs - ours)
            shown = {"distance from the base": far, "distance between the two": near, "ratio": near / far}
            table.append({"step": step, **{name: f"{value:.2e}" for name, value in shown.items()}})
        return f"## The same responses: distances between weights\n\n{markdown_table(table)}\n"

    def curves(self, seeds: int, steps: int) -> str:
        """Training of both over seeds: rewards in training, and accuracy on held-out problems."""
        every = max(1, steps // EVALUATIONS)
        evaluating = [f"grpo.val_period={every}", f"validation.responses={RESPONSES}"]
        rewards: dict[str, list[dict[int, float]]] = {OURS: [], TRL: []}
        heldout: dict[str, list[dict[int, float]]] = {OURS: [], TRL: []}
        for seed in range(seeds):
            records, *_ = self.train(f"curve-ours-{seed}", steps, seed, *evaluating)
            rewards[OURS].append(reward_curve(records))
            found = read_lines(self.out / f"curve-ours-{seed}" / "evaluations.jsonl")
            heldout[OURS].append({line["step"]: line["val/accuracy"] for line in found})
            records, *_ = self.train_trl(f"curve-trl-{seed}", steps, seed, "--save-every", str(every))
            rewards[TRL].append(reward_curve(records))
            print(f"seed {seed}: trained", flush=True)
        with Stack(self.config("evaluation", steps, 0, *evaluating)) as stack:
            for seed in range(seeds):
                config = self.config(f"curve-trl-{seed}", steps, seed, *evaluating)
                models = {step: config.folder / f"checkpoint-{step}" for step in heldout[OURS][seed] if step}
                heldout[TRL].append(heldout_accuracy(stack, config, {0: self.base, **models}))
        return (
            f"## Learning: {seeds} seeds, {steps} steps\n\nAccuracy on held-out problems, {RESPONSES} responses each, "
            f"after a step:\n\n{curve_table(heldout)}\n\nMean reward of the training responses, of the steps up to "
            f"one:\n\n{curve_table(rewards)}\n"
        )


class RecordingStack(Stack):
    """A stack that keeps the rows of every step: tokens_STEP [R, T], and lengths_STEP [2, R] of rows and prompts."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.rows: dict[str, np.ndarray] = {}

    def call(self, method: str, *args: Any, seconds: float | None = None) -> Any:
        found = super().call(method, *args, seconds=seconds)
        if method == "sample" and found is not None:
            order = np.argsort(found.prompt_R, kind="stable")
            self.rows[f"tokens_{args[0]}"] = found.tokens_RT[order]
            self.rows[f"lengths_{args[0]}"] = np.stack([found.length_R, found.prompt_length_R])[:, order]
        return found


def weights(folder: Path) -> np.ndarray:
    """All weights of a Hugging Face folder, one after the other, by name."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


def heldout_accuracy(stack: Stack, config: RunConfig, models: Mapping[int, Path]) -> dict[int, float]:
    """step -> accuracy of its model folder on the held-out problems, with the trainer's own evaluation seeds."""
    group, length = config.grpo.num_generations_per_prompt, choose_max_new_tokens(config.policy, build_run_task(config))
    sampler = config.reinforce_ada.sampler(group, length, run_seed=0, features=1)
    found = {}
    for step, folder in models.items():
        stack.call("open", str(folder.resolve()), sampler, config.policy)
        seed = compute_evaluation_seed(config.grpo.seed, step)
        scores = stack.call("evaluate", None, config.validation.responses, config.validation.temperature, seed)
        found[step] = float(scores.reward_PK.mean())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--replay", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--curve-steps", type=int, default=40)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--threads", type=int, default=1, help="of TRL")
    parser.add_argument("--trl-rows", type=int, default=0, help="rows of TRL's forward passes; 0: all of a step")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "peers")
    parser.add_argument("overrides", nargs="*", help="key=value for both")
    arguments = parser.parse_args()
    if not PEER.exists():
        parser.error(f"{PEER} is missing: run `make bench-peers`, which makes it")
    out = arguments.out.resolve()
    bench = Bench(out, arguments.config.resolve(), arguments.overrides, arguments.threads, arguments.trl_rows)
    fresh_folder(out)
    config = bench.config("base", 1, 0)
    task = build_run_task(config)
    check_run(config, task)
    bench.base = Path(config.policy.model_name or choose_base_folder(config, task))
    if not bench.base.exists():
        with Stack(config) as stack:
            prepare_base(config, task, stack)
    page = out / "peers.md"
    page.write_text(f"# {OURS} and {TRL} (threads: {arguments.threads}) on {os.cpu_count()} cores\n")
    parts = []
    if arguments.pairs:
        parts.append(partial(bench.speed, arguments.pairs, arguments.steps))
    if arguments.replay:
        parts.append(partial(bench.replay, arguments.replay))
    if arguments.seeds:
        parts.append(partial(bench.curves, arguments.seeds, arguments.curve_steps))
    for part in parts:
        text = part()
        print(text, flush=True)
        with page.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")
    print(page)
    return 0


if __name__ == "__main__":
    measure(main)
