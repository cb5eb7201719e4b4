"""What a cap on seconds does to the sampling phase of the CPU vLLM engine, on heavy-tailed lengths.

    python recipes/benchmarks/bench_caps.py [--prompts 24] [--steps 30] [--process-clock]
                                           [--quick] [--out runs/bench_caps]

1. Ten phases without caps are sampled and left as a run directory.
2. `nemo-ada plan` reads them and names the widest reinforce_ada.budget.max_seconds that should make phases even
   (none of the simulated ones over 1.15 times the median).
3. Phases with and without this cap are sampled in turn, on the same prompts, labels and (forced) lengths.

All this twice: with the wall clock (on a machine with other load, --process-clock: the process's own seconds), and with
a clock that counts engine steps, which is what time is to an engine whose step costs the same under any load (a GPU
below saturation). On a CPU a step gets dearer with every running response, so that tokens weigh in its seconds, and no
cap cuts the tokens of first waves.

Before and after each pair one phase is sampled that is always the same, to the token: the spread of its seconds is
the machine's own, and seconds divided by those of the two beside them are free of what changes slowly. Printed: p50,
p95 and their ratio of engine steps, tokens, wall seconds, seconds of the process and wall seconds so divided, and what
the cap costs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from measure import measure
from tables import markdown_table
from workload import GROUP, PROMPT_TOKENS, SPREAD, ReplaySource

from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.core.metrics import add_prefix
from nemo_ada.core.sampling.latency import LatencyModel
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.summary import summarise
from nemo_ada.lab.plan.command import Plan, PlanOptions, make_plan
from nemo_ada.lab.simulate.engine import LengthModel, Workload

ROOT = Path(__file__).parents[2]
PRESET = "ada_seq_positive"
FIRST, QUICK_FIRST = 10, 4
SAME = "same work"


@dataclass(frozen=True, slots=True)
class Phase:
    """One sampling phase: engine steps, tokens decoded, seconds by the wall and of this process; its statistics."""

    engine_steps: int
    tokens: int
    seconds: float
    cpu: float
    stats: dict[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine and the phases that are sampled on it."""

    engine: Any
    lengths: LengthModel
    prompts: int
    seed: int

    def phase(self, plan: SamplingPlan, latency: LatencyModel, step: int, clock: str) -> Phase:
        """Sample step number `step`; the latency model learns from it. clock: wall, process or engine steps."""
        rates = SPREAD.draw(self.prompts, self.seed * 100_003 + step)
        workload = Workload(rates, self.lengths, seed=self.seed, step=step)
        source = ReplaySource(self.engine, workload, step_clock=clock == "engine steps")
        if clock == "process":
            source.clock = time.process_time
        steps, tokens = self.engine.steps, self.engine.decoded_tokens
        began, cpu = time.perf_counter(), time.process_time()
        session = SamplingSession(
            StepState(plan, np.arange(self.prompts)), run_seed=self.seed, step=step, latency=latency
        )
        result = run_sampling(session, source)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        source.close()
        steps, tokens = self.engine.steps - steps, self.engine.decoded_tokens - tokens
        return Phase(steps, tokens, seconds, cpu, summarise(result, plan.budget))


def write_run(folder: Path, phases: list[Phase], latency: LatencyModel, prompts: int) -> None:
    """The phases as a run directory for `plan`; there was no update and no refit."""
    shutil.rmtree(folder, ignore_errors=True)
    state = folder / "checkpoints" / f"step_{len(phases):06d}" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"sampler": {"latency": latency.state_dict()}}), encoding="utf-8")
    records = [
        add_prefix(phase.stats)
        | {
            "step": step,
            "engine_steps": phase.engine_steps,
            "ada/live_rows": prompts * GROUP,
            "time/sampling": phase.stats["sampling_seconds"],
            "time/update": 0.0,
            "time/refit": 0.0,
            "time/step": phase.stats["sampling_seconds"],
        }
        for step, phase in enumerate(phases, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def ask_plan(folder: Path, prompts: int, longest: int) -> Plan:
    """What `nemo-ada plan` says to these phases."""
    overrides = [
        f"task.path={ROOT / 'recipes/data/chain_sum.jsonl'}",
        f"reinforce_ada.preset={PRESET}",
        f"grpo.num_prompts_per_step={prompts}",
        f"policy.generation.max_new_tokens={longest}",
        "policy.generation.max_num_seqs=1024",
    ]
    return make_plan(ROOT / "configs/cpu/jsonl.yaml", overrides, PlanOptions("01:00:00", run=folder))


def table(found: dict[str, list[Phase]]) -> str:
    """Markdown: p50, p95 and their ratio of each quantity, without and with the cap, and of the same work again."""
    quantities = {"engine steps": "engine_steps", "tokens": "tokens", "wall seconds": "seconds", "CPU seconds": "cpu"}
    values = {
        name: {kind: [getattr(phase, of) for phase in phases] for kind, phases in found.items()}
        for name, of in quantities.items()
    }
    same = np.array(values["wall seconds"][SAME])
    beside = (same[:-1] + same[1:]) / 2
    relative = {kind: seconds[: len(beside)] / beside for kind, seconds in values["wall seconds"].items()}
    rows = []
    for name, of_kind in {**values, "wall seconds over the same work's": relative}.items():
        row = {"per phase": name}
        for kind, numbers in of_kind.items():
            p50, p95 = np.quantile(numbers, (0.5, 0.95))
            row |= {f"p50 {kind}": f"{p50:.4g}", f"p95 {kind}": f"{p95:.4g}", f"p95/p50 {kind}": f"{p95 / p50:.2f}"}
        rows.append(row)
    return markdown_table(rows)


def costs(found: dict[str, list[Phase]]) -> str:
    """Markdown: what the cap costs, means per phase."""
    names = ("samples_drawn", "prompts_cut", "zero_signal_groups", "seconds_overshoot")

    def mean(kind: str, name: str) -> str:
        return f"{np.mean([phase.stats.get(name, 0.0) for phase in found[kind]]):.3g}"

    return markdown_table([{"mean per phase": name} | {kind: mean(kind, name) for kind in found} for name in names])


def start_engine(folder: Path, longest: int) -> Any:
    """vLLM on a small model with random weights: lengths are forced, its answers do not matter."""
    from safetensors.torch import save_file

    from nemo_ada.cpu.engine.vllm_engine import Engine, EngineConfig
    from nemo_ada.cpu.learner.convert import make_random_weights
    from nemo_ada.cpu.learner.shape import PolicyShape

    shape = PolicyShape(max_position_embeddings=longest + PROMPT_TOKENS)
    (folder / "config.json").write_text(json.dumps(shape.hf_config()))
    save_file(make_random_weights(shape, 0), folder / "model.safetensors", {"format": "pt"})
    return Engine(EngineConfig(folder, max_model_len=longest + PROMPT_TOKENS, max_num_seqs=1024))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--steps", type=int, default=30, help="phases with and without the cap, each")
    parser.add_argument("--median", type=float, default=20.0, help="tokens of a correct response")
    parser.add_argument("--longest", type=int, default=400, help="tokens of the longest response")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--process-clock", action="store_true", help="seconds of the process in place of the wall's")
    parser.add_argument("--quick", action="store_true", help="a few short phases: does it run?")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_caps"))
    a = parser.parse_args()
    clocks = ("process" if a.process_clock else "wall", "engine steps")
    steps, first, longest = (4, QUICK_FIRST, 60) if a.quick else (a.steps, FIRST, a.longest)
    text = ""
    with tempfile.TemporaryDirectory() as folder:
        engine = start_engine(Path(folder), longest)
        bench = Bench(engine, LengthModel(a.median, 1.2, 1.3, longest), a.prompts, a.seed)
        for clock in clocks:
            found = side_by_side(bench, clock, first, steps, a.out / clock.replace(" ", "_"))
            print(found, flush=True)
            text += found
        engine.close()
    (a.out / "bench_caps.md").write_text(text, encoding="utf-8")


def side_by_side(bench: Bench, clock: str, first: int, steps: int, out: Path) -> str:
    """`first` phases for the plan, then `steps` with and without the cap that it names; as Markdown."""
    longest = bench.lengths.max_new_tokens
    plan, learned = parse_ada_settings({"preset": PRESET}).plan(GROUP, longest), LatencyModel()
    bench.phase(plan, LatencyModel(), 0, clock)  # the engine's warm-up
    write_run(out, [bench.phase(plan, learned, 1 + i, clock) for i in range(first)], learned, bench.prompts)
    advice = ask_plan(out, bench.prompts, longest).steady
    if advice is None:
        return f"## Clock: {clock}\n\nThe plan has no advice on even steps.\n\n"
    title = f"## Clock: {clock}\n\nThe plan expects p95/p50 = {advice.uncapped:.2f}"
    if advice.max_seconds is None:
        return f"{title} and names no cap.\n\n"
    kinds = {"without": plan, "capped": replace(plan, budget=replace(plan.budget, max_seconds=advice.max_seconds))}
    latency = {kind: LatencyModel() for kind in kinds}
    for model in latency.values():
        model.load_state_dict(learned.state_dict())
    found: dict[str, list[Phase]] = {kind: [] for kind in (*kinds, SAME)}

    def sample(kind: str, step: int) -> None:
        phase = bench.phase(kinds.get(kind, plan), latency.get(kind, LatencyModel()), step, clock)
        found[kind].append(phase)
        with (out / "phases.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **asdict(phase)}) + "\n")

    for step in range(first + 1, first + 1 + steps):
        sample(SAME, first)
        for kind in kinds:
            sample(kind, step)
    sample(SAME, first)
    expected = f", and {advice.capped:.2f} with max_seconds={advice.max_seconds:g} ({clock})"
    return f"{title}{expected}.\n\n{table(found)}\n\n{costs({kind: found[kind] for kind in kinds})}\n\n"


if __name__ == "__main__":
    measure(main)
