"""What the verifier's processes read from each other."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pebble.common.types import Result, ResultStatus

from nemo_ada.verify import messages


class Named:
    """An object whose pickle is getattr(of, name), as Python 3.11.0 to 3.11.3 (Debian 12) write members of enums."""

    def __init__(self, of: Any, name: str) -> None:
        self.call = getattr, (of, name)

    def __reduce__(self) -> Any:
        return self.call


def test_a_member_of_an_enumeration_is_read_in_the_form_of_early_python_3_11() -> None:
    assert messages.read(pickle.dumps(Named(ResultStatus, "FAILURE"))) is ResultStatus.FAILURE


@pytest.mark.parametrize(
    ("of", "name"),
    [(ResultStatus, "__class__"), (ResultStatus, "from_bytes"), (Result, "__init__"), ("text", "upper"), ({}, "clear")],
)
def test_no_other_attribute_is_read(of: Any, name: str) -> None:
    with pytest.raises(OSError, match="cannot be read"):
        messages.read(pickle.dumps(Named(of, name)))
