"""Read records from a local file, or from a data set of the Hugging Face hub.

A source is read as a stream, in a fixed order, as often as needed. Its identity names the content. So work on one
version of a file is not continued on another.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nemo_ada.errors import UserError
from nemo_ada.lab.data.journal import PINS
from nemo_ada.run.data_files import FORMS, Raw, is_data_file, rows, shards
from nemo_ada.run.files import opened_to_read, read_json, text_of, write_atomically

log = logging.getLogger(__name__)

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from.

    Attributes:
        identity: Returns name and content, without local paths.
        records: Yields pairs of a line number, counted from 1, and a raw record.
        commit: Returns the commit of a hub data set. None for a file, and where the commit is not known.
        at: Returns the same source at a commit. None for a file.
    """

    identity: Callable[[], dict[str, Any]]
    records: Callable[[], Iterator[tuple[int, Raw]]]
    commit: Callable[[], str | None] = lambda: None
    at: Callable[[str], Source] | None = None


def open_source(
    name: str, *, split: str = "train", subset: str | None = None, revision: str | None = None, where: str = "source"
) -> Source:
    """Open a local file, or a data set of the hub where no file has this name. Raises UserError where neither fits."""
    path = Path(name).expanduser()
    if path.is_dir() or ("*" in path.name and path.parent.is_dir()):
        files = shards(path, split)
        return Source(lambda: {"files": [file_identity(file) for file in files]}, partial(rows, path, split))
    if path.is_file():
        if not is_data_file(path):
            raise UserError(f"{where}={name}: unknown suffix {path.suffix!r}; {FORMS}")
        return Source(partial(file_identity, path), partial(rows, path))
    if is_data_file(path) or not HUB_ID.fullmatch(name):
        raise UserError(
            f"{where}={name}: no such file (from {str(Path.cwd())!r}) and not a hub data set; {FORMS}, "
            "or owner/name of a data set of the hub"
        )
    facts = {"dataset": name, "subset": subset, "split": split, "revision": revision}

    def at(commit: str | None) -> Source:
        read = partial(read_hub, name, split=split, subset=subset, revision=commit or revision)
        return Source(lambda: facts, read, lambda: commit or hub_commit(name, revision), at)

    return at(None)


def pinned(folder: Path, sources: Mapping[str, Source]) -> dict[str, Source]:
    """Return the sources at the commits that sources.json names. The first call writes this file.

    So a command that is continued reads what it read at its start, whatever happened on the hub.
    """
    path = folder / PINS
    pins: Mapping[str, Any] = read_json(path) if path.exists() else {}
    commits = {name: pins.get(name) or source.commit() for name, source in sources.items()}
    if not path.exists() and any(commits.values()):
        write_atomically(path, json.dumps(commits, indent=1) + "\n")
    return {
        name: source.at(str(commit)) if source.at is not None and (commit := commits[name]) else source
        for name, source in sources.items()
    }


def hub_commit(name: str, revision: str | None) -> str | None:
    """Return the commit of a revision from the hub, or offline from the local cache.

    Args:
        name: The data set.
        revision: The revision, None for the main branch.

    Returns:
        The commit, or None with a warning where it cannot be found.
    """
    try:
        from huggingface_hub import HfApi, constants

        if _offline() is None:
            sha = HfApi().dataset_info(name, revision=revision, timeout=CONNECT_SECONDS).sha if _reachable() else None
        else:
            cache = Path(constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}"
            sha = text_of(cache / "refs" / (revision or "main")).strip()
    except (ImportError, OSError, ValueError, RuntimeError) as problem:
        log.info("%s: %s", name, problem)
        sha = None
    if sha is None:
        log.warning("%s: its commit is not known, so the result does not say which version was read", name)
    return sha


def file_identity(path: Path) -> dict[str, Any]:
    """Return name and SHA-256 of a file."""
    try:
        with opened_to_read(path) as file:
            return {"file": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror or problem}") from None


def read_hub(name: str, *, split: str, subset: str | None, revision: str | None) -> Iterator[tuple[int, Raw]]:
    """Stream a split of a data set of the Hugging Face hub or of its local cache, with the package `datasets`."""
    hint = "download it on a machine with a network and pass the local JSONL or Parquet file"
    offline = _offline()
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{name!r} is not a local file, and hub data sets need the package datasets; install it, or {hint}"
        ) from None
    if offline is None and not _reachable():
        raise UserError(f"the data set {name!r} cannot be read: no network to the Hugging Face hub; {hint}")
    try:
        # The local cache cannot be streamed.
        rows = datasets.load_dataset(name, subset, split=split, revision=revision, streaming=offline is None)
    except (OSError, ValueError, RuntimeError) as problem:
        why = f"{offline} is set and the local cache does not hold it" if offline else _line(problem)
        raise UserError(f"the data set {name!r} (split {split}) cannot be read: {why}; {hint}") from None
    yield from enumerate(rows, start=1)


def _offline() -> str | None:
    """Return the variable that forbids the network, or None."""
    return next((flag for flag in OFFLINE if os.environ.get(flag, "0").lower() not in ("", "0", "false")), None)


def _reachable() -> bool:
    """Return whether the hub answers. Without this check `datasets` retries for minutes."""
    from huggingface_hub import constants

    address = urlsplit(os.environ.get("HF_ENDPOINT", constants.ENDPOINT))
    with suppress(OSError):
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((str(address.hostname), port), timeout=CONNECT_SECONDS).close()
        return True
    return any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))


def _line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]
