"""Rules for rewards: whose environment gives them, what counts as correct, and the judge of each environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nemo_ada.config.presets import SECTION
from nemo_ada.config.values import Values
from nemo_ada.rules.finding import Findings, error, warning
from nemo_ada.verify.judge import Judge, judge_of_section

OUR_ENVIRONMENT, OUR_CLASS = "ada_math", "nemo_ada.nemo.environment.AdaMathEnvironment"
OTHER_REWARDS = {
    "reward_model": "gives scores of a model, which have any size",
    "math_multi_reward": "sums rewards of several kinds",
}


def list_environments(v: Values) -> Iterator[tuple[str, str]]:
    """(section of `data`, name) of every environment that the data sets use."""
    for split in ("default", "train", "validation"):
        part = v.get(f"data.{split}")
        for entry in part if isinstance(part, list) else [part]:
            name = entry.get("env_name") if isinstance(entry, Mapping) else None
            if isinstance(name, str):
                yield split, name


def check_threshold(v: Values) -> Findings:
    """Rewards that are no shares need a threshold of their own. The default splits rewards of 0 and 1."""
    key = "reinforce_ada.positive_threshold"
    if v.get(SECTION) is None or v.number(key) is not None:
        return
    for split, name in list_environments(v):
        if name in OTHER_REWARDS:
            yield warning(
                key,
                f"data.{split}.env_name={name} {OTHER_REWARDS[name]}, and a response counts as correct above 0.7, the "
                f"default: set {key}, such as the median of the first step's rewards, or sampling.exit.kind=spread",
            )
            return


def check_verdicts(v: Values) -> Findings:
    """Our math environment gives no label where it has no verdict. Only Reinforce-Ada's hooks understand that."""
    ours = OUR_ENVIRONMENT in {name for _, name in list_environments(v)}
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


def make_judges(v: Values) -> dict[str, Judge]:
    """Return the judge of each environment of ours by its name, made of its section as the job makes it.

    Raises UserError where a section names no kind of verifier, or no function.
    """
    sections = {name: section for name, section in v.section("env").items() if isinstance(section, Mapping)}
    ours = {OUR_ENVIRONMENT: sections.get(OUR_ENVIRONMENT, {})}
    ours |= {name: section for name, section in sections.items() if section.get("class") == OUR_CLASS}
    return {name: judge_of_section(section, f"env.{name}") for name, section in ours.items()}
