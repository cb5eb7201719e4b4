"""What a plan says beside its figures: assumptions, and what in it will not work as its user may expect."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nemo_ada.cluster.memory import H100_GIB
from nemo_ada.cluster.site import site_setting
from nemo_ada.planning.facts import Facts
from nemo_ada.planning.phase import Phases
from nemo_ada.planning.presets import SOURCE
from nemo_ada.planning.slots import Slots
from nemo_ada.simulate.steps import Variant

MAX_ATTEMPTS = 50  # jobs of a chain, where site.env does not set MAX_ATTEMPTS
SAVES_PER_SLOT = 3  # that a warning suggests
LEAST_EXTRA = 0.01  # responses beyond the first waves, as a share of them


def notes(facts: Facts, asked: Variant, this: Phases, slots: Slots, published_run: str | None) -> Iterator[str]:
    """One sentence each. published_run: what the figures were carried from, where there is no earlier run."""
    if facts.backend != "embedded":
        yield f"GPUs are assumed to be H100-80GB ({H100_GIB} GiB)"
    if published_run is not None:
        yield published_run
    yield SOURCE
    if facts.dynamic is not None:
        yield from _dynamic(facts, this)
    if asked.plan.idle and _extra(facts, asked, this) < LEAST_EXTRA:
        yield (
            f"idle mode draws nothing here: the first waves leave no tail in which another response is expected to end "
            f"(longest {facts.longest} tokens), so this is GRPO; ada_seq_lean draws under any lengths, and --run or "
            "--median-tokens gives this plan other ones"
        )
    yield from _chain(facts, slots)


def _extra(facts: Facts, asked: Variant, this: Phases) -> float:
    first = facts.drawn * asked.plan.first_issue * this.batches
    return float(np.mean(this.responses_S)) / first - 1.0


def _dynamic(facts: Facts, this: Phases) -> Iterator[str]:
    if facts.dynamic is None:
        return
    yield (
        f"dynamic sampling draws {this.batches:.2f} batches of {facts.dynamic.prompts} prompts per step on average, "
        f"until {facts.prompts} groups have signal; reinforce_ada.budget bounds each batch, not the step"
    )
    if this.unfilled > 0:
        yield (
            f"{this.unfilled:.0%} of the steps do not find {facts.prompts} groups with signal in {facts.dynamic.most} "
            "batches, and NeMo-RL ends the run there: raise grpo.batch_multiplier or "
            "grpo.dynamic_sampling_max_gen_batches, or take easier prompts"
        )


def _chain(facts: Facts, slots: Slots) -> Iterator[str]:
    if 0 < slots.steps < min(facts.save_period, facts.steps):
        yield (
            f"checkpointing.save_period={facts.save_period} is above the {slots.steps} steps of a slot: a node that "
            f"fails loses the whole slot; {max(1, slots.steps // SAVES_PER_SLOT)} would lose a third of it at most"
        )
    given = site_setting("MAX_ATTEMPTS")
    most = int(given) if given.isdecimal() else MAX_ATTEMPTS
    if slots.slots > most:
        yield (
            f"{slots.slots} slots are more than the {most} jobs of a chain: raise MAX_ATTEMPTS in slurm/site.env to "
            f"{slots.slots} or more, or ask for a longer --time"
        )
