"""Synchronous and asynchronous sampling on the discrete-event engine: what a barrier costs under heavy tails.

    python recipes/benchmarks/bench_async.py [--age 1] [--steps 40] [--seeds 5] [--prompts 64] [--samples 1024]
                                            [--slots 1024] [--update 800] [--refit 20] [--median 120] [--sigma 0.9]
                                            [--longest 2000] [--beta 0.6 1.5] [--oldest 4] [--loops LOOP ...]
                                            [--methods grpo lean lean12 balance]

Time is in engine steps; each gives one token to every running response. An update takes `--update` of them, on other
GPUs. Then the engine stands still for `--refit`. The loops differ in when groups start and in what a step trains on:

synchronous   a step's groups start when the step before has been trained
asynchronous  NeMo-RL's async_grpo, and in_order of its single controller: the groups of `--age` more steps are in
              flight, and a step waits for all of its own
ready_first   the single controller's sampler of this name: as many groups are in flight, and a step trains on those
              that are ready. With `--oldest` a step waits for a group that would become older. 0 is NeMo-RL's sampler,
              which never waits
weight_fifo   a step trains on ready groups of the oldest version that is in the buffer, and waits for all of them
windowed      as many groups are in flight; those older than `--age` are thrown away
redrawn       the same, and the prompts that were thrown away are drawn again

Each group is a session of its own, with one budget per batch of groups that start together. `--samples` caps every
method but dynamic sampling. That is upstream's synchronous filter: it draws batches of GRPO until a step has its groups
with both labels.

Columns, means over seeds with 95 % intervals: engine steps per training step; zero-signal groups; rows with signal per
1,000 engine steps; versions between a response's weights and its step, mean and largest; pools with several versions.
"thrown away" is a share of all groups. "pass rate" is that of the prompts that were trained on, minus that of all
prompts that were drawn until then, in percentage points.
The ratios are those of the same seed to GRPO in the same loop, and to dynamic sampling. The first two training steps
are left out.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from measure import measure
from tables import markdown_table
from workload import GROUP, HARD

from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.budget import GroupLedger, StepLedger
from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.lab.report.curves import compute_difference
from nemo_ada.lab.simulate.engine import DiscreteEventSource, LengthModel, Workload, draw_beta_rates

WARM_STEPS = 2
PROMPTS = 100_000  # that a run may look at
DYNAMIC = "grpo, dynamic sampling, synchronous"
GRPO, LEAN, BALANCE = ({"preset": name} for name in ("grpo", "ada_seq_lean", "ada_seq_balance"))
LEAN_12 = LEAN | {"sampling": {"max_responses": 12}}
SECTIONS: dict[str, dict[str, Any]] = {
    "grpo": GRPO,
    "ada_seq_lean": LEAN,
    "ada_seq_lean with max_responses 12": LEAN_12,
    "ada_seq_balance": BALANCE,
}
SHORT = {
    "grpo": "grpo",
    "lean": "ada_seq_lean",
    "lean12": "ada_seq_lean with max_responses 12",
    "balance": "ada_seq_balance",
}
"""The option's name of a method -> the row's."""
LOOPS = ("synchronous", "asynchronous", "ready_first", "weight_fifo", "windowed", "redrawn")


def methods(loops: Sequence[str], names: Sequence[str] = tuple(SHORT)) -> dict[str, tuple[dict[str, Any], str]]:
    """Name of a row -> its section reinforce_ada, and its loop."""
    rows: dict[str, tuple[dict[str, Any], str]] = {}
    for loop in loops:
        for name, section in SECTIONS.items():
            if name in map(SHORT.get, names) and (section is not LEAN_12 or loop != "synchronous"):
                rows[f"{name}, {loop}"] = (section, loop)
        if loop == "synchronous":
            rows[DYNAMIC] = (GRPO, loop)
    return rows


@dataclass(eq=False)
class Group:
    """A prompt whose responses are being drawn, or have been.

    Attributes:
        prompt: the prompt.
        batch: number of the batch of groups that started together.
        version: version of the weights when the group started.
        session: draws the responses.
        ledger: the group's budget.
        pool: the responses, once the group has ended.
        ids: the engine's response id -> the session's.
        versions: the session's response id -> version of the weights.
    """

    prompt: int
    batch: int
    version: int
    session: SamplingSession
    ledger: GroupLedger
    pool: GroupPool | None = None
    ids: dict[int, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)


class Simulation:
    """One engine, one learner, and the groups between them."""

    def __init__(self, options: argparse.Namespace, method: str, seed: int) -> None:
        section, self.loop = methods(LOOPS)[method]
        self.ahead = 0 if self.loop == "synchronous" else options.age
        self.oldest = options.oldest or math.inf
        self.dynamic = method == DYNAMIC
        made = parse_ada_settings(section).sampler(GROUP, options.longest, run_seed=seed)
        plan = (
            made.plan
            if self.dynamic
            else replace(made.plan, budget=replace(made.plan.budget, max_samples=options.samples))
        )
        self.sampler = AdaSampler(plan, made.rows, run_seed=seed)
        self.prompts, self.update, self.refit = options.prompts, options.update, options.refit
        lengths = LengthModel(options.median, options.sigma, 1.3, options.longest)
        self.rate_P = draw_beta_rates(PROMPTS, options.beta[0], options.beta[1], seed)
        self.engine = DiscreteEventSource(Workload(self.rate_P, lengths, seed=seed).draw, slots=options.slots)
        self.still = 0  # engine steps during which the engine did not decode
        self.drawn = self.issued = self.batches = 0
        self.asking: set[Group] = set()  # groups that may ask for responses
        self.again: list[int] = []  # prompts that were thrown away and will be drawn again
        self.open: dict[int, Group] = {}  # by prompt
        self.owner: dict[int, Group] = {}  # by the engine's response id
        self.done: list[Group] = []  # groups that wait for their step, in the order of their start
        self.ends: list[int] = []  # of updates
        self.trained: list[list[Group]] = []
        self.drawn_by: list[int] = []  # prompts that were drawn before each training step
        self.lost = 0  # groups that were thrown away
        self.zero_signal: list[float] = []
        self.live_rows: list[int] = []

    @property
    def now(self) -> int:
        return self.engine.steps + self.still

    def run(self, steps: int) -> None:
        """Train so many steps."""
        busy_until = math.inf
        while len(self.ends) < steps:
            self._start(steps)
            self._settle()
            groups = None if busy_until != math.inf else self._selected()
            if groups is not None:
                self._train(groups)
                busy_until = self.now + self.update
            if self.owner:
                self._poll(None if busy_until == math.inf else int(busy_until) - self.still)
            elif busy_until != math.inf:
                self.still += int(busy_until) - self.now
            if self.now >= busy_until:
                self.ends.append(self.now)
                self._evict()
                self.still += self.refit
                busy_until = math.inf

    def _start(self, steps: int) -> None:
        """Start the groups that the loop allows."""
        if self.loop in ("windowed", "redrawn"):  # bounded by the places of the buffer
            free = self.prompts * (self.ahead + 1) - len(self.open) - len(self.done)
            if free > 0:
                self._begin(free)
        else:
            while self.batches <= min(len(self.ends) + self.ahead, steps - 1):
                self._begin(self.prompts)

    def _begin(self, count: int) -> None:
        """Start a batch of groups. They share a budget."""
        plan = self.sampler.plan
        budget = plan.budget
        if count < self.prompts and budget.max_samples is not None:  # a smaller batch has its share
            budget = replace(budget, max_samples=max(budget.max_samples * count // self.prompts, GROUP * count))
        ledger = StepLedger(budget, groups=count, first=plan.stop.first_wave, most=plan.stop.cap)
        for _ in range(count):
            prompt = self.again.pop(0) if self.again else self.drawn
            self.drawn += prompt == self.drawn
            own = ledger.start()
            session = self.sampler.group_session(self.batches, own)
            group = self.open[prompt] = Group(prompt, self.batches, len(self.ends), session, own)
            self.asking.add(group)
        self.batches += 1

    def _settle(self) -> None:
        """Let groups ask until none moves: one that ends may free another.

        Those ask that something has happened to. Others ask if they have no requests, because they may wait.
        """
        asking = sorted(self.asking, key=lambda group: group.prompt)
        self.asking = set()
        while asking:
            moved = sum(self._ask(group) for group in asking if self.open.get(group.prompt) is group) > 0
            asking = [group for group in self.open.values() if not group.ids] if moved else []

    def _ask(self, group: Group) -> bool:
        requests = group.session.next_requests(self.now)
        if len(requests):
            ids = np.arange(self.issued, self.issued + len(requests))
            self.issued += len(requests)
            own = requests.response_id_N.tolist()
            group.ids.update(zip(ids.tolist(), own, strict=True))
            group.versions.update(dict.fromkeys(own, len(self.ends)))
            self.owner.update(dict.fromkeys(ids.tolist(), group))
            prompt_N = np.full(len(ids), group.prompt, np.int64)
            self.engine.submit(Requests(ids, prompt_N, requests.index_N, requests.wave_N, requests.seed_N))
        if not group.session.finished:
            return len(requests) > 0
        result = group.session.result()
        group.ledger.end()
        version_N = np.array([group.versions[own] for own in result.response_id_N.tolist()], np.int64)
        group.pool = GroupPool(group.batch, str(group.prompt), result, version_N)
        self.done = sorted([*self.done, self.open.pop(group.prompt)], key=lambda one: (one.batch, one.prompt))
        return True

    def _poll(self, until: int | None) -> None:
        """Run the engine to its next event and tell the groups."""
        outcomes = self.engine.poll(until)
        for i, engine_id in enumerate(outcomes.response_id_N.tolist()):
            group = self.owner.pop(engine_id)
            own_N = np.array([group.ids.pop(engine_id)], np.int64)
            self.asking.add(group)
            group.session.record(Outcomes(own_N, outcomes.reward_N[i : i + 1], outcomes.tokens_N[i : i + 1]), self.now)

    def _selected(self) -> list[Group] | None:
        """The groups of the next step, or None while it waits."""
        step = len(self.ends)
        if self.loop in ("synchronous", "asynchronous"):
            return self._own(step)
        running = self.open.values()
        if self.loop == "weight_fifo":
            version = min(group.version for group in (*running, *self.done))
            ready = [group for group in self.done if group.version == version]
            return ready[: self.prompts] if len(ready) >= self.prompts else None
        if self.loop == "ready_first" and any(step - group.version >= self.oldest for group in running):
            return None
        return self.done[: self.prompts] if len(self.done) >= self.prompts else None

    def _own(self, step: int) -> list[Group] | None:
        """The groups of the step's own batch. With dynamic sampling another batch starts where signal lacks."""
        if self.open if self.dynamic else any(group.batch == step for group in self.open.values()):
            return None
        if not self.dynamic:
            return [group for group in self.done if group.batch == step]
        self.done = [group for group in self.done if has_signal(group.pool)]
        if len(self.done) < self.prompts:
            self._begin(self.prompts)
            self._settle()
            return None
        return self.done[: self.prompts]

    def _evict(self) -> None:
        """Throw away the groups that are too old for the next step."""
        if self.loop not in ("windowed", "redrawn"):
            return
        least = len(self.ends) - self.ahead
        stale = [group for group in (*self.open.values(), *self.done) if group.version < least]
        self.lost += len(stale)
        if self.loop == "redrawn":
            self.again += [group.prompt for group in stale]
        for group in stale:
            if self.open.pop(group.prompt, None) is not None:
                self.engine.abort(np.array(sorted(group.ids), np.int64))
                for engine_id in group.ids:
                    del self.owner[engine_id]
                group.ledger.abandon()
        self.done = [group for group in self.done if group.version >= least]

    def _train(self, groups: list[Group]) -> None:
        chosen = {group.prompt for group in groups}
        self.done = [] if self.dynamic else [group for group in self.done if group.prompt not in chosen]
        groups = sorted(groups, key=lambda group: group.prompt)
        pools = [replace(group.pool, step=len(self.ends)) for group in groups if group.pool is not None]
        sampled = self.sampler.finish_step(pools)
        self.trained.append(groups)
        self.drawn_by.append(self.drawn)
        self.zero_signal.append(sampled.metrics["ada/zero_signal_groups"])
        self.live_rows.append(int(sampled.rows.live_R.sum()))


def has_signal(pool: GroupPool | None) -> bool:
    """Whether a pool has both labels."""
    return pool is not None and bool(pool.result.pos_P[0] > 0 and pool.result.neg_P[0] > 0)


@dataclass(frozen=True)
class Measured:
    """One run. The columns of the table, in their order."""

    steps: float
    zero_signal: float
    live_rows: float
    age: float
    oldest: float
    mixed: float
    lost: float
    pass_rate: float


def measured(options: argparse.Namespace, method: str, seed: int) -> Measured:
    """Run one method with one seed."""
    simulation = Simulation(options, method, seed)
    simulation.run(options.steps)
    ends = simulation.ends
    each = (ends[-1] - ends[WARM_STEPS - 1]) / (options.steps - WARM_STEPS)
    live = float(np.mean(simulation.live_rows[WARM_STEPS:]))
    steps = list(enumerate(simulation.trained))[WARM_STEPS:]
    ages = np.concatenate([step - group.pool.version_N for step, groups in steps for group in groups if group.pool])
    mixed = [len(set(group.versions.values())) > 1 for _, groups in steps for group in groups]
    last = options.steps - simulation.ahead - 1  # the engine still has all of its groups when this step begins
    prompts = [group.prompt for groups in simulation.trained[: last + 1] for group in groups]
    pass_rate = simulation.rate_P[prompts].mean() - simulation.rate_P[: simulation.drawn_by[last]].mean()
    return Measured(
        steps=each,
        zero_signal=float(np.mean(simulation.zero_signal[WARM_STEPS:])),
        live_rows=1000.0 * live / each,
        age=float(ages.mean()),
        oldest=float(ages.max()),
        mixed=float(np.mean(mixed)),
        lost=simulation.lost / max(simulation.lost + len(simulation.trained) * options.prompts, 1),
        pass_rate=100.0 * float(pass_rate),
    )


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The options, from the command line where `given` is None."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--slots", type=int, default=1024)
    parser.add_argument("--age", type=int, default=1, help="steps whose groups are in flight beside the next one's")
    parser.add_argument("--oldest", type=int, default=4, help="ready_first: the largest age of a group, 0 for none")
    parser.add_argument("--methods", nargs="+", choices=list(SHORT), default=list(SHORT))
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=["synchronous", "asynchronous"])
    parser.add_argument("--update", type=int, default=800)
    parser.add_argument("--refit", type=int, default=20)
    parser.add_argument("--median", type=float, default=120.0)
    parser.add_argument("--sigma", type=float, default=0.9)
    parser.add_argument("--longest", type=int, default=2000)
    parser.add_argument("--beta", type=float, nargs=2, default=[HARD.a, HARD.b])
    options = parser.parse_args(given)
    if options.steps <= WARM_STEPS:
        parser.error(f"--steps must be above {WARM_STEPS}")
    return options


def main() -> int:
    options = arguments()
    found = {
        name: [measured(options, name, seed) for seed in range(options.seeds)]
        for name in methods(options.loops, options.methods)
    }

    def mean(name: str, column: str) -> str:
        return str(compute_difference([getattr(value, column) for value in found[name]])).removeprefix("+")

    def ratio(name: str, other: str, column: str) -> str:
        if other not in found:
            return ""
        pairs = zip(found[name], found[other], strict=True)
        return str(
            compute_difference([getattr(own, column) / getattr(base, column) for own, base in pairs])
        ).removeprefix("+")

    rows = []
    for name in found:
        rows.append(
            {
                "method": name,
                "engine steps": mean(name, "steps"),
                "to GRPO's": ratio(name, "grpo, " + name.rpartition(", ")[2], "steps"),
                "zero-signal groups": mean(name, "zero_signal"),
                "live rows per 1,000": mean(name, "live_rows"),
                "to dynamic sampling's": ratio(name, DYNAMIC, "live_rows"),
                "age": mean(name, "age"),
                "oldest": f"{max(value.oldest for value in found[name]):.0f}",
                "several versions": mean(name, "mixed"),
                "thrown away": mean(name, "lost"),
                "pass rate": mean(name, "pass_rate"),
            }
        )
    print(markdown_table(rows))
    return 0


if __name__ == "__main__":
    measure(main)
