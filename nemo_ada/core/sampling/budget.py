"""The budget of one batch: samples, tokens and seconds (algorithm.md section 6).

The ledger counts what is reserved and what is spent. A reservation is made before responses are issued and settled
when they end. So `spent + reserved <= cap` holds at every moment. There is one exception. With `expected` reservation
first waves are issued even when their tokens exceed the cap, because first waves have priority.

Prompt groups of one training step may be drawn independently of each other. Then each group has its session, whose
ledger is a `GroupLedger`. It books into the `StepLedger` of the step. First waves are always covered. A later wave is
granted in the order in which the groups started:

    granted  The caps also cover every first wave that is still to come, and every request that an earlier group may
             make.
    refused  The caps do not cover it together with those first waves, whatever the earlier groups do.
    waits    Otherwise it waits until an earlier group has ended.

So with a cap on samples, a group's share depends on labels and the order of start. Short responses do not win.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

from nemo_ada.core.schema import STRICT, Bounds, Positive, Quantile
from nemo_ada.errors import InvariantError

Count = Annotated[int, Bounds(gt=0, le=2**53)]


@dataclass(frozen=True, slots=True)
class Use:
    """What responses cost. A cap that counts something else adds it here, and every ledger counts it.

    Attributes:
        samples: responses issued.
        tokens: tokens generated, and in a ledger those reserved, too.
        seconds: duration of the sampling phase. A ledger has no clock, so it is 0 there.
    """

    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Use) -> Use:
        """Add what other responses cost."""
        return Use(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Use) -> Use:
        """Take away what some of the responses cost."""
        return Use(*(own - less for own, less in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Cap:
    """What a cap of a batch bounds. Whoever counts, shows, scales or checks caps iterates over CAPS or `Budget.caps()`.

    Attributes:
        name: its setting in reinforce_ada.budget.
        unit: what it counts. The metric `budget_used_UNIT` is the used share.
        code: its number in the metric `budget_bound`. It never changes, because logs have it.
        used: what counts against it, of what a batch has cost.
        metric: the metric that counts the same.
        scales: whether it holds for all prompts together, so that a share of the prompts gets a share of the cap.
        drains: whether responses in flight may still pass it, or give some of it back.
        predicted: whether nothing can be reserved for it, so that a forecast decides (deadline.py), and no ledger.
    """

    name: str
    unit: str
    code: int
    used: Callable[[Use], float]
    metric: str
    scales: bool = True
    drains: bool = False
    predicted: bool = False

    @property
    def key(self) -> str:
        """Its dotted name in a YAML."""
        return f"reinforce_ada.budget.{self.name}"


SAMPLES = Cap("max_samples", "samples", 1, lambda use: use.samples, "samples_drawn")
TOKENS = Cap("max_tokens", "tokens", 2, lambda use: use.tokens, "tokens_drawn", drains=True)
SECONDS = Cap(
    "max_seconds", "seconds", 3, lambda use: use.seconds, "sampling_seconds", scales=False, drains=True, predicted=True
)
CAPS = (SAMPLES, TOKENS, SECONDS)
BOUNDS = {"none": 0, **{cap.name: cap.code for cap in CAPS}, "stopped": 4, "group_seconds": 5}
"""What ended a prompt -> its number in the metric `budget_bound`. A new cap takes the next number that is free."""


@dataclass(frozen=True)
class Budget:
    """The caps of one batch (algorithm.md section 6). With null a cap does not apply."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    max_samples: Count | None = None
    """Largest number of responses issued."""
    max_tokens: Count | None = None
    """Largest number of generated tokens."""
    max_seconds: Positive | None = None
    """Largest time of the sampling phase, in seconds. It applies to waves after the first ones."""
    seconds_quantile: Quantile = 0.5
    """Probability with which all these waves must be expected to end within max_seconds. With 0.9 one step in ten is
    late."""
    token_reservation: Literal["expected", "worst_case"] = "expected"
    """Tokens reserved per response: a high quantile of recent lengths, or the longest possible length."""
    expected_tokens: Annotated[int, Bounds(gt=0, le=10_000_000)] | None = None
    """Tokens reserved per response until a length is known (default: the longest possible length)."""
    max_group_seconds: Positive = 1800.0
    """Seconds after which asynchronous training gives up a prompt group and keeps its complete waves."""

    def caps(self) -> dict[Cap, Any]:
        """Return the caps that are set, with their values."""
        return {cap: value for cap in CAPS if (value := getattr(self, cap.name)) is not None}

    def replace_caps(self, caps: Mapping[Cap, float]) -> Budget:
        """Return this budget with these caps and no others."""
        values: dict[str, Any] = {cap.name: caps.get(cap) for cap in CAPS}
        return replace(self, **values)

    def shrink(self, scale: float) -> Budget:
        """Return the budget of a batch with `scale` times fewer prompts."""
        return self.replace_caps(  # 1e-9: a quotient that is whole but for the last bit is not rounded up
            {cap: ceil(value / scale - 1e-9) if cap.scales else value for cap, value in self.caps().items()}
        )


def _cost_of(responses: int, tokens_each: int) -> Use:
    """Return what responses cost that are asked for, with the tokens that are reserved for them."""
    return Use(responses, responses * tokens_each)


class Ledger:
    """Counts what one batch costs.

    Attributes:
        use: what is spent and what is reserved.
        tokens_reserved: the tokens of it that are reserved.
    """

    def __init__(self, budget: Budget) -> None:
        self._caps = [(cap, most) for cap, most in budget.caps().items() if not cap.predicted]
        self.use = Use()
        self.tokens_reserved = 0

    @property
    def bounded(self) -> bool:
        """Whether a cap bounds what is reserved."""
        return bool(self._caps)

    def find_refusal(self, responses: int, tokens_each: int) -> Cap | None:
        """Return the cap that forbids so many more responses. None when they fit."""
        after = self.use + _cost_of(responses, tokens_each)
        return next((cap for cap, most in self._caps if cap.used(after) > most), None)

    def waits(self, responses: int, tokens_each: int) -> bool:
        """Return whether the answer depends on other groups (GroupLedger)."""
        return False

    def reserve(self, responses: int, tokens_each: int, *, first_waves: bool = False) -> None:
        """Reserve what `find_refusal` has allowed.

        Args:
            responses: number of responses.
            tokens_each: tokens to reserve for each.
            first_waves: whether these are first waves, which may exceed the token cap, because every prompt of a step
                gets one. The sample cap always holds.
        """
        refused = self.find_refusal(responses, tokens_each)
        if refused is not None and not (first_waves and refused.drains):
            raise InvariantError(f"reserved {responses} samples of {tokens_each} tokens against {refused.name}")
        self._book(_cost_of(responses, tokens_each), responses * tokens_each)

    def settle(self, reserved: int, used: int) -> None:
        """Release the `reserved` tokens of responses that ended, and book the `used` ones."""
        if reserved > self.tokens_reserved:
            raise InvariantError(f"settled {reserved} tokens of {self.tokens_reserved} reserved")
        self._book(Use(tokens=used - reserved), -reserved)

    def _book(self, use: Use, tokens_reserved: int) -> None:
        self.use += use
        self.tokens_reserved += tokens_reserved


class StepLedger(Ledger):
    """Counts what one training step costs, whose groups are drawn independently."""

    def __init__(self, budget: Budget, *, groups: int, first: int, most: int) -> None:
        """Begin a step.

        Args:
            budget: caps of the step.
            groups: groups of the step.
            first: responses of a first wave.
            most: responses that a group may ask for (N_max).
        """
        super().__init__(budget)
        self.budget, self.first, self.most = budget, first, most
        self._numbers = list(range(groups))  # numbers of groups that have not started, in their order
        self._open: list[GroupLedger] = []  # groups that run, in the order of their start

    def start(self, number: int | None = None) -> GroupLedger:
        """Make the ledger of a group.

        Args:
            number: number of a group that was abandoned and starts again. None takes the next number.

        Raises:
            InvariantError: all groups have started, or this one has.
        """
        if not self._numbers or number not in (None, *self._numbers):
            raise InvariantError("a step has no place for another group")
        group = GroupLedger(self, self._numbers[0] if number is None else number)
        self._numbers.remove(group.number)
        self._open.append(group)
        return group

    def abandon(self, group: GroupLedger) -> None:
        """Undo a group that failed, perhaps after its end, and will start again. What it drew no longer counts."""
        if group in self._open:
            self.end(group)
        self.use -= group.use
        self.tokens_reserved -= group.tokens_reserved
        self._numbers = sorted([*self._numbers, group.number])

    def restore(self, number: int, use: Use) -> None:
        """Book the group with this number, which an earlier attempt has drawn."""
        self._numbers.remove(number)
        self.use += use

    def end(self, group: GroupLedger) -> None:
        """End a group, which makes no further requests."""
        self._open.remove(group)

    def count_first_waves_without(self, group: GroupLedger) -> int:
        """Count the responses of the other groups' first waves that are still to be issued."""
        waiting = sum(other.use.samples == 0 for other in self._open if other is not group)
        return self.first * (len(self._numbers) + waiting)

    def count_claims_before(self, group: GroupLedger) -> int:
        """Count the responses that earlier groups may still request after their first waves."""
        earlier = self._open[: self._open.index(group)]
        return sum(max(self.most - max(other.use.samples, self.first), 0) for other in earlier)

    def may_give_back(self, group: GroupLedger) -> bool:
        """Return whether tokens may become free, because some are reserved or because earlier groups leave some."""
        return self.tokens_reserved > 0 or self._open[0] is not group


class GroupLedger(Ledger):
    """Counts what one group of a step costs. What it may reserve depends on the whole step.

    Attributes:
        number: number of the group within its step, in the order of start.
    """

    def __init__(self, step: StepLedger, number: int) -> None:
        super().__init__(step.budget)
        self._step, self.number = step, number

    def find_refusal(self, responses: int, tokens_each: int) -> Cap | None:
        """Return the cap that forbids so many more responses, whatever other groups do. None when they may fit."""
        step = self._step
        refused = step.find_refusal(responses + step.count_first_waves_without(self), tokens_each)
        if refused is not None and refused.drains and step.may_give_back(self):
            return None
        return refused

    def waits(self, responses: int, tokens_each: int) -> bool:
        """Return whether neither the grant nor the refusal is certain."""
        step = self._step
        if self.use.samples == 0 or not self.bounded or self.find_refusal(responses, tokens_each) is not None:
            return False
        before = step.count_first_waves_without(self) + step.count_claims_before(self)
        return step.find_refusal(responses + before, tokens_each) is not None

    def reserve(self, responses: int, tokens_each: int, *, first_waves: bool = False) -> None:
        """Reserve as `Ledger` does, for the group and its step. The step's caps decide, not the group's share."""
        self._step.reserve(responses, tokens_each, first_waves=first_waves)
        self._book(_cost_of(responses, tokens_each), responses * tokens_each)

    def settle(self, reserved: int, used: int) -> None:
        """Release and book tokens as `Ledger` does, for the group and its step."""
        super().settle(reserved, used)
        self._step.settle(reserved, used)

    def end(self) -> None:
        """End the group. Groups that wait for it may go on."""
        self._step.end(self)

    def abandon(self) -> None:
        """Undo the group, which failed and will start again."""
        self._step.abandon(self)
