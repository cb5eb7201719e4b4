"""GRPO and Reinforce-Ada side by side with the real libraries: what `make train` and `make train-lm` run.

    python recipes/benchmarks/compare_cpu.py [--task mini_sudoku] [--steps 50] [--seed 0] [--out runs/compare]

Every method of a task starts from the same base. On mini_sudoku a step has four updates, as in the paper's scripts, and
the rates are those of recipes/results/leaderboard.md. Elsewhere a step has one update, and tune_lr.py found the
rates. Not tuned: ada_seq_balance on smollm2, and all but grpo n=4 on spell_backward.
`--task smollm2` starts from SmolLM2-135M (`make smollm2`).
Writes comparison.md and comparison.png into the output folder, with one run directory per method.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from measure import measure
from tables import comparison_rows, markdown_table

from nemo_ada.cli.progress import make_observer
from nemo_ada.cpu.settings import RunConfig, load_run
from nemo_ada.cpu.stack import Stack, build_run_task
from nemo_ada.cpu.trainer import Trainer, check_run
from nemo_ada.lab.report.run import Run
from nemo_ada.run.job_control import EXIT_DONE

EVALUATIONS = 5  # per run, beside the one before the first step
ROOT = Path(__file__).resolve().parents[2]
ACCURACY = "val/accuracy"
COSTS = {"step": "training steps", "total/responses": "responses drawn"}
STYLES = ("#0072b2 o", "#d55e00 s", "#009e73 D", "#cc79a7 ^")  # Okabe and Ito's colours, and a marker
METHODS = {
    "grpo n=4": ["reinforce_ada.preset=grpo", "grpo.num_generations_per_prompt=4"],
    "grpo n=8": ["reinforce_ada.preset=grpo", "grpo.num_generations_per_prompt=8"],
    "ada_seq_balance": ["reinforce_ada.preset=ada_seq_balance"],
    "ada_seq_lean": ["reinforce_ada.preset=ada_seq_lean"],
    "ada_single n=1": [
        "reinforce_ada.preset=ada_single",
        "grpo.num_generations_per_prompt=1",
        "grpo.num_prompts_per_step=128",
    ],
    "ada_single n=2": [
        "reinforce_ada.preset=ada_single",
        "grpo.num_generations_per_prompt=2",
        "grpo.num_prompts_per_step=64",
    ],
}
LEARNING_RATES = {
    "mini_sudoku": {"grpo n=4": 1e-4, "ada_seq_balance": 2e-4, "ada_single n=1": 1e-4},
    "spell_backward": {"grpo n=4": 2.4e-4, "grpo n=8": 2.4e-4, "ada_seq_balance": 2.4e-4, "ada_seq_lean": 2.4e-4},
    "smollm2": {"grpo n=4": 1e-5, "ada_seq_balance": 2e-5, "ada_single n=2": 2e-5},
}
"""Configuration -> the methods that are compared on it, and their rates."""
SETTINGS = {"mini_sudoku": ["grpo.num_prompts_per_step=32", "policy.train_global_batch_size=32"]}
"""Configuration -> settings of all methods: 128 rows per step in four updates."""


def method_config(task: str, name: str, folder: Path, steps: int, seed: int, lr: float, extra: list[str]) -> RunConfig:
    """The configuration of one method's run."""
    return load_run(
        ROOT / "configs" / "cpu" / f"{task}.yaml",
        [
            *SETTINGS.get(task, ()),
            *METHODS[name],
            f"policy.megatron_cfg.optimizer.lr={lr}",
            f"grpo.max_num_steps={steps}",
            f"grpo.val_period={max(1, steps // EVALUATIONS)}",
            f"grpo.seed={seed}",
            f"run_dir='{folder}'",
            *extra,
        ],
    )


def fresh_folder(out: Path) -> Path:
    """`out`, or `out-2`, `out-3`, ...: earlier results are never overwritten."""
    number, folder = 1, out
    while folder.exists():
        number += 1
        folder = out.with_name(f"{out.name}-{number}")
    folder.mkdir(parents=True)
    return folder


def ahead(runs: Sequence[Run], cost: str) -> str:
    """The run with the largest area under accuracy, up to the cost that all runs reached."""
    curves = {run.name: run.curve(cost, ACCURACY) for run in runs}
    grid = np.linspace(0.0, min(x[-1] for x, _ in curves.values()), 200)
    return max(curves, key=lambda name: float(np.interp(grid, *curves[name]).mean()))


def plot(runs: Sequence[Run], path: Path, title: str) -> None:
    """Accuracy per step and per response: two panels, and a title that says which run is ahead on each."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True)
    leaders = [ahead(runs, cost) for cost in COSTS]
    for axes, (cost, label), leader in zip(panels, COSTS.items(), leaders, strict=True):
        for run, style in zip(runs, STYLES, strict=False):
            colour, marker = style.split()
            axes.plot(*run.curve(cost, ACCURACY), color=colour, marker=marker, markersize=5, label=run.name)
        axes.set_title(f"At equal {label} {leader} is ahead", fontsize=11)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("held-out accuracy")
    panels[1].legend(loc="lower right", fontsize=9)
    first, second = leaders
    depends = f"Which method is ahead depends on what you pay for: {first} per step, {second} per response"
    figure.suptitle(depends if first != second else f"{first} is ahead, per step and per response")
    figure.text(0.5, 0.01, f"{title}. One seed: differences below about .03 are noise.", ha="center", fontsize=9)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(LEARNING_RATES), default="mini_sudoku")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "compare")
    parser.add_argument("overrides", nargs="*", help="key=value for every method")
    arguments = parser.parse_args()
    started = time.perf_counter()
    out = fresh_folder(arguments.out)
    rates = LEARNING_RATES[arguments.task]
    configs = {
        name: method_config(
            arguments.task,
            name,
            out / name.replace(" ", "_"),
            arguments.steps,
            arguments.seed,
            rates[name],
            arguments.overrides,
        )
        for name in rates
    }
    first = next(iter(configs.values()))
    task = build_run_task(first)
    for config in configs.values():
        check_run(config, task)
    with Stack(first) as stack:
        for name, config in configs.items():
            print(f"--- {name}: {config.run_dir}")
            outcome = Trainer(config, stack, task, make_observer()).run()
            if outcome.exit_code != EXIT_DONE:
                return outcome.exit_code
    runs = [Run.read(config.folder, name) for name, config in configs.items()]
    table = markdown_table(comparison_rows(runs))
    title = f"{arguments.task}, {arguments.steps} steps, seed {arguments.seed}"
    plot(runs, out / "comparison.png", title)
    (out / "comparison.md").write_text(f"# {title}\n\n{table}\n", encoding="utf-8")
    print(f"\n{table}\n\n{out / 'comparison.png'}\n{out / 'comparison.md'}")
    print(f"{time.perf_counter() - started:.0f} s in all")
    return 0


if __name__ == "__main__":
    measure(main)
