"""Asynchronous against synchronous sampling on the discrete-event engine: what a barrier costs under heavy tails.

    python recipes/benchmarks/bench_async.py [--age 1] [--steps 40] [--seeds 5] [--prompts 64] [--samples 1024]
                                            [--slots 1024] [--update 800] [--refit 20] [--median 120] [--sigma 0.9]
                                            [--longest 2000] [--beta 0.6 1.5]

Time is in engine steps; each gives one token to every running response. An update takes `--update` of them, on other
GPUs. Then the engine stands still for `--refit`. Synchronous: the groups of a step start when the step before has been
trained. Asynchronous, as NeMo-RL's async_grpo: the groups of `--age` more steps are in flight.
Each group is a session of its own, with one budget per step for all of its groups. `--samples` caps every method but
dynamic sampling, upstream's synchronous filter: batches of GRPO until a step has its groups with both labels.

Columns, means over seeds with 95 % intervals: engine steps per training step; zero-signal groups; rows with signal per
1,000 engine steps. The ratios are those of the same seed to GRPO in the same mode, and to dynamic sampling. The first
two training steps are left out.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from measure import measure
from workload import GROUP, HARD

from nemo_ada.config.presets import ada_settings
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.core.sampling.budget import GroupLedger
from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.report.curves import difference, markdown_table
from nemo_ada.simulate.engine import DiscreteEventSource, LengthModel, Workload, beta_pass_rates

WARM_STEPS = 2
PROMPTS = 100_000  # that a run may look at
DYNAMIC = "grpo, dynamic sampling, synchronous"
GRPO, LEAN, BALANCE = ({"preset": name} for name in ("grpo", "ada_seq_lean", "ada_seq_balance"))
LEAN_12 = LEAN | {"sampling": {"max_responses": 12}}
METHODS: dict[str, tuple[dict[str, Any], bool]] = {  # section reinforce_ada; asynchronous or not
    "grpo, synchronous": (GRPO, False),
    "ada_seq_lean, synchronous": (LEAN, False),
    "ada_seq_balance, synchronous": (BALANCE, False),
    DYNAMIC: (GRPO, False),
    "grpo, asynchronous": (GRPO, True),
    "ada_seq_lean, asynchronous": (LEAN, True),
    "ada_seq_lean with max_responses 12, asynchronous": (LEAN_12, True),
    "ada_seq_balance, asynchronous": (BALANCE, True),
}


@dataclass
class Group:
    """A prompt whose responses are being drawn, or have been. ids: the engine's response id -> the session's."""

    prompt: int
    step: int
    session: SamplingSession
    ledger: GroupLedger
    pool: GroupPool | None = None
    ids: dict[int, int] = field(default_factory=dict)


class Simulation:
    """One engine, one learner, and the groups between them."""

    def __init__(self, options: argparse.Namespace, method: str, seed: int) -> None:
        section, asynchronous = METHODS[method]
        self.ahead = options.age if asynchronous else 0
        self.dynamic = method == DYNAMIC
        made = ada_settings(section).sampler(GROUP, options.longest, run_seed=seed)
        plan = (
            made.plan
            if self.dynamic
            else replace(made.plan, budget=replace(made.plan.budget, max_samples=options.samples))
        )
        self.sampler = AdaSampler(plan, made.rows, run_seed=seed)
        self.prompts, self.update, self.refit = options.prompts, options.update, options.refit
        lengths = LengthModel(options.median, options.sigma, 1.3, options.longest)
        rate_P = beta_pass_rates(PROMPTS, options.beta[0], options.beta[1], seed)
        self.engine = DiscreteEventSource(Workload(rate_P, lengths, seed=seed).draw, slots=options.slots)
        self.still = 0  # engine steps during which the engine did not decode
        self.drawn = self.issued = 0
        self.open: dict[int, Group] = {}  # by prompt
        self.owner: dict[int, Group] = {}  # by the engine's response id
        self.done: dict[int, list[Group]] = {}  # by training step
        self.ends: list[int] = []  # of updates
        self.zero_signal: list[float] = []
        self.live_rows: list[int] = []

    @property
    def now(self) -> int:
        return self.engine.steps + self.still

    def run(self, steps: int) -> None:
        """Train so many steps."""
        begun, busy_until = 0, math.inf
        while len(self.ends) < steps:
            while begun <= min(len(self.ends) + self.ahead, steps - 1):
                self._begin(begun)
                begun += 1
            self._settle()
            step = len(self.ends)
            if busy_until == math.inf and self._complete(step):
                self._train(step)
                busy_until = self.now + self.update
            if self.owner:
                self._poll(None if busy_until == math.inf else int(busy_until) - self.still)
            elif busy_until != math.inf:
                self.still += int(busy_until) - self.now
            if self.now >= busy_until:
                self.ends.append(self.now)
                self.still += self.refit
                busy_until = math.inf

    def _begin(self, step: int) -> None:
        """Start a batch of groups for this training step."""
        ledger = self.sampler.step_ledger(self.prompts)
        self.done.setdefault(step, [])
        for _ in range(self.prompts):
            own = ledger.start()
            self.open[self.drawn] = Group(self.drawn, step, self.sampler.group_session(step, own), own)
            self.drawn += 1

    def _settle(self) -> None:
        """Let groups ask until none moves: one that ends may free another."""
        moved = True
        while moved:
            moved = sum(self._ask(group) for group in list(self.open.values())) > 0

    def _ask(self, group: Group) -> bool:
        requests = group.session.next_requests(self.now)
        if len(requests):
            ids = np.arange(self.issued, self.issued + len(requests))
            self.issued += len(requests)
            group.ids.update(zip(ids.tolist(), requests.response_id_N.tolist(), strict=True))
            self.owner.update(dict.fromkeys(ids.tolist(), group))
            prompt_N = np.full(len(ids), group.prompt, np.int64)
            self.engine.submit(Requests(ids, prompt_N, requests.index_N, requests.wave_N, requests.seed_N))
        if not group.session.finished:
            return len(requests) > 0
        result = group.session.result()
        group.ledger.end()
        group.pool = GroupPool(group.step, str(group.prompt), result, np.zeros(int(result.size_P[0]), np.int64))
        self.done[group.step].append(self.open.pop(group.prompt))
        return True

    def _poll(self, until: int | None) -> None:
        """Run the engine to its next event and tell the groups."""
        outcomes = self.engine.poll(until)
        for i, engine_id in enumerate(outcomes.response_id_N.tolist()):
            group = self.owner.pop(engine_id)
            own_N = np.array([group.ids.pop(engine_id)], np.int64)
            group.session.record(Outcomes(own_N, outcomes.reward_N[i : i + 1], outcomes.tokens_N[i : i + 1]), self.now)

    def _complete(self, step: int) -> bool:
        """Whether the groups of the step are there. With dynamic sampling another batch starts where signal lacks."""
        if any(group.step == step for group in self.open.values()):
            return False
        if self.dynamic:
            self.done[step] = [group for group in self.done[step] if has_signal(group.pool)]
            if len(self.done[step]) < self.prompts:
                self._begin(step)
                self._settle()
                return False
        return True

    def _train(self, step: int) -> None:
        groups = sorted(self.done.pop(step), key=lambda group: group.prompt)[: self.prompts]
        sampled = self.sampler.finish_step([group.pool for group in groups if group.pool is not None])
        self.zero_signal.append(sampled.metrics["ada/zero_signal_groups"])
        self.live_rows.append(int(sampled.rows.live_R.sum()))


def has_signal(pool: GroupPool | None) -> bool:
    """Whether a pool has both labels."""
    return pool is not None and bool(pool.result.pos_P[0] > 0 and pool.result.neg_P[0] > 0)


def measured(options: argparse.Namespace, method: str, seed: int) -> tuple[float, float, float]:
    """(engine steps per training step, zero-signal share, rows with signal per 1,000 engine steps)."""
    simulation = Simulation(options, method, seed)
    simulation.run(options.steps)
    ends = simulation.ends
    each = (ends[-1] - ends[WARM_STEPS - 1]) / (options.steps - WARM_STEPS)
    live = float(np.mean(simulation.live_rows[WARM_STEPS:]))
    return each, float(np.mean(simulation.zero_signal[WARM_STEPS:])), 1000.0 * live / each


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The options, from the command line where `given` is None."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--slots", type=int, default=1024)
    parser.add_argument("--age", type=int, default=1, help="max_trajectory_age_steps of the asynchronous rows")
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
    found = {name: [measured(options, name, seed) for seed in range(options.seeds)] for name in METHODS}

    def ratio(name: str, other: str, column: int) -> str:
        pairs = zip(found[name], found[other], strict=True)
        return str(difference([own[column] / base[column] for own, base in pairs])).lstrip("+")

    rows = []
    for name, values in found.items():
        grpo = "grpo, " + name.rpartition(", ")[2]
        steps, zero, live = (str(difference([value[i] for value in values])).lstrip("+") for i in range(3))
        rows.append(
            {
                "method": name,
                "engine steps": steps,
                "to GRPO's": ratio(name, grpo, 0),
                "zero-signal groups": zero,
                "live rows per 1,000": live,
                "to dynamic sampling's": ratio(name, DYNAMIC, 2),
            }
        )
    print(markdown_table(rows))
    return 0


if __name__ == "__main__":
    measure(main)
