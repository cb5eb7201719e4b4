"""The settings of a task. There is one frozen dataclass per task, and the field `name` selects it.

All defaults and bounds stand here, and pydantic checks them.
"""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS

_STRICT = ConfigDict(extra="forbid")

Drafts = Annotated[
    int,
    Field(
        ge=1,
        le=32,
        description="Drafts that a response may hold, separated by `=`. The last one counts. In demonstrations another "
        "draft follows with probability 1/2, so lengths vary.",
    ),
]
Seed = Annotated[
    int,
    Field(ge=0, lt=2**31, description="Seed of the problems, of their split and of the noise in the demonstrations."),
]
TrainPrompts = Annotated[int, Field(ge=1, le=100_000, description="Prompts kept for RL.")]
HeldoutPrompts = Annotated[int, Field(ge=1, le=10_000, description="Prompts kept for evaluation only.")]
Graded = Annotated[
    bool,
    Field(
        description="Whether a training response earns a part of the reward: the share of blank cells that are right, "
        "or 1 - edit distance / letters. Evaluations count whole answers only."
    ),
]
NoiseScale = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Factor on the error rates of the demonstrations: 0 is clean, 1 is the documented noise.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class PuzzleSettings:
    """The settings of both tasks whose answers have errors in the demonstrations."""

    name: str
    seed: Seed = 0
    size: Annotated[
        int,
        Field(ge=100, le=200_000, description="Problems to make, before equal ones are dropped (a board in 0.3 ms)."),
    ] = 40_000
    train_prompts: TrainPrompts = 4096
    heldout_prompts: HeldoutPrompts = 256
    noise_scale: NoiseScale = 1.0
    drafts: Drafts = 1
    graded: Graded = False


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class MiniSudokuSettings(PuzzleSettings):
    """4x4 sudoku from reasoning-gym. The answer is the full grid of 16 digits."""

    name: Literal["mini_sudoku"] = "mini_sudoku"
    min_empty: Annotated[int, Field(ge=1, le=12, description="Fewest blank cells of a board.")] = 2
    max_empty: Annotated[
        int, Field(ge=1, le=12, description="Most blank cells of a board (with more, few boards have one solution).")
    ] = 12

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_empty > self.max_empty:
            raise ValueError(f"min_empty={self.min_empty} is above max_empty={self.max_empty}; lower it")
        return self


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class SpellBackwardSettings(PuzzleSettings):
    """Words from reasoning-gym to spell backward. A third each has 3 to 5, 6 to 7 and 8 to 10 letters."""

    name: Literal["spell_backward"] = "spell_backward"


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class JsonlSettings:
    """A local file with one JSON object per line, each with a prompt and its answer."""

    name: Literal["jsonl"] = "jsonl"
    path: Annotated[str, Field(min_length=1, description="The file. A relative path starts at the working directory.")]
    prompt_fields: Annotated[
        tuple[str, ...],
        Field(min_length=1, description="Names of the prompt field. The first one that a line has is used."),
    ] = PROMPT_FIELDS
    answer_fields: Annotated[
        tuple[str, ...],
        Field(min_length=1, description="Names of the answer field. The first one that a line has is used."),
    ] = ANSWER_FIELDS
    prompt_suffix: Annotated[
        str, Field(description="Text put after every prompt, to mark where the answer starts.")
    ] = ""
    verifier: Annotated[
        Literal["exact", "math"],
        Field(description="How answers are compared: `exact` as normalised strings, `math` by value with math-verify."),
    ] = "exact"
    reward: Annotated[
        str | None,
        Field(
            description="Own reward in place of a verifier: `package.module:function`, called with the response and "
            "the answer, returns a number from 0 to 1. null: none."
        ),
    ] = None
    seed: Seed = 0
    heldout_fraction: Annotated[
        float, Field(gt=0, lt=1, description="Share of the prompts kept for evaluation only.")
    ] = 0.1
    supervision_fraction: Annotated[
        float,
        Field(ge=0, lt=1, description="Share of the prompts whose answers are the demonstrations of the base model."),
    ] = 0.5
    max_prompt_tokens: Annotated[int, Field(ge=1, le=32_768, description="Prompts with more tokens are left out.")] = (
        256
    )
    max_new_tokens: Annotated[
        int | None,
        Field(ge=2, le=32_768, description="Longest response in tokens. null: as long as the longest answer."),
    ] = None

    @model_validator(mode="after")
    def _leaves_train(self) -> Self:
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


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ArithmeticSettings:
    """Arithmetic from reasoning-gym for language models, from one-digit sums to word problems."""

    name: Literal["arithmetic"] = "arithmetic"
    seed: Seed = 0
    problems: Annotated[
        dict[ProblemKind, Annotated[float, Field(gt=0)]],
        Field(min_length=1, description="Kinds of problems and their shares of the prompts, in any unit."),
    ] = field(default_factory=lambda: dict(DEFAULT_PROBLEMS))
    shots: Annotated[
        int, Field(ge=0, le=32, description="Solved problems of the same kind in front of every problem.")
    ] = 4
    train_prompts: TrainPrompts = 512
    heldout_prompts: HeldoutPrompts = 128
    max_new_tokens: Annotated[int, Field(ge=2, le=32_768, description="Longest response in tokens.")] = 8


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class OwnTaskSettings:
    """A task of your own (recipes/extend/task.py)."""

    name: Literal["own"] = "own"
    task: Annotated[
        str,
        Field(description="The class, as `package.module:Class`. It is called with the model's tokenizer, or None, and "
              "the arguments, and has the protocol `nemo_ada.tasks.protocol.Task`."),
    ]  # fmt: skip
    arguments: Annotated[dict[str, Any], Field(description="Further arguments of the class.")] = field(
        default_factory=dict
    )


AnyTaskSettings = MiniSudokuSettings | SpellBackwardSettings | JsonlSettings | ArithmeticSettings | OwnTaskSettings
TaskSettings = Annotated[AnyTaskSettings, Field(discriminator="name")]


def data_facts(settings: AnyTaskSettings) -> dict[str, Any]:
    """Return the settings that decide the problems and the demonstrations. How responses are judged is left out."""
    return {name: value for name, value in asdict(settings).items() if name != "graded"}
