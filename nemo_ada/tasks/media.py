"""Find images, videos and sounds in a record, because a model that reads text alone would never get them.

A problem such as "<image>Find x" without its image cannot be solved, so training or judging on it only adds noise.
Such a record is refused like any other that has no question of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_SURE = r"images?|imgs?|pixel_values|videos?|audios?|multi_?modal_(?:data|inputs?)|mm_data"
_PERHAPS = r"figures?|diagrams?|pictures?|photos?|media|speech|sounds?|clips?|frames?|files?"
_AROUND = (
    r"(?:(?:num|n|has|with|contains|is|question|problem|prompt|query|input|context|main|raw|source|original|decoded"
    r"|processed|encoded)_)?(?:{})[_-]?\d*"
    r"(?:_(?:ids?|idx|index|counts?|paths?|urls?|uris?|files?|file_?names?|names?|bytes|data|base64|b64|list|inputs?))?"
    r"[_-]?\d*"
)
_SURE_NAME = re.compile(_AROUND.format(_SURE), re.IGNORECASE)
"""A column with this name tells of media, whatever form its value has: a number may be an index or a count."""
_PERHAPS_NAME = re.compile(_AROUND.format(_PERHAPS), re.IGNORECASE)
"""A column with this name may hold a text as well, for example the code of a diagram. So its value decides."""
_FILE = re.compile(
    r"data:(?:image|video|audio)/.*|[^\n]*\.(?:png|jpe?g|gif|bmp|webp|tiff?|svg|mp4|avi|mov|mkv|webm|wav|mp3|flac|ogg|m4a"
    r"|opus)(?:\?[^\s]*)?",
    re.IGNORECASE | re.DOTALL,
)
"""A text that is a data URL, or a path or an address that ends like a file of media."""
_PLACEHOLDER = re.compile(
    r"<\|?(?:start_of_)?(?:image|img|video|audio)(?:[ _-]?(?:\d+|pad|token|soft_token|placeholder|context))?\|?>"
    r"|<\|vision_start\|>|\[(?:img|image)\]"
    r"|!\[[^\]\n]{0,200}\]\([^)\s]{1,2000}\)"  # an image of Markdown
    r"|<img\s[^>]{0,2000}>",
    re.IGNORECASE,
)
"""What stands in a prompt where a chat template or a page puts the image."""
_NOTHING = frozenset(("", "none", "null", "nan", "n/a", "no", "false", "0"))
_DEEPEST = 3  # objects in objects: `extra_info.images`, for example


def refuse_media(record: Mapping[str, Any], prompt: str) -> None:
    """Raise ValueError where a record has media beside its text, or its prompt has a place for them.

    Args:
        record: The record.
        prompt: The text of its prompt.

    Raises:
        ValueError: The reason.
    """
    column = next(_columns_with_media(record), None)
    if column is not None:
        raise ValueError(f"its {column!r} holds an image, a video or a sound, which a model of text does not get")
    placeholder = _PLACEHOLDER.search(prompt)
    if placeholder is not None:
        raise ValueError(
            f"its prompt has {placeholder[0][:60]!r}, the place of an image, a video or a sound, which a model of text "
            "does not get"
        )


def _columns_with_media(record: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the dotted path of each column that holds media."""
    for name, value in record.items():
        here = f"{path}{name}"
        if _SURE_NAME.fullmatch(str(name)):
            if _holds_something(value):
                yield here
        elif _is_media(value, named=_PERHAPS_NAME.fullmatch(str(name)) is not None):
            yield here
        elif path.count(".") < _DEEPEST:
            for part in [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []:
                if isinstance(part, Mapping):
                    yield from _columns_with_media(part, f"{here}.")


def _holds_something(value: Any) -> bool:
    """Return whether a value is more than null, no, zero, a blank text, and lists and objects of these.

    A zero is taken for a number of images, and not for the index of the first one, so the record is kept.
    """
    if isinstance(value, Mapping):
        return any(map(_holds_something, value.values()))
    if isinstance(value, str):
        return value.strip(" []{}").lower() not in _NOTHING
    if isinstance(value, (bool, int, float)) or value is None:
        return bool(value) and value == value  # pandas has NaN for a missing cell
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return any(map(_holds_something, value))
    return value != b""


def _is_media(value: Any, named: bool) -> bool:
    """Return whether a value has the form of media, whatever the name of its column.

    `datasets` keeps an image or a sound as an object with `bytes` and `path`, or hands it out decoded, as an image of
    PIL or an object with `array` and `sampling_rate`. A path or a URL counts where the column's name fits (`named`),
    since a text may name the scan that it was read from.
    """
    if isinstance(value, Mapping):
        names = set(value)
        stored = names in ({"bytes", "path"}, {"bytes"}) or {"array", "sampling_rate"} <= names
        return stored and any(part is not None for part in value.values())
    if isinstance(value, list):
        return any(_is_media(part, named) for part in value)
    if isinstance(value, str):
        return named and _FILE.fullmatch(value.strip()) is not None
    return type(value).__module__.partition(".")[0] in ("PIL", "torchcodec")
