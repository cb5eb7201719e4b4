"""The sampling phase by scheduler: the CPU vLLM engine and the discrete-event model side by side.

    python recipes/benchmarks/bench_sampling.py [--prompts 64] [--seeds 3] [--model-seeds 20] [--hidden-size 128]
                                                [--layers 2] [--out runs/bench_sampling]

Every policy sees the same prompts, labels and (forced, heavy-tailed) lengths. Runs of different policies are
interleaved, seed by seed, each seed beginning with another policy, and each policy is compared with the barrier of the
same seed. On a CPU a decode step gets dearer with every running response above some 30, on a GPU it does not: engine
steps are what carries over, wall time is reported beside what the latency model predicts for these engine steps.

Columns: engine steps; tokens decoded and kept; mean kept length; length bias = kept length minus the mean length of
responses with the same labels; pass-rate bias = estimate minus the true pass rate; label bias =
label minus true pass rate of the responses after the first wave; 95 % intervals over prompts or responses. Predicted
wall: the seconds per token that the latency model knew before the phase, at the phase's own mean load, times its engine
steps. What our own decisions take does not depend on the model, what an engine step takes does: a larger
`--hidden-size` and `--layers` show their share beside steps as long as a GPU's.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from measure import measure
from tables import markdown_table
from workload import HARD, LENGTHS, ReplaySource

from nemo_ada.core.sampling.exits import BalancedExit, FixedExit
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.result import SamplingResult
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import Outcomes, Requests
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.summary import summarise
from nemo_ada.lab.simulate.engine import DiscreteEventSource, Workload

FFN = 2  # times the hidden size
WARM_STEPS = 2  # steps that teach the latency model before the measured one

_balanced = SamplingPlan(StopRule(BalancedExit(2, 2), (8,), 32), 4, LENGTHS.max_new_tokens)
POLICIES: dict[str, SamplingPlan] = {
    "barrier waves of 8": replace(_balanced, scheduler="rounds"),
    "continuous waves of 8": _balanced,
    "GRPO n=4": SamplingPlan(StopRule(FixedExit(4), (4,), 4), 4, LENGTHS.max_new_tokens),
}
BASELINE = {name: "GRPO n=4" if name.startswith("GRPO") else "barrier waves of 8" for name in POLICIES}


@dataclass(frozen=True, slots=True)
class Phase:
    """One sampling phase: what it took and what it kept."""

    steps: int
    decoded: int
    kept: int
    responses: int
    wall: float
    decisions: float
    predicted: float
    zero_signal: float
    length_bias: np.ndarray
    rate_bias: np.ndarray
    extra_bias: np.ndarray


class TimedSession(SamplingSession):
    """A session that knows how long its own decisions took, from its making to its result."""

    seconds = 0.0

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    def __init__(self, *args: Any, **options: Any) -> None:
        with self._timed():
            super().__init__(*args, **options)

    def next_requests(self, now: float) -> Requests:
        with self._timed():
            return super().next_requests(now)

    def record(self, outcomes: Outcomes, now: float) -> None:
        with self._timed():
            super().record(outcomes, now)

    def take_aborts(self) -> np.ndarray:
        with self._timed():
            return super().take_aborts()

    def record_aborted(self, response_id_N: np.ndarray, tokens_N: np.ndarray, now: float) -> None:
        with self._timed():
            super().record_aborted(response_id_N, tokens_N, now)

    def result(self) -> SamplingResult:
        with self._timed():
            return super().result()


def phase(plan: SamplingPlan, workload: Workload, source: Any, latency: LatencyModel, counters: Any) -> Phase:
    """Run one sampling phase; `counters` has the engine's steps and decoded tokens."""
    steps, decoded = _counts(counters)
    before = LatencyModel()
    before.load_state_dict(latency.state_dict())
    began = time.perf_counter()
    session = TimedSession(
        StepState(plan, np.arange(len(workload.pass_rate_P))), run_seed=0, step=workload.step, latency=latency
    )
    result = run_sampling(session, source)
    wall = time.perf_counter() - began
    after_steps, after_decoded = _counts(counters)
    extra_N = result.wave_N > 0
    mean_load = session.load / max(session.now - session.began, 1e-9)
    return Phase(
        steps=after_steps - steps,
        decoded=after_decoded - decoded,
        kept=int(result.tokens_N.sum()),
        responses=len(result.tokens_N),
        wall=wall,
        decisions=session.seconds / wall,
        predicted=before.predict_seconds_per_token(mean_load) * (after_steps - steps),
        zero_signal=summarise(result)["zero_signal_groups"],
        length_bias=_length_bias(result, workload),
        rate_bias=_rate_bias(result, workload),
        extra_bias=result.positive_N[extra_N] - workload.pass_rate_P[result.prompt_N[extra_N]],
    )


def _counts(counters: Any) -> tuple[int, int]:
    """(engine steps, tokens decoded) so far, of the model or of the engine."""
    return counters.steps, counters.decoded if isinstance(counters, DiscreteEventSource) else counters.decoded_tokens


_MEAN_LENGTH = [
    float(LENGTHS.tokens(np.full(400_000, label), np.random.default_rng(0).standard_normal(400_000)).mean())
    for label in (False, True)
]


def _length_bias(result: SamplingResult, workload: Workload) -> np.ndarray:
    expected_N = np.where(result.positive_N, _MEAN_LENGTH[1], _MEAN_LENGTH[0])
    prompts = len(workload.pass_rate_P)
    size_P = np.maximum(np.bincount(result.prompt_N, minlength=prompts), 1)
    return np.bincount(result.prompt_N, result.tokens_N - expected_N, prompts) / size_P


def _rate_bias(result: SamplingResult, workload: Workload) -> np.ndarray:
    return result.rate_P - workload.pass_rate_P


def interval(values: np.ndarray) -> str:
    """Mean and 95 % interval."""
    return f"{values.mean():+.3f} ±{1.96 * values.std(ddof=1) / np.sqrt(len(values)):.3f}"


def ratio(ours: Sequence[float], base: Sequence[float]) -> str:
    """Mean ratio over seeds, with the smallest and the largest."""
    values = np.array(ours) / np.array(base)
    return f"{values.mean():.2f} ({values.min():.2f}-{values.max():.2f})"


def table(phases: dict[str, list[Phase]], *, wall: bool) -> str:
    """Markdown: one row per policy, ratios against its baseline of the same seed."""
    rows = []
    for name, mine in phases.items():
        base = phases[BASELINE[name]]
        row = {
            "policy": name,
            "against": BASELINE[name],
            "engine steps": ratio([p.steps for p in mine], [p.steps for p in base]),
            "tokens decoded": ratio([p.decoded for p in mine], [p.decoded for p in base]),
            "tokens kept": ratio([p.kept for p in mine], [p.kept for p in base]),
            "mean kept length": f"{sum(p.kept for p in mine) / sum(p.responses for p in mine):.1f}",
            "zero-signal groups": f"{np.mean([p.zero_signal for p in mine]):.2f}",
            "length bias": interval(np.concatenate([p.length_bias for p in mine])),
            "pass-rate bias": interval(np.concatenate([p.rate_bias for p in mine])),
            "label bias, later waves": interval(np.concatenate([p.extra_bias for p in mine]))
            if plan_has_waves(name)
            else "",
        }
        if wall:
            row["seconds"] = f"{np.mean([p.wall for p in mine]):.2f}"
            row["wall"] = ratio([p.wall for p in mine], [p.wall for p in base])
            row["ms an engine step"] = f"{1e3 * sum(p.wall for p in mine) / sum(p.steps for p in mine):.1f}"
            row["decisions, share of wall"] = f"{100 * np.mean([p.decisions for p in mine]):.2f} %"
            row["predicted / measured wall"] = f"{np.mean([p.predicted / p.wall for p in mine]):.2f}"
        rows.append(row)
    return markdown_table(rows)


def plan_has_waves(name: str) -> bool:
    """Whether later waves exist whose labels can be compared with the prompts' pass rates."""
    return not name.startswith("GRPO")


def run_model(prompts: int, seeds: int) -> dict[str, list[Phase]]:
    """All policies in the discrete-event model, whose clock counts engine steps."""
    phases: dict[str, list[Phase]] = {name: [] for name in POLICIES}
    for seed in range(seeds):
        rates = HARD.draw(prompts, seed)
        for name, plan in POLICIES.items():
            latency = LatencyModel()
            for step in range(WARM_STEPS + 1):
                workload = Workload(rates, LENGTHS, seed=seed, step=step)
                source = DiscreteEventSource(workload.draw)
                last = phase(plan, workload, source, latency, source)
            phases[name].append(last)
    return phases


def run_engine(prompts: int, seeds: int, hidden_size: int, layers: int) -> dict[str, list[Phase]]:
    """All policies on vLLM with a random model of this size, interleaved seed by seed."""
    from safetensors.torch import save_file

    from nemo_ada.cpu.engine.vllm_engine import Engine, EngineConfig
    from nemo_ada.cpu.learner.convert import make_random_weights
    from nemo_ada.cpu.learner.shape import PolicyShape

    shape = PolicyShape(hidden_size, FFN * hidden_size, layers, max_position_embeddings=256)
    phases: dict[str, list[Phase]] = {name: [] for name in POLICIES}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape.hf_config()))
        save_file(make_random_weights(shape, 0), Path(folder) / "model.safetensors", {"format": "pt"})
        engine = Engine(EngineConfig(Path(folder), max_model_len=256, max_num_seqs=1024))
        latencies = {name: LatencyModel() for name in POLICIES}
        for seed in range(seeds):
            rates = HARD.draw(prompts, seed)
            order = list(POLICIES)[seed % len(POLICIES) :] + list(POLICIES)[: seed % len(POLICIES)]
            for name in order:
                plan = POLICIES[name]
                for step in range(WARM_STEPS + 1) if seed == 0 else [WARM_STEPS]:  # the model's own step is measured
                    workload = Workload(rates, LENGTHS, seed=seed, step=step)
                    source = ReplaySource(engine, workload, step_clock=False)
                    last = phase(plan, workload, source, latencies[name], engine)
                    source.close()
                phases[name].append(last)
                print(f"seed {seed}: {name}: {last.steps} steps, {last.wall:.2f} s", flush=True)
        engine.close()
    return phases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model-seeds", type=int, default=20)
    parser.add_argument("--hidden-size", type=int, default=128, help="of the engine's model")
    parser.add_argument("--layers", type=int, default=2, help="of the engine's model")
    parser.add_argument("--no-engine", action="store_true", help="the discrete-event model alone")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_sampling"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    model = run_model(arguments.prompts, arguments.model_seeds)
    text = f"## Discrete-event model, {arguments.model_seeds} seeds\n\n{table(model, wall=False)}\n"
    if not arguments.no_engine:
        engine = run_engine(arguments.prompts, arguments.seeds, arguments.hidden_size, arguments.layers)
        size = f"{arguments.layers} layers of {arguments.hidden_size}"
        text += f"\n## vLLM on a CPU, {size}, {arguments.seeds} seeds\n\n{table(engine, wall=True)}\n"
    (arguments.out / "bench_sampling.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    measure(main)
