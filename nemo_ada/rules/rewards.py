"""Rules for rewards: whose environment gives them, what counts as correct, and a reward of the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from nemo_ada.by_name import load
from nemo_ada.config.presets import SECTION
from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.rules.finding import Findings, error, warning
from nemo_ada.run.data_files import is_data_file, records
from nemo_ada.tasks.reward import try_reward

OUR_ENVIRONMENT = "ada_math"
OTHER_REWARDS = {
    "reward_model": "gives scores of a model, which have any size",
    "math_multi_reward": "sums rewards of several kinds",
}


def environment_names(v: Values) -> Iterator[tuple[str, str]]:
    """(section of `data`, name) of every environment that the data sets use."""
    for split in ("default", "train", "validation"):
        part = v.get(f"data.{split}")
        for entry in part if isinstance(part, list) else [part]:
            name = entry.get("env_name") if isinstance(entry, Mapping) else None
            if isinstance(name, str):
                yield split, name


def threshold_of_rewards(v: Values) -> Findings:
    """Rewards that are no shares need a threshold of their own. The default splits rewards of 0 and 1."""
    key = "reinforce_ada.positive_threshold"
    if v.get(SECTION) is None or v.number(key) is not None:
        return
    for split, name in environment_names(v):
        if name in OTHER_REWARDS:
            yield warning(
                key,
                f"data.{split}.env_name={name} {OTHER_REWARDS[name]}, and a response counts as correct above 0.7, the "
                f"default: set {key}, such as the median of the first step's rewards, or sampling.exit.kind=spread",
            )
            return


def estimator_of_verdicts(v: Values) -> Findings:
    """Our math environment gives no label where it has no verdict. Only Reinforce-Ada's hooks understand that."""
    ours = OUR_ENVIRONMENT in {name for _, name in environment_names(v)}
    threshold = v.number("reinforce_ada.positive_threshold")
    if ours and threshold is not None and not 0 <= threshold < 1:
        yield error(
            "reinforce_ada.positive_threshold",
            f"{threshold:g}: {OUR_ENVIRONMENT} gives rewards of 0 and 1, and a response is correct above this, so "
            "all would be on one side of it; 0.7 would work",
        )
    if v.get(SECTION) is None and ours and v.get(f"env.{OUR_ENVIRONMENT}.class") is None:
        yield error(
            SECTION,
            f"env_name={OUR_ENVIRONMENT} without the section {SECTION}:: this environment gives no reward to an answer "
            f"that it could not judge, which only Reinforce-Ada's hooks can take; add {SECTION}.preset=grpo, which is "
            "plain GRPO, or set env_name to math",
        )


def own_reward(v: Values) -> Findings:
    """A reward of the user's can be imported, and judges the first reference of the training set."""
    key = f"env.{OUR_ENVIRONMENT}.reward"
    name, path = v.get(key), v.get("data.train.data_path")
    if name is None:
        return
    answer = "1"
    if path is not None and is_data_file(Path(str(path))) and Path(str(path)).is_file():
        with suppress(UserError):
            first = next(records(Path(str(path)), lambda _line, _why: None), None)
            column = str(v.get("data.train.output_key", "output"))
            answer = str(first[1].get(column, answer)) if first is not None else answer
    try:
        try_reward(load(key, str(name)), f"{key}={name}", answer)
    except UserError as problem:
        yield error(key, str(problem))
