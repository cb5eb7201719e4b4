"""Read records from a local file, or from a data set of the Hugging Face hub.

A source is read in a fixed order, as often as needed. Its identity names the content, the SHA-256 of a file or the
commit of a data set. So work on one version is not continued on another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nemo_ada.config.paths import resolve_folder_or_repository
from nemo_ada.errors import UserError
from nemo_ada.run.data_files import FORMS, TABLE_ROWS, Raw, is_data_file, list_shards, read_rows
from nemo_ada.run.files import open_to_read
from nemo_ada.standing import get_users_folder

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from.

    Attributes:
        identity: Name and content, without local paths.
        records: Yields pairs of a line number, counted from 1, and a raw record.
    """

    identity: Mapping[str, Any]
    records: Callable[[], Iterator[tuple[int, Raw]]]


def open_source(
    name: str, *, split: str = "train", subset: str | None = None, revision: str | None = None, where: str = "source"
) -> Source:
    """Open a local file, or a data set of the hub where no file has this name. Raises UserError where neither fits."""
    path = Path(resolve_folder_or_repository(where, name)).expanduser()
    if path.is_dir() or ("*" in path.name and path.parent.is_dir()):
        files = list_shards(path, split)
        return Source({"files": [identify_file(file) for file in files]}, partial(read_rows, path, split))
    if path.is_file():
        if not is_data_file(path):
            raise UserError(f"{where}={name}: unknown suffix {path.suffix!r}; {FORMS}")
        return Source(identify_file(path), partial(read_rows, path))
    if name == "-" or path.exists():  # neither a file nor a folder
        raise UserError(
            f"{where}={name}: a pipe can be read only once, and these rows are read more often; write them to a file "
            "first, such as rows.jsonl, and name that"
        )
    if is_data_file(path) or not HUB_ID.fullmatch(name):
        raise UserError(
            f"{where}={name}: no such file (from {str(get_users_folder())!r}) and not a hub data set; {FORMS}, "
            "or owner/name of a data set of the hub"
        )
    return open_hub(name, split, subset, revision)


def identify_file(path: Path) -> dict[str, Any]:
    """Return name and SHA-256 of a file."""
    try:
        with open_to_read(path) as file:
            return {"file": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror or problem}") from None


def open_hub(name: str, split: str, subset: str | None, revision: str | None) -> Source:
    """Open a data set of the Hugging Face hub, or of its local cache, with the package `datasets`."""
    hint = "download it on a machine with a network and pass the local JSONL or Parquet file"
    try:
        import datasets  # takes a second

        builder = datasets.load_dataset_builder(name, subset, revision=revision)
        builder.download_and_prepare()
        table = builder.as_dataset(split=split)
    except ImportError:
        raise UserError(
            f"{name!r} is not a local file, and hub data sets need the package datasets; install it, or {hint}"
        ) from None
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as problem:
        why = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise UserError(f"the data set {name!r} (split {split}) cannot be read: {why}; {hint}") from None
    identity = {"dataset": name, "subset": subset, "split": split, "revision": builder.hash}
    # As Arrow, because rows of the library would decode images and sounds, which needs further packages.
    plain = table.with_format("arrow")
    return Source(
        identity, lambda: enumerate((row for part in plain.iter(TABLE_ROWS) for row in part.to_pylist()), start=1)
    )
