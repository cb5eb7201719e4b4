"""Writes the tables of models and methods in configs/README.md: `NEMO_RL_HOME=/path/to/RL python configs/table.py`.

Memory comes from `nemo-ada check` and seconds come from `nemo-ada plan`, for H100-80GB.
"""

from __future__ import annotations

import re
from pathlib import Path

from nemo_ada.config.values import Values
from nemo_ada.lab.plan.command import PlanOptions, make_plan
from nemo_ada.rules.check.command import examine
from nemo_ada.rules.facts.config_file import load_config

HERE = Path(__file__).parent
README = HERE / "README.md"
MARKS = ("<!-- configs/table.py writes this -->\n", "<!-- up to here -->\n")
MODELS = (
    "qwen2.5-math-1.5b", "llama-3.2-3b-instruct", "qwen3-4b-instruct-2507", "qwen2.5-math-7b", "llama-3.1-8b-instruct",
    "qwen3-30b-a3b", "qwen2.5-32b", "llama-3.3-70b-instruct", "qwen2.5-72b", "qwen3-235b-a22b",
)  # fmt: skip
METHODS = (
    "ada", "ada-lean", "ada-est", "ada-single", "grpo4", "grpo8", "grpo16", "dapo", "fp8", "async", "hard",
)  # fmt: skip
EASY = ("qwen2.5-math-1.5b", "qwen2.5-math-7b")
ONLY = {  # methods that not every model has
    "ada-est": EASY,
    "ada-single": EASY,
    "hard": EASY,
    "async": ("qwen2.5-math-1.5b", "llama-3.2-3b-instruct", "qwen2.5-math-7b", "qwen3-30b-a3b"),
}
BF16_ROLLOUTS = ("qwen2.5-72b", "qwen3-235b-a22b")  # models whose shapes do not divide into vLLM's FP8 blocks
LAYOUT = {"tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model"}


def words_of(model: str, method: str) -> list[str] | None:
    """The YAMLs of a combination, as a user names them; None where the model does not have the method."""
    if model not in ONLY.get(method, MODELS):
        return None
    own = f"configs/{model}-{method}.yaml"
    if (HERE.parent / own).is_file():
        return [own]
    overlay = "fp8-learner" if method == "fp8" and model in BF16_ROLLOUTS else method
    return [f"configs/{model}.yaml", f"configs/methods/{overlay}.yaml"]


def memory(words: list[str]) -> float:
    """GiB per GPU of the learner, at its peak."""
    path, *overlays = _paths(words)
    findings = examine(path, list(map(str, overlays)), verifier=False, site=False)
    found = [re.match(r"(?:learner|refit)[^:]*: ([\d.]+) of", finding.message) for finding in findings]
    return max(float(match[1]) for match in found if match)


def seconds(words: list[str]) -> tuple[float, float, float]:
    """Seconds of a step: the median, and the lower and upper bound of the forecast."""
    path, *overlays = _paths(words)
    step = make_plan(path, list(map(str, overlays)), PlanOptions("04:00:00", steps=6, compare=False)).forecast
    return step.step.p50, step.low, step.high


def model_row(model: str) -> str:
    """One line of the table of models."""
    config = Values(load_config(HERE / f"{model}.yaml"))
    learner = {kind: config.integer(f"policy.megatron_cfg.{name}_parallel_size", 1) for kind, name in LAYOUT.items()}
    layout = "".join(f"{kind}{size}" for kind, size in learner.items() if size > 1) or "tp1"
    p50, low, high = seconds([f"configs/{model}.yaml"])
    gib = [f"{memory(words):.0f}" if (words := words_of(model, method)) else "-" for method in ("ada", "fp8", "async")]
    cells = [
        f"[{config.get('policy.model_name')}]({model}.yaml)", str(config.integer("cluster.num_nodes")), layout, *gib,
        f"{p50:.0f} ({low:.0f} to {high:.0f})",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def method_row(model: str) -> str:
    """One line of the table of methods."""
    cells = [f"{seconds(words)[0]:.0f}" if (words := words_of(model, method)) else "-" for method in METHODS]
    return f"| {model} | {' | '.join(cells)} |"


def tables() -> str:
    """Both tables, as Markdown."""
    first = "| model | nodes x 8 GPUs | layout | GiB, BF16 | GiB, FP8 | GiB, async | seconds per step |"
    second = f"| seconds per step | {' | '.join(METHODS)} |"
    heads = [f"{head}\n|{'---|' * (head.count('|') - 1)}" for head in (first, second)]
    bodies = ["\n".join(map(row, MODELS)) for row in (model_row, method_row)]
    return "\n\n".join(f"{head}\n{body}" for head, body in zip(heads, bodies, strict=True)) + "\n"


def _paths(words: list[str]) -> list[Path]:
    return [HERE.parent / word for word in words]


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARKS[0])
    README.write_text(f"{before}{MARKS[0]}\n{tables()}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}", encoding="utf-8")
