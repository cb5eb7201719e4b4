"""Read the header of a safetensors file. `limited.py` calls it where a file may be anybody's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nemo_ada.run.files import open_to_read

LONGEST = 100 << 20  # bytes of a header, as the library has it


def header_of(path: str | Path) -> tuple[dict[str, Any], int]:
    """Return the header of a file without its metadata, and its bytes with its length.

    Raises:
        OSError: the file cannot be read, or is a pipe.
        ValueError: it has no such header.
    """
    with open_to_read(Path(path)) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LONGEST:
            raise ValueError(f"its header would have {length:,} bytes")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    header.pop("__metadata__", None)
    return header, 8 + length


def end_of(path: str) -> int:
    """Return the bytes that a whole file with this header has. Raises OSError and ValueError as `header_of` does."""
    header, begin = header_of(path)
    ends = [entry["data_offsets"][1] for entry in header.values()]
    return begin + max(ends, default=0)
