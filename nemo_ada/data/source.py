"""Where records come from: a local JSONL or Parquet file, or a data set of the Hugging Face hub.

A source is read as a stream, in a fixed order, as often as needed. `identity` says what was read, so that work that
was begun on one version of a file is not continued on another.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from nemo_ada.errors import UserError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
REACH_SECONDS = 5.0
PARQUET_ROWS = 1024
JSONL_SUFFIXES = (".jsonl", ".json", ".ndjson")

Raw = bytes | Mapping[str, Any]


class Source(Protocol):
    """A stream of (line number from 1, raw record)."""

    def identity(self) -> dict[str, Any]:
        """Name and content of the source, without paths of this machine."""
        ...

    def records(self) -> Iterator[tuple[int, Raw]]: ...


@dataclass(frozen=True, slots=True)
class JsonlFile:
    """Lines of a local file; blank ones are passed over."""

    path: Path

    def identity(self) -> dict[str, Any]:
        return _file_identity(self.path)

    def records(self) -> Iterator[tuple[int, Raw]]:
        with _readable(self.path), self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if line.strip():
                    yield number, line


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """Rows of a local Parquet file."""

    path: Path

    def identity(self) -> dict[str, Any]:
        return _file_identity(self.path)

    def records(self) -> Iterator[tuple[int, Raw]]:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise UserError(
                f"{self.path}: reading Parquet needs the package pyarrow; install it, or convert the file to JSONL"
            ) from None
        import pyarrow

        number = 0
        # A damaged file shows itself as almost any of these, some only while values are converted
        damage = (pyarrow.ArrowException, OSError, ValueError, ArithmeticError, LookupError, MemoryError)
        try:
            with parquet.ParquetFile(self.path) as file:
                for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                    for row in batch.to_pylist():
                        number += 1
                        yield number, row
        except damage as problem:
            raise UserError(
                f"{self.path} is no Parquet file, or damaged after row {number}: {_first_line(problem)}"
            ) from None


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A split of a data set of the Hugging Face hub (or of its local cache), streamed with the package `datasets`."""

    name: str
    split: str = "train"
    subset: str | None = None
    revision: str | None = None

    def identity(self) -> dict[str, Any]:
        return {"dataset": self.name, "subset": self.subset, "split": self.split, "revision": self.revision}

    def records(self) -> Iterator[tuple[int, Raw]]:
        hint = "download it where there is a network and give the local JSONL or Parquet file instead"
        offline = next((name for name in OFFLINE if os.environ.get(name, "0").lower() not in ("", "0", "false")), None)
        try:
            import datasets
        except ImportError:
            raise UserError(
                f"{self.name!r} is no local file; reading a data set of the hub needs the package datasets; "
                f"install it, or {hint}"
            ) from None
        if offline is None and not _reachable():
            raise UserError(f"the data set {self.name!r} cannot be read: no network to the Hugging Face hub; {hint}")
        streaming = offline is None  # the local cache is read as a whole
        try:
            rows = datasets.load_dataset(
                self.name, self.subset, split=self.split, revision=self.revision, streaming=streaming
            )
        except (OSError, ValueError, RuntimeError) as problem:
            why = f"{offline} is set and the local cache does not hold it" if offline else _first_line(problem)
            raise UserError(f"the data set {self.name!r} (split {self.split}) cannot be read: {why}; {hint}") from None
        yield from enumerate(rows, start=1)


def open_source(
    name: str, *, split: str = "train", subset: str | None = None, revision: str | None = None, where: str = "source"
) -> Source:
    """The source of this name: a local file where one exists, else a hub id. Raises UserError for neither."""
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix == ".parquet":
            return ParquetFile(path)
        if path.suffix in JSONL_SUFFIXES:
            return JsonlFile(path)
        raise UserError(f"{where}={name}: the end {path.suffix!r} is unknown; give a .jsonl or a .parquet file")
    if path.suffix in (*JSONL_SUFFIXES, ".parquet") or not HUB_ID.fullmatch(name):
        raise UserError(
            f"{where}={name}: no such file (from {str(Path.cwd())!r}) and no id of a hub data set; give a .jsonl or "
            ".parquet file, or owner/name"
        )
    return HubDataset(name, split, subset, revision)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror or problem}") from None


def _file_identity(path: Path) -> dict[str, Any]:
    with _readable(path), path.open("rb") as file:
        return {"file": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _reachable() -> bool:
    """Whether the hub's host answers: `datasets` itself would retry for minutes."""
    from huggingface_hub import constants

    address = urlsplit(os.environ.get("HF_ENDPOINT", constants.ENDPOINT))
    proxied = any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))
    with suppress(OSError):
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((str(address.hostname), port), timeout=REACH_SECONDS).close()
        return True
    return proxied


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]
