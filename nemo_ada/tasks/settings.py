"""The settings of a task. There is one frozen model per task, and the field `name` selects it.

All defaults and bounds stand here, and pydantic checks them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS
from nemo_ada.verify.judge import check_verifier

Verifier = Annotated[str, AfterValidator(check_verifier)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
TrainPrompts = Annotated[int, Field(ge=1, le=100_000)]
HeldoutPrompts = Annotated[int, Field(ge=1, le=10_000)]
Blanks = Annotated[int, Field(ge=1, le=12)]


class Settings(BaseModel):
    """A section whose unknown keys are errors, and which nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class PuzzleSettings(Settings):
    """The settings of both tasks whose answers have errors in the demonstrations."""

    name: str
    seed: Seed = 0
    """Seed of the problems, of their split and of the noise in the demonstrations."""
    size: Annotated[int, Field(ge=100, le=200_000)] = 40_000
    """Problems to make, before equal ones are dropped (a board takes 0.3 ms)."""
    train_prompts: TrainPrompts = 4096
    """Prompts kept for RL."""
    heldout_prompts: HeldoutPrompts = 256
    """Prompts kept for evaluation only."""
    noise_scale: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Factor on the error rates of the demonstrations: 0 is clean, 1 is the documented noise."""
    drafts: Annotated[int, Field(ge=1, le=32)] = 1
    """Drafts that a response may hold, separated by `=`. The last one counts. In demonstrations another draft follows
    with probability 1/2, so lengths vary."""
    graded: bool = False
    """Whether a training response earns a part of the reward: the share of blank cells that are right, or 1 - edit
    distance / letters. Evaluations count whole answers only."""


class MiniSudokuSettings(PuzzleSettings):
    """4x4 sudoku from reasoning-gym. The answer is the full grid of 16 digits."""

    name: Literal["mini_sudoku"] = "mini_sudoku"
    min_empty: Blanks = 2
    """Fewest blank cells of a board."""
    max_empty: Blanks = 12
    """Most blank cells of a board (with more, few boards have one solution)."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_empty > self.max_empty:
            raise ValueError(f"min_empty={self.min_empty} is above max_empty={self.max_empty}; lower it")
        return self


class SpellBackwardSettings(PuzzleSettings):
    """Words from reasoning-gym to spell backward. A third each has 3 to 5, 6 to 7 and 8 to 10 letters."""

    name: Literal["spell_backward"] = "spell_backward"


class JsonlSettings(Settings):
    """A local file with one JSON object per line, each with a prompt and its answer."""

    name: Literal["jsonl"] = "jsonl"
    path: Annotated[str, Field(min_length=1)]
    """The file. A relative path starts at the working directory."""
    prompt_fields: Annotated[tuple[str, ...], Field(min_length=1)] = PROMPT_FIELDS
    """Names of the prompt field. The first one that a line has is used."""
    answer_fields: Annotated[tuple[str, ...], Field(min_length=1)] = ANSWER_FIELDS
    """Names of the answer field. The first one that a line has is used."""
    prompt_suffix: str = ""
    """Text put after every prompt, to mark where the answer starts."""
    verifier: Verifier = "exact"
    """How answers are compared: `exact` as normalised strings, `math` by value with math-verify."""
    reward: str | None = None
    """Own reward in place of a verifier: `package.module:function`, called with the response and the answer, returns a
    number from 0 to 1. null: none."""
    seed: Seed = 0
    """Seed of the split."""
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the prompts kept for evaluation only."""
    supervision_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of the prompts whose answers are the demonstrations of the base model."""
    max_prompt_tokens: Annotated[int, Field(ge=1, le=32_768)] = 256
    """Prompts with more tokens are left out."""
    max_new_tokens: Annotated[int | None, Field(ge=2, le=32_768)] = None
    """Longest response in tokens. null: as long as the longest answer."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.heldout_fraction + self.supervision_fraction >= 1:
            raise ValueError(
                f"heldout_fraction={self.heldout_fraction} and supervision_fraction={self.supervision_fraction} "
                "leave no prompts for training; lower them until their sum is below 1"
            )
        if self.reward is not None and self.verifier != "exact":
            raise ValueError(f"reward={self.reward!r} and verifier={self.verifier!r} both judge; leave one of them out")
        return self


ProblemKind = Literal[
    "sum_1", "sum_1x3", "sum_2", "times_1", "times_2", "gcd", "lcm", "gsm_symbolic"
]  # fmt: skip
DEFAULT_PROBLEMS: dict[ProblemKind, float] = {
    "sum_1": 5, "times_1": 2, "sum_1x3": 6, "gcd": 4, "lcm": 2, "sum_2": 1
}  # fmt: skip
"""Shares for SmolLM2-135M. At the start, half of its one-digit sums and hardly any two-digit sums are right."""


class ArithmeticSettings(Settings):
    """Arithmetic from reasoning-gym for language models, from one-digit sums to word problems."""

    name: Literal["arithmetic"] = "arithmetic"
    seed: Seed = 0
    """Seed of the problems and of their order."""
    problems: Annotated[dict[ProblemKind, Annotated[float, Field(gt=0)]], Field(min_length=1)] = DEFAULT_PROBLEMS
    """Kinds of problems and their shares of the prompts, in any unit."""
    shots: Annotated[int, Field(ge=0, le=32)] = 4
    """Solved problems of the same kind in front of every problem."""
    train_prompts: TrainPrompts = 512
    """Prompts kept for RL."""
    heldout_prompts: HeldoutPrompts = 128
    """Prompts kept for evaluation only."""
    max_new_tokens: Annotated[int, Field(ge=2, le=32_768)] = 8
    """Longest response in tokens."""


class OwnTaskSettings(Settings):
    """A task of your own (recipes/extend/task.py)."""

    name: Literal["own"] = "own"
    task: str
    """The class, as `package.module:Class`. It is called with the model's tokenizer, or None, and the arguments, and
    has the protocol `nemo_ada.tasks.protocol.Task`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the class."""


AnyTaskSettings = MiniSudokuSettings | SpellBackwardSettings | JsonlSettings | ArithmeticSettings | OwnTaskSettings
TaskSettings = Annotated[AnyTaskSettings, Field(discriminator="name")]


def list_data_facts(settings: Settings) -> dict[str, Any]:
    """Return the settings that decide the problems and the demonstrations. How responses are judged is left out."""
    return settings.model_dump(exclude={"graded"})
