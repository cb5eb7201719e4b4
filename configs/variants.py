"""Writes the configs that follow from a model's `ada-*.yaml`: `python configs/variants.py [MODEL ...]`.

MODEL is the folder's name. Methods differ in what METHODS says and in nothing else, so that baselines match. Every
file's header gets its memory from `check` and its step time from `plan`: NEMO_RL_HOME must name a checkout. What else
the header of `ada-*.yaml` says is written by hand.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from nemo_ada.check.command import examine
from nemo_ada.cluster.memory import H100_GIB
from nemo_ada.errors import UserError
from nemo_ada.planning.command import PlanOptions, make_plan

HERE = Path(__file__).parent
NEVER_RAN = "# Never ran on a GPU.\n"
NAME = re.compile(
    r"(?P<algo>ada(?:-lean|-idle|-est|-single)?|grpo\d+|dapo)-(?P<model>[a-z0-9.-]+?)-(?P<nodes>\d+)n(?P<gpus>\d)g"
    r"-(?P<layout>(?:(?:tp|pp|cp|ep)\d+)+)(?P<suffix>-fp8|-hard|-apex|-async)?"
)
GRPO = "the Reinforce-Ada config beside it; compare at equal responses and GPU hours, not at equal steps."
METHODS = {  # name -> title, basis, keys
    "ada-lean": (
        "Reinforce-Ada, lean (one correct and one incorrect, at most 8 responses), on {model}",
        "the published variant beside it.",
        "reinforce_ada:\n  preset: ada_seq_lean\n",
    ),
    "ada-idle": (
        "Reinforce-Ada on an idle budget (extra responses only in the tail of GRPO's own sampling) on {model}",
        "the published variant beside it.",
        "reinforce_ada:\n  preset: ada_seq_idle\n",
    ),
    "ada-est": (
        "Reinforce-Ada-Est (one allocated draw, 8 responses per prompt on average) on {model}",
        "the sequential config beside it; its baseline is grpo8.",
        "reinforce_ada:\n  preset: ada_est_ema\ngrpo:\n  num_generations_per_prompt: 8\n",
    ),
    "ada-single": (
        "Single-stream Reinforce-Ada (one response per prompt, four times the prompts) on {model}",
        "the sequential config beside it; its baseline is grpo4, with the same responses and updates per step. It "
        "wants many prompts.",
        "reinforce_ada:\n  preset: ada_single\ngrpo:\n  num_generations_per_prompt: 1\n"
        "  num_prompts_per_step: 2048      # common/small.yaml has 512, with 4 responses each\n"
        "policy:\n  train_global_batch_size: 512    # four updates, as there\n",
    ),
    "grpo4": ("GRPO, n = 4, on {model}", GRPO, "reinforce_ada:\n  preset: grpo\n"),
    "grpo8": (
        "GRPO, n = 8, on {model}",
        GRPO,
        "reinforce_ada:\n  preset: grpo\ngrpo:\n  num_generations_per_prompt: 8\n",
    ),
    "grpo16": (
        "GRPO, n = 16, on {model}",
        GRPO,
        "reinforce_ada:\n  preset: grpo\ngrpo:\n  num_generations_per_prompt: 16\n",
    ),
    "dapo": (
        "DAPO's dynamic sampling, n = 4, on {model}",
        "grpo4 with NeMo-RL's dynamic sampling and without DAPO's length penalty. It draws twice the prompts of a "
        "step: compare at equal responses.",
        "reinforce_ada:\n  preset: grpo\ngrpo:\n  use_dynamic_sampling: true\n  batch_multiplier: 2\n",
    ),
}
EASY = ("qwen2.5-math-1.5b", "qwen2.5-math-7b")  # models with the authors' easy set, the larger one
ON_EASY = ("ada-est", "ada-single")  # methods for these alone: the paper has the first for no other


def variants(base: Path) -> dict[str, str]:
    """File name -> its text, but for memory and step time."""
    return {
        base.name.replace("ada-", f"{method}-", 1): _text(base, method)
        for method in METHODS
        if method not in ON_EASY or base.parent.name in EASY
    }


def bases() -> list[Path]:
    """The file that each model's others follow from: `ada-*` without a suffix, on the fewest nodes."""
    found: dict[str, Path] = {}
    for path in sorted(HERE.glob("*/ada-*.yaml")):
        name = NAME.fullmatch(path.stem)
        if name and name["algo"] == "ada" and name["suffix"] is None:
            found.setdefault(name["model"], path)
    return list(found.values())


def _text(base: Path, method: str) -> str:
    title, basis, keys = METHODS[method]
    name = NAME.fullmatch(base.stem)
    if name is None:
        raise UserError(f"{base.name}: name it ada-<model>-<n>n<g>g-<layout>.yaml")
    nodes, gpus = int(name["nodes"]), int(name["gpus"])
    where = f"{nodes} node{'s' if nodes > 1 else ''} x {gpus} GPUs (H100-80GB), {nodes * gpus} GPUs."
    head = f"{title.format(model=_model(base))}. {where}"
    lines = [*textwrap.wrap(head, 118), *textwrap.wrap(f"Basis: {basis}", 118)]
    run = f"run_dir: runs/{base.stem.replace('ada-', f'{method}-', 1)}\n"
    return "".join(f"# {line}\n" for line in lines) + NEVER_RAN + f"defaults: {base.name}\n{run}{keys}"


def _model(base: Path) -> str:
    """By the file's own policy.model_name, else by its first line. Raises UserError where neither names it."""
    text = base.read_text(encoding="utf-8")
    found = re.search(r"^ +model_name: *(?:\S+/)?(\S+)", text, re.M) or re.match(r"# .+? on (\S+)\. ", text)
    if found is None:
        raise UserError(
            f"{base} names no model: set policy.model_name there, or begin with a line such as "
            "`# Reinforce-Ada-Seq-balance on Qwen2.5-14B. 1 node x 8 GPUs (H100-80GB), 8 GPUs.`"
        )
    return found[1]


def measured(path: Path) -> list[str]:
    """The header's lines of memory and step time."""
    found = examine(path, verifier=False, site=False)
    gib = [re.match(r"(learner|refit)[^:]*: ([\d.]+) of", finding.message) for finding in found]
    learner = max((float(match[2]) for match in gib if match), default=float("nan"))
    memory = f"# Memory: learner {learner:.0f} of {H100_GIB} GiB per GPU (`nemo-ada check`).\n"
    step = make_plan(path, [], PlanOptions("04:00:00", steps=6)).forecast
    return [
        memory,
        f"# Forecast: {step.step.p50:.0f} s per step, {step.low:.0f} to {step.high:.0f} (`nemo-ada plan`).\n",
    ]


def refresh(path: Path) -> None:
    """Write the two measured lines before the header's last line, `Never ran on a GPU.`, or at its end."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(("# Memory: ", "# Forecast: "))]
    header = next((i for i, line in enumerate(kept) if not line.startswith("#")), len(kept))
    at = kept.index(NEVER_RAN) if NEVER_RAN in kept else header
    path.write_text("".join([*kept[:at], *measured(path), *kept[at:]]), encoding="utf-8")


def main(models: list[str]) -> None:
    """Write the files of these models (folders of configs/), or of all. Raises UserError."""
    folders = [base.parent.name for base in bases()]
    for model in models:
        if model not in folders:
            raise UserError(
                f"configs/{model} has no ada-{model}-<n>n<g>g-<layout>.yaml; there are {', '.join(folders)}"
            )
    for base in bases():
        if models and base.parent.name not in models:
            continue
        for name, text in variants(base).items():
            (base.parent / name).write_text(text, encoding="utf-8")
        for path in sorted(base.parent.glob("*.yaml")):
            refresh(path)
            sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
