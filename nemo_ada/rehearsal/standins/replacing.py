"""Replace names of a library right after its import. Each has a reason. A name that upstream dropped is an error."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

Hook = Callable[["Names"], None]
Around = Callable[[], AbstractContextManager[None]]


class _WhenImported(importlib.abc.MetaPathFinder):
    """An import finder. It runs a module's own code inside context managers, and then calls hooks.

    Hooks wait for the import itself. Libraries ask for torch's spec long before they import it.

    Attributes:
        around: Module -> context managers for its import.
        hooks: Module -> functions to call after its import.
    """

    def __init__(self) -> None:
        self._asking = threading.local()
        self.around: dict[str, list[Callable[[], AbstractContextManager[None]]]] = {}
        self.hooks: dict[str, list[Callable[[ModuleType], None]]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec, with a loader that enters the context managers and calls the hooks."""
        if (fullname not in self.hooks and fullname not in self.around) or getattr(
            self._asking, "name", ""
        ) == fullname:
            return None
        self._asking.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.name = ""
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with ExitStack() as stack:
                for enter in self.around.pop(fullname, []):
                    stack.enter_context(enter())
                execute(module)
            for hook in self.hooks.pop(fullname, []):
                hook(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_FINDER = _WhenImported()


def call_when_imported(module: str, hook: Callable[[ModuleType], None]) -> None:
    """Call `hook` right after the import of `module`, or at once if it is imported already."""
    if module in sys.modules:
        hook(sys.modules[module])
        return
    _FINDER.hooks.setdefault(module, []).append(hook)
    _put_finder_first()


def _put_finder_first() -> None:
    """Make our finder the first that Python asks."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


@dataclass
class Names:
    """The names of one upstream module that a stand-in may replace.

    Attributes:
        module: The upstream module.
        names: Dotted names below the module.
    """

    module: ModuleType
    names: tuple[str, ...]

    def get(self, dotted: str) -> Any:
        """Return the value at a dotted name below the module.

        Raises AttributeError for a name that upstream dropped.
        """
        value: Any = self.module
        for part in dotted.split("."):
            if not hasattr(value, part):
                raise AttributeError(
                    f"{self.module.__name__}.{dotted} does not exist in this version: the rehearsal's stand-in for it "
                    "must follow upstream (nemo_ada/rehearsal/standins)"
                )
            value = getattr(value, part)
        return value

    def put(self, dotted: str, value: object) -> Any:
        """Replace a declared name that exists. Returns the original value."""
        if dotted not in self.names:
            raise KeyError(f"{self.module.__name__}.{dotted} is not declared with a reason")
        original = self.get(dotted)
        owner, _, name = dotted.rpartition(".")
        setattr(self.get(owner) if owner else self.module, name, value)
        return original

    def answer(self, names: Sequence[str], value: object) -> None:
        """Replace functions by functions that return a value. torch's compiler needs one function per name."""
        for name in names:
            self.put(name, lambda *args, **kwargs: value)


@dataclass
class Change:
    """One group of replacements in one upstream module.

    Attributes:
        module: The upstream module.
        names: Dotted names below the module. Each must exist upstream.
        why: Reason in one sentence.
        apply: Makes the replacement after the import.
        around: Context manager around the module's import.
    """

    module: str
    names: tuple[str, ...]
    why: str
    apply: Hook | None = None
    around: Callable[[], AbstractContextManager[None]] | None = None


@dataclass
class Replacements:
    """The replacements of one file.

    Attributes:
        title: What is replaced, for the report.
        by: What takes its place, for the report.
        changes: Groups of replacements.
    """

    title: str
    by: str
    changes: list[Change] = field(default_factory=list)

    def after(self, module: str, *names: str, why: str) -> Callable[[Hook], Hook]:
        """Decorate the function that replaces these names of a module after its import."""

        def add(apply: Hook) -> Hook:
            self.changes.append(Change(module, names, why, apply))
            return apply

        return add

    def during(self, module: str, *, why: str) -> Callable[[Around], Around]:
        """Decorate a context manager that is entered for the import of a module."""

        def add(around: Around) -> Around:
            self.changes.append(Change(module, (), why, around=around))
            return around

        return add

    def install(self) -> None:
        """Register every change for its module's import."""
        for change in self.changes:
            if change.around is not None and change.module not in sys.modules:
                _FINDER.around.setdefault(change.module, []).append(change.around)
                _put_finder_first()
            if change.apply is not None:
                call_when_imported(change.module, lambda module, c=change: c.apply(Names(module, c.names)))  # type: ignore[misc]
