"""Learning rate per method for compare_cpu.py: a short run per rate, the best area under held-out accuracy.

    python recipes/benchmarks/tune_lr.py [--task mini_sudoku] [--steps 60] [--rates 5e-5 1e-4 2e-4 4e-4]
                                        [--out runs/tune]

Every method gets the same rates, steps and seeds. Tuning uses its own seed (1000), so the comparison's seeds are not
tuned on. The rate to take is the smallest whose area is within 0.01 of the method's best: that much is noise here, and
too high a rate costs more than too low a one. Prints a table and writes it to tune.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from compare_cpu import LEARNING_RATES, METHODS, ROOT, fresh_folder, method_config
from measure import measure
from tables import markdown_table

from nemo_ada.cpu.stack import Stack, build_run_task
from nemo_ada.cpu.trainer import Trainer, check_run
from nemo_ada.lab.report.run import Run
from nemo_ada.run.job_control import EXIT_DONE

TUNING_SEED = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(LEARNING_RATES), default="mini_sudoku")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-5, 1e-4, 2e-4, 4e-4])
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), help="default: those of the task")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "tune")
    parser.add_argument("overrides", nargs="*", help="key=value for every run")
    arguments = parser.parse_args()
    out = fresh_folder(arguments.out)
    extra = ["checkpointing.enabled=false", *arguments.overrides]
    configs = {
        (name, lr): method_config(
            arguments.task, name, out / f"{name}-{lr:g}".replace(" ", "_"), arguments.steps, TUNING_SEED, lr, extra
        )
        for name in arguments.methods or LEARNING_RATES[arguments.task]
        for lr in arguments.rates
    }
    first = next(iter(configs.values()))
    task = build_run_task(first)
    for config in configs.values():
        check_run(config, task)
    rows = []
    with Stack(first) as stack:
        for (name, lr), config in configs.items():
            outcome = Trainer(config, stack, task).run()
            if outcome.exit_code != EXIT_DONE:
                return outcome.exit_code
            steps, accuracy = Run.read(config.folder).curve("step", "val/accuracy")
            area = float(np.trapezoid(accuracy, steps) / (steps[-1] - steps[0]))
            rows.append({"method": name, "lr": f"{lr:g}", "area": area, "first": accuracy[0], "last": accuracy[-1]})
            print(rows[-1], flush=True)
    table = markdown_table(rows)
    (out / "tune.md").write_text(f"# {arguments.task}, {arguments.steps} steps, seed {TUNING_SEED}\n\n{table}\n")
    print(table)
    return 0


if __name__ == "__main__":
    measure(main)
