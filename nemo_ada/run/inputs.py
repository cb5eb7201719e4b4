"""What a run reads besides its configuration, by content: data, tokenizer, template, prompt files, own code.

The configuration names files. A run that goes on with another content under the same name is another run.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from nemo_ada.by_name import LIBRARIES, file_of, find
from nemo_ada.errors import UserError
from nemo_ada.run.data_files import is_data_file, list_shards
from nemo_ada.run.files import text_of

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
OF_HUB = "the hub's "  # what is known of these once they are in the cache
PATH_KEYS = re.compile(
    r"run_dir|.*\.(?:\w+_dir|\w+_path|\w+_folder|\w+_file|path|model_name|chat_template|config_paths)|.*tokenizer\.name"
    r"|.*pretrained_checkpoint|.*speculative_config\.model"
)
"""Settings whose value is a path, relative to the user's working folder."""
HUB_KEYS = re.compile(
    r".*(?:model_name|tokenizer\.name|chat_template|_path|\.path|_file|config_paths|speculative_config\.model)"
)
"""Those of them that may be something else: a repository of the hub, a text, or a file elsewhere."""
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_DATA = re.compile(r"task\.path|data\..*(?:data_path|dataset_path|\.path)")
_FILES = re.compile(r".*\.(?:system_prompt_file|prompt_file|chat_template)")
CODE = re.compile(r"(?:[A-Za-z_][\w.]*|/.*\.py):[A-Za-z_]\w*")


def list_files(flat: Mapping[str, Any]) -> list[Path]:
    """Return the files that a run with this configuration reads on this machine. Their links are not followed."""
    return [file.absolute() for _, found in _find_inputs(flat) for file in found]


def compute_digests(flat: Mapping[str, Any]) -> dict[str, str]:
    """Return what a run reads -> SHA-256 of its content.

    Args:
        flat: The configuration with dotted keys. Files that are not here, nor in the hub's cache, are left out.
    """
    found: dict[str, str] = {}
    for what, files in _find_inputs(flat):
        with suppress(OSError):
            whole = hashlib.sha256()
            for file in files:
                stat = file.stat()
                whole.update(f"{file.name}:{_compute_digest(str(file), stat.st_size, stat.st_mtime_ns)}\n".encode())
            if files:
                found[what] = whole.hexdigest()
    return found


def find_differences(before: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Return the inputs whose content is another one than before, also those that are gone or new.

    What the hub has is compared where both attempts had it in their cache: the first one may have filled it.
    """
    both = {what for what in {*before, *now} if not what.startswith(OF_HUB) or (what in before and what in now)}
    return sorted(what for what in both if before.get(what) != now.get(what))


def find_cached(hub: Path, name: str, kind: str) -> Path | None:
    """Return the folder of the newest version of a repository in a cache, None where it has none."""
    folder = hub / f"{kind}s--{name.replace('/', '--')}"
    try:
        version = folder / "snapshots" / text_of(folder / "refs" / "main").strip()
    except (OSError, ValueError):
        return None
    return version if version.is_dir() else None


def _find_place(name: str, kind: str) -> tuple[Path, str]:
    """Return the path of a file, a folder or a repository of the hub, and what is said in front of the last one."""
    path = Path(name).expanduser()
    if _REPOSITORY.fullmatch(name) and not path.exists():
        home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
        found = find_cached(Path(os.environ.get("HF_HUB_CACHE") or home / "hub"), name, kind)
        return found or path, OF_HUB
    return path, ""


def _find_inputs(flat: Mapping[str, Any]) -> Iterator[tuple[str, list[Path]]]:
    for key, value in flat.items():
        if not isinstance(value, str) or not value:
            continue
        if _DATA.fullmatch(key):
            with suppress(UserError, OSError, ValueError):
                path, whose = _find_place(value, "dataset")
                files = list_shards(path)
                if all(file.is_file() and is_data_file(file) for file in files):
                    yield f"{whose}data ({key})", files
        elif _FILES.fullmatch(key):
            with suppress(OSError, ValueError):
                if (path := Path(value).expanduser()).is_file():
                    yield f"{key.rpartition('.')[2]} ({key})", [path]
        elif CODE.fullmatch(value):
            with suppress(UserError):  # something else between colons, or what the task itself refuses
                source = file_of(find(key, value))
                if source is not None and not str(source).startswith(LIBRARIES):
                    yield f"code of {source.stem}:{value.rpartition(':')[2]} ({key})", [source]
    folders = {_find_place(str(flat[key]), "model"): key for key in FOLDERS if flat.get(key)}
    for (folder, whose), key in folders.items():
        for what, names in OF_MODEL.items():
            if files := [folder / name for name in names if (folder / name).is_file()]:
                yield f"{whose}{what} ({key})", files


@lru_cache(maxsize=256)
def _compute_digest(file: str, _size: int, _changed: int) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
