"""The sampling plan of a preset, as the simulation takes it."""

from __future__ import annotations

from dataclasses import replace

from nemo_ada.config.ada import AdaSettings, EstimationSampling
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.lab.simulate.steps import Variant


def make_preset_variant(
    name: str, settings: AdaSettings, group: int, lengths: LengthModel, caps: Budget | None = None
) -> Variant:
    """Make the variant of some settings.

    A single stream has groups of 1 and as many more prompts per step. Estimation needs groups that leave room for its
    allocation.

    Args:
        name: Name of the preset.
        settings: The settings.
        group: The group size n.
        lengths: Lengths of the responses.
        caps: The caps of a step. None keeps those of the settings.

    Raises:
        UserError: The settings do not fit the group size.
    """
    size, known, each = group, "", 1
    single = settings.advantage.baseline == "shrunk"
    if single:
        size, known, each = 1, f", {group} times the prompts", group
    if isinstance(settings.sampling, EstimationSampling):
        size, known = max(group, 2 * settings.sampling.bounds(group)[0]), ", pass rates known"
    sampler = settings.sampler(size, lengths.max_new_tokens, run_seed=0, features=1)
    budget = sampler.plan.budget
    if caps is not None:
        budget = budget.replace_caps(caps.caps())
    plan = replace(sampler.plan, budget=replace(budget, expected_tokens=lengths.mean_tokens))
    return Variant(f"{name} (n={size}{known})", plan, sampler.allocation, each, single)
