"""Write the responses of a benchmark as Parquet, for tools that read tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.lab.data.journal import Journal

ROWS = 4096


def require_pyarrow() -> None:
    """Raise UserError where Parquet cannot be written."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UserError("--parquet needs the package pyarrow; install nemo-ada[data], or leave it out") from None


def write_parquet(journal: Journal, path: Path) -> None:
    """Write all responses of a journal, in its order."""
    import pyarrow
    import pyarrow.parquet as parquet

    kinds: dict[str, Any] = {
        "id": pyarrow.string(), "line": pyarrow.int64(), "index": pyarrow.int64(), "seed": pyarrow.int64(),
        "tokens": pyarrow.int64(), "finished": pyarrow.bool_(), "reward": pyarrow.float64(),
        "cause": pyarrow.string(), "text": pyarrow.string(),
    }  # fmt: skip
    schema = pyarrow.schema(list(kinds.items()))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with parquet.ParquetWriter(temporary, schema) as writer:
        rows: list[dict[str, Any]] = []
        for record in journal.read():
            rows.append(record)
            if len(rows) == ROWS:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                rows.clear()
        if rows:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
    temporary.replace(path)
