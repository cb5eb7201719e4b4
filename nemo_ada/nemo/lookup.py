"""Read NeMo-RL's configuration, whatever types it is made of.

Up to v0.6 it consists of dicts. In v0.7 it is a pydantic model of dicts and models, and on main every part is a model.
The version does not show which one it is (main calls itself 0.6.0). So every read uses these two functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def get(section: Any, dotted: str, default: Any = None) -> Any:
    """The value at a dotted key of mappings and objects, or `default` if a part of the path is missing or None."""
    for part in dotted.split("."):
        if section is None:
            return default
        section = section.get(part) if isinstance(section, Mapping) else getattr(section, part, None)
    return default if section is None else section


def plain(section: Any) -> Any:
    """Mappings and models as nested dicts. Anything else comes back as it is."""
    if hasattr(section, "model_dump"):
        return section.model_dump()
    if isinstance(section, Mapping):
        return {str(key): plain(value) for key, value in section.items()}
    return section
