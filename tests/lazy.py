"""Heavy libraries for tests, imported at the first use: every worker of pytest-xdist collects all files."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Lazy:
    """A module by name. Its private names are not there: pytest asks every object of a test file for some."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
