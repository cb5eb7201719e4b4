"""The one reader of YAML files: bounded size, no repeated keys, no exploding aliases.

PyYAML silently takes the last of two equal keys. It copies nothing for an alias, so ten lines can stand for billions of
values in a configuration. For values such as `!!bool x` it raises bare errors of its constructors. All of these are
errors here, with the file and the line where there is one. `1e-8` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from nemo_ada.errors import UserError
from nemo_ada.run.files import json_of, read_bounded
from nemo_ada.trust import read_found

MAX_BYTES = 1_000_000  # PyYAML needs seconds per megabyte
MAX_JSON = 4 << 20  # of a JSON file of a run's folder, which anybody may have made
MAX_VALUES = 100_000  # with every alias written out
MAX_DEPTH = 100
MAX_DIGITS = 100  # of a whole number, and of 1:30:00, which YAML reads in base 60
_PARSER_ERRORS = (yaml.YAMLError, ValueError, RecursionError, ArithmeticError, LookupError, AttributeError, TypeError)


class _Written(yaml.SafeLoader):
    """SafeLoader that refuses repeated keys and deep nesting."""

    _level = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self._level > MAX_DEPTH:
            raise RecursionError
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, Any] = {}
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in seen:
                first = seen[key_node.value].start_mark.line + 1
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"the key {key_node.value[:80]!r} was given on line {first} already",
                    key_node.start_mark,
                )
            seen[key_node.value] = key_node
        return dict(super().construct_mapping(node, deep))


def _construct_integer(loader: Any, node: Any) -> Any:
    if len(node.value) > MAX_DIGITS:
        raise yaml.constructor.ConstructorError(
            None, None, f"a number of more than {MAX_DIGITS} characters", node.start_mark
        )
    return loader.construct_yaml_int(node)


_Written.add_constructor("tag:yaml.org,2002:int", _construct_integer)


class _Loader(_Written):
    """Reads what people write."""


# PyYAML wants a point and a sign in `1.0e-8`. OmegaConf, which reads NeMo-RL's files there, does not.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_mapping(path: Path, note: Callable[[str], object] = lambda why: None) -> dict[str, Any]:
    """Read the mapping that a run has written into a YAML file, or into one of JSON with any other name.

    Whoever only shows a run can do without a file of it that is missing or damaged. The mapping is then empty.

    Args:
        path: the file.
        note: gets what is wrong with a file that is there.
    """
    try:
        if not path.exists():
            return {}
        content = read_yaml(path, written=True) if path.suffix == ".yaml" else json_of(path, MAX_JSON)
    except (OSError, ValueError, RecursionError) as problem:
        note(f"{path.name} cannot be read: {problem or type(problem).__name__}")
        return {}
    if isinstance(content, dict):
        return content
    note(f"{path.name} holds no mapping")
    return {}


def read_yaml(path: Path, what: str = "the configuration", *, written: bool = False, found: str = "") -> Any:
    """Read a YAML file.

    Args:
        path: the file.
        what: what messages call it.
        written: whether a program wrote the file. `1e-8` is then the text that the program had.
        found: where nobody named the file, what a user can do if it is not the user's own (trust.py).

    Raises:
        UserError: the file cannot be read, or is not what this reader takes.
    """
    try:
        text = (read_found(path, found, MAX_BYTES) if found else read_bounded(path, MAX_BYTES)).decode("utf-8")
    except UserError:
        raise
    except (OSError, ValueError) as error:  # ValueError: not UTF-8
        raise UserError(f"cannot read {what} {_show_path(path)}: {error}") from None
    try:
        return deepcopy(_parse_content(text, written))
    except _PARSER_ERRORS as error:
        works = "; indent with blanks, not with tabs" if "\\t" in str(error) else ""
        raise UserError(f"{_show_path(path)} is not valid YAML: {_shorten_error(error)}{works}") from None


@lru_cache(maxsize=32)
def _parse_content(text: str, written: bool) -> Any:
    """Read the text of a file. PyYAML takes long, and commands read the same parents many times."""
    content = yaml.load(text, _Written if written else _Loader)
    _count_values(content, 0, {})
    return content


def _show_path(path: Path) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def _shorten_error(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
    if isinstance(error, RecursionError):
        return f"it is nested deeper than {MAX_DEPTH} levels"
    text = " ".join(str(error).split())[:200]
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__} {text}".strip()


def _count_values(node: Any, depth: int, sizes: dict[int, int]) -> int:
    """Return number of values below a node with every alias written out. Raises ValueError when there are too many."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels (or refers to itself)")
    if not isinstance(node, (dict, list, tuple, set)):
        return 1
    if id(node) not in sizes:
        parts = [*node.keys(), *node.values()] if isinstance(node, dict) else node
        sizes[id(node)] = 1 + sum(_count_values(part, depth + 1, sizes) for part in parts)
    if sizes[id(node)] > MAX_VALUES:
        raise ValueError(f"it stands for more than {MAX_VALUES:,} values (aliases of aliases)")
    return sizes[id(node)]
