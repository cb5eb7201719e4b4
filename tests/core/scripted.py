"""A response source that follows a script, and oracles of what a session must collect from it.

The source ends responses in a random order and in random groups: that is all that an engine may do to a session.
It checks the session's side of the protocol (each row submitted once, only running rows aborted, no poll of an idle
engine) and keeps its own books, which the tests compare with the session's.
The oracles read the label table response by response; they use nothing of the code under test but the plan's values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from nemo_ada.core.learning.advantage import compute_advantages
from nemo_ada.core.learning.settings import AdvantageSettings, RowSettings
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit, PositiveExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import MASKED, Outcomes, Requests
from nemo_ada.core.sampling.state import StepState

FAILS, IS_MASKED = float("nan"), float("inf")


@dataclass
class Script:
    """Reward (NaN = failed, infinite = masked: no label) and length of response (prompt, index), from tables."""

    reward_PI: NDArray[np.float64]
    tokens_PI: NDArray[np.int64]

    @classmethod
    def random(cls, seed, pass_rate_P, *, failed=0.0, longest=40, indices=256):
        rng = np.random.default_rng(seed)
        shape = (len(pass_rate_P), indices)
        reward = (rng.random(shape) < np.array(pass_rate_P)[:, None]).astype(np.float64)
        reward[rng.random(shape) < failed] = FAILS
        tokens = np.clip(rng.lognormal(1.5, 1.2, shape) * (2 - np.nan_to_num(reward)), 1, longest)
        return cls(reward, tokens.astype(np.int64))

    @classmethod
    def of(cls, *rows):
        """From strings of + (correct), - (incorrect), x (failed) and m (masked); the last character repeats."""
        full = [(row + row[-1] * 256)[:256] for row in rows]
        value = {"+": 1.0, "-": 0.0, "x": FAILS, "m": IS_MASKED}
        reward = np.array([[value[c] for c in row] for row in full])
        return cls(reward, np.full(reward.shape, 3, np.int64))

    def label(self, prompt, index):
        reward = self.reward_PI[prompt, index]
        return bool(reward > 0.5) if np.isfinite(reward) else None


@dataclass
class ScriptedSource:
    """ResponseSource over a Script; `rng` decides the order of completion."""

    script: Script
    rng: np.random.Generator
    newest_first: bool = False
    now: float = 0.0
    running: dict[int, tuple[int, int]] = field(default_factory=dict)
    issued: dict[int, tuple[int, int]] = field(default_factory=dict)
    seeds: dict[int, int] = field(default_factory=dict)
    submitted: list[tuple[float, Requests]] = field(default_factory=list)
    finished: dict[int, int] = field(default_factory=dict)  # row -> tokens
    aborted: dict[int, int] = field(default_factory=dict)
    watch: Callable[[], None] = lambda: None

    def submit(self, requests):
        assert len(requests) > 0
        self.submitted.append((self.now, requests))
        columns = (requests.response_id_N, requests.prompt_N, requests.index_N, requests.seed_N)
        for row, prompt, index, seed in zip(*(column.tolist() for column in columns), strict=True):
            assert row not in self.issued
            self.issued[row] = self.running[row] = (prompt, index)
            self.seeds[row] = seed
        self.watch()

    def poll(self):
        assert self.running, "poll of an idle engine would never return"
        rows = sorted(self.running)
        if self.newest_first:
            rows = rows[-1:]
        else:
            self.rng.shuffle(rows)
            rows = rows[: int(self.rng.integers(1, len(rows) + 1))]
        return self.end(rows)

    def end(self, rows):
        """Finish these rows now."""
        places = [self.running.pop(row) for row in rows]
        self.now += float(self.rng.random())
        reward = np.array([self.script.reward_PI[place] for place in places])
        tokens = np.array([self.script.tokens_PI[place] for place in places])
        self.finished.update(zip(rows, tokens.tolist(), strict=True))
        failures = {row: "scripted" if np.isnan(value) else MASKED
                    for row, value in zip(rows, reward, strict=True) if not np.isfinite(value)}  # fmt: skip
        return Outcomes(np.array(rows), reward, tokens, failures)

    def abort(self, response_id_N):
        tokens = [
            int(self.rng.integers(0, self.script.tokens_PI[self.running.pop(row)])) for row in response_id_N.tolist()
        ]
        self.aborted.update(zip(response_id_N.tolist(), tokens, strict=True))
        return np.array(tokens, np.int64)

    def clock(self):
        return self.now

    @property
    def tokens(self):
        return sum(self.finished.values()) + sum(self.aborted.values())


def collect(plan, script, *, order=0, latency=None, newest_first=False, **session):
    """Run a session over a script; `order` seeds the order of completion."""
    source = ScriptedSource(script, np.random.default_rng(order), newest_first)
    arguments = {"run_seed": 7, "step": 3, "latency": latency, **session}
    return run_sampling(session_of(plan, script, **arguments), source), source


def session_of(plan, script, *, first_wave_P=None, reserve=0, **session):
    """A session for the prompts of a script."""
    uid_P = np.arange(len(script.reward_PI))
    return SamplingSession(StepState(plan, uid_P, first_wave_P=first_wave_P, reserve=reserve), **session)


def advantages_of(reward_N, positive_N, prompt_N, row, row_weight, *, weight_P, prior_P=None, **settings):
    """Advantages of rows of pools that are given as columns."""
    pools = SimpleNamespace(reward_N=reward_N, positive_N=positive_N, prompt_N=prompt_N, uid_P=np.arange(len(weight_P)))
    own = AdvantageSettings(**{"baseline": "pool" if prior_P is None else "shrunk", **settings})
    rows = RowSettings(row.shape[-1], StopRule(FixedExit(1), (1,), 1), own)
    return compute_advantages(pools, row, row_weight, rows, weight_N=weight_P[prompt_N], prior_P=prior_P)


def predicted(estimator, *prompts):
    """Mean of an estimator's Beta distribution of each prompt."""
    a_P, b_P = estimator.predict_beta(*prompts)
    return a_P / (a_P + b_P)


class Driven:
    """A session that a test moves by hand, over a script or its rows."""

    def __init__(self, plan, *rows, **session):
        script = rows[0] if isinstance(rows[0], Script) else Script.of(*rows)
        self.source = ScriptedSource(script, np.random.default_rng(0))
        arguments = {"run_seed": 0, "step": 0, **session}
        self.session = session_of(plan, script, **arguments)

    def ask(self, now=0.0):
        """Submit what the session wants now."""
        requests = self.session.next_requests(now)
        if len(requests):
            self.source.submit(requests)
        return requests

    def end(self, now, *rows):
        """Finish these responses."""
        self.session.record(self.source.end(list(rows)), now)

    def drop(self, now=0.0):
        """Abort what the session no longer wants; its ids."""
        rows = self.session.take_aborts()
        if len(rows):
            self.session.record_aborted(rows, self.source.abort(rows), now)
        return sorted(rows.tolist())


def pools(result):
    """(index, reward, tokens) of each prompt's pool."""
    found = [[] for _ in result.uid_P]
    columns = (result.prompt_N, result.index_N, result.reward_N, result.tokens_N)
    for prompt, *response in zip(*(column.tolist() for column in columns), strict=True):
        found[prompt].append(tuple(response))
    return found


def met(rule, pos, neg):
    """The exit conditions, written down a second time (algorithm.md section 2)."""
    match rule:
        case PositiveExit(k_pos):
            return pos >= k_pos
        case BalancedExit(k_pos, k_neg):
            return (pos >= k_pos) & (neg >= k_neg)
        case FixedExit(n):
            return pos + neg >= n
    raise AssertionError(rule)


def wave_oracle(plan, script, prompt):
    """Indices of the pool without a binding budget."""
    kept = []
    index = failed = wave = 0
    while True:
        size = plan.stop.wave_sizes[min(wave, len(plan.stop.wave_sizes) - 1)]
        target = min(len(kept) + size, plan.stop.cap)
        while len(kept) < target and failed < plan.stop.cap:  # a failed response is redrawn
            for _ in range(target - len(kept)):
                if script.label(prompt, index) is None:
                    failed += 1
                else:
                    kept.append(index)
                index += 1
        pos = sum(bool(script.label(prompt, i)) for i in kept)
        if met(plan.stop.exit, pos, len(kept) - pos) or len(kept) >= plan.stop.cap or failed >= plan.stop.cap:
            return kept
        wave += 1
