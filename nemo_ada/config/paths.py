"""Paths of a configuration: relative to the user's folder, to a YAML, or to this package. No process stands there."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemo_ada.errors import UserError
from nemo_ada.run.inputs import HUB_KEYS, PATH_KEYS
from nemo_ada.run.yaml_file import read_yaml
from nemo_ada.standing import REPOSITORY, get_users_folder, get_whole_path, show_path

PACKAGE = Path(__file__).resolve().parents[1]
DATA_FILES = (".jsonl", ".parquet", ".csv", ".arrow")
PROMPT_FILES = ("prompt_file", "system_prompt_file")
NEMO_RL = "NEMO_RL_HOME"  # the variable with NeMo-RL's checkout
MAX_PATH = 1000  # characters of a value that is looked up as a path


def find_shipped(path: Path) -> Path:
    """Return the whole path of a file that the user wrote.

    One into configs/ or recipes/ that is not in the working folder is the file of this package.
    """
    path = get_whole_path(path)
    if not os.path.exists(path) and (inside := show_path(path)).parts[:1] in (("configs",), ("recipes",)):
        own = locate_packaged(inside)
        return own if os.path.isfile(own) else path
    return path


def locate_packaged(path: Path) -> Path:
    """Return the place of a file or a folder of configs/ or recipes/ that came with this package.

    It stands beside the package in a checkout, and inside it in a wheel (setup.py).
    """
    inside = PACKAGE / "shipped"
    return (inside if inside.is_dir() else PACKAGE.parent) / path


def list_family(path: Path) -> list[Path]:
    """Return a YAML that `load_yaml` has read and the files that its `defaults` lead to, the file itself first."""
    content = OmegaConf.create(read_yaml(path, "the configuration"))
    parents = content.get("defaults", [])
    names = [parents] if isinstance(parents, str) else list(parents)
    return [path, *(file for name in names for file in list_family((path.parent / name).resolve()))]


def make_paths_whole(config: dict[str, Any], paths: Sequence[Path], words: Sequence[str] = ()) -> dict[str, Any]:
    """Return the configuration of these YAMLs with whole paths: of the files that it names, and of its folders.

    They are relative to the working folder. A prompt file is also looked up beside each YAML that the configuration
    builds on and in the folders above that YAML, so a run may start in any folder. A name without a file stays as it
    is. `task.path` may name a file of this package (`find_shipped`).

    Args:
        config: the resolved configuration. It is changed.
        paths: files of the YAMLs.
        words: the words of the command line behind the first YAML.

    Raises:
        UserError: a prompt file is not in the folder of one of `paths`, of this package or of NeMo-RL, and no word
            names it: its text would get into the run and its model. A folder has the name of a repository of the hub.
    """
    checkout = os.environ.get(NEMO_RL)
    known = [
        *(path.parent for path in paths),
        locate_packaged(Path("configs")),
        *([Path(checkout)] if checkout else []),
    ]
    for title, section in (config.get("data") or {}).items():
        for key in PROMPT_FILES if isinstance(section, dict) else ():
            name = section.get(key)
            if not isinstance(name, str) or not name:
                continue
            folders = [folder for path in paths for file in list_family(path.resolve()) for folder in file.parents]
            found = [file for folder in (get_users_folder(), *folders) if (file := folder / name).is_file()]
            taken = next((file for file in found if _is_within(file, known)), None)
            if taken is None and found and not _is_named(name, words):
                raise UserError(
                    f"data.{title}.{key}={name!r}: {found[0]} lies outside of the configuration's folder, and its text "
                    f"would get into the run and its model; name it with ++data.{title}.{key}={name}"
                )
            section[key] = str((taken or found[0]).absolute()) if found else name
    task = config.get("task")
    if isinstance(task, dict) and isinstance(task.get("path"), str):
        task["path"] = str(find_shipped(Path(task["path"])))
    _make_whole(config)
    return config


def _is_within(path: Path, folders: Sequence[Path]) -> bool:
    """Return whether a file lies in one of these folders or below, after all links."""
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)


def _is_named(name: str, words: Sequence[str]) -> bool:
    """Return whether one of these words of a command line has this name, which ends where another one would begin."""
    whole = re.compile(rf"(?<![\w.:/-]){re.escape(name)}(?![\w.:/-])")
    return any(whole.search(word) for word in words)


def _make_whole(section: Any, where: str = "") -> None:
    """Make the paths of a configuration absolute. No process of the run stands in the user's folder."""
    for key, value in list(section.items()) if isinstance(section, dict) else list(enumerate(section)):
        dotted = where if isinstance(section, list) else f"{where}.{key}" if where else str(key)
        if isinstance(value, dict | list):
            _make_whole(value, dotted)
        elif isinstance(value, str) and value and PATH_KEYS.fullmatch(dotted):
            section[key] = (
                resolve_folder_or_repository(dotted, value) if HUB_KEYS.fullmatch(dotted) else get_whole_path(value)
            )


def resolve_folder_or_repository(key: str, name: str) -> str:
    """Return a whole path, or a repository of the hub as it is: what a library is told.

    Args:
        key: the setting or the option, for messages.
        name: what the user wrote: a path, or owner/name of the hub.

    Raises:
        UserError: it is both. A library would take the folder, whoever has put it there.
    """
    if len(name) > MAX_PATH or not name.isprintable():  # a chat template may stand in the place of its file
        return name
    place = get_users_folder() / os.path.expanduser(name)
    there = os.path.lexists(place) or ("*" in place.name and place.parent.is_dir())
    if there and REPOSITORY.fullmatch(name) and place.suffix not in DATA_FILES and not place.is_file():
        raise UserError(
            f"{key}={name} is a repository of the hub, and {place} is in the way: write ./{name} for the folder, or "
            "start the command in another folder for the repository",
            key=key,
        )
    return str(get_whole_path(name)) if there else name
