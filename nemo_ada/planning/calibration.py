"""Published step times as seconds of simulated work: one calibration per model, which all of its recipes share.

The published step (GRPO n = 4 on easy prompts, its longest response) is simulated, on the recipe's own engines. Where a
second point was published (the balanced preset), both give the seconds per engine step and those that do not follow the
engine; else their shares are assumed. What else was published of a preset becomes its factor. A recipe is carried from
there by simulating its own pass rates, lengths, limits and settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nemo_ada.config.presets import ada_settings
from nemo_ada.errors import UserError
from nemo_ada.planning.facts import EASY, Facts
from nemo_ada.planning.lengths import by_rule
from nemo_ada.planning.model import Model, variant
from nemo_ada.planning.phase import Phases
from nemo_ada.planning.published import FP8, GROUP, RATIO, RESPONSES, SAMPLING_SHARE, StepEstimate, grpo_step
from nemo_ada.simulate.engine import LengthModel
from nemo_ada.simulate.steps import RateDistribution, Variant

SECOND_POINT = "ada_seq_balance"
TRIAL = 1000  # tokens of the longest response with which a published mean length is matched


@dataclass(frozen=True, slots=True)
class Calibration:
    """Sampling and the rest of a step = factor of the preset * (fixed * tokens of its rows + per_step * engine steps).

    fixed: log-probs, verification and refit of GRPO's rows at the published lengths; tokens against those.
    step: GRPO's at the published lengths. tokens: mean of a response there. reference: the simulated published run.
    """

    step: StepEstimate
    per_step: float
    fixed: float
    factors: Mapping[str, float]
    tokens: float
    reference: Model

    @classmethod
    def of(cls, facts: Facts, steps: int) -> Calibration:
        """For the model, prompts, GPUs and engines of a recipe. steps: simulated ones per point. Raises UserError for
        the embedded back end."""
        if facts.shape is None:
            raise UserError("nothing was published for the embedded back end; give --run with an earlier run's folder")
        step = grpo_step(facts.model, facts.shape, facts.prompts, facts.gpus)
        reference = _reference(facts, step, steps)
        grpo = _published_variant("grpo", reference)
        found = reference.phases(grpo)
        rest, steps_grpo = step.seconds - step.update, median(found)
        ratios = RATIO.get(step.name, {}) if facts.model == step.name else {}
        fixed, per_step = rest * (1.0 - SAMPLING_SHARE), rest * SAMPLING_SHARE / steps_grpo
        if SECOND_POINT in ratios:
            more = median(reference.phases(_published_variant(SECOND_POINT, reference))) - steps_grpo
            per_step = min(step.seconds * (ratios[SECOND_POINT] - 1.0) / more, rest / steps_grpo)
            fixed = rest - per_step * steps_grpo
        factors = {}
        for name, ratio in ratios.items():
            rows = RESPONSES.get(name, GROUP) / GROUP
            simulated = fixed * rows + per_step * median(reference.phases(_published_variant(name, reference)))
            factors[name] = (step.seconds * ratio - step.update * rows) / simulated
        return cls(step, per_step, fixed, factors, mean_tokens(found), reference)

    def factor(self, preset: str | None) -> float:
        """Published seconds of a preset's first phase over the calibrated ones; 1 where none were published."""
        return self.factors.get(preset or "", 1.0)

    def ratio(self, preset: str | None) -> float:
        """Published step time of a preset over GRPO's."""
        return RATIO.get(self.step.name, {}).get(preset or "", 1.0)

    def sampling(self, preset: str | None, tokens: float, engine_steps: float) -> float:
        """Seconds of the first phase of a step, in BF16. tokens: of the kept rows, over the published GRPO's."""
        return self.factor(preset) * (self.fixed * tokens + self.per_step * engine_steps)

    def differences(self, facts: Facts, asked: Variant, rates: RateDistribution, lengths: LengthModel) -> list[str]:
        """In what a recipe differs from the published run of its model and preset, but for prompts and GPUs."""
        preset = facts.ada.preset or ""
        known = preset == "grpo" or preset in self.factors
        same = known and asked == variant(ada_settings({"preset": preset}), facts.group, facts.longest)
        return [
            what
            for what, differs in (
                ("rows per prompt", facts.group != RESPONSES.get(preset, GROUP)),
                ("pass rates", rates != self.reference.rates),
                ("max_new_tokens", facts.longest != self.reference.facts.longest),
                ("lengths", lengths != by_rule(facts.longest)),
                ("preset or settings of reinforce_ada", not same),
                ("dynamic sampling", facts.dynamic is not None),
            )
            if differs
        ]

    @property
    def run_said(self) -> str:
        """The published run, and what of it is assumed."""
        published = self.step.published
        longest = self.reference.facts.longest
        known = (
            f"easy prompts (1 to 5 of 16 correct), at most {longest} new tokens; its lengths were not published and "
            "are taken by the rule"
            if published.tokens is None
            else f"{published.tokens:.0f} tokens per response; its pass rates were not published and are taken as 1 to "
            "5 of 16"
        )
        return (
            f"figures are carried from {self.step.name}: {published.prompts * GROUP} rows on {published.gpus} GPUs, "
            f"{known}"
        )


def fp8_said(facts: Facts) -> str:
    """What FP8 changes in a recipe's figures; empty without it."""
    parts = [name for name, on in (("rollout", facts.fp8_rollout), ("training", facts.fp8_train)) if on]
    return f"x{FP8:g} for FP8 {' and '.join(parts)} (NeMo-RL's documentation: 15 to 25 % less)" if parts else ""


def median(found: Phases) -> float:
    """Engine steps of the median phase."""
    return float(np.median(found.engine_steps_S))


def mean_tokens(found: Phases) -> float:
    """Tokens per response."""
    return float(found.tokens_S.sum() / found.responses_S.sum())


def _reference(facts: Facts, step: StepEstimate, steps: int) -> Model:
    longest, tokens = step.published.longest, step.published.tokens
    if longest is None:
        trial = Model(replace(facts, group=GROUP, longest=TRIAL, dynamic=None), EASY, by_rule(TRIAL), steps)
        longest = round(TRIAL * (tokens or TRIAL) / mean_tokens(trial.phases(_published_variant("grpo", trial))))
    own = replace(facts, group=GROUP, longest=longest, slots=facts.slots_for(longest), dynamic=None)
    return Model(own, EASY, by_rule(longest), steps)


def _published_variant(preset: str, model: Model) -> Variant:
    """A preset as it was published, without caps."""
    return variant(ada_settings({"preset": preset}), RESPONSES.get(preset, GROUP), model.facts.longest)
