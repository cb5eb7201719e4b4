"""What a run reads besides its configuration, by content: data, tokenizer, template, prompt files, own code.

The configuration names files. A run that goes on with another content under the same name is another run.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run.data_files import is_data_file, shards

LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
FILE = "inputs.json"
ASKED = "changed_inputs"
TOKENIZER = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt",
)  # fmt: skip
OF_MODEL: Mapping[str, tuple[str, ...]] = {
    "tokenizer": TOKENIZER,
    "chat template": ("chat_template.jinja", "chat_template.json"),
    "generation_config": ("generation_config.json",),
    "model's config": ("config.json",),
}
FOLDERS = ("policy.tokenizer.name", "policy.model_name")  # the second one gives its name to a folder of both
_DATA = re.compile(r"task\.path|data\..*(?:data_path|dataset_path|\.path)")
_FILES = re.compile(r".*\.(?:system_prompt_file|prompt_file|chat_template)")
_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def digests(flat: Mapping[str, Any]) -> dict[str, str]:
    """Return what a run reads -> SHA-256 of its content.

    Args:
        flat: The configuration with dotted keys. Names of the hub, and files that are not there, are left out.
    """
    found: dict[str, str] = {}
    for what, files in _inputs(flat):
        with suppress(OSError):
            whole = hashlib.sha256()
            for file in files:
                stat = file.stat()
                whole.update(f"{file.name}:{_digest(str(file), stat.st_size, stat.st_mtime_ns)}\n".encode())
            if files:
                found[what] = whole.hexdigest()
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Return the inputs whose content is another one than before, also those that are gone or new."""
    return sorted(what for what in {*before, *now} if before.get(what) != now.get(what))


def _inputs(flat: Mapping[str, Any]) -> Iterator[tuple[str, list[Path]]]:
    for key, value in flat.items():
        if not isinstance(value, str) or not value:
            continue
        path = Path(value).expanduser()
        if _DATA.fullmatch(key):
            with suppress(UserError, OSError, ValueError):
                files = shards(path)
                if all(file.is_file() and is_data_file(file) for file in files):
                    yield f"data ({key})", files
        elif _FILES.fullmatch(key):
            with suppress(OSError, ValueError):
                if path.is_file():
                    yield f"{key.rpartition('.')[2]} ({key})", [path]
        elif _CODE.fullmatch(value) and (source := _source(value.partition(":")[0])) is not None:
            yield f"code of {value} ({key})", [source]
    folders = {Path(str(flat[key])).expanduser(): key for key in FOLDERS if flat.get(key)}
    for folder, key in folders.items():
        for what, names in OF_MODEL.items():
            if files := [folder / name for name in names if (folder / name).is_file()]:
                yield f"{what} ({key})", files


def _source(module: str) -> Path | None:
    """Return the file of a user's module, which is not imported for that. None for a module of a library."""
    found, places, name = None, [*sys.path, os.getcwd()], ""
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        try:
            found = PathFinder.find_spec(name, places)
        except (ImportError, ValueError, AttributeError):
            return None
        if found is None:
            return None
        places = list(found.submodule_search_locations or [])
    origin = found.origin if found is not None else None
    return None if origin is None or origin.startswith(LIBRARIES) or not Path(origin).is_file() else Path(origin)


@lru_cache(maxsize=256)
def _digest(file: str, _size: int, _changed: int) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
