"""Import the real NeMo-RL on a machine that is not the cluster it was made for.

NeMo-RL asks for Python 3.13, where pydantic accepts ``typing.TypedDict`` in a model's fields. Below 3.12 pydantic
insists on the one of ``typing_extensions``, and NeMo-RL's ``MasterConfig`` then fails while it is being defined.
Clusters run 3.12 or later, so this substitution belongs to the tests and not to the package.
"""

from __future__ import annotations

import importlib
import sys
import typing

import typing_extensions

MODULE = "nemo_rl.algorithms.grpo"


def use_typing_extensions_typed_dict() -> None:
    """Make ``typing.TypedDict`` the one that pydantic accepts. Nothing changes on Python 3.12 and later."""
    if sys.version_info < (3, 12):
        typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment, misc]


def why_not_importable() -> str | None:
    """The reason why NeMo-RL's GRPO module cannot be imported here, or None where it can.

    A broken optional dependency of a CUDA build surfaces as an OSError or a RuntimeError, and counts too.
    """
    use_typing_extensions_typed_dict()
    try:
        importlib.import_module(MODULE)
    except (ImportError, OSError, RuntimeError, AttributeError, TypeError) as cause:
        return f"{MODULE} cannot be imported: {type(cause).__name__}: {cause}"
    return None
