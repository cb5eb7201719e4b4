"""What limits a step with a language model on this CPU: its phases beside the machine's matrix products.

    python recipes/benchmarks/bench_model.py [--config configs/cpu/smollm2.yaml] [--steps 3] [--out runs/bench_model]
                                            [key=value ...]

Each variant trains some steps in processes of its own; the first step is left out. The limit of sampling and update is
the time that their tokens need at the speed of the matrix products measured just before (2 and 6 operations per weight
and token). A row's tokens count with its prompt, so packing and the prefix cache can be faster than their limit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from compare_cpu import ROOT, fresh_folder
from measure import measure
from tables import markdown_table

from nemo_ada.cpu.model_folder import read_shape
from nemo_ada.cpu.settings import load_run
from nemo_ada.cpu.stack import Stack, build_run_task
from nemo_ada.cpu.trainer import Trainer
from nemo_ada.run.folder import read_lines

VARIANTS = {
    "as configured": [],
    "one thread": ["policy.threads=1"],
    "padded rows": ["policy.sequence_packing.enabled=false", "policy.train_micro_batch_size=16"],
    "micro-batches of 4096": ["policy.sequence_packing.train_mb_tokens=4096"],
    "32 responses at once": ["policy.generation.max_num_seqs=32"],
}
PHASES = ("sampling", "update", "refit")
PRODUCT = """
import sys, time, torch
kind, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
a, b = (torch.randn(1024, n, dtype=getattr(torch, kind)) for n in (576, 576))
a @ b.T
done, began = 0, time.perf_counter()
while time.perf_counter() - began < 2:
    a @ b.T
    done += 1
print(2 * 1024 * 1024 * 576 * done / (time.perf_counter() - began) / 1e9)
"""


def products(kind: str, threads: int) -> float:
    """Billions of operations per second of a matrix product, in a process of its own."""
    command = [sys.executable, "-c", PRODUCT, kind, str(threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def measured(config_path: Path, folder: Path, steps: int, overrides: list[str]) -> dict[str, float]:
    """Means over a variant's steps but the first."""
    common = [f"grpo.max_num_steps={steps + 1}", "grpo.val_at_start=false", "checkpointing.enabled=false",
              "validation.max_prompts=1", f"run_dir='{folder}'"]  # fmt: skip
    config = load_run(config_path, [*overrides, *common])
    task = build_run_task(config)
    with Stack(config) as stack:
        Trainer(config, stack, task).run()
    records = read_lines(folder / "metrics.jsonl")[1:]
    names = ("time/step", *(f"time/{phase}" for phase in PHASES), "ada/tokens_drawn", "ada/samples_drawn")
    return {name: float(np.mean([record[name] for record in records])) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "cpu" / "smollm2.yaml")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench_model")
    parser.add_argument("overrides", nargs="*", help="key=value for every variant")
    arguments = parser.parse_args()
    out = fresh_folder(arguments.out)
    rows = []
    for name in arguments.variants:
        overrides = [*arguments.overrides, *VARIANTS[name]]
        policy = load_run(arguments.config, overrides).policy
        shape = read_shape(str(policy.model_name))
        speed = products("float32", policy.threads)
        found = measured(arguments.config, out / name.replace(" ", "_"), arguments.steps, overrides)
        drawn = found["ada/tokens_drawn"]
        rows.append(
            {
                "variant": name,
                "s per step": f"{found['time/step']:.1f}",
                **{phase: f"{found[f'time/{phase}']:.1f}" for phase in PHASES},
                "responses": f"{found['ada/samples_drawn']:.0f}",
                "tokens drawn per s": f"{drawn / found['time/sampling']:.0f}",
                "limit": f"{speed * 1e9 / (2 * shape.parameters):.0f}",
                "GFLOP/s": f"{speed:.0f}",
            }
        )
        print(rows[-1], flush=True)
    kinds = ", ".join(
        f"{kind} {products(kind, threads):.0f} with {threads}" for kind in ("float32", "bfloat16") for threads in (1, 2)
    )
    text = f"{markdown_table(rows)}\n\nMatrix products of 1024 x 576 x 1024, GFLOP/s by threads: {kinds}.\n"
    (out / "bench_model.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    measure(main)
