"""From YAML settings to a task: values out of bounds are one-line errors that name the key and what would work."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from nemo_ada.config.parsing import parse
from nemo_ada.errors import UserError
from nemo_ada.tasks.settings import TaskSettings


class Config(BaseModel):
    task: TaskSettings


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "task.name is missing"),
        ({"name": "sudoku"}, "did you mean mini_sudoku?"),
        ({"name": "mini_sudoku", "trian_prompts": 5}, "task.trian_prompts; did you mean task.train_prompts"),
        ({"name": "spell_backward", "min_empty": 2}, "unknown key task.min_empty"),
        ({"name": "mini_sudoku", "max_empty": 13}, "task.max_empty=13: input should be less than or equal to 12"),
        ({"name": "mini_sudoku", "min_empty": 9, "max_empty": 5}, "task: min_empty=9 is above max_empty=5"),
        ({"name": "mini_sudoku", "size": "many"}, "task.size='many'"),
        ({"name": "jsonl"}, "task.path is missing"),
        ({"name": "jsonl", "path": "x", "verifier": "maths"}, "task.verifier='maths'.*math or exact"),
        ({"name": "jsonl", "path": "x", "supervision_fraction": 0.95}, "lower them until their sum is below 1"),
    ],
)
def test_a_mistake_is_told_in_one_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        parse(Config, {"task": options})
    assert "\n" not in str(caught.value)
