"""Presets against GRPO on every axis of cost, over seeds, with paired intervals.

    python recipes/benchmarks/compare_presets.py --setting plentiful|repeated|groups16|groups64|words|tail|smollm2
                                                [--seeds 5] [--first-seed 0] [--baseline "grpo n=16"]
                                                [--rates "grpo n=4=1e-4" ...] [--out FOLDER]

`plentiful`: mini_sudoku with 4096 training prompts. `repeated`: 32 prompts, 100 epochs. `groups16`, `groups64`:
plentiful for groups of 16 or 64, with fewer prompts per step; take --baseline "grpo n=16" or "grpo n=64". `tail`:
spell_backward with up to eight drafts, of which the last one counts, so that lengths have a tail. `words`:
spell_backward without drafts. `smollm2`: SmolLM2-135M on arithmetic, after `make smollm2`. A killed comparison goes on
where it was when started again with the same --out. Writes OUT/SETTING/leaderboard.md.

Rivals are settings of our loop, named after the paper whose idea they take; the loop, the loss and the batch are the
same for all. Each method trains at its own learning rate: RATES has those that were tuned on seeds from 3000 on. The
table says "not tuned" where a method has none.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from compare_cpu import ROOT
from measure import measure
from tables import against, comparison_rows, markdown_table

from nemo_ada.cpu.settings import RunConfig, load_run
from nemo_ada.cpu.stack import Stack, build_run_task
from nemo_ada.cpu.trainer import Trainer, check_run
from nemo_ada.errors import UserError
from nemo_ada.lab.report.run import Run
from nemo_ada.run.folder import RunDir, read_lines
from nemo_ada.run.job_control import EXIT_DONE

BASELINE = "grpo n=4"
sys.path.append(str(ROOT / "recipes" / "extend"))
PILOT = "{{preset: grpo, sampling: {{exit: {{kind: own, name: pilot:Pilot}}, wave_size: [4, {rest}]}}}}"
N1, N2, N8, N16, N64 = (f"grpo.num_generations_per_prompt={n}" for n in (1, 2, 8, 16, 64))
KNOWN = "estimator: {kind: value, memory: 0.95}"
TRACKER = "estimator: {kind: ema, adaptive_prior: true}"
MEAN = "estimator: {kind: ema, adaptive_prior: true, per_prompt: false}"  # one running mean over all prompts
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
    "ada_single n=1": ["reinforce_ada.preset=ada_single", "PROMPTS x4", N1],
    "ada_single n=1, two updates": ["reinforce_ada.preset=ada_single", "PROMPTS x4", N1, "UPDATES x2"],
    "ada_single n=1, four updates": ["reinforce_ada.preset=ada_single", "PROMPTS x4", N1, "UPDATES x4"],
    "ada_single n=1, eight updates": ["reinforce_ada.preset=ada_single", "PROMPTS x4", N1, "UPDATES x8"],
    "ada_single n=1, sixteen updates": ["reinforce_ada.preset=ada_single", "PROMPTS x4", N1, "UPDATES x16"],
    "ada_single n=2": ["reinforce_ada.preset=ada_single", "PROMPTS x2", N2],
    "ada_single n=2, memory": [f"reinforce_ada={{preset: ada_single, {KNOWN}}}", "PROMPTS x2", N2],
    "ada_single n=1, memory": [f"reinforce_ada={{preset: ada_single, {KNOWN}}}", "PROMPTS x4", N1],
    "ada_single n=2, four updates": ["reinforce_ada.preset=ada_single", "PROMPTS x2", N2, "UPDATES x4"],
    "ada_single n=1, running-mean baseline": [f"reinforce_ada={{preset: ada_single, {MEAN}}}", "PROMPTS x4", N1],
    "ada_single n=1, running-mean baseline, eight updates": [
        f"reinforce_ada={{preset: ada_single, {MEAN}}}",
        "PROMPTS x4",
        N1,
        "UPDATES x8",
    ],
    "ada_single n=1, ema, eight updates": [
        f"reinforce_ada={{preset: ada_single, {TRACKER}}}",
        "PROMPTS x4",
        N1,
        "UPDATES x8",
    ],
    "ada_single n=1, ema": [f"reinforce_ada={{preset: ada_single, {TRACKER}}}", "PROMPTS x4", N1],
    "grpo n=4, two updates": ["reinforce_ada.preset=grpo", "UPDATES x2"],
    "grpo n=4, four updates": ["reinforce_ada.preset=grpo", "UPDATES x4"],
    "grpo n=4, eight updates": ["reinforce_ada.preset=grpo", "UPDATES x8"],
    "grpo n=4, sixteen updates": ["reinforce_ada.preset=grpo", "UPDATES x16"],
    "grpo n=4, divided by the standard deviation (GRPO, DeepSeekMath)": [
        "reinforce_ada={preset: grpo, advantage: {normalize: std}}"
    ],
    "grpo n=4, mean over live rows": ["reinforce_ada={preset: grpo, advantage: {denominator: live_rows}}"],
    "grpo n=4, advantage over the pass rate (MaxRL)": [
        "reinforce_ada={preset: grpo, advantage: {objective: {kind: log}}}"
    ],
    "4 of 8 responses with the largest variance (PODS)": [
        "reinforce_ada={sampling: {kind: sequential, exit: {kind: fixed, n: 8}, wave_size: 8, max_responses: 8}}"
    ],
    "grpo n=16": ["reinforce_ada.preset=grpo", N16],
    "pilot n=16 (Pilot-Commit)": [f"reinforce_ada={PILOT.format(rest=12)}", N16],
    "pilot n=16, twice the prompts": [f"reinforce_ada={PILOT.format(rest=12)}", "PROMPTS x2", N16],
    "grpo n=64": ["reinforce_ada.preset=grpo", N64],
    "pilot n=64, twice the prompts": [f"reinforce_ada={PILOT.format(rest=60)}", "PROMPTS x2", N64],
    "ada_seq_positive": ["reinforce_ada.preset=ada_seq_positive"],
    "ada_seq_balance": ["reinforce_ada.preset=ada_seq_balance"],
    "ada_seq_lean": ["reinforce_ada.preset=ada_seq_lean"],
    "ada_seq_log": ["reinforce_ada.preset=ada_seq_log"],
    "ada_est_ema n=8": ["reinforce_ada.preset=ada_est_ema", N8],
    "ada_est_value n=8": ["reinforce_ada.preset=ada_est_value", N8],
}
AHEAD = ", asynchronous"  # the next step is drawn while this one is trained on; at the method's own rate
for _name in (BASELINE, "ada_seq_lean", "ada_seq_balance"):
    METHODS[_name + AHEAD] = [*METHODS[_name], "grpo.async_grpo.enabled=true"]
PLENTIFUL = ["grpo.max_num_steps=80", "grpo.val_period=10"]
REPEATED = ["task.train_prompts=32", "grpo.max_num_steps=200", "grpo.val_period=25"]
RATES = {
    "plentiful": {
        "grpo n=4": 1e-4,
        "grpo n=8": 2e-4,
        "grpo n=4, shrunk baseline": 2e-4,
        "grpo n=4, four updates": 1e-4,
        "grpo n=4, eight updates": 5e-5,
        "ada_seq_balance": 2e-4,
        "ada_seq_lean": 2e-4,
        "ada_single n=2, four updates": 1e-4,
        "ada_single n=1, four updates": 1e-4,
        "ada_single n=1, eight updates": 5e-5,
        "ada_single n=1, sixteen updates": 5e-5,
    },
    "repeated": {
        "grpo n=4": 3e-5,
        "ada_single n=2": 3e-5,
        "ada_seq_lean": 3e-5,
        "ada_single n=1, eight updates": 1e-5,
    },
    "groups16": {"grpo n=16": 2e-4, "pilot n=16 (Pilot-Commit)": 1e-4},
    "groups64": {"grpo n=64": 1e-4, "pilot n=64, twice the prompts": 1e-4},
    "words": {
        "grpo n=4": 2.4e-4,
        "grpo n=4, divided by the standard deviation (GRPO, DeepSeekMath)": 2.4e-4,
        "grpo n=4, advantage over the pass rate (MaxRL)": 2.4e-4,
        "grpo n=4, two updates": 2.4e-4,
        "grpo n=4, four updates": 1.2e-4,
        "grpo n=4, eight updates": 1.2e-4,
        "4 of 8 responses with the largest variance (PODS)": 4.8e-4,
        "ada_single n=1": 2.4e-4,
        "ada_single n=1, two updates": 2.4e-4,
        "ada_single n=1, four updates": 1.2e-4,
        "ada_single n=1, eight updates": 1.2e-4,
        "ada_single n=1, sixteen updates": 1.2e-4,
    },
    "smollm2": {
        "grpo n=4": 1e-5,
        "grpo n=4, four updates": 1e-5,
        "ada_single n=2": 2e-5,
        "ada_single n=2, four updates": 1e-5,
    },
}
"""Learning rates that were chosen among at least two, on seeds that are not reported."""
UPDATES = re.compile(r"(?:four|eight|sixteen) updates")
GUESSES = {  # setting -> rate of a method with one or two updates per step, with four or more
    "plentiful": (2e-4, 5e-5),
    "repeated": (3e-5, 1e-5),
    "groups16": (1e-4, 1e-4),
    "groups64": (1e-4, 1e-4),
    "tail": (3e-5, 3e-5),
    "words": (2.4e-4, 1.2e-4),
    "smollm2": (1e-5, 1e-5),
}
"""Learning rates of methods that RATES lacks. The table says that they were not tuned."""
MEMORY = ", memory"


def learning_rate(setting: str, method: str, given: Mapping[str, float]) -> tuple[float, str]:
    """A method's learning rate and where it comes from. given: rates of the command line."""
    if method in given:
        return given[method], "given"
    own = method.removesuffix(AHEAD).removesuffix(MEMORY)
    tuned = RATES.get(setting, {})
    if own in tuned:
        return tuned[own], "tuned" if own == method else "not tuned"
    return GUESSES[setting][UPDATES.search(own) is not None], "not tuned"


SETTINGS = {  # task, prompts of a step, reserve prompts of a step, overrides
    "plentiful": ("mini_sudoku", 32, 128, PLENTIFUL),
    "repeated": ("mini_sudoku", 16, 32, REPEATED),
    "words": ("spell_backward", 32, 128, PLENTIFUL),
    "groups16": ("mini_sudoku", 8, 32, PLENTIFUL),
    "groups64": ("mini_sudoku", 4, 16, PLENTIFUL),
    "tail": ("spell_backward", 32, 128, [*PLENTIFUL, "grpo.max_num_steps=40", "task.drafts=8"]),
    "smollm2": ("smollm2", 32, 128, ["grpo.max_num_steps=24", "grpo.val_period=8"]),
}


def overrides_of(method: str, prompts: int, reserve: int) -> list[str]:
    """A method's overrides.

    `PROMPTS xM` stands for M times the step's prompts, `UPDATES xM` for M updates per step, each on its share of the
    rows, and `RESERVE` for the step's reserve prompts.
    """

    def times(match: re.Match[str]) -> str:
        many = int(match[2] or 1)
        if match[1] == "UPDATES":
            return f"policy.train_global_batch_size={4 * prompts // many}"
        return f"grpo.num_prompts_per_step={prompts * many}" if match[1] == "PROMPTS" else str(reserve)

    pattern = re.compile(r"(PROMPTS|RESERVE|UPDATES)(?: x(\d+))?")
    return [f"grpo.num_prompts_per_step={prompts}", *(pattern.sub(times, text) for text in METHODS[method])]


def rate(text: str) -> tuple[str, float]:
    """(method, learning rate) of METHOD=RATE."""
    name, _, value = text.rpartition("=")
    if name not in METHODS:
        raise argparse.ArgumentTypeError(f"{text!r}: write it as 'grpo n=4=1e-4', with a method of METHODS")
    return name, float(value)


def rate_note(found: tuple[float, str], config: RunConfig) -> str:
    """The rate of a method's runs and whether it was tuned; overrides of every run may have set another one."""
    used = config.policy.megatron_cfg.optimizer.lr
    return f"{used:g} ({found[1] if used == found[0] else 'given'})"


def explained(runs: Sequence[Run]) -> str:
    """Mean over steps and seeds of `ada/explained_variance`; a dash for methods without an estimator."""
    value_S = np.concatenate([run.column("ada/explained_variance") for run in runs])
    known_S = value_S[np.isfinite(value_S)]
    return f"{known_S.mean():.3f}" if len(known_S) else "–"


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
    task_name, prompts, reserve, setting = SETTINGS[arguments.setting]
    rates = {name: learning_rate(arguments.setting, name, dict(arguments.rates)) for name in methods}
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    configs = {
        (name, seed): load_run(
            ROOT / "configs" / "cpu" / f"{task_name}.yaml",
            [
                *overrides_of(name, prompts, reserve),
                *setting,
                f"policy.megatron_cfg.optimizer.lr={rates[name][0]}",
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
    task = build_run_task(first)
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
    differences = against(runs, baseline)
    rows = [
        {"method": name}
        | {axis.removeprefix("total/"): str(found) for axis, found in differences.get(name, {}).items()}
        | {"rate": rate_note(rates[name], configs[name, seeds[0]])}
        | {"explained variance": explained(runs[name])}
        for name in [*methods[1:], baseline]
    ]
    rows[-1] = {key: rows[-1].get(key, "") for key in rows[0]}
    text = (
        f"# {arguments.setting}: area under held-out accuracy against {baseline}, seeds {seeds[0]} to {seeds[-1]}, "
        f"paired, 95 % intervals, at equal ...\n\n{markdown_table(rows)}\n\n"
        f"{markdown_table([row for mine in zip(*runs.values(), strict=True) for row in comparison_rows(mine)])}\n"
    )
    (out / "leaderboard.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    measure(main)
