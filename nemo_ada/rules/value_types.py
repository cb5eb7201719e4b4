"""A rule for the types of values. NeMo-RL checks them when a run starts, with GPUs waiting.

Its configuration classes are read as source, so nothing of NeMo-RL is imported, and each version is judged by its own
classes. A type that is neither plain nor one of these classes takes any value.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, NotRequired, Optional, Union

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from nemo_ada.config.values import Values
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.checkout import Checkout, Found
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.facts.upstream import MASTER_CONFIG
from nemo_ada.rules.finding import Findings, error

PLAIN: Mapping[str, Any] = {
    "str": str, "int": int, "float": float, "bool": bool, "list": list, "List": list, "dict": dict, "Dict": dict,
    "tuple": tuple, "Any": Any, "Optional": Optional, "Union": Union, "NotRequired": NotRequired,
    "PathLike": os.PathLike,
}  # fmt: skip
"""Names in types that mean what they mean here."""
CLASSES = ("TypedDict", "BaseModel")
MISSING = "missing"  # pydantic's name of this error


def check_value_types(config: Mapping[str, Any]) -> Findings:
    """Values that NeMo-RL's configuration classes refuse, and keys that they miss, where a NeMo-RL is here.

    The single controller has other classes, and its configs are not judged.
    """
    checkout = version.find_checkout()
    if checkout is None or Loop.of(Values(config)) is Loop.CONTROLLER:
        return
    try:
        _make_adapter(checkout).validate_python(config)
    except ValidationError as problem:
        errors = problem.errors(include_url=False)
    else:
        return
    yield from read_errors(config, errors)


def read_errors(config: Mapping[str, Any], errors: Iterable[Mapping[str, Any]]) -> Findings:
    """What pydantic's errors say of a config, one finding per key.

    Args:
        config: the config.
        errors: what `ValidationError.errors` returns, with or without the input of each.
    """
    said: dict[str, list[str]] = {}
    for one in errors:
        missing = one["type"] == MISSING
        key, inside = _locate(config, tuple(map(str, one["loc"])), missing)
        given = "it is missing" if missing else _show(one.get("input", Values(config).get(key)))
        said.setdefault(key, []).append(f"{inside}{given}: {one['msg']}")
    for key, messages in said.items():
        yield error(key, f"NeMo-RL would stop when the run starts ({'; or '.join(messages)})")


def _show(value: Any) -> str:
    """Return a value for a message. What is inside a section may be secret."""
    if isinstance(value, Mapping | list):
        return "a section" if isinstance(value, Mapping) else "a list"
    return "null" if value is None else repr(value)[:80]


def _locate(config: Any, location: tuple[str, ...], missing: bool) -> tuple[str, str]:
    """Return the dotted key of an error, and what follows in words where a value may have one of several types.

    Args:
        config: the config.
        location: pydantic's place of the error. It has the name of a type behind the key of such a value.
        missing: whether the last part is a key that is not there.
    """
    node = config
    for count, part in enumerate(location, 1):
        if isinstance(node, Mapping) and (part in node or (missing and count == len(location))):
            node = node.get(part)
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            return ".".join(location[: count - 1]), "".join(f"{one} " for one in location[count:])
    return ".".join(location), ""


@cache
def _make_adapter(checkout: Checkout) -> TypeAdapter[Any]:
    found = checkout.find(MASTER_CONFIG)
    try:
        return TypeAdapter(Any if found is None else Classes(checkout).make_type(found))
    except (TypeError, ValueError, SyntaxError, RecursionError, PydanticUserError):  # of a version that is not known
        return TypeAdapter(Any)


def _has_default(value: ast.expr | None) -> bool:
    """Return whether what is assigned to a field in its class gives it a default."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] == "Field":
        return any(ast.unparse(one) != "..." for one in value.args) or any(
            word.arg in ("default", "default_factory") for word in value.keywords
        )
    return value is not None


class Classes:
    """Types made of the configuration classes of a checkout."""

    def __init__(self, checkout: Checkout) -> None:
        self._checkout = checkout
        self._made: dict[tuple[str, str], Any] = {}

    def make_type(self, found: Found) -> Any:
        """Return a type for a configuration class. Any other definition takes any value."""
        if isinstance(found.node, ast.expr):  # an alias
            return self._of(found.node, found.module)
        if not isinstance(found.node, ast.ClassDef):
            return Any
        place = found.module, found.node.name
        if place not in self._made:
            self._made[place] = Any  # a class inside itself
            fields = self._fields(found.module, found.node)
            self._made[place] = Any if fields is None else TypedDict(found.node.name, fields)  # type: ignore[operator]
        return self._made[place]

    def _fields(self, module: str, class_: ast.ClassDef) -> dict[str, Any] | None:
        """Name -> type of a class and its bases. None for a class that is no configuration."""
        fields: dict[str, Any] = {}
        known = False
        for base in class_.bases:
            if ast.unparse(base).split("[")[0].split(".")[-1] in CLASSES:
                known = True
                continue
            parent = self._checkout.find(f"{module}.{ast.unparse(base)}")
            if parent is not None and isinstance(parent.node, ast.ClassDef):
                inherited = self._fields(parent.module, parent.node)
                known |= inherited is not None
                fields |= inherited or {}
        if not known:
            return None
        optional = any(word.arg == "total" and ast.unparse(word.value) == "False" for word in class_.keywords)
        for node in class_.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                kind = self._of(node.annotation, module)
                wrapped = ast.unparse(node.annotation).startswith("NotRequired[")
                may_lack = optional or _has_default(node.value) or node.target.id.startswith("_")
                fields[node.target.id] = NotRequired[kind] if may_lack and not wrapped else kind
        return fields

    def _of(self, node: ast.expr, module: str) -> Any:
        """Return the type that an annotation of a module means."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self._of(ast.parse(node.value, mode="eval").body, module)
            return node.value if node.value in (None, ...) else Any
        if isinstance(node, ast.Name):
            if node.id in PLAIN:
                return PLAIN[node.id]
            found = self._checkout.find(f"{module}.{node.id}")
            return Any if found is None else self.make_type(found)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return Union[self._of(node.left, module), self._of(node.right, module)]  # noqa: UP007 - of two values
        if isinstance(node, ast.Subscript):
            name = ast.unparse(node.value).split(".")[-1]
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if name == "Literal":
                return Literal[tuple(ast.literal_eval(one) for one in inner)]
            if name == "Annotated":
                return self._of(inner[0], module)
            if name in PLAIN:
                kinds = tuple(self._of(one, module) for one in inner)
                return PLAIN[name][kinds if len(kinds) > 1 else kinds[0]]
        return Any
