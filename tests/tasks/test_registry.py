"""From a mapping to a task: unknown names and values out of bounds are one-line errors that say what would work."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_ada.errors import UserError
from nemo_ada.tasks import MiniSudokuSettings, SpellBackwardSettings, build_task, parse_task_settings


@pytest.mark.parametrize("name", ["mini_sudoku", "spell_backward"])
def test_a_mapping_and_its_settings_build_the_same_task(name: str) -> None:
    kind = {"mini_sudoku": MiniSudokuSettings, "spell_backward": SpellBackwardSettings}[name]
    assert parse_task_settings({"name": name, "seed": 7}) == kind(seed=7)
    assert build_task(kind(seed=7)).name == build_task({"name": name, "seed": 7}).name == name


def test_the_defaults_are_the_documented_sizes() -> None:
    sudoku = MiniSudokuSettings()
    assert (sudoku.size, sudoku.min_empty, sudoku.max_empty) == (40_000, 2, 12)
    assert (sudoku.train_prompts, sudoku.heldout_prompts) == (4096, 256)
    spelling = SpellBackwardSettings()
    assert (spelling.train_prompts, spelling.heldout_prompts) == (4096, 256)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "data.task.name=None is no task; the tasks are mini_sudoku, spell_backward, jsonl"),
        ({"name": "sudoku"}, "did you mean mini_sudoku?"),
        (
            {"name": "mini_sudoku", "trian_prompts": 5},
            "data.task.trian_prompts is no option.*did you mean train_prompts",
        ),
        ({"name": "spell_backward", "min_empty": 2}, "its options are name, seed, size"),
        ({"name": "mini_sudoku", "max_empty": 13}, "data.task.max_empty=13: input should be less than or equal to 12"),
        ({"name": "mini_sudoku", "min_empty": 9, "max_empty": 5}, "data.task: min_empty=9 is above max_empty=5"),
        ({"name": "mini_sudoku", "size": "many"}, "data.task.size='many'"),
        ({"name": "jsonl"}, "data.task.path: Field required"),
        ({"name": "jsonl", "path": "x", "verifier": "maths"}, "data.task.verifier='maths'.*'exact' or 'math'"),
        ({"name": "jsonl", "path": "x", "supervision_fraction": 0.95}, "lower them until their sum is below 1"),
    ],
)
def test_a_mistake_is_told_in_one_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        build_task(options, where="data.task")
    assert "\n" not in str(caught.value)
