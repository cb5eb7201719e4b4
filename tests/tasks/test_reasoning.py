"""The two reasoning-gym tasks: compact prompts, the package's own verifier, disjoint and repeatable splits.

Sudoku is checked against the rules of the game and spelling against `str[::-1]`, not against the package.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.tasks import reasoning
from nemo_ada.tasks.protocol import Demonstration, Prompt, Splits, Task, score_many
from nemo_ada.tasks.registry import build_task
from nemo_ada.tasks.settings import MiniSudokuSettings, SpellBackwardSettings

SMALL = {"size": 300, "train_prompts": 100, "heldout_prompts": 25}
KINDS = {"mini_sudoku": MiniSudokuSettings, "spell_backward": SpellBackwardSettings}
NAMES = list(KINDS)


def small(name: str, cache_dir: Path | None = None, **options: object) -> Task:
    return build_task(KINDS[name](**(SMALL | options)), cache_dir)


made = cache(small)  # for tests that only look at a task


@pytest.fixture(params=NAMES)
def task(request: pytest.FixtureRequest) -> Task:
    return made(request.param)


@pytest.fixture
def sudoku() -> Task:
    return made("mini_sudoku")


@pytest.fixture
def spelling() -> Task:
    return made("spell_backward")


def is_solved(grid: str) -> bool:
    rows = [grid[i : i + 4] for i in range(0, 16, 4)]
    columns = ["".join(row[j] for row in rows) for j in range(4)]
    boxes = ["".join(grid[4 * (i + a) + j + b] for a in (0, 1) for b in (0, 1)) for i in (0, 2) for j in (0, 2)]
    return len(grid) == 16 and all(sorted(unit) == list("1234") for unit in rows + columns + boxes)


def test_a_sudoku_prompt_shows_the_givens_of_its_solved_answer(sudoku: Task) -> None:
    for prompt in sudoku.splits().train:
        assert len(prompt.text) == 17
        assert prompt.text[16] == "="
        assert 1 <= prompt.text.count("?") <= 12
        assert is_solved(prompt.answer)
        assert all(cell in ("?", digit) for cell, digit in zip(prompt.text, prompt.answer, strict=False))


def test_a_word_is_lower_case_and_its_answer_is_the_word_backward(spelling: Task) -> None:
    for prompt in spelling.splits().train:
        word = prompt.text.removesuffix("=")
        assert word.islower()
        assert 3 <= len(word) <= 10
        assert prompt.answer == word[::-1]


def test_the_right_answer_scores_one_only_where_the_output_ended(task: Task) -> None:
    heldout = task.splits().heldout
    responses = [(prompt, prompt.answer, ended) for prompt in heldout for ended in (True, False)]
    assert [verdict.label for verdict in score_many(task, responses)] == [1.0, 0.0] * len(heldout)


SPOILT: list[Callable[[str], str]] = [
    lambda a: "",
    lambda a: a[:-1],
    lambda a: a + a[-1],
    lambda a: a + " ",
    lambda a: " " + a,
    lambda a: "x" + a[1:] if a[0] != "x" else "y" + a[1:],
    lambda a: a[:-1] + "\ufffd",
    lambda a: " ".join(a),
]


def test_anything_but_the_right_answer_scores_zero(task: Task) -> None:
    for prompt in task.splits().heldout:
        assert [task.submit(prompt, spoil(prompt.answer), True).label for spoil in SPOILT] == [0.0] * len(SPOILT)


def test_letters_after_a_right_word_score_zero_at_every_length(spelling: Task) -> None:
    # The package gives such an answer 1 +- 2e-16 for some lengths, the sum of n times 1/n.
    for n in range(3, 11):
        word = "abcdefghij"[:n]
        prompt = Prompt("x", f"{word}=", word[::-1], {"answer": word[::-1]})
        assert spelling.submit(prompt, word[::-1], True).label == 1.0
        assert spelling.submit(prompt, word[::-1] + "a", True).label == 0.0


def test_another_solved_grid_scores_zero(sudoku: Task) -> None:
    first = sudoku.splits().heldout[0]
    other = first.answer.translate(str.maketrans("1234", "2143"))
    assert is_solved(other)
    assert sudoku.submit(first, other, True).label == 0.0


@pytest.mark.parametrize("twin", ["12= ", " 12=", "12=\n"])
def test_splits_that_share_a_prompt_cannot_be_made(twin: str) -> None:
    prompt = Prompt("a", "12=", "21", {})
    with pytest.raises(InvariantError, match="12="):
        Splits((prompt,), (Prompt("b", twin, "21", {}),), ())
    with pytest.raises(InvariantError, match="12="):
        Splits((prompt,), (), (Demonstration(twin, "21"),))


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_the_splits_and_sizes_change_no_id(name: str) -> None:
    first, again, other, larger = (
        small(name, **options).splits() for options in ({}, {}, {"seed": 4}, {"train_prompts": 120})
    )
    assert first == again and (len(first.train), len(first.heldout)) == (100, 25) and len(first.supervision) > 100
    assert not {p.text for p in first.train} <= {p.text for p in other.train}
    assert first.supervision != other.supervision
    one, two = ({p.text: p.prompt_id for p in splits.train + splits.heldout} for splits in (first, larger))
    assert one.keys() & two.keys()
    assert all(one[text] == two[text] for text in one.keys() & two.keys())


@pytest.mark.parametrize("name", NAMES)
def test_cached_splits_equal_built_ones_and_need_no_generator(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = small(name, tmp_path).splits()
    assert built == made(name).splits()
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == [name]
    monkeypatch.setattr(reasoning, "make_dataset", None)
    assert small(name, tmp_path).splits() == built


def test_other_settings_use_another_cache_file(tmp_path: Path) -> None:
    for options in ({}, {"seed": 1}, {"noise_scale": 0.5}, {"heldout_prompts": 26}):
        small("spell_backward", tmp_path, **options).splits()
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("damage", [lambda t: t[: len(t) // 2], lambda t: "", lambda t: "{}\n"])
def test_a_damaged_cache_file_is_built_again(
    tmp_path: Path, damage: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    built = small("spell_backward", tmp_path).splits()
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    path.write_text(damage(whole))
    with caplog.at_level(logging.WARNING):
        assert small("spell_backward", tmp_path).splits() == built
    assert "damaged" in caplog.text
    assert path.read_text() == whole


def test_sudoku_demonstrations_err_in_blank_cells_only(sudoku: Task) -> None:
    wrong = 0
    for shown in sudoku.splits().supervision:
        assert all(c in ("?", d) for c, d in zip(shown.prompt_text, shown.answer_text, strict=False))
        wrong += not is_solved(shown.answer_text)
    assert 0.3 < wrong / len(sudoku.splits().supervision) < 0.75


def test_spelling_demonstrations_err_but_keep_their_length(spelling: Task) -> None:
    supervision = spelling.splits().supervision
    assert all(len(d.answer_text) == len(d.prompt_text) - 1 for d in supervision)
    assert 0.5 < sum(d.answer_text != d.prompt_text[-2::-1] for d in supervision) / len(supervision) < 0.85


@pytest.mark.parametrize("name", NAMES)
def test_the_last_of_several_drafts_counts(name: str) -> None:
    task = small(name, drafts=3)
    prompt, other = task.splits().heldout[:2]
    right, wrong = prompt.answer, other.answer
    for drafts, reward in (
        ([right], 1.0),
        ([wrong, right], 1.0),
        ([wrong, wrong, right], 1.0),
        ([right, wrong], 0.0),
        ([right, ""], 0.0),
        ([right] * 4, 0.0),
    ):
        assert task.submit(prompt, "=".join(drafts), True).label == reward
    assert made(name).submit(prompt, f"{right}={right}", True).label == 0.0
    assert task.max_new_tokens == 3 * made(name).max_new_tokens


def test_drafts_are_half_as_many_each_time_and_err_on_their_own() -> None:
    task = small("spell_backward", size=2500, drafts=4)
    drafts = [d.answer_text.split("=") for d in task.splits().supervision]
    counts = [sum(len(own) == k for own in drafts) / len(drafts) for k in range(1, 6)]
    for found, expected in zip(counts, (1 / 2, 1 / 4, 1 / 8, 1 / 8, 0), strict=True):
        assert abs(found - expected) < 0.03
    assert all(len(draft) == len(own[0]) for own in drafts for draft in own)
    several = [own for own in drafts if len(own) > 1]
    assert 0.3 < sum(own[0] != own[1] for own in several) / len(several) < 0.95
    assert task.splits().train == small("spell_backward", size=2500).splits().train


def test_prompts_and_answers_fit_the_token_limits(task: Task) -> None:
    splits = task.splits()
    assert max(len(task.tokenizer.encode(p.text)) for p in splits.train) == task.max_prompt_tokens
    answers = [p.answer for p in splits.train] + [d.answer_text for d in splits.supervision]
    assert max(len(task.tokenizer.encode(answer)) for answer in answers) + 1 == task.max_new_tokens


def test_too_few_problems_for_the_splits_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"task\.size=200 gives \d+ different problems.*raise size"):
        small("mini_sudoku", size=200, train_prompts=190).splits()


def test_settings_that_the_registry_forgets_are_an_error_and_no_other_task() -> None:
    forgotten: Any = object()
    with pytest.raises(AssertionError):
        build_task(forgotten)


def test_a_graded_answer_earns_the_part_that_is_right() -> None:
    sudoku, words = made("mini_sudoku", graded=True), made("spell_backward", graded=True)
    board = max(sudoku.splits().train, key=lambda prompt: prompt.text.count("?"))
    blanks = [i for i, cell in enumerate(board.text) if cell == "?"]
    wrong = list(board.answer)
    wrong[blanks[0]] = "1" if wrong[blanks[0]] != "1" else "2"
    assert sudoku.submit(board, board.answer, True).label == 1.0
    assert sudoku.submit(board, "".join(wrong), True).label == pytest.approx(1 - 1 / len(blanks))
    assert sudoku.submit(board, board.answer[:-1], True).label == 0.0
    assert sudoku.submit(board, "".join(wrong), False).label == 0.0
    word = Prompt("x", "abcd=", "dcba", {"answer": "dcba", "metadata": {"word": "abcd"}, "question": ""})
    assert words.submit(word, "dcbx", True).label == pytest.approx(0.75)
    assert words.submit(word, "dba", True).label == pytest.approx(0.75)
    assert words.submit(word, "xxxxxxxxx", True).label == 0.0


def test_grading_changes_neither_the_problems_nor_their_place_in_the_cache(tmp_path: Path) -> None:
    first = small("spell_backward", tmp_path).splits()
    assert small("spell_backward", tmp_path, graded=True).splits() == first
    assert len(list(tmp_path.iterdir())) == 1


def test_edit_distance_counts_insertions_deletions_and_replacements() -> None:
    pairs = [("", "", 0), ("", "ab", 2), ("kitten", "sitting", 3), ("abc", "abc", 0), ("ab", "ba", 2)]
    assert [reasoning.compute_edit_distance(first, second) for first, second, _ in pairs] == [n for _, _, n in pairs]
