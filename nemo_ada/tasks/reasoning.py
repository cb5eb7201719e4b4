"""The tasks `mini_sudoku` and `spell_backward`, with problems and verifier of the package reasoning-gym.

The package writes long English questions. A tiny character model reads a compact form instead
(`243?3???1324?21?=`, `fetidly=`). Its compact answer, or the last draft of it, is converted for the package's own
`score_answer`. The import of the package takes seconds, so it waits for the first problem or score.

Splits are cached on disk, in one JSON file per fingerprint of the settings. A damaged file is built again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from nemo_ada import trust
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.files import MAX_TEXT, write_atomically
from nemo_ada.tasks.noise import SPELLING_BANDS, SUDOKU_BANDS, corrupt_blanks, corrupt_letters, draw_rates
from nemo_ada.tasks.protocol import Demonstration, Prompt, Splits, Tokenizer, make_content_id
from nemo_ada.tasks.settings import ArithmeticSettings, MiniSudokuSettings, PuzzleSettings, SpellBackwardSettings
from nemo_ada.tasks.tokenizer import CharTokenizer
from nemo_ada.verify.verdict import Verdict

log = logging.getLogger(__name__)
NOT_OURS = "name a folder of your own with base.cache_dir"  # what works where a cached file may be somebody else's
# score_answer gives parts of a point, and only exactly 1.0 is correct. ">= .999" would be wrong. spell_backward adds
# 1/n for each correct letter, so a correct answer with further letters gets 1 +- 2e-16 for 6, 7, 9 and 10 letters.
FULL_MARKS = 1.0
LARGEST_PART = 0.99  # of an answer without full marks
DRAFT_END = "="
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SPLITS = TypeAdapter(Splits)


def make_dataset(name: str, **options: Any) -> Any:
    """Return a data set of reasoning-gym. The first call imports the package, which takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # a dependency of the package compares with `is`
        try:
            import reasoning_gym
        except ImportError as error:
            raise UserError(
                f"the problems of this task come from reasoning-gym, which is not here ({error}); install "
                "nemo-ada[puzzles] (its part pycosat needs a C compiler), or take configs/cpu/jsonl.yaml"
            ) from None
    return reasoning_gym.create_dataset(name, **options)


class GeneratedTask(ABC):
    """A task whose problems the package makes. `cache_dir` stores them, unless it is None.

    Attributes:
        name: Name of the task in its settings.
        settings: Settings of the task.
        tokenizer: The tokenizer that the task was built with.
    """

    name: str
    tokenizer: Tokenizer

    def __init__(self, settings: PuzzleSettings | ArithmeticSettings, cache_dir: Path | None) -> None:
        self.settings, self._cache_dir = settings, cache_dir

    @cached_property
    def max_prompt_tokens(self) -> int:
        """Tokens of the longest prompt for training or evaluation. Raises UserError when one cannot be encoded."""
        splits = self.splits()
        try:
            return max(len(self.tokenizer.encode(prompt.text)) for prompt in splits.train + splits.heldout)
        except UserError:
            raise
        except ValueError as reason:
            raise UserError(f"a prompt of the task cannot be read by the model's tokenizer: it {reason}") from None

    def splits(self) -> Splits:
        """Return the three sets. The first call builds them or reads them from the cache.

        Raises:
            UserError: There are too few different problems for the sizes.
        """
        return self._splits

    @cached_property
    def _splits(self) -> Splits:
        decides = self.settings.model_dump(exclude={"graded", "max_new_tokens"})  # these say how responses are judged
        facts = {"reasoning-gym": version("reasoning-gym"), **decides}
        started = time.perf_counter()
        splits = get_cached_splits(self._cache_dir, self.name, facts, self._build)
        sizes = (len(splits.train), len(splits.heldout), len(splits.supervision))
        log.info(
            "%s: %d train, %d held-out, %d supervision in %.1f s", self.name, *sizes, time.perf_counter() - started
        )
        return splits

    @abstractmethod
    def _build(self) -> Splits:
        """Make the three sets."""


class ReasoningTask(GeneratedTask):
    """Splits and scoring of both puzzles. A subclass defines the compact form and the noise.

    The package seeds problem i with `first_seed + i`. The split, the error rates and the errors have separate
    generators, each from the settings' seed.

    Attributes:
        prompt_characters: Characters of the longest prompt.
        draft_tokens: Characters of the longest draft, with its end.
        tokenizer: The model's tokenizer, or a character tokenizer.
    """

    prompt_characters: int
    draft_tokens: int
    settings: PuzzleSettings

    def __init__(self, settings: PuzzleSettings, cache_dir: Path | None, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(settings, cache_dir)
        self.tokenizer = tokenizer or CharTokenizer()

    @cached_property
    def max_prompt_tokens(self) -> int:
        """Tokens of the longest prompt. With the character tokenizer they are known before the problems are made."""
        return self.prompt_characters if isinstance(self.tokenizer, CharTokenizer) else super().max_prompt_tokens

    @property
    def max_new_tokens(self) -> int:
        """Tokens of the longest answer, with the end of each draft and one token per character."""
        return self.settings.drafts * self.draft_tokens

    def submit(self, prompt: Prompt, text: str, finished: bool) -> Verdict:
        """Label a response 1.0 when it ended by itself and the package gives full marks. This verifier never fails.

        Another response that ended by itself gets 0.0, or with `graded` the part of it that is right.
        """
        answer = text.split(DRAFT_END, self.settings.drafts - 1)[-1]
        if finished and self._verifier.score_answer(self._expand_answer(answer), prompt.entry) == FULL_MARKS:
            return Verdict(1.0)
        graded = finished and self.settings.graded
        return Verdict(min(self._score_part(prompt, answer), LARGEST_PART) if graded else 0.0)

    def close(self) -> None:
        """Release the package's data set."""
        self.__dict__.pop("_verifier", None)

    @cached_property
    def _verifier(self) -> Any:
        return self._make_datasets(self._first_seed)[0]

    @property
    def _first_seed(self) -> int:
        return self.settings.seed << 32  # far from the next seed, because the package seeds problem i with seed + i

    def _make_rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, stream])

    def _build(self) -> Splits:
        distinct: dict[str, tuple[str, dict[str, Any]]] = {}
        for entry in self._make_entries():
            text, answer = self._make_compact(entry)
            distinct.setdefault(text, (answer, entry))
        train, heldout = self.settings.train_prompts, self.settings.heldout_prompts
        if len(distinct) <= train + heldout:
            raise UserError(
                f"task.size={self.settings.size} gives {len(distinct)} different problems, too few for "
                f"{train} train, {heldout} held-out and any supervision prompts; raise size or lower train_prompts"
            )
        texts = list(distinct)
        order = [texts[i] for i in self._make_rng(0).permutation(len(texts))]
        prompts = tuple(Prompt(make_content_id(self.name, t), t, *distinct[t]) for t in order[: train + heldout])
        supervised = order[train + heldout :]
        answers = self._write_drafts(supervised, [distinct[t][0] for t in supervised])
        return Splits(prompts[:train], prompts[train:], tuple(map(Demonstration, supervised, answers)))

    def _write_drafts(self, texts: Sequence[str], answers: Sequence[str]) -> list[str]:
        """One or more drafts of each answer. Each draft has its own errors."""
        drafts_R = np.minimum(self._make_rng(3).geometric(0.5, len(texts)), self.settings.drafts).tolist()
        of_draft = [row for row, drafts in enumerate(drafts_R) for _ in range(drafts)]
        written = iter(self._add_noise([texts[row] for row in of_draft], [answers[row] for row in of_draft]))
        return [DRAFT_END.join(islice(written, drafts)) for drafts in drafts_R]

    def _make_entries(self) -> Iterable[dict[str, Any]]:
        for dataset in self._make_datasets(self._first_seed):
            yield from (dataset[i] for i in range(len(dataset)))

    @abstractmethod
    def _make_datasets(self, first_seed: int) -> list[Any]:
        """Return the package's data sets that make up `settings.size` problems."""

    @abstractmethod
    def _make_compact(self, entry: dict[str, Any]) -> tuple[str, str]:
        """Prompt text and correct answer of one of the package's entries."""

    @abstractmethod
    def _expand_answer(self, text: str) -> str:
        """Return a response in the form that the package's verifier reads."""

    @abstractmethod
    def _score_part(self, prompt: Prompt, answer: str) -> float:
        """Return the part of an answer that is right, in [0, 1]."""

    @abstractmethod
    def _add_noise(self, texts: Sequence[str], answers: Sequence[str]) -> list[str]:
        """Return the answers with this task's errors."""


class MiniSudoku(ReasoningTask):
    """4x4 boards. A prompt has 16 cells row by row, `?` for a blank, then `=`. The answer is the grid of 16 digits."""

    name = "mini_sudoku"
    prompt_characters = 17
    draft_tokens = 17
    settings: MiniSudokuSettings

    def _make_datasets(self, first_seed: int) -> list[Any]:
        s = self.settings
        return [make_dataset(self.name, seed=first_seed, size=s.size, min_empty=s.min_empty, max_empty=s.max_empty)]

    def _make_compact(self, entry: dict[str, Any]) -> tuple[str, str]:
        cells = [cell for row in entry["metadata"]["puzzle"] for cell in row]
        solution = [cell for row in entry["metadata"]["solution"] for cell in row]
        return "".join(str(cell or "?") for cell in cells) + "=", "".join(map(str, solution))

    def _expand_answer(self, text: str) -> str:
        return "\n".join(" ".join(text[start : start + 4]) for start in range(0, len(text), 4))

    def _score_part(self, prompt: Prompt, answer: str) -> float:
        blank = [i for i, cell in enumerate(prompt.text[: len(prompt.answer)]) if cell == "?"]
        if len(answer) != len(prompt.answer) or not blank:
            return 0.0
        return sum(answer[i] == prompt.answer[i] for i in blank) / len(blank)

    def _add_noise(self, texts: Sequence[str], answers: Sequence[str]) -> list[str]:
        cell_RC = np.array([list(text[:16]) for text in texts])
        digit_RC = np.array([list(answer) for answer in answers]).astype(np.int64) - 1
        rate_CD = draw_rates(SUDOKU_BANDS, (16, 4), self._make_rng(1), self.settings.noise_scale)
        noisy_RC = corrupt_blanks(digit_RC, cell_RC == "?", rate_CD, self._make_rng(2)) + 1
        return ["".join(row) for row in noisy_RC.astype(str).tolist()]


class SpellBackward(ReasoningTask):
    """Words to spell backward. A prompt is a lower-case word of 3 to 10 letters, then `=`. The answer is reversed."""

    name = "spell_backward"
    lengths = ((3, 5), (6, 7), (8, 10))
    prompt_characters = 11
    draft_tokens = 11
    settings: SpellBackwardSettings

    def _make_datasets(self, first_seed: int) -> list[Any]:
        edges = [self.settings.size * i // len(self.lengths) for i in range(len(self.lengths) + 1)]
        return [
            make_dataset(self.name, seed=first_seed + start, size=end - start, min_word_len=low, max_word_len=high)
            for (low, high), start, end in zip(self.lengths, edges[:-1], edges[1:], strict=True)
        ]

    def _make_compact(self, entry: dict[str, Any]) -> tuple[str, str]:
        return entry["metadata"]["word"].lower() + "=", entry["answer"].lower()

    def _expand_answer(self, text: str) -> str:
        return text

    def _score_part(self, prompt: Prompt, answer: str) -> float:
        return max(0.0, 1.0 - compute_edit_distance(answer, prompt.answer) / len(prompt.answer))

    def _add_noise(self, texts: Sequence[str], answers: Sequence[str]) -> list[str]:
        length_R = np.array([len(answer) for answer in answers])
        padded = [answer.ljust(self.lengths[-1][1], "a") for answer in answers]
        letter_RL = np.array([[LETTERS.index(char) for char in answer] for answer in padded])
        rate_AB = draw_rates(
            SPELLING_BANDS, (len(LETTERS), len(LETTERS) + 1), self._make_rng(1), self.settings.noise_scale
        )
        noisy_RL = corrupt_letters(letter_RL, length_R, rate_AB, self._make_rng(2)).tolist()
        return ["".join(LETTERS[i] for i in row[:n]) for row, n in zip(noisy_RL, length_R.tolist(), strict=True)]


def compute_edit_distance(first: str, second: str) -> int:
    """Return the smallest number of letters to insert, delete or replace (Levenshtein)."""
    costs = list(range(len(second) + 1))
    for i, left in enumerate(first, start=1):
        before, costs[0] = costs[0], i
        for j, right in enumerate(second, start=1):
            before, costs[j] = costs[j], min(costs[j] + 1, costs[j - 1] + 1, before + (left != right))
    return costs[-1]


def get_cached_splits(
    folder: Path | None, task_name: str, facts: Mapping[str, Any], build: Callable[[], Splits]
) -> Splits:
    """Read splits from the cache, or build and store them. Both give equal splits, because both pass through JSON.

    Args:
        folder: Folder of the cache. None stores nothing.
        task_name: Name of the task.
        facts: Everything that the splits depend on.
        build: Makes the splits.

    Raises:
        UserError: the stored splits may be somebody else's, who would choose what the run learns and is measured on.
    """
    if folder is None:
        return _SPLITS.validate_json(_SPLITS.dump_json(build()))
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    path = folder / f"{task_name}-{digest[:16]}.json"
    if path.exists():
        try:
            return _SPLITS.validate_json(trust.read_found(path, NOT_OURS, MAX_TEXT))
        except UserError:
            raise
        except (ValueError, InvariantError) as problem:
            why = str(problem).splitlines()[0]
            log.warning("the cached splits %s are damaged (%s); building them again", path, why)
    text = _SPLITS.dump_json(build())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    return _SPLITS.validate_json(text)
