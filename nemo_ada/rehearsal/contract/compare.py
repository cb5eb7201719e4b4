"""The differences of two checkouts in what a program touches."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_ada.rehearsal.contract.uses import Use
from nemo_ada.rules.facts.checkout import Checkout, Function, annotation, parameters, returned
from nemo_ada.rules.facts.upstream import LOOP, MASTER_CONFIG
from nemo_ada.run.yaml_file import read_yaml

SAVE_STATE = f"{LOOP}.GRPOSaveState"
LOOPS = ("grpo_train", "async_grpo_train", "validate")
CHECKPOINTS = "nemo_rl.utils.checkpoint"
EXAMPLES = Path("examples/configs")
ABSENT, UNDECLARED = "does not exist", "not declared"


@dataclass(frozen=True, slots=True)
class NameDifference:
    """One thing that differs.

    Attributes:
        kind: `name`, `parameters`, `returned values`, `returned type`, `key`, `file in a checkpoint`, `save state`,
            `metric` or `example`.
        what: the name, key or file.
        old: what the first checkout has.
        new: what the second checkout has.
        where: what touches the name; empty for what belongs to every run.
    """

    kind: str
    what: str
    old: str
    new: str
    where: str = ""


def differences(old: Checkout, new: Checkout, uses: Sequence[Use], bases: Iterable[Path] = ()) -> list[NameDifference]:
    """Everything that differs.

    Args:
        old: the checkout that the program was made for.
        new: the other checkout.
        uses: the names that the program touches.
        bases: files of the checkout, relative to its root, that configs of the program inherit from.
    """
    result = [difference for use in uses for difference in _of_name(old, new, use)]
    result += _mappings("key", old.keys(MASTER_CONFIG), new.keys(MASTER_CONFIG))
    result += _mappings("save state", old.keys(SAVE_STATE), new.keys(SAVE_STATE))
    result += _sets("file in a checkpoint", *(_files(one) for one in (old, new)))
    result += _sets("metric", *(one.strings(LOOP, LOOPS, "metrics") for one in (old, new)))
    for base in sorted(set(bases)):
        result += _of_example(old, new, base)
    return result


def _of_name(old: Checkout, new: Checkout, use: Use) -> Iterator[NameDifference]:
    before, after = old.find(use.name), new.find(use.name)
    if before is None and after is None:
        return
    if before is None or after is None:
        first_module, second_module = (ABSENT if one is None else f"in {one.module}" for one in (before, after))
        yield NameDifference("name", use.name, first_module, second_module, use.where)
        return
    first, second = _callable(before.node), _callable(after.node)
    if first is None or second is None:
        if _sort(before.node) != _sort(after.node):
            yield NameDifference("name", use.name, _sort(before.node), _sort(after.node), use.where)
        return
    for kind, look in (("parameters", _signature), ("returned values", returned), ("returned type", annotation)):
        if look(first) != look(second):
            yield NameDifference(kind, use.name, look(first) or UNDECLARED, look(second) or UNDECLARED, use.where)


def _callable(node: Any) -> Function | None:
    """Return the function itself, or the constructor of a class; None for anything else."""
    if isinstance(node, ast.ClassDef):
        return next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _signature(function: Function) -> str:
    return f"({', '.join(parameters(function))})"


def _sort(node: Any) -> str:
    names = {ast.FunctionDef: "a function", ast.AsyncFunctionDef: "a coroutine function", ast.ClassDef: "a class"}
    return "a module" if node is None else names.get(type(node), "a value")


def _files(checkout: Checkout) -> set[str]:
    return checkout.strings(LOOP, LOOPS, "files") | checkout.strings(CHECKPOINTS, ("CheckpointManager",), "files")


def _mappings(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[NameDifference]:
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield NameDifference(kind, key, old.get(key, ABSENT), new.get(key, ABSENT))


def _sets(kind: str, old: set[str], new: set[str]) -> Iterator[NameDifference]:
    yield from _mappings(kind, dict.fromkeys(old, "exists"), dict.fromkeys(new, "exists"))


def _of_example(old: Checkout, new: Checkout, base: Path) -> Iterator[NameDifference]:
    present = [(checkout.root / base).is_file() for checkout in (old, new)]
    if not all(present):
        yield NameDifference("example", str(base), *("exists" if there else ABSENT for there in present))
        return
    values = [dict(_flat(read_yaml(checkout.root / base))) for checkout in (old, new)]
    for difference in _mappings("example", *({k: repr(v) for k, v in one.items()} for one in values)):
        yield NameDifference("example", f"{base}: {difference.what}", difference.old, difference.new)


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flat(value, f"{prefix}{key}.")
    else:
        yield prefix.rstrip("."), node
