"""For the Ray actors of ahead.py, which import NeMo-RL when they start: see compat.py."""

import sys

if sys.version_info < (3, 12):
    import typing

    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict
