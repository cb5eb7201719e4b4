"""What the fields of a response and the metrics of a step are called, in each framework.

A quantity of a step may stand in a log as such, as a percentage, as its complement, or in parts that add up: TRL logs
the share of groups without spread, NeMo-RL the percentage of those with spread, prime-rl the groups that were never
and those that were always solved. So a row of `SOURCES` says which names hold a quantity, and how it follows from them.
The names were read in the sources of the frameworks in November 2026.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from nemo_ada.run.json_lines import Record

FIELDS: dict[str, tuple[str, ...]] = {
    "prompt": (
        "prompt_id", "prompt_tokens", "prompt", "input", "problem", "question", "example_id", "id",
        "responses_create_params.input",
    ),
    "reward": ("reward", "score", "total_reward", "correct", "is_correct", "rewards", "scores"),
    "right": ("acc",),  # of verl's reward managers, such as DAPO's, whose score has a penalty for length
    "tokens": (
        "response_tokens", "completion_tokens", "output_tokens", "response_length", "token_usage.output_tokens",
        "response_lengths", "completion_lengths", "response.usage.output_tokens", "num_tokens",
        "tokens",  # last, because slime's and miles' tokens begin with those of the prompt
    ),
    "step": ("step", "training_step", "global_step"),
    "group": ("prompt_idx", "group_id", "group_index"),
    "text": ("completion", "response", "output", "text", "completions", "responses", "outputs"),
}  # fmt: skip
"""What a response needs -> the fields that may have it, the first one that is there counts. Dots lead into objects."""


@dataclass(frozen=True, slots=True)
class Source:
    """How a log may tell a quantity of a step.

    Attributes:
        quantity: One of `QUANTITIES`, or of the names below it, which only other quantities are derived from.
        names: Patterns of the metrics whose values are added. A metric may have up to three parts in front of it, each
            with a slash, such as the name of a trainer.
        scale: What the sum is multiplied by, 0.01 for percentages.
        complement: Whether the quantity is 1 minus that.
    """

    quantity: str
    names: tuple[str, ...]
    scale: float = 1.0
    complement: bool = False


QUANTITIES = ("reward", "zero_signal", "tokens")
"""What a user may name: the mean reward, the share of groups without spread, the mean tokens of a response."""
MIXED_OTHERS = "zero_signal_of_others"
"""NeMo-RL counts the baselines of responses. With its leave-one-out baseline that is about the other n - 1 of a group,
else about all n, and no metric says which. So this is a share between those of groups of n and of n - 1: of n = 4, for
example, a group with one right response has spread, but its right response has three equal others."""
NEVER_RIGHT = "never_right"
"""The share of groups without a right response. Together with the mean reward it bounds the groups without spread."""
LOWEST, HIGHEST = "lowest", "highest"
"""The smallest and the largest reward of a step: those of a wrong and of a right response, where there are only two."""
FILTERED, FILTERED_SHARE = "filtered", "filtered_share"
"""Not 0 where a run dropped groups without spread before it logged the mean reward, or before it logged shares."""
GROUP_SIZE = re.compile(r"avg_pass_at_(\d{1,3})")  # SkyRL's metric has the group size in its name

_SKYRL_PASS = r"reward/avg_pass_at_\d{1,3}"
_PRIME = r"agg/all/[^/]+"  # prime-rl: over all environments, before anything is dropped; then the agent
SOURCES = (
    Source("reward", ("ada/pass_rate",)),  # ours
    Source("reward", ("critic/real_reward",)),  # Reinforce-Ada's authors: of the first round, which nothing selects
    Source("reward", ("critic/score/mean",)),  # verl: without what is taken off for KL
    Source("reward", ("critic/rewards/mean",)),
    Source("reward", (rf"{_PRIME}/reward/mean",)),
    Source("reward", ("reward/all/mean",)),  # prime-rl before June 2026
    Source("reward", ("reward/avg_raw_reward",)),  # SkyRL
    Source("reward", ("rollout/raw_reward",)),  # miles, slime
    Source("reward", ("rollout/reward_mean",)),  # OpenRLHF
    Source("reward", ("Avg Total Reward",)),  # NeMo-RL's console with dynamic sampling
    Source("reward", ("Avg Reward",)),
    Source("reward", ("reward",)),  # TRL, NeMo-RL, OpenRLHF before 0.9
    Source("reward", ("reward/mean",)),
    Source("reward", ("Reward",)),  # prime-rl's console
    Source("zero_signal", ("ada/zero_signal_groups_if_grpo",)),
    Source("zero_signal", ("frac_reward_zero_std",)),  # TRL
    Source("zero_signal", ("frac_zero_std",)),  # ms-swift
    Source("zero_signal", (rf"{_PRIME}/solved_none", rf"{_PRIME}/solved_all")),
    Source("zero_signal", (rf"{_PRIME}/solved_some",), complement=True),
    Source("zero_signal", ("solve_none/all", "solve_all/all")),  # prime-rl before June 2026, and before March
    Source("zero_signal", ("batch/solve_none", "batch/solve_all")),
    Source("zero_signal", ("reward/solve_none", "reward/solve_all")),
    # miles calls these shares percentages
    Source("zero_signal", ("rollout/zero_std/all_zero_percentage", "rollout/zero_std/all_one_percentage")),
    Source(MIXED_OTHERS, ("baseline_reward/pct_mixed",), 0.01, complement=True),  # NeMo-RL
    Source(MIXED_OTHERS, ("baseline_reward/pct_0", "baseline_reward/pct_1"), 0.01),
    Source(NEVER_RIGHT, (_SKYRL_PASS,), complement=True),
    Source("tokens", ("completions/mean_length",)),  # TRL
    Source("tokens", ("completion_length",)),
    Source("tokens", ("mean_gen_tokens_per_sample",)),  # NeMo-RL
    Source("tokens", ("Mean Generation Length",)),
    Source("tokens", ("response_length/mean",)),  # verl
    Source("tokens", (rf"{_PRIME}/num_output_tokens/mean",)),
    Source("tokens", ("decode_len/all/mean",)),
    Source("tokens", ("decode_len/mean",)),
    Source("tokens", ("generate/avg_num_tokens",)),  # SkyRL
    Source("tokens", ("rollout/response_len/mean",)),  # miles, slime
    Source("tokens", ("rollout/response_length_mean",)),  # OpenRLHF
    Source("tokens", ("response_length",)),
    Source(LOWEST, ("critic/score/min",)),  # verl
    Source(HIGHEST, ("critic/score/max",)),
    Source(FILTERED, ("dynamic_filtering_pass_rate",), 0.01, complement=True),  # OpenRLHF: the share of dropped prompts
    Source(FILTERED, ("num_gen_batches",), complement=True),  # verl's DAPO: 1 where the first batch was enough
    Source(FILTERED_SHARE, ("dynamic_sampling_num_gen_batches",)),  # NeMo-RL: its mean reward is that of all groups
)  # fmt: skip
"""In the order in which they are tried: what a framework measured before it changed anything comes first."""
STEPS = (
    "step", "rollout/step", "trainer/global_step", "training/global_step", "global_step", "training_step", "Step",
    "iteration", "_step",
)  # fmt: skip
_NOT_OF_STEPS = re.compile(
    r"(?:^|/)(?:eval|val|valid|validation|test|dev)(?:[-_][^/]*)?/|reward_dropped/", re.IGNORECASE
)
"""Metrics of evaluations, and rewards of responses that a framework dropped: neither is of all that a step drew."""
_SOUNDS = {
    "reward": r"rewards?|scores?|correct(?:ness)?|acc(?:uracy)?|pass(?:_?rate)?|solved?|right|success|verif\w*|grade",
    "prompt": r"prompts?|questions?|problems?|quer(?:y|ies)|tasks?|instructions?|inputs?|uid|idx|index",
    "zero_signal": r"zero_?std|zero_?signal|no_?spread|solve\w*",
}
"""What a name sounds like that may hold a quantity, for proposals."""


def clean_metric(name: str) -> str:
    """Return the name of a metric without `train/`, and without the run that a chart of Weights & Biases puts first."""
    return name.rpartition(" - ")[2].removeprefix("train/")


def read_numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the finite numbers of a step by metric, also those of objects in it, with a slash between the names.

    Charts have columns for the smallest and largest value, too, and verl's file has all metrics in an object `data`.
    """
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping) and prefix.count("/") < 4:  # deeper ones are no metrics, whatever a file holds
            found |= read_numbers(value, "" if name in ("data", "metrics") and not prefix else f"{prefix}{name}/")
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        if name and not name.endswith(("__MIN", "__MAX")):
            found[clean_metric(f"{prefix}{name}")] = float(value)
    return found


@cache
def _compile_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?:[^/]+/){{0,3}}{name}")


def find_holders(name: str, there: Iterable[str]) -> list[str]:
    """Return the metrics of a log that a pattern of `SOURCES` means, the shortest first. Evaluations are none."""
    found = [one for one in there if _compile_pattern(name).fullmatch(one) and not _NOT_OF_STEPS.search(one)]
    return sorted(found, key=lambda one: (one.count("/"), one))


def propose_column(what: str, there: Collection[str], default: str = "") -> str:
    """Return the part of a message that says how to name a quantity, with the name that would do if there is one.

    A lone name is proposed whatever it sounds like, and `default` where no name sounds right.
    """
    sounds = re.compile(rf"(?:.*[^a-zA-Z])?(?:{_SOUNDS.get(what, what)})(?:[^a-zA-Z].*)?", re.IGNORECASE)
    steps = {*STEPS, "epoch", "time", "_runtime", "_timestamp", "Wall time"}
    # A spread or an extreme is no mean.
    able = [name for name in there if name not in steps and not name.endswith(("/std", "_std", "/min", "/max"))]
    alike = [name for name in able if sounds.fullmatch(name)] or (able if len(able) == 1 else [])
    alike.sort(key=lambda name: (not name.endswith("mean"), len(name)))
    if not alike:
        return f"--column {what}={default or 'NAME'}"
    others = f" (or {', '.join(alike[1:4])})" if alike[1:] else ""
    return f"--column {what}={alike[0]}{others}"


def is_step(record: Record, own: Mapping[str, str]) -> bool:
    """Return whether a record has metrics of a step, and neither a prompt nor the text of a response.

    Args:
        record: The record.
        own: What is asked -> the user's name for it.
    """
    named = {what: (name,) for what, name in own.items()}
    prompts, texts = ({**FIELDS, **named}[what] for what in ("prompt", "text"))
    if find_field(record, prompts) is not MISSING or isinstance(find_field(record, texts), str | list):
        return False
    there = read_numbers(record)
    if any(find_holders(name, there) for source in SOURCES for name in source.names):
        return True
    # Parts of TRL's reward, a loss or the step of a chart say so, too. Then an error can propose the right column.
    if any(name.startswith("rewards/") or name in ("reward_std", "loss", "Step", "_step") for name in there):
        return True
    only_numbers = not any(isinstance(value, str | list) for value in record.values())
    return only_numbers and any(name in there for name in STEPS)


MISSING = object()


def find_field(record: Record, names: Iterable[str]) -> Any:
    """Return the value of the first field that is there, else MISSING."""
    for name in names:
        value: Any = record
        for part in [name] if name in record else name.split("."):
            value = value.get(part, MISSING) if isinstance(value, dict) else MISSING
        if value is not MISSING:
            return value
    return MISSING


def list_names(names: Sequence[str]) -> str:
    """Return some names of fields or metrics, for messages."""
    return ", ".join(sorted(str(name)[:40] for name in names)[:20]) or "nothing"
