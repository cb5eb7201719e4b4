"""Annotations that make core's dataclasses the schema of a configuration section.

Pydantic calls `__get_pydantic_core_schema__` of an annotation when it validates. So the bounds stand beside the field
that they bound, and the core does not import pydantic.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_type_hints

STRICT: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False, "use_attribute_docstrings": True}
"""Pydantic's configuration of every section: unknown keys and infinite numbers are errors."""


class Bounds:
    """Smallest and largest values of a number."""

    def __init__(self, **limits: float) -> None:
        """Take some of gt, ge, lt and le."""
        self.limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        return dict(handler(source)) | self.limits


class ByKind:
    """A union of dataclasses that the field `kind` distinguishes."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        choices = {
            get_args(get_type_hints(member)["kind"])[0]: handler.generate_schema(member) for member in get_args(source)
        }
        return {"type": "tagged-union", "choices": choices, "discriminator": "kind"}


Positive = Annotated[float, Bounds(gt=0)]
Share = Annotated[float, Bounds(ge=0, le=1)]
Quantile = Annotated[float, Bounds(gt=0, lt=1)]
