"""Read NeMo-RL's configuration whatever it is made of.

Up to v0.6 it is a TypedDict of dicts, in v0.7 a pydantic model of dicts and models, on main models all the way down.
Version strings cannot tell them apart (main calls itself 0.6.0), so every read goes through these two functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def get(section: Any, dotted: str, default: Any = None) -> Any:
    """The value at a dotted key of mappings and objects, `default` where a part of the path is missing or None."""
    for part in dotted.split("."):
        if section is None:
            return default
        section = section.get(part) if isinstance(section, Mapping) else getattr(section, part, None)
    return default if section is None else section


def plain(section: Any) -> Any:
    """Mappings and models as nested dicts; everything else as it is."""
    if hasattr(section, "model_dump"):
        return section.model_dump()
    if isinstance(section, Mapping):
        return {str(key): plain(value) for key, value in section.items()}
    return section
