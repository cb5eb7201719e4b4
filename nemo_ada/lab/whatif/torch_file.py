"""Read the rollouts that slime and miles save with torch (`--save-debug-rollout-data`), without running any of it.

Such a file is a zip archive with a pickle. A pickle is a program, and a foreign one may do anything. So it is not
unpickled: its instructions are read one by one (`pickletools`), and only those are followed that make texts, numbers,
lists and objects. Whatever else it would call, such as torch for a tensor, becomes None.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run.files import MAX_TEXT, open_to_read
from nemo_ada.run.json_lines import Record

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NUMPY_SCALAR = ("numpy.core.multiarray scalar", "numpy._core.multiarray scalar")


class _Called:
    """What a pickle would call, by its name. It is never imported."""

    def __init__(self, name: str) -> None:
        self.name = name


def read_torch_file(file: Path) -> Iterator[Record]:
    """Yield the samples of a dump, with the number of its rollout as `step`.

    Raises:
        UserError: The file holds no samples, or is damaged.
    """
    try:
        with open_to_read(file) as raw, zipfile.ZipFile(raw) as archive:
            entry = next(info for info in archive.infolist() if info.filename.endswith("/data.pkl"))
            if entry.file_size > MAX_TEXT:
                raise UserError(f"{file} holds more than {MAX_TEXT >> 20} MiB; give the rollouts of some steps")
            content = _make_value(archive.read(entry))
    except (zipfile.BadZipFile, StopIteration, ValueError, LookupError, TypeError, AttributeError, OSError) as damage:
        raise UserError(f"{file} is no file of torch that holds plain values, or is damaged: {damage!r}") from None
    samples = content.get("samples") if isinstance(content, dict) else None
    if not isinstance(samples, list):
        raise UserError(f"{file} has no list `samples`, as the rollouts of slime and miles have")
    step = content.get("rollout_id")
    for sample in samples:
        if isinstance(sample, dict):
            yield ({"step": step} if isinstance(step, int) else {}) | sample


def _make_value(program: bytes) -> Any:
    """Return the plain value that a pickle makes. What is not plain is None. Raises ValueError for damage."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        items: list[Any] = []
        while (item := stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    for code, argument, _ in pickletools.genops(program):
        name = code.name
        if name in ("PROTO", "FRAME", "STOP"):
            continue
        if name == "MARK":
            stack.append(_MARK)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ("TUPLE", "LIST", "FROZENSET"):
            stack.append(list(since_mark()) if name != "TUPLE" else tuple(since_mark()))
        elif name in ("APPEND", "APPENDS", "ADDITEMS"):
            items = [stack.pop()] if name == "APPEND" else since_mark()
            if isinstance(stack[-1], list):
                stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS", "DICT"):
            pairs = [stack.pop(), stack.pop()][::-1] if name == "SETITEM" else since_mark()
            made = dict(zip(pairs[::2], pairs[1::2], strict=True)) if _plain_keys(pairs) else {}
            if name == "DICT":
                stack.append(made)
            elif isinstance(stack[-1], dict):
                stack[-1].update(made)
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
            memo[len(memo) if argument is None else int(argument)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[int(argument or 0)])
        elif name == "POP":
            stack.pop()
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            words = argument if argument is not None else " ".join(map(str, [stack.pop(), stack.pop()][::-1]))
            stack.append(_Called(words))
        elif name in ("REDUCE", "NEWOBJ"):
            given, called = stack.pop(), stack.pop()
            stack.append(_make_called_value(called, given))
        elif name == "BUILD":
            stack.pop()
        elif name == "BINPERSID":
            stack[-1] = None
        elif argument is not None or name in ("SHORT_BINBYTES", "BINBYTES"):
            stack.append(argument)
        else:
            raise ValueError(f"the instruction {name} is not read")
    return stack.pop()


def _plain_keys(pairs: list[Any]) -> bool:
    return all(isinstance(key, str | int | float | bool | bytes | None) for key in pairs[::2])


def _make_called_value(called: Any, given: Any) -> Any:
    """Return the value of what a pickle would call: an empty object, or a number of numpy. Else None."""
    if not isinstance(called, _Called) or not isinstance(given, tuple):
        return None
    if called.name in ("collections OrderedDict", "builtins dict"):
        return {}
    if called.name == "numpy dtype" and given and isinstance(given[0], str):
        return _Called(f"dtype {given[0]}")
    if called.name == "_codecs encode" and isinstance(given[0], str):  # how older pickles write bytes
        return given[0].encode("latin1")
    if called.name in _NUMPY_SCALAR and len(given) == 2 and isinstance(given[0], _Called):
        return _numpy_number(given[0].name.removeprefix("dtype "), given[1])
    return None


def _numpy_number(kind: str, data: Any) -> float | None:
    import numpy as np

    if kind[:1] not in ("f", "i", "u", "b") or not isinstance(data, bytes) or len(data) > 16:
        return None
    return float(np.frombuffer(data, np.dtype(kind))[0])
