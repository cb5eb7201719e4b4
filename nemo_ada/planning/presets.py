"""Which preset pays: what each costs here against GRPO with n rows per prompt, and what was simulated of its gain.

Gains are differences in the area under the held-out accuracy curve, from the simulation of algorithm.md section 11
(softmax policies, 73 settings, 40 seeds), on two ends: extra responses cost no time (equal steps), or they are all that
costs (equal responses). Where a preset lies between them follows from its step time here: 0 when it takes GRPO's time,
1 when its time grows like its responses. The interpolation is ours. On the CPU stack the reference gained at equal
steps too, and did not earn its responses back (recipes/results/presets.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SOURCE = (
    "gains are by simulation at equal steps (73 settings, algorithm.md section 11), set against this plan's times; at "
    "equal responses neither ada_seq_balance nor ada_seq_lean was ahead of GRPO in our measurements, beyond their "
    "error (recipes/results/presets.md)"
)
COMPARED = ("grpo", "ada_seq_lean", "ada_seq_idle", "ada_seq_balance", "ada_seq_positive")
# difficulty -> (mean pass rate above which it applies, gain at equal steps, gain at equal responses) of the reference
REFERENCE = (("easy", 0.6, 0.008, -0.008), ("moderate", 0.3, 0.026, -0.030), ("hard", 0.1, 0.077, -0.057))
VERY_HARD = ("very hard", 0.0, 0.152, -0.083)
LEAN_AT_RESPONSES: Mapping[str, float] = {"easy": 0.0, "moderate": -0.003, "hard": -0.011, "very hard": -0.017}
FEWER = 0.02  # groups without signal that the idle budget must save to be worth its name
OCCUPIED = 0.5  # mean responses in flight / peak above which the engine has no idle tail to fill


@dataclass(frozen=True, slots=True)
class Cost:
    """One preset on these prompts: per step, responses, seconds (sampling and all), share of groups without signal."""

    name: str
    responses: float
    sampling: float
    step: float
    zero_signal: float
    utilisation: float
    source: str = "simulated"


@dataclass(frozen=True, slots=True)
class Advice:
    """difficulty: of the prompts. gain: of the reference preset at equal seconds, None where it cannot be used. best:
    preset advised; why."""

    difficulty: str
    gain: float | None
    best: str
    why: str


def difficulty(pass_rate: float) -> tuple[str, float, float]:
    """Name, gain at equal steps, gain at equal responses of the reference setting."""
    for name, above, steps, responses in REFERENCE:
        if pass_rate >= above:
            return name, steps, responses
    name, _, steps, responses = VERY_HARD
    return name, steps, responses


def advise(costs: Sequence[Cost], pass_rate: float, response_seconds: float, row_seconds: float) -> Advice:
    """What to start from. costs holds `grpo` at least."""
    by_name = {cost.name: cost for cost in costs}
    grpo, reference = by_name["grpo"], by_name.get("ada_seq_balance")
    name, at_steps, at_responses = difficulty(pass_rate)
    if reference is None:
        why = "ada_seq_balance, to which the gains belong, draws fewer responses than a group of this size has"
        return Advice(name, None, "grpo", why)
    extra_time = reference.step / grpo.step - 1.0
    extra_responses = max(reference.responses / grpo.responses - 1.0, 1e-9)
    paid = min(max(extra_time / extra_responses, 0.0), 1.0)
    gain = at_steps + paid * (at_responses - at_steps)
    cost = (
        f"a response costs {response_seconds:.3g} s, an update row {row_seconds:.3g} s; the reference draws "
        f"x{1 + extra_responses:.1f} the responses in x{1 + extra_time:.2f} the time"
    )
    if gain > 0.01:
        return Advice(name, gain, "ada_seq_balance", f"{cost}: on {name} prompts its gain outweighs that")
    idle = by_name.get("ada_seq_idle")
    if idle is not None and grpo.utilisation < OCCUPIED and idle.zero_signal < grpo.zero_signal - FEWER:
        return Advice(
            name, gain, "ada_seq_idle",
            f"{cost}; the engine is {grpo.utilisation:.0%} occupied in GRPO's own phase: responses in its tail are "
            "nearly free",
        )  # fmt: skip
    if "ada_seq_lean" not in by_name:
        return Advice(
            name, gain, "grpo", f"{cost}, and no cheap preset fills groups of this size: responses are paid for"
        )
    return Advice(
        name,
        gain,
        "ada_seq_lean",
        f"{cost}, and the idle budget finds no room: responses are what you pay for (simulated for it at equal "
        f"responses: {LEAN_AT_RESPONSES[name]:+.3f}; plain GRPO is as good)",
    )
