"""Arithmetic for language models: reasoning-gym makes the problems, and math-verify compares free-form answers.

A prompt shows some solved problems of its kind and then the problem. The examples of a kind are the same in every
prompt, so engine and learner compute them once. The task needs a model's tokenizer: a base model that this package
makes cannot read these prompts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.errors import UserError
from nemo_ada.tasks.protocol import Prompt, Splits, Tokenizer, make_content_id
from nemo_ada.tasks.reasoning import GeneratedTask, make_dataset
from nemo_ada.tasks.settings import ArithmeticSettings
from nemo_ada.verify.boxed import last_boxed
from nemo_ada.verify.judge import make_judge
from nemo_ada.verify.verdict import Verdict

DRAWS_PER_PROBLEM, MORE_DRAWS = 20, 400  # a kind is exhausted when this many draws give too few different problems
NUMBER = re.compile(r"(?:(?<!\w)-)?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


@dataclass(frozen=True, slots=True)
class Kind:
    """Problems of one difficulty.

    Attributes:
        dataset: Name of a data set of reasoning-gym.
        options: Its options.
        written: Format of a problem's text. It may use the entry's question and its metadata.
    """

    dataset: str
    options: Mapping[str, Any]
    written: str = "{expression} ="


def _make_options(terms: int, digits: int) -> dict[str, int]:
    return {"min_terms": terms, "max_terms": terms, "min_digits": digits, "max_digits": digits}


KINDS = {
    "sum_1": Kind("chain_sum", _make_options(2, 1)),
    "sum_1x3": Kind("chain_sum", _make_options(3, 1)),
    "sum_2": Kind("chain_sum", _make_options(2, 2)),
    "times_1": Kind("products", _make_options(2, 1)),
    "times_2": Kind("products", _make_options(2, 2)),
    "gcd": Kind("gcd", {"min_value": 2, "max_value": 30}, "gcd({numbers}) ="),
    "lcm": Kind("lcm", {"min_value": 2, "max_value": 15}, "lcm({numbers}) ="),
    "gsm_symbolic": Kind("gsm_symbolic", {}, "Question: {question}\nAnswer:"),
}


def find_final_answer(text: str) -> str | None:
    r"""Return the answer of a free-form response: its last \boxed{}, else its last number without commas, else None."""
    box = last_boxed(text)
    if box is not None:
        return box
    numbers = NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else None


def _put_in_box(answer: str | None) -> str:
    """Return an answer as math-verify reads it. None gives an empty text."""
    return "" if answer is None else f"\\boxed{{{answer}}}"


class Arithmetic(GeneratedTask):
    """Problems of the kinds in `settings.problems`. Each kind has its share of both splits.

    There are no demonstrations.
    """

    name = "arithmetic"
    settings: ArithmeticSettings

    def __init__(
        self, settings: ArithmeticSettings, cache_dir: Path | None, tokenizer: Tokenizer | None = None
    ) -> None:
        super().__init__(settings, cache_dir)
        self._tokenizer, self._judge = tokenizer, make_judge("math")

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]  # nothing sets it
        """The model's tokenizer. Raises UserError when the task was built without one."""
        if self._tokenizer is None:
            raise UserError(
                "task.name=arithmetic is for language models: set policy.model_name=FOLDER (`nemo-ada prepare "
                "configs/cpu/smollm2.yaml` makes one), or take task.name=mini_sudoku"
            )
        return self._tokenizer

    @property
    def max_new_tokens(self) -> int:
        """Longest response in tokens."""
        return self.settings.max_new_tokens

    def submit(self, prompt: Prompt, text: str, finished: bool) -> Verdict | Future[Verdict]:
        """Start to label a response 1.0 when it ended by itself with an answer of the reference's value, else 0.0."""
        return self._judge.submit(_put_in_box(find_final_answer(text)), prompt.answer, finished, prompt.text)

    def close(self) -> None:
        """End math-verify's processes."""
        self._judge.close()

    def _build(self) -> Splits:
        shares = self.settings.problems
        train_K = _share_out(self.settings.train_prompts, list(shares.values()))
        heldout_K = _share_out(self.settings.heldout_prompts, list(shares.values()))
        train: list[Prompt] = []
        heldout: list[Prompt] = []
        for kind, train_count, heldout_count in zip(shares, train_K, heldout_K, strict=True):
            prompts = self._make_prompts(kind, train_count + heldout_count)
            train += prompts[:train_count]
            heldout += prompts[train_count:]
        order = np.random.default_rng([self.settings.seed, 0]).permutation(len(train))
        return Splits(tuple(train[i] for i in order), tuple(heldout), ())

    def _make_prompts(self, kind: str, count: int) -> list[Prompt]:
        """`count` different problems of a kind, each behind the kind's examples."""
        shots, wanted = self.settings.shots, self.settings.shots + count
        problems: dict[str, str] = {}
        for problem, answer in _make_problems(kind, self.settings.seed, DRAWS_PER_PROBLEM * wanted + MORE_DRAWS):
            problems.setdefault(problem, answer)
            if len(problems) == wanted:
                break
        else:
            raise UserError(
                f"task.problems.{kind}: {wanted} different problems are asked for, examples included, and reasoning-gym"
                f" gives {len(problems)}; lower its share, task.train_prompts or task.heldout_prompts"
            )
        written = list(problems.items())
        before = "".join(f"{problem} {answer}\n" for problem, answer in written[:shots])
        texts = [(before + problem, answer) for problem, answer in written[shots:]]
        return [Prompt(make_content_id(self.name, text), text, answer, {"kind": kind}) for text, answer in texts]


def _make_problems(kind: str, seed: int, draws: int) -> Iterator[tuple[str, str]]:
    """Texts and answers of `draws` problems of a kind, in a seeded order. Problems may repeat."""
    chosen = KINDS[kind]
    source = make_dataset(chosen.dataset, seed=seed << 32, size=draws, **chosen.options)
    for index in range(draws):
        entry = source[index]
        facts = {"question": entry["question"]} | entry["metadata"]
        if "numbers" in facts:
            facts["numbers"] = ", ".join(map(str, facts["numbers"]))
        yield chosen.written.format_map(facts), str(entry["answer"])


def _share_out(count: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers that sum to `count`, in proportion to the shares."""
    edges = np.rint(np.cumsum(shares) / np.sum(shares) * count).astype(int)
    return [int(size) for size in np.diff(edges, prepend=0)]
