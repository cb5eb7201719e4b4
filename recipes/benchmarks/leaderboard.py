"""The bench behind recipes/results/leaderboard.md: the runs of a protocol, one result file per run.

    python recipes/benchmarks/leaderboard.py run [--method NAME ...] [--baseline NAME] [--task NAME ...]
                                         [--updates N ...] [--minutes M]
    python recipes/benchmarks/leaderboard.py list [like run, without --minutes]
    python recipes/benchmarks/leaderboard.py page
    python recipes/benchmarks/leaderboard.py again --method NAME ... --task NAME --seed S ...

`run` runs what is missing, `list` says what is missing, and `page` writes the page. `again` runs rows and their
baseline on other seeds, one after the other, and says whether each difference is where the page says that one seed's
difference is. It also compares them at equal seconds of this machine: give a new --out, so that no other hour counts.

The protocol is leaderboard.yaml. A run trains until it has drawn the budget of responses, with a warm-up counted in
responses, and it evaluates at the same numbers of responses for every method. The learning rate (and where a stage says
so, the number of updates) is chosen on tuning seeds, by one rule for every method. Then the reported seeds run.

A run is done when OUT has the file of its key: task, base, method, updates, rate, seed, and a digest of all its
settings. The file also names the commit. So a killed bench goes on where it was, and a changed setting runs again.
Several processes may share OUT, on a file system with locks: each takes a job that no other one has. Their seconds are
then those of a shared machine.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import yaml
from compare_cpu import ROOT
from leaderboard_page import (
    FOUR,
    area,
    effects,
    gain_at,
    one_seed,
    rows_of,
    setting,
    start,
    text,
    unpacked,
    write_page,
)
from measure import measure

from nemo_ada.core.arrays import FloatArray
from nemo_ada.cpu.base import REPORT, prepare_base
from nemo_ada.cpu.rollout import HeldoutScores, StepData, choose_max_new_tokens
from nemo_ada.cpu.settings import RunConfig, load_run
from nemo_ada.cpu.stack import Stack, build_run_task
from nemo_ada.cpu.trainer import Trainer, check_run, compute_evaluation_seed
from nemo_ada.errors import InvariantError, ProcessLostError, StallError, UserError
from nemo_ada.lab.simulate.engine import DiscreteEventSource, LengthModel, Workload
from nemo_ada.run.files import read_json, try_lock, write_atomically
from nemo_ada.run.folder import read_lines
from nemo_ada.run.observer import Observer
from nemo_ada.run.provenance import find_commit
from nemo_ada.run.yaml_file import read_yaml

MEASURED = ("budget", "evaluations", "tiers")
SELECTION = ("bases", "tuned_on", "grid", "extensions", "tuning_seeds", "reported_seeds", "methods")
"""Settings of a task that choose its runs. They change no run's numbers."""
PROTOCOL = Path(__file__).with_name("leaderboard.yaml")
OUT = ROOT / "runs" / "leaderboard"
PAGES = ROOT / "recipes" / "results"
PUBLISHED = PAGES / "leaderboard.jsonl"
WAIT_SECONDS = 20.0  # between two looks at jobs of other processes
ENDLESS = 100_000  # steps: the budget of responses ends a run
COSTS = ("responses", "tokens", "rows", "live_rows")
WHY = (
    "ada/explained_variance",
    "ada/zero_signal_groups",
    "ada/gradient_cosine",
    "ada/gradient_signal",
    "ada/gradient_noise",
    "ada/effective_updates",
    "ada/live_rows",
    "ada/samples_drawn",
    "ada/response_length_pools",
    "train/grad_norm",
    "train/entropy",
    "train/clip_fraction",
    "train/updates",
)
"""Metrics whose means over the steps a result keeps."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the protocol.

    Attributes:
        task: name of the task in the protocol.
        method: name of the method in the protocol.
        updates: optimizer steps per training step.
        rate: learning rate.
        seed: seed of the run.
    """

    task: str
    method: str
    updates: int
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """The job's part of its file name."""
        return f"{self.task}-{self.method}-u{self.updates}-lr{self.rate:g}-s{self.seed}"


class Protocol:
    """The protocol file, and what follows from it.

    Attributes:
        values: the file's content.
    """

    def __init__(self, path: Path = PROTOCOL) -> None:
        self.values: dict[str, Any] = read_yaml(path, "the protocol")

    def base(self, task: str, seed: int) -> int:
        """Return the number of the base model of a seed."""
        return seed % int(self.of(task, "bases"))

    @cached_property
    def methods(self) -> dict[str, dict[str, Any]]:
        """The methods by name."""
        return dict(self.values["methods"])

    def left(self, method: str) -> str | None:
        """Return the last commit that has the code of a method, None while the package has it."""
        commit: str | None = self.methods[method].get("left")
        return commit

    def of(self, task: str, name: str) -> Any:
        """Return a setting of a task: its own one, or else that of the protocol."""
        return setting(self.values, task, name)

    def judged(self, method: str) -> str:
        """Return the settings of a method that need processes of their own, such as how responses are judged."""
        return " ".join(self.methods[method].get("overrides", []))

    def prompts(self, method: str) -> int:
        """Return the prompts per step of a method."""
        settings = self.methods[method]
        return int(settings.get("prompts", self.values["step_responses"] // settings["n"]))

    def config(self, job: Job, folder: Path, warmup_steps: int = 0) -> RunConfig:
        """Return the configuration of a job.

        Args:
            job: the job.
            folder: folder of the run.
            warmup_steps: steps of the learning rate's warm-up.
        """
        settings, task = self.methods[job.method], self.values["tasks"][job.task]
        n, prompts, base = settings["n"], self.prompts(job.method), self.base(job.task, job.seed)
        if n * prompts % job.updates:
            raise UserError(f"{job.method}: {job.updates} updates do not divide {n * prompts} rows")
        ada = yaml.safe_dump(settings["ada"], default_flow_style=True, width=10_000).strip()
        overrides = [
            *task.get("overrides", []),
            *settings.get("overrides", []),
            f"{task.get('seed', 'task.seed')}={base}",
            f"base.seed={base}",
            f"reinforce_ada={ada}",
            f"grpo.num_generations_per_prompt={n}",
            f"grpo.num_prompts_per_step={prompts}",
            f"grpo.max_num_steps={ENDLESS}",
            "grpo.val_at_start=false",
            f"grpo.seed={job.seed}",
            f"policy.train_global_batch_size={n * prompts // job.updates}",
            f"policy.megatron_cfg.optimizer.lr={job.rate}",
            f"policy.megatron_cfg.scheduler.lr_warmup_iters={warmup_steps}",
            "checkpointing.enabled=false",
            "logger.tensorboard=false",
            *(["logger.gradient_cosine=true"] if job.seed in self.of(job.task, "reported_seeds") else []),
            f"run_dir='{folder}'",
        ]
        return load_run(ROOT / "configs" / "cpu" / f"{task['config']}.yaml", overrides)

    def key(self, job: Job) -> str:
        """Return the key of a job: its name and a digest of everything that decides its numbers.

        A setting at its default is left out, so a new setting changes no key. `version` stands for the defaults.
        """
        config = self.config(job, Path("run")).model_dump(mode="json", exclude_defaults=True)
        if ":" in (task := str(config["task"].get("task", ""))):  # whole paths differ between machines, and keys do not
            config["task"]["task"] = Path(task.partition(":")[0]).stem + ":" + task.partition(":")[2]
        ada = config["reinforce_ada"]
        if ada.get("preset") == "ada_single":  # a setting that is gone and that changed no number of these rows
            ada["advantage"]["pass_rate"] = "shrunk"
        measured = {name: self.of(job.task, name) for name in ("version", "budget", "warmup", "evaluations", "tiers",
                                                               "base_responses")}  # fmt: skip
        written = [
            {name: value for name, value in settings.items() if name not in ("name", "about", *SELECTION)}
            for settings in (self.methods[job.method], self.values["tasks"][job.task])
        ]
        parts: list[Any] = [config, written, measured]
        text = json.dumps(parts, sort_keys=True)
        return f"{job.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def cells(self, task: str, updates: Sequence[int]) -> list[tuple[int, float]]:
        """Return the first tries (updates, rate) of every method."""
        return [(number, rate) for number in updates for rate in self.of(task, "grid").get(number, ())]


class Results:
    """The results in a folder, and those that the repository publishes."""

    def __init__(self, protocol: Protocol, folder: Path, published: Path | None = PUBLISHED) -> None:
        self.protocol, self.folder = protocol, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._keys: dict[Job, str] = {}
        self._locks = True
        self._published = {line["key"]: unpacked(line) for line in read_lines(published)} if published else {}
        self._kept = {key.rpartition("-")[0]: key for key in self._published}
        self._names = set(self._kept)
        self.look()

    def look(self) -> None:
        """Learn which results other processes have put into the folder."""
        # names of jobs that have a result, with these or other settings
        self._names |= {path.stem.rpartition("-")[0] for path in self.folder.glob("*.json")}

    def key(self, job: Job) -> str:
        """Return the key of a job. A method whose code has left keeps the key that is published."""
        if self.protocol.left(job.method):
            return self._kept.get(job.name, job.name)
        if job not in self._keys:
            self._keys[job] = self.protocol.key(job)
        return self._keys[job]

    def get(self, job: Job) -> dict[str, Any] | None:
        """Return the result of a job, None when it is missing. A file in the folder wins over a published result."""
        if job.name not in self._names:
            return None
        path = self.folder / f"{self.key(job)}.json"
        return read_json(path) if path.exists() else self._published.get(self.key(job))

    def reported(self, task: str, method: str, cell: tuple[int, float], seed: int) -> dict[str, Any] | None:
        """Return the result of a reported seed, None when it is missing."""
        return self.get(Job(task, method, *cell, seed))

    def check_base(self, result: Mapping[str, Any]) -> None:
        """Check that a new result started from the base model of the other ones.

        Raises:
            UserError: it did not. A base that another machine trained differs in its last digits, and scores otherwise.
        """
        for key, other in self.everything().items():
            if "points" not in other or any(other[name] != result[name] for name in ("task", "base")):
                continue
            if key != self.key(Job(**{name: other[name] for name in ("task", "method", "updates", "rate", "seed")})):
                continue  # of an earlier protocol
            if start(other) != start(result):
                accuracies = [f"{one['points'][0]['accuracy']:.4f}" for one in (other, result)]
                raise UserError(
                    f"{key} started from another base model of {result['task']} (accuracy {accuracies[0]}, here "
                    f"{accuracies[1]}), and runs of two bases are not compared. --fresh with a new --out runs all rows "
                    "here"
                )
            return  # this one was compared with the others

    def everything(self) -> dict[str, dict[str, Any]]:
        """Return all results by key: the published ones and those of the folder."""
        return self._published | {path.stem: read_json(path) for path in self.folder.glob("*.json")}

    def put(self, job: Job, result: Mapping[str, Any]) -> None:
        """Write a result."""
        self._names.add(job.name)
        write_atomically(self.folder / f"{self.key(job)}.json", json.dumps(result))

    def lock(self, name: str) -> IO[str] | None:
        """Lock a name in the folder until the returned file is closed. None where another process has locked it."""
        path = self.folder / ".locks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
        try:
            free = try_lock(file)
        except OSError as error:  # a file system without locks
            free = True
            if self._locks:
                print(f"{path} cannot be locked ({error}): start no second bench in this folder", flush=True)
            self._locks = False
        if free:
            return file
        file.close()
        return None

    def claim(self, job: Job) -> IO[str] | None:
        """Lock a job. None where another process has locked it, or where its result is there by now."""
        file = self.lock(self.key(job))
        self.look()
        if file is None or self.get(job) is None:
            return file
        file.close()
        return None

    def tuned_on(self, task: str, method: str, updates: Sequence[int]) -> str:
        """Return the task whose tuning seeds choose a method's rate.

        It is that of the setting `tuned_on`, which may name another one, or the task itself where the method was not
        tuned there.
        """
        other = self.protocol.values["tasks"][task].get("tuned_on")
        if other is None or self.best(other, method, updates) is None:
            return task
        return self.tuned_on(other, method, updates)

    def tries(self, task: str, method: str, updates: Sequence[int]) -> list[tuple[int, float]]:
        """Return the tries of a method: the grid, and twice or half the rate while the best one is at an edge."""
        task = self.tuned_on(task, method, updates)
        cells = self.protocol.cells(task, updates)
        for _ in range(self.protocol.of(task, "extensions")):
            best = self._best_of(task, method, cells)
            if best is None:
                break
            rates = [rate for number, rate in cells if number == best[0]]
            if best[1] == max(rates):
                cells.append((best[0], 2.0 * best[1]))
            elif best[1] == min(rates):
                cells.append((best[0], best[1] / 2.0))
            else:
                break
        return cells

    def best(self, task: str, method: str, updates: Sequence[int]) -> tuple[int, float] | None:
        """Return the try with the largest mean area over the tuning seeds, None while one is missing."""
        return self._best_of(self.tuned_on(task, method, updates), method, self.tries(task, method, updates))

    def _best_of(self, task: str, method: str, cells: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
        scores: dict[tuple[int, float], float] = {}
        for cell in cells:
            found = [self.get(Job(task, method, *cell, seed)) for seed in self.protocol.of(task, "tuning_seeds")]
            if not all(found):
                return None
            scores[cell] = float(np.mean([result["area"] for result in found if result]))
        return max(scores, key=scores.__getitem__, default=None)

    def jobs(self, stage: Mapping[str, Any], tasks: Sequence[str], methods: Sequence[str]) -> Iterator[Job]:
        """Yield a stage's jobs in their order: the tries of all methods, then the reported seeds.

        The reported seeds of a method come only when all its tries are there.
        """
        protocol = self.protocol
        named = list(protocol.methods) if stage["methods"] == "all" else stage["methods"]
        named = sorted((name for name in named if name in methods), key=protocol.judged)  # new settings, new processes
        pairs = [(task, name) for task in stage["tasks"] if task in tasks for name in named]
        groups = [[number] for number in stage["updates"]] if stage["report"] == "each" else [stage["updates"]]
        tuned = [pair for pair in pairs if all(self.tuned_on(*pair, updates) == pair[0] for updates in groups)]
        for seed in dict.fromkeys(seed for task, _ in tuned for seed in protocol.of(task, "tuning_seeds")):
            for task, name in tuned:
                if seed in protocol.of(task, "tuning_seeds"):
                    cells = [cell for updates in groups for cell in self.tries(task, name, updates)]
                    yield from (Job(task, name, *cell, seed) for cell in cells)
        places = [
            (task, protocol.judged(name), protocol.base(task, seed))
            for task, name in pairs
            for seed in protocol.of(task, "reported_seeds")
        ]
        for task, judged, base in dict.fromkeys(places):
            for seed in (seed for seed in protocol.of(task, "reported_seeds") if protocol.base(task, seed) == base):
                for name in (name for there, name in pairs if (there, protocol.judged(name)) == (task, judged)):
                    chosen = [self.best(task, name, updates) for updates in groups]
                    yield from (Job(task, name, *cell, seed) for cell in chosen if cell is not None)

    def missing(
        self, tasks: Sequence[str], methods: Sequence[str], updates: Sequence[int] | None = None
    ) -> Iterator[Job]:
        """Yield each job without a result, in the order of the stages. `updates` restricts the numbers of updates."""
        seen: set[Job] = set()
        methods = [name for name in methods if not self.protocol.left(name)]
        for stage in self.protocol.values["stages"]:
            tried = [number for number in stage["updates"] if updates is None or number in updates]
            for job in self.jobs({**stage, "updates": tried}, tasks, methods):
                if job not in seen and self.get(job) is None:
                    yield job
                seen.add(job)


@dataclass(frozen=True, slots=True)
class Base:
    """What is measured once of a base model.

    Attributes:
        rate_P: its pass rates on training prompts. Those on held-out prompts stand in for them for a published model.
        heldout_P: its pass rates on the held-out prompts.
    """

    rate_P: FloatArray
    heldout_P: FloatArray

    def tiers(self, edges: Sequence[float]) -> list[np.ndarray]:
        """Return the positions of the held-out prompts of each tier."""
        tier_P = np.searchsorted(np.asarray(edges), self.heldout_P, side="left")
        return [np.flatnonzero(tier_P == tier) for tier in range(len(edges) + 1)]


class BudgetTrainer(Trainer):
    """A run that ends after a number of responses. It evaluates at given numbers of responses.

    Attributes:
        budget: responses of the run.
        places: responses at which it evaluates, in order.
        tiers: positions of the held-out prompts of each tier.
        points: costs and scores of each evaluation.
        records: the records of the steps.
    """

    def __init__(self, config: RunConfig, stack: Stack, task: Any, budget: int, places: Sequence[int],
                 tiers: Sequence[np.ndarray]) -> None:  # fmt: skip
        self.records: list[Mapping[str, Any]] = []
        super().__init__(config, stack, task, Observer(on_step=self.records.append))
        self.budget, self.places, self.tiers = budget, list(places), tiers
        self.points: list[dict[str, Any]] = []

    def _loop(self) -> str | None:
        waiting = list(self.places)
        while self.totals.responses < self.budget:
            reason = self.control.find_stop_reason()
            if reason is not None or not self._train_step():
                return reason or "sampling was told to drop its step"
            if waiting and self.totals.responses >= waiting[0]:
                waiting = [place for place in waiting if place > self.totals.responses]
                self._evaluate()
        return None

    def _update(self, data: StepData, step: int) -> dict[str, float]:
        learned = super()._update(data, step)
        data.metrics["ada/live_rows"] = learned["trained_rows"]
        return learned

    def _evaluate(self) -> None:
        settings, seed = self.config.validation, compute_evaluation_seed(self.config.grpo.seed, self.step)
        scores: HeldoutScores = self.stack.call("evaluate", None, settings.responses, settings.temperature, seed)
        costs, totals = asdict(self.totals), self.records
        self.points.append(
            {name: int(costs[name]) for name in COSTS}
            | {"steps": self.step, "prompts": self.position, "seconds": round(costs["seconds"], 2)}
            | {"updates": int(sum(record["train/updates"] for record in totals))}
            | scored(scores.reward_PK, self.tiers)
        )


def scored(reward_PK: FloatArray, tiers: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return accuracy, pass@4 of groups of four, and the accuracy of each tier (None for an empty one)."""
    groups_PG = (reward_PK > 0).reshape(len(reward_PK), -1, 4).any(axis=2)
    accuracy_P = reward_PK.mean(axis=1)
    return {
        "accuracy": round(float(accuracy_P.mean()), 5),
        "pass4": round(float(groups_PG.mean()), 5),
        "tiers": [round(float(accuracy_P[tier].mean()), 5) if len(tier) else None for tier in tiers],
    }


class Bench:
    """Runs jobs. It keeps the processes while jobs have the same task and base."""

    def __init__(self, protocol: Protocol, results: Results, exits: ExitStack) -> None:
        self.protocol, self.results, self._exits = protocol, results, exits
        self._place: tuple[str, int, str] | None = None
        self._stack: Stack | None = None
        self._task: Any = None
        self._base: Base | None = None
        self._waits = False

    def run(self, job: Job) -> dict[str, Any]:
        """Run a job and return its result. The processes start again after an error of theirs."""
        self._waits = False
        values = {name: self.protocol.of(job.task, name) for name in MEASURED}
        with tempfile.TemporaryDirectory(prefix="leaderboard-") as name:
            folder = Path(name) / "run"
            stack, base = self._ready(job, folder)
            steps = self._warmup_steps(job, folder, base.rate_P)
            config = self.protocol.config(job, folder, steps)
            check_run(config, self._task)
            tiers = base.tiers(values["tiers"])
            trainer = BudgetTrainer(config, stack, self._task, values["budget"], values["evaluations"], tiers)
            started = time.perf_counter()
            try:
                trainer.run()
            except (ProcessLostError, StallError):
                self.close()
                raise
            if trainer.totals.responses < values["budget"]:
                raise KeyboardInterrupt  # a signal ended the run
        zero = dict.fromkeys((*COSTS, "steps", "prompts", "seconds", "updates"), 0)
        points = [zero | scored(base.heldout_P[:, None].repeat(4, axis=1), tiers), *trainer.points]
        points[0]["pass4"] = round(float((1.0 - (1.0 - base.heldout_P) ** 4).mean()), 5)
        means = {key: np.array([float(record[key]) for record in trainer.records if key in record]) for key in WHY}
        return {
            **asdict(job),
            "base": self.protocol.base(job.task, job.seed),
            "version": self.protocol.values["version"],
            "commit": re.sub(r"^(\w{8})\w*", r"\1", find_commit(ROOT / "nemo_ada" / "run") or "unknown"),
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "seconds": round(time.perf_counter() - started, 1),
            "warmup_steps": steps,
            "halves": "prompts",  # what the cosine compares halves of; results without this key compare halves of rows
            "area": round(area({"points": points}, "responses", values["budget"]), 5),
            "tier_sizes": [len(tier) for tier in tiers],
            "why": {key: float(f"{found.mean():.6g}") for key, found in means.items() if len(found)},
            "points": points,
        }

    def wait(self, jobs: Sequence[Job]) -> None:
        """Wait a while for jobs that other processes run. Meanwhile this one has no processes."""
        if not self._waits:
            names = ", ".join(job.name for job in jobs[:3])
            print(f"{len(jobs)} jobs run in other processes, among them {names}: waiting", flush=True)
        self._waits = True
        self.close()
        time.sleep(WAIT_SECONDS)

    def close(self) -> None:
        """End the processes."""
        self._exits.close()
        self._place = self._stack = None

    def _ready(self, job: Job, folder: Path) -> tuple[Stack, Base]:
        place = (job.task, self.protocol.base(job.task, job.seed), self.protocol.judged(job.method))
        if self._stack is None or self._base is None or self._place != place:
            self.close()
            config = self.protocol.config(job, folder)
            self._task = build_run_task(config)
            self._stack = self._exits.enter_context(Stack(config))
            while (lock := self.results.lock(f"base of {job.task}, {place[1]}")) is None:
                time.sleep(WAIT_SECONDS)  # another process makes it
            with lock:
                self._base = self._measured(config, self._stack, place)
            self._place = place
        return self._stack, self._base

    def _measured(self, config: RunConfig, stack: Stack, place: tuple[str, int, str]) -> Base:
        """Train the base if it is missing, and measure it. The measurement is kept beside the results."""
        folder = prepare_base(config, self._task, stack)
        path = self.results.folder / "bases" / f"{place[0]}-b{place[1]}-{folder.name[-8:]}.json"
        if not path.exists():
            group, longest = config.grpo.num_generations_per_prompt, choose_max_new_tokens(config.policy, self._task)
            sampler = config.reinforce_ada.sampler(group, longest, run_seed=0, features=1)
            stack.call("open", str(folder.resolve()), sampler, config.policy)
            scores: HeldoutScores = stack.call("evaluate", None, self.protocol.of(place[0], "base_responses"), 1.0, 0)
            path.parent.mkdir(exist_ok=True)
            heldout = scores.reward_PK.mean(axis=1).tolist()
            known = (folder / REPORT).exists()  # a published model has no report
            kept = {"rates": read_json(folder / REPORT)["rates"] if known else heldout, "heldout": heldout}
            write_atomically(path, json.dumps(kept))
        found = read_json(path)
        return Base(np.array(found["rates"]), np.array(found["heldout"]))

    def _warmup_steps(self, job: Job, folder: Path, rate_P: FloatArray) -> int:
        """Return the steps that draw the responses of the warm-up, from a simulated first step at the base's rates."""
        config = self.protocol.config(job, folder)
        ada, grpo = config.reinforce_ada, config.grpo
        sampler = ada.sampler(grpo.num_generations_per_prompt, 16, run_seed=0, features=1)
        prompts = grpo.num_prompts_per_step + ada.reserve_prompts
        source = DiscreteEventSource(Workload(np.resize(rate_P, prompts), LengthModel(max_new_tokens=16)).draw)
        features_PF = np.zeros((prompts, 1))
        sampled = sampler.run_step(
            1, [f"p{i}" for i in range(prompts)], source, reserve=ada.reserve_prompts, features_PF=features_PF
        )
        if sampled is None:
            raise InvariantError("a simulated step was dropped")
        return max(1, round(self.protocol.of(job.task, "warmup") / float(sampled.result.issued_P.sum())))


def run(
    results: Results,
    tasks: Sequence[str],
    methods: Sequence[str],
    minutes: float,
    updates: Sequence[int] | None = None,
) -> None:
    """Run the missing jobs, one by one. No job starts after `minutes`, and one that runs is finished.

    A job that another process works on is left to it. At the end its result is waited for, because later jobs may
    depend on it.
    """
    deadline = time.monotonic() + 60.0 * minutes
    failed: set[Job] = set()
    with ExitStack() as exits:
        bench = Bench(results.protocol, results, exits)
        while time.monotonic() < deadline:
            results.look()
            missing = [job for job in results.missing(tasks, methods, updates) if job not in failed]
            if not missing:
                break
            job, claim = next(((job, claim) for job in missing if (claim := results.claim(job))), (None, None))
            if job is None or claim is None:
                bench.wait(missing)
                continue
            with claim:
                try:
                    result = bench.run(job)
                except (
                    InvariantError,
                    ProcessLostError,
                    StallError,
                    UserError,
                ) as error:  # UserError: no `make smollm2` yet
                    failed.add(job)
                    print(f"{job.name}: {error}", flush=True)
                    continue
                results.check_base(result)
                results.put(job, result)
            last = result["points"][-1]
            print(
                f"{result['date']} {job.name}: area {result['area']:.4f}, accuracy {last['accuracy']:.4f}, "
                f"{last['responses']} responses, {last['updates']} updates, {result['seconds']:.0f} s",
                flush=True,
            )


def again(results: Results, task: str, methods: Sequence[str], seeds: Sequence[int], baseline: str) -> None:
    """Run rows of the page and their baseline on other seeds, and compare the differences with the page.

    The runs of a seed follow one another on this machine, so they are also compared at equal seconds of their steps.

    Raises:
        UserError: the page has no such row, or a seed is one of its own.
    """
    protocol = results.protocol
    for seed in seeds:
        if seed in {*protocol.of(task, "tuning_seeds"), *protocol.of(task, "reported_seeds")}:
            raise UserError(f"--seed {seed} is one of the protocol's; give another one")
    found = {row.method: row for row in rows_of(protocol.values, results, task, [4], baseline, methods)}
    for method in methods:
        if method == baseline or method not in found or len(found[method].seeds) < 2:
            raise UserError(f"the page has no row of {method} against {baseline} on {task} ({FOUR})")
    runs: dict[str, list[Any]] = {name: [] for name in (baseline, *methods)}
    with ExitStack() as exits:
        bench = Bench(protocol, results, exits)
        for seed, name in ((seed, name) for seed in seeds for name in runs):
            job = Job(task, name, *found[name].cell, seed)
            while results.get(job) is None:
                claim = results.claim(job)
                if claim is None:
                    bench.wait([job])
                    continue
                with claim:
                    results.put(job, bench.run(job))
            runs[name].append(results.get(job))
    for method in methods:
        row, title = found[method], f"{method} - {baseline}, {task}"
        for seed, own, base in zip(seeds, runs[method], runs[baseline], strict=True):
            measured = effects([own], [base])
            for name in ("area at equal responses", "accuracy"):
                low, high = one_seed(row.effects[name], len(row.seeds))
                mean = measured[name].mean
                inside = "inside" if low <= mean <= high else "OUTSIDE"
                print(f"{title}, seed {seed}, {name}: {mean:+.3f}, {inside} [{low:+.3f}, {high:+.3f}]")
        for axis in ("responses", "seconds"):
            gained = text(gain_at(runs[method], runs[baseline], axis), bold=False)
            print(f"{title}, {len(seeds)} seeds, area at equal {axis}: {gained}")


def unique(values: Sequence[Any]) -> list[Any]:
    """Return each value once: a seed that is given twice is one sample."""
    return list(dict.fromkeys(values))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "list", "page", "again"))
    protocol = Protocol()
    parser.add_argument("--task", nargs="+", action="extend", choices=list(protocol.values["tasks"]), default=None)
    parser.add_argument("--method", nargs="+", action="extend", choices=list(protocol.methods), default=None)
    parser.add_argument("--updates", nargs="+", type=int, choices=list(protocol.values["grid"]), help="of run and list")
    parser.add_argument("--fresh", action="store_true", help="run and list: as if nothing had been published")
    parser.add_argument("--seed", nargs="+", type=int, help="of again")
    usual = protocol.values["baseline"]
    parser.add_argument(
        "--baseline",
        choices=list(protocol.methods),
        help=f"other row of again; run and list take its jobs, too, where --method is given (default: {usual})",
    )
    parser.add_argument("--minutes", type=float, help="of run")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results; page writes recipes/results")
    arguments = parser.parse_args()
    chosen = ("task", "method", "updates", "fresh")
    accepted = {
        "run": (*chosen, "minutes", "baseline"),
        "list": (*chosen, "baseline"),
        "page": (),
        "again": ("task", "method", "seed", "baseline"),
    }
    for name in (*chosen, "seed", "minutes", "baseline"):
        given = getattr(arguments, name)
        if given is not None and given is not False and name not in accepted[arguments.what]:
            parser.error(f"{arguments.what} takes no --{name}")
    if arguments.baseline and not arguments.method:
        parser.error(f"--baseline {arguments.baseline}: give --method too")
    if arguments.minutes is not None and not arguments.minutes > 0:
        parser.error(f"--minutes {arguments.minutes:g}: give a number above 0")
    if arguments.out.exists() and not arguments.out.is_dir():
        parser.error(f"--out {arguments.out} is a file; give a folder")
    if arguments.what == "again" and not (arguments.seed and arguments.method and len(arguments.task or ()) == 1):
        parser.error("again needs --seed, --method and one --task")
    results = Results(protocol, arguments.out, None if arguments.fresh else PUBLISHED)
    tasks = arguments.task or list(protocol.values["tasks"])
    baseline = arguments.baseline or usual
    gone = [
        f"{name} does not run: commit {last} is the last one that has its code"
        for name in dict.fromkeys([*(arguments.method or ()), baseline])
        if (last := protocol.left(name))
    ]
    if gone and arguments.what == "again":
        raise UserError("; ".join(gone))
    for line in gone:
        print(line, file=sys.stderr)
    methods = list(dict.fromkeys([baseline, *arguments.method])) if arguments.method else list(protocol.methods)
    if arguments.what == "run":
        run(results, tasks, methods, arguments.minutes or math.inf, arguments.updates)
    elif arguments.what == "list":
        for job in results.missing(tasks, methods, arguments.updates):
            print(job.name)
    elif arguments.what == "again":
        again(results, arguments.task[0], unique(arguments.method), unique(arguments.seed), baseline)
    else:
        write_page(protocol.values, results, PAGES)
    return 0


if __name__ == "__main__":
    measure(main)
