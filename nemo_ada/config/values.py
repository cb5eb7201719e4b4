"""The one look-up by dotted keys.

NeMo-RL's configuration consists of dicts up to v0.6. In v0.7 it is a pydantic model of dicts and models, and on main
every part is a model. So `Values` reads mappings and objects alike.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from nemo_ada.errors import UserError

SCALARS = (str, bytes, int, float, list, tuple)
"""Values without parts that have names."""


class Values:
    """Dotted look-up in nested mappings and objects. An error names the key.

    Attributes:
        config: the mapping or object.
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    def get(self, dotted: str, default: Any = None) -> Any:
        """Return the value, or `default` where a part of the path is missing or null."""
        node = self.config
        for part in dotted.split("."):
            if isinstance(node, Mapping):
                node = node.get(part)
            else:
                node = None if isinstance(node, SCALARS) else getattr(node, part, None)
        return default if node is None else node

    def assign(self, dotted: str, value: Any) -> None:
        """Set a value of a mapping or of an object, which must be there."""
        parent, _, name = dotted.rpartition(".")
        node = self.get(parent) if parent else self.config
        if isinstance(node, MutableMapping):
            node[name] = value
        else:
            setattr(node, name, value)

    def integer(self, dotted: str, default: int | None = None) -> int:
        """Return a positive whole number. Raises UserError."""
        value = self.get(dotted, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{dotted}={str(value)[:80]!r} must be a whole number above 0; set it", key=dotted)
        return value

    def optional_integer(self, dotted: str) -> int | None:
        """Return a positive whole number, None where it is not set. Raises UserError."""
        return None if self.get(dotted) is None else self.integer(dotted)

    def section(self, dotted: str) -> Mapping[str, Any]:
        """Return a section, empty where it is not set. Raises UserError."""
        value = self.get(dotted, {})
        if not isinstance(value, Mapping):
            raise UserError(f"{dotted}={str(value)[:80]!r} must be a section; set it", key=dotted)
        return value

    def number(self, dotted: str) -> float | None:
        """Return a number, also one that YAML reads as text (1e-6). None where it is not set. Raises UserError."""
        value = self.get(dotted)
        if value is None:
            return None
        try:
            if isinstance(value, bool):
                raise ValueError
            return float(value)
        except (TypeError, ValueError):
            raise UserError(f"{dotted}={str(value)[:80]!r} must be a number; set it", key=dotted) from None

    @property
    def validates(self) -> bool:
        """Whether the run validates. NeMo-RL takes a val_period of 0 or -1 for never."""
        return (self.number("grpo.val_period") or 0) > 0 or any(
            self.get(f"grpo.val_at_{end}", False) for end in ("start", "end")
        )


def as_dicts(section: Any) -> Any:
    """Mappings and models as nested dicts. Anything else comes back as it is."""
    if hasattr(section, "model_dump"):
        return section.model_dump()
    if isinstance(section, Mapping):
        return {str(key): as_dicts(value) for key, value in section.items()}
    return section
