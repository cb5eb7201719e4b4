"""Bounds of a command's options."""

from __future__ import annotations

import math
from collections.abc import Mapping

import typer

from nemo_ada.errors import UserError


def check_limits(context: typer.Context, limits: Mapping[str, tuple[float, float]]) -> None:
    """Raise UserError for an option's value, or one of its values, outside its bounds.

    Args:
        context: context of the command.
        limits: name of an option without the dashes -> smallest and largest value.
    """
    for option in context.command.params:
        name, value = option.opts[0].removeprefix("--"), context.params[str(option.name)]
        if name not in limits or value is None:
            continue
        low, high = limits[name]
        for number in value if isinstance(value, list | tuple) else [value]:
            if math.isnan(number) or not low <= number <= high:
                raise UserError(f"--{name}={str(number)[:40]} must lie between {low:g} and {high:g}")
