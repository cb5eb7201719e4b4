"""Presets and rivals against GRPO on every axis of cost, over seeds, with paired intervals.

    python recipes/benchmarks/compare_presets.py --setting plentiful|repeated|groups16|groups64|words|tail|smollm2
                                                [--seeds 5] [--first-seed 0] [--baseline "grpo n=16"]
                                                [--rates "grpo n=4=1e-4" ...] [--out FOLDER]

`plentiful`: mini_sudoku with 4096 training prompts. `repeated`: 32 prompts, 100 epochs. `groups16`, `groups64`:
plentiful for groups of 16 or 64, with fewer prompts per step; take --baseline "grpo n=16" or "grpo n=64". `tail`:
spell_backward with up to eight drafts, of which the last one counts, so that lengths have a tail. `words`:
spell_backward without drafts. `smollm2`: SmolLM2-135M on arithmetic, after `make smollm2`. A killed comparison goes on
where it was when started again with the same --out. Writes presets.md.

Rivals are settings of our loop, named after the paper whose idea they take; the loop, the loss and the batch are the
same for all. Each method trains at its own learning rate (RATES), tuned on seeds from 3000 on.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from compare_cpu import LEARNING_RATES, ROOT

from nemo_ada.config.load import load_run
from nemo_ada.config.run import RunConfig
from nemo_ada.embedded.stack import Stack, run_task
from nemo_ada.embedded.trainer import Trainer, check_run
from nemo_ada.errors import UserError
from nemo_ada.report.curves import Run, against, comparison_rows, markdown_table
from nemo_ada.run.folder import RunDir, read_lines
from nemo_ada.run.job_control import EXIT_DONE

BASELINE = "grpo n=4"
N1, N2, N8, N16, N64 = (f"grpo.num_generations_per_prompt={n}" for n in (1, 2, 8, 16, 64))
CHOSEN = "reinforce_ada={preset: ada_single, candidate_prompts: CANDIDATES x2}"
WEIGHTED = "reinforce_ada={preset: ada_single, candidate_prompts: CANDIDATES x4, candidate_choice: weighted}"
KNOWN = "estimator: {kind: value, memory: 0.95}"
CHOSEN_KNOWN = f"reinforce_ada={{preset: ada_single, candidate_prompts: CANDIDATES x2, {KNOWN}}}"
INFORMED = (
    "sampling: {kind: estimation, allocation: {kind: information}, min_responses: 1, max_responses: 8}"  # mean: n
)
HALF = "reinforce_ada={preset: ada_single, advantage: {keep_rows: 0.5}}"
TRACKER = "estimator: {kind: ema, adaptive_prior: true}"
METHODS = {
    BASELINE: ["reinforce_ada.preset=grpo"],
    "grpo n=8": ["reinforce_ada.preset=grpo", N8],
    "grpo n=4, reserve prompts": ["reinforce_ada.preset=grpo", "reinforce_ada.reserve_prompts=32"],
    "grpo n=4, shrunk baseline": [
        "reinforce_ada={preset: grpo, advantage: {baseline: shrunk}, estimator: {kind: ema, adaptive_prior: true}}"
    ],
    "grpo n=4, value baseline": [
        "reinforce_ada={preset: grpo, advantage: {baseline: shrunk}, estimator: {kind: value, strength: 4}}"
    ],
    "grpo n=4, chosen prompts": [
        "reinforce_ada={preset: grpo, candidate_prompts: CANDIDATES, estimator: {kind: value}}"
    ],
    "grpo n=4, chosen prompts, shrunk baseline": [
        "reinforce_ada={preset: grpo, candidate_prompts: CANDIDATES, advantage: {baseline: shrunk}, "
        "estimator: {kind: value}}"
    ],
    "ada_single n=1": ["reinforce_ada.preset=ada_single", "PROMPTS x4", N1],
    "ada_single n=1, two updates": ["reinforce_ada.preset=ada_single", "PROMPTS x4", N1, "UPDATES x2"],
    "ada_single n=1, four updates": ["reinforce_ada.preset=ada_single", "PROMPTS x4", N1, "UPDATES x4"],
    "ada_single n=1, eight updates": ["reinforce_ada.preset=ada_single", "PROMPTS x4", N1, "UPDATES x8"],
    "ada_single n=1, sixteen updates": ["reinforce_ada.preset=ada_single", "PROMPTS x4", N1, "UPDATES x16"],
    "ada_single n=1, weighted choice, eight updates": [WEIGHTED, "PROMPTS x4", N1, "UPDATES x8"],
    "ada_single n=2": ["reinforce_ada.preset=ada_single", "PROMPTS x2", N2],
    "ada_single n=2, chosen prompts": [CHOSEN, "PROMPTS x2", N2],
    "ada_single n=2, by information": [f"reinforce_ada={{preset: ada_single, {INFORMED}}}", "PROMPTS x2", N2],
    "ada_single n=2, weighted choice, by information": [
        f"reinforce_ada={{preset: ada_single, {INFORMED}, candidate_prompts: CANDIDATES x2, "
        "candidate_choice: weighted}",
        "PROMPTS x2",
        N2,
    ],
    "ada_single n=2, chosen prompts, memory": [CHOSEN_KNOWN, "PROMPTS x2", N2],
    "ada_single n=2, memory": [f"reinforce_ada={{preset: ada_single, {KNOWN}}}", "PROMPTS x2", N2],
    "ada_single n=1, memory": [f"reinforce_ada={{preset: ada_single, {KNOWN}}}", "PROMPTS x4", N1],
    "ada_single n=2, chosen prompts, two updates": [CHOSEN, "PROMPTS x2", N2, "UPDATES x2"],
    "ada_single n=2, chosen prompts, four updates": [CHOSEN, "PROMPTS x2", N2, "UPDATES x4"],
    "ada_single n=2, four updates": ["reinforce_ada.preset=ada_single", "PROMPTS x2", N2, "UPDATES x4"],
    "ada_single n=1, half of the rows": [HALF, "PROMPTS x4", N1],
    "ada_single n=1, half of the rows, four updates": [HALF, "PROMPTS x4", N1, "UPDATES x4"],
    "ada_single n=1, half of the rows, eight updates": [HALF, "PROMPTS x4", N1, "UPDATES x8"],
    "ada_single n=1, ema": [f"reinforce_ada={{preset: ada_single, {TRACKER}}}", "PROMPTS x4", N1],
    "ada_single n=1, ema, weighted choice, batch normalisation (SPO)": [
        f"reinforce_ada={{preset: ada_single, advantage: {{normalize: batch}}, candidate_prompts: CANDIDATES x4, "
        f"candidate_choice: weighted, {TRACKER}}}",
        "PROMPTS x4",
        N1,
    ],
    "grpo n=4, two updates": ["reinforce_ada.preset=grpo", "UPDATES x2"],
    "grpo n=4, four updates": ["reinforce_ada.preset=grpo", "UPDATES x4"],
    "grpo n=4, eight updates": ["reinforce_ada.preset=grpo", "UPDATES x8"],
    "grpo n=4, sixteen updates": ["reinforce_ada.preset=grpo", "UPDATES x16"],
    "grpo n=4, divided by the standard deviation (GRPO, DeepSeekMath)": [
        "reinforce_ada={preset: grpo, advantage: {normalize: std}}"
    ],
    "grpo n=4, advantage over the pass rate (MaxRL)": [
        "reinforce_ada={preset: grpo, advantage: {objective: {kind: log}}}"
    ],
    "grpo n=4, prompts whose labels differed before (GRESO, MoPPS)": [
        "reinforce_ada={preset: grpo, candidate_prompts: CANDIDATES, estimator: {kind: ema}}"
    ],
    "grpo n=4, allocation by variance (VIP)": [
        "reinforce_ada={preset: grpo, advantage: {weighting: objective}, estimator: {kind: value}, sampling: {kind: "
        "estimation, allocation: {kind: information, exponent: 0.5}, min_responses: 2, max_responses: 16}}"
    ],
    "4 of 8 responses with the largest variance (PODS)": [
        "reinforce_ada={sampling: {kind: sequential, exit: {kind: fixed, n: 8}, wave_size: 8, max_responses: 8}}"
    ],
    "grpo n=16": ["reinforce_ada.preset=grpo", N16],
    "ada_pilot n=16 (Pilot-Commit)": ["reinforce_ada.preset=ada_pilot", N16],
    "ada_pilot n=16, twice the prompts": ["reinforce_ada.preset=ada_pilot", "PROMPTS x2", N16],
    "ada_pilot n=16, reserve prompts (SPEED)": ["reinforce_ada={preset: ada_pilot, reserve_prompts: CANDIDATES}", N16],
    "grpo n=64": ["reinforce_ada.preset=grpo", N64],
    "ada_pilot n=64, twice the prompts": ["reinforce_ada.preset=ada_pilot", "PROMPTS x2", N64],
    "ada_seq_positive": ["reinforce_ada.preset=ada_seq_positive"],
    "ada_seq_balance": ["reinforce_ada.preset=ada_seq_balance"],
    "ada_seq_lean": ["reinforce_ada.preset=ada_seq_lean"],
    "ada_seq_idle": ["reinforce_ada.preset=ada_seq_idle"],
    "ada_seq_log": ["reinforce_ada.preset=ada_seq_log"],
    "ada_est_ema n=8": ["reinforce_ada.preset=ada_est_ema", N8],
    "ada_est_value n=8": ["reinforce_ada.preset=ada_est_value", N8],
}
AHEAD = ", asynchronous"  # the next step is drawn while this one is trained on; at the method's own rate
for _name in (BASELINE, "ada_seq_lean", "ada_seq_balance"):
    METHODS[_name + AHEAD] = [*METHODS[_name], "grpo.async_grpo.enabled=true"]
PLENTIFUL = ["grpo.max_num_steps=80", "grpo.val_period=10"]
REPEATED = ["task.train_prompts=32", "grpo.max_num_steps=200", "grpo.val_period=25"]
RATES = {  # learning rates tuned on seed 3000 (recipes/results/presets.md); other methods take LEARNING_RATES
    "plentiful": {
        "ada_single n=1": 3e-4,
        "ada_single n=2": 3e-4,
        "ada_single n=2, chosen prompts": 3e-4,
    },
    "smollm2": {"ada_single n=2": 2e-5, "ada_seq_balance": 2e-5},  # the latter not tuned
    "groups16": dict.fromkeys((name for name in METHODS if name.startswith("ada_pilot")), 1e-4),
    "tail": dict.fromkeys(METHODS, 3e-5),  # not tuned with drafts
    "words": dict.fromkeys(METHODS, 2.4e-4)  # not tuned: lean, balance, reserve prompts, shrunk baseline: GRPO's
    | dict.fromkeys(
        [
            "ada_single n=2, chosen prompts",
            "ada_single n=2, by information",
            "ada_single n=1, ema, weighted choice, batch normalisation (SPO)",
            "4 of 8 responses with the largest variance (PODS)",
        ],
        4.8e-4,
    )
    | dict.fromkeys(
        [
            "grpo n=4, four updates",
            "ada_single n=1, four updates",
            "ada_single n=1, eight updates",
            "ada_single n=1, half of the rows, four updates",
        ],
        1.2e-4,
    ),
}
MEMORY = ", memory"
RATES["repeated"] = RATES["plentiful"]  # not tuned there
SETTINGS = {  # task, prompts of a step, candidates of a step where prompts are chosen, overrides
    "plentiful": ("mini_sudoku", 32, 128, PLENTIFUL),
    "repeated": ("mini_sudoku", 16, 32, REPEATED),
    "words": ("spell_backward", 32, 128, PLENTIFUL),
    "groups16": ("mini_sudoku", 8, 32, PLENTIFUL),
    "groups64": ("mini_sudoku", 4, 16, PLENTIFUL),
    "tail": ("spell_backward", 32, 128, [*PLENTIFUL, "grpo.max_num_steps=40", "task.drafts=8"]),
    "smollm2": ("smollm2", 32, 128, ["grpo.max_num_steps=24", "grpo.val_period=8"]),
}


def overrides_of(method: str, prompts: int, candidates: int) -> list[str]:
    """A method's overrides.

    `PROMPTS xM` stands for M times the step's prompts, `CANDIDATES xM` likewise, `UPDATES xM` for M updates per step,
    each on its share of the rows.
    """

    def times(match: re.Match[str]) -> str:
        many = int(match[2] or 1)
        if match[1] == "UPDATES":
            return f"policy.train_global_batch_size={4 * prompts // many}"
        return f"grpo.num_prompts_per_step={prompts * many}" if match[1] == "PROMPTS" else str(candidates * many)

    pattern = re.compile(r"(PROMPTS|CANDIDATES|UPDATES)(?: x(\d+))?")
    return [f"grpo.num_prompts_per_step={prompts}", *(pattern.sub(times, text) for text in METHODS[method])]


def rate(text: str) -> tuple[str, float]:
    """(method, learning rate) of METHOD=RATE."""
    name, _, value = text.rpartition("=")
    if name not in METHODS:
        raise argparse.ArgumentTypeError(f"{text!r}: write it as 'grpo n=4=1e-4', with a method of METHODS")
    return name, float(value)


def finished(config: RunConfig) -> bool:
    """Whether a run directory holds all evaluations of this run. Raises UserError when it holds those of another."""
    RunDir(config.folder).check(config.model_dump(mode="json"), resume=True)
    grpo, found = config.grpo, [line["step"] for line in read_lines(config.folder / "evaluations.jsonl")]
    expected = sorted({0, *range(grpo.val_period, grpo.max_num_steps, grpo.val_period), grpo.max_num_steps})
    if found != expected[: len(found)]:
        raise UserError(
            f"{config.folder} holds evaluations after steps {found}, and with grpo.max_num_steps={grpo.max_num_steps} "
            f"and val_period={grpo.val_period} they come after {expected}: name another --out"
        )
    return found == expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=sorted(SETTINGS), default="plentiful")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="above 0: seeds that no earlier look has seen")
    parser.add_argument("--baseline", choices=list(METHODS), default=BASELINE)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument(
        "--rates", nargs="+", type=rate, default=[], metavar="METHOD=RATE", help="learning rates instead of RATES"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "presets")
    parser.add_argument("overrides", nargs="*", help="key=value for every run")
    arguments = parser.parse_args()
    if arguments.seeds < 1 or arguments.first_seed < 0:
        parser.error("--seeds must be at least 1, --first-seed at least 0")
    baseline = arguments.baseline
    methods = [baseline, *(name for name in arguments.methods if name != baseline)]
    if len(methods) == 1:
        parser.error(f"--methods names nothing to compare with {baseline}")
    out = arguments.out / arguments.setting
    task_name, prompts, candidates, setting = SETTINGS[arguments.setting]
    rates, usual = RATES.get(arguments.setting, {}) | dict(arguments.rates), LEARNING_RATES[task_name][BASELINE]
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    configs = {
        (name, seed): load_run(
            ROOT / "configs" / "cpu" / f"{task_name}.yaml",
            [
                *overrides_of(name, prompts, candidates),
                *setting,
                f"policy.megatron_cfg.optimizer.lr={rates.get(name.removesuffix(AHEAD).removesuffix(MEMORY), usual)}",
                f"grpo.seed={seed}",
                "checkpointing.enabled=false",
                f"run_dir='{out / (name.replace(' ', '_').replace(',', '') + f'-s{seed}')}'",
                *arguments.overrides,
            ],
        )
        for seed in seeds
        for name in methods
    }
    first = next(iter(configs.values()))
    task = run_task(first)
    for config in configs.values():
        check_run(config, task)
    left = {key: config for key, config in configs.items() if not finished(config)}
    with Stack(first) as stack:
        for (name, seed), config in left.items():
            resumed = config.model_copy(update={"resume": "auto"})
            outcome = Trainer(resumed, stack, task).run()
            if outcome.exit_code != EXIT_DONE:
                return outcome.exit_code
            accuracy = outcome.evaluation.get("val/accuracy", float("nan"))
            print(f"{name}, seed {seed}: accuracy {accuracy:.3f} after step {outcome.step}", flush=True)
    runs = {name: [Run.read(configs[name, seed].folder, name) for seed in seeds] for name in methods}
    rows = [
        {"method": name, **{axis.removeprefix("total/"): str(found) for axis, found in differences.items()}}
        for name, differences in against(runs, baseline).items()
    ]
    text = (
        f"# {arguments.setting}: area under held-out accuracy against {baseline}, seeds {seeds[0]} to {seeds[-1]}, "
        f"paired, 95 % intervals, at equal ...\n\n{markdown_table(rows)}\n\n"
        f"{markdown_table([row for mine in zip(*runs.values(), strict=True) for row in comparison_rows(mine)])}\n"
    )
    (out / "presets.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
