"""Settings of `reinforce_ada:` that contradict each other: one table, from which errors and a page are made.

`python -m nemo_ada.config.conflicts` prints the page recipes/results/conflicts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nemo_ada.core.learning.factor import LARGEST_DEVIATION, measure_declared_deviation
from nemo_ada.core.learning.objectives import Linear
from nemo_ada.core.learning.settings import RowSettings
from nemo_ada.core.prompts.allocation import PowerRule
from nemo_ada.core.prompts.estimators import EmaSettings
from nemo_ada.core.sampling.budget import SECONDS
from nemo_ada.core.sampling.exits import ExitRule
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.errors import UserError


class Facts:
    """What a section means for groups of n responses. The names stand in the table's texts.

    Attributes:
        ada: the section, an AdaSettings. That class refuses by this table, so the table does not import it.
        n: the group size, grpo.num_generations_per_prompt.
    """

    def __init__(self, ada: Any, n: int) -> None:
        self.ada, self.n = ada, n
        self.advantage, self.budget, self.estimator = ada.advantage, ada.budget, ada.estimator
        self.seconds = self.budget.caps().get(SECONDS)

    @property
    def sampling(self) -> Any:
        """The section `sampling`, of either kind."""
        return self.ada.sampling

    @property
    def estimation(self) -> bool:
        """Whether the estimation variant draws."""
        return bool(self.sampling.kind == "estimation")

    @cached_property
    def stop(self) -> StopRule:
        """When a pool ends, of either variant."""
        return self.sampling.stop(self.n)  # type: ignore[no-any-return]

    @property
    def rule(self) -> ExitRule:
        """The exit rule."""
        return self.stop.exit

    @property
    def exit(self) -> str:
        """The kind of the exit rule. Empty in the estimation variant."""
        return "" if self.estimation else str(self.sampling.exit.kind)

    @property
    def largest_wave(self) -> int:
        """Responses of the largest wave."""
        return max(self.stop.wave_sizes)

    @property
    def cap(self) -> int:
        """N_max."""
        return self.stop.cap

    @property
    def fewest(self) -> int:
        """N_min of the estimation variant."""
        return self.sampling.bounds(self.n)[0]  # type: ignore[no-any-return]

    @property
    def declared(self) -> bool:
        """Whether the weights follow a declared objective."""
        return bool(self.advantage.weighting == "objective")

    @property
    def shrunk(self) -> bool:
        """Whether a response is compared with a predicted pass rate."""
        return bool(self.advantage.baseline == "shrunk")

    @property
    def one_mean(self) -> bool:
        """Whether one running mean predicts the pass rate of every prompt."""
        return bool(self.estimator.one_mean)

    @property
    def flat(self) -> bool:
        """Whether every row has the weight 1: the linear objective, of which the allocation realises nothing."""
        rule = self.sampling.allocation if self.estimation and not self.declared else None
        power = rule.exponent if isinstance(rule, PowerRule) else 0.0
        return isinstance(self.advantage.objective, Linear) and power == 0.0

    @property
    def chosen_by_rewards(self) -> bool:
        """Whether rewards choose the rows of a pool, beyond the number of each side."""
        return "rewards" in self.rule.reads

    @property
    def beyond_labels(self) -> str:
        """What decides beside labels how a pool ends or which rows it has. Empty where nothing does."""
        return " and ".join(sorted(self.rule.reads - {"waves"}))

    @cached_property
    def missed(self) -> float:
        """By how much the mean update misses the declared objective. 0 where none is declared."""
        if not self.declared or self.n < 2 or self.beyond_labels or (self.estimation and self.fewest < 2):
            return 0.0
        settings = RowSettings(self.n, self.stop, self.advantage, keep_all=self.estimation)
        return measure_declared_deviation(settings, self.fewest if self.estimation else 0)

    @property
    def larger(self) -> str:
        """The setting that brings the update nearer to the declared objective."""
        return f"{SAMPLING}.{'min_responses' if self.estimation else 'max_responses'}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that contradict each other. Texts are format strings over `Facts`, as `f`.

    Attributes:
        what: the settings, as a YAML has them.
        why: the reason.
        works: what would work.
        when: whether the settings are these.
        rows: whether it is about rows, which `nemo-ada simulate` does not make.
    """

    what: str
    why: str
    works: str
    when: Callable[[Facts], bool]
    rows: bool = False

    def write_message(self, facts: Facts) -> str:
        """Return the message for a user: what to set, and why."""
        return f"{self.works}: {self.what} {self.why}".format(f=facts)


ADA, SAMPLING, ADVANTAGE = "reinforce_ada", "reinforce_ada.sampling", "reinforce_ada.advantage"
N = "grpo.num_generations_per_prompt"
RESERVE = f"{ADA}.reserve_prompts={{f.ada.reserve_prompts}}"

CONFLICTS: tuple[Conflict, ...] = (
    # -- how responses are drawn, wave by wave
    Conflict(
        f"{SAMPLING}.exit.kind={{f.exit}}",
        f"goes by {{f.beyond_labels}}, which no weight of {ADVANTAGE}.weighting=objective undoes",
        "use weighting: reference",
        lambda f: f.declared and bool(f.beyond_labels),
    ),
    Conflict(
        f"{SAMPLING}.exit",
        f"needs {{f.rule.smallest_pool}} responses (k_pos + k_neg), but {SAMPLING}.max_responses={{f.cap}} caps every "
        "pool below that",
        "raise max_responses to at least {f.rule.smallest_pool}, or lower k_pos and k_neg",
        lambda f: not f.estimation and f.rule.smallest_pool > f.cap,
    ),
    Conflict(
        f"{SAMPLING}.wave_size={{f.largest_wave}}",
        f"is above {SAMPLING}.max_responses={{f.cap}}",
        "lower wave_size to {f.cap} or raise max_responses to {f.largest_wave}",
        lambda f: not f.estimation and f.largest_wave > f.cap,
    ),
    Conflict(
        f"{SAMPLING}.wave_size={{f.stop.wave_sizes[0]}}",
        f"is below {N}={{f.n}}: a pool that exits after its first wave could not fill a group",
        "raise wave_size to at least {f.n}",
        lambda f: not f.estimation and f.stop.wave_sizes[0] < f.n and f.rule.smallest_pool < f.n,
    ),
    Conflict(
        f"{SAMPLING}.max_responses={{f.cap}}",
        f"is below {N}={{f.n}}",
        "raise max_responses to {f.n}",
        lambda f: not f.estimation and f.cap < f.n,
    ),
    Conflict(
        RESERVE,
        f"replaces groups with equal labels, and with {SAMPLING}.exit.kind=spread these have a gradient",
        "set reserve_prompts to 0",
        lambda f: f.exit == "spread" and f.ada.reserve_prompts > 0,
    ),
    # -- the cap on seconds
    Conflict(
        f"{SECONDS.key}={{f.seconds:g}}",
        "bounds waves after the first, and these settings have none",
        "set max_seconds to null, and to shorten the draw lower grpo.num_prompts_per_step, "
        "grpo.num_generations_per_prompt or the longest response",
        lambda f: f.seconds is not None and f.stop.one_wave and not f.ada.reserve_prompts,
    ),
    # -- the estimation variant
    Conflict(
        f"{N}={{f.n}}",
        f"must lie between {SAMPLING}.min_responses={{f.fewest}} and max_responses={{f.cap}}, because it is the mean "
        "allocation",
        "set num_generations_per_prompt between min_responses and max_responses",
        lambda f: f.estimation and not f.fewest <= f.n <= f.cap,
    ),
    Conflict(
        f"{N}={{f.n}}",
        f"is a bound of {SAMPLING} (min_responses={{f.fewest}}, max_responses={{f.cap}}): every prompt would get "
        "{f.n} responses, which is GRPO",
        "set num_generations_per_prompt to 8 (as published, with bounds of 4 and 32), or bounds on both sides of {f.n}",
        lambda f: f.estimation and f.n in (f.fewest, f.cap) and f.sampling.allocation.exponent > 0.0,
    ),
    Conflict(
        f"{SAMPLING}.kind=estimation",
        "draws once and trains on all of it",
        f"set {ADA}.reserve_prompts=0",
        lambda f: f.estimation and f.ada.reserve_prompts > 0,
    ),
    # -- advantages
    Conflict(
        f"{ADVANTAGE}.baseline=shrunk",
        f"goes with {ADVANTAGE}.weighting=reference and normalize=none, because objective weighting has its own "
        "baseline",
        "set baseline to pool, or weighting to reference and normalize to none",
        lambda f: f.shrunk and (f.declared or f.advantage.normalize == "std"),
    ),
    Conflict(
        f"{ADVANTAGE}.baseline=leave_one_out",
        f"goes with {ADVANTAGE}.weighting=reference, because objective weighting has its own baseline",
        "set baseline to pool, or weighting to reference",
        lambda f: f.advantage.baseline == "leave_one_out" and f.declared,
    ),
    Conflict(
        f"{N}=1",
        "leaves nothing to compare a response with",
        f"set num_generations_per_prompt to at least 2, or {ADVANTAGE}.baseline=shrunk (preset ada_single)",
        lambda f: f.n == 1 and not f.shrunk,
    ),
    Conflict(
        f"{ADVANTAGE}.weighting=objective",
        f"compares a response with the others of its prompt, and with {SAMPLING}.min_responses=1 a prompt may have one",
        f"set min_responses to at least 2, or {ADVANTAGE}.weighting to reference with {ADVANTAGE}.baseline=shrunk",
        lambda f: f.declared and f.estimation and f.fewest < 2,
    ),
    Conflict(
        f"{ADVANTAGE}.normalize=std with {ADVANTAGE}.weighting=objective",
        "would multiply by 1/sqrt(p (1-p)), which no objective declares",
        "set normalize: none",
        lambda f: f.declared and f.advantage.normalize != "none",
    ),
    Conflict(
        f"{ADVANTAGE}.objective={{f.advantage.objective.kind}} with weighting=objective",
        "is missed by {f.missed:.0%} at some pass rate from .05 to .95, because too few pools have both labels there",
        f"raise {{f.larger}}, take an objective nearer to the linear one, or set {ADVANTAGE}.weighting=reference",
        lambda f: f.missed > LARGEST_DEVIATION,
    ),
    Conflict(
        f"{ADVANTAGE}.max_weight={{f.advantage.max_weight:g}} and min_pass_rate={{f.advantage.min_pass_rate:g}}",
        f"have no effect with {ADVANTAGE}.weighting=objective, which computes its weights from the objective",
        "set max_weight to 100 and min_pass_rate to 0.01, their defaults",
        lambda f: f.declared and (f.advantage.max_weight != 100.0 or f.advantage.min_pass_rate != 0.01),
    ),
    Conflict(
        f"{ADVANTAGE}.objective={{f.advantage.objective.kind}} with {ADVANTAGE}.baseline=shrunk",
        "would be missed: a prediction of the pass rate is uncertain, and the mean of f' over it is not f' (log: 2.7 "
        "times f' at a pass rate of .05)",
        f"use the linear objective (in Est with {SAMPLING}.allocation.exponent=0), or groups with "
        f"{ADVANTAGE}.weighting=objective",
        lambda f: f.shrunk and not f.flat,
    ),
    # -- which prompts a step has
    Conflict(
        f"{ADA}.estimator.per_prompt=false",
        f"without {ADA}.estimator.adaptive_prior=true predicts the same pass rate for ever",
        "set adaptive_prior to true",
        lambda f: isinstance(f.estimator, EmaSettings) and f.one_mean and not f.estimator.adaptive_prior,
    ),
    Conflict(
        f"{ADA}.estimator.per_prompt=false",
        "predicts the same pass rate for all prompts, so it cannot allocate responses",
        "set per_prompt to true, or estimator.kind to value",
        lambda f: f.one_mean and f.estimation,
    ),
    # -- rows
    Conflict(
        RESERVE,
        f"replaces groups with equal labels, and with {ADVANTAGE}.baseline=shrunk these have a gradient",
        "set reserve_prompts to 0, or baseline to pool",
        lambda f: f.shrunk and f.ada.reserve_prompts > 0,
        rows=True,
    ),
    Conflict(
        f"{ADVANTAGE}.baseline=shrunk",
        "trains on every response of a pool, and the labels must not decide how many there are",
        f"set {SAMPLING}.exit.kind=fixed with pools of {N}={{f.n}} responses (preset grpo, for groups of 1 preset "
        f"ada_single), {SAMPLING}.kind=estimation, or {ADVANTAGE}.baseline=pool",
        lambda f: f.shrunk and not f.estimation and f.sampling.fixed_pool(f.n) != f.n,
        rows=True,
    ),
    Conflict(
        f"{SAMPLING}.max_responses={{f.cap}}",
        f"with {N}=1 would train on an incorrect response wherever there is one",
        "draw one (preset ada_single), or keep at least 2",
        lambda f: f.n == 1 and not f.estimation and f.cap > 1,
        rows=True,
    ),
)


def find_conflicts(ada: Any, group: int, *, rows: bool = False) -> list[str]:
    """Return a message for every conflict of a section.

    Args:
        ada: the section `reinforce_ada:`.
        group: the group size n.
        rows: whether what is about rows counts, too.
    """
    facts = Facts(ada, group)
    return [one.write_message(facts) for one in CONFLICTS if (rows or not one.rows) and one.when(facts)]


def refuse_all(messages: Iterable[str]) -> None:
    """Raise UserError with all of the messages, in one line. Nothing happens where there is none."""
    text = ". Also: ".join(messages)
    if text:
        raise UserError(text)


def write_page() -> str:
    """Return the page of all conflicts, for recipes/results/conflicts.md."""

    def shown(text: str) -> str:
        for name, short in SHOWN.items():
            text = text.replace(f"{{{name}}}", short)
        return "".join(part if at % 2 == 0 else "..." for at, part in enumerate(text.replace("}", "{").split("{")))

    lines = [f"| `{shown(one.what)}` | {shown(one.why)} | {shown(one.works)} |" for one in CONFLICTS]
    return "\n".join([HEAD, *lines, ""])


SHOWN = {"f.n": "n", "f.cap": "N_max", "f.fewest": "N_min"}
HEAD = """# Settings that contradict each other

`nemo-ada check` prints all that apply, with their values. `n` is `grpo.num_generations_per_prompt`.
`python -m nemo_ada.config.conflicts` makes this page, from the table that the errors come from.

| setting | why | what works |
|---|---|---|"""

if __name__ == "__main__":
    print(write_page(), end="")  # noqa: T201
