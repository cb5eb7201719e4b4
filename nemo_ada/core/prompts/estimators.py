"""Pass-rate estimates that live across steps, for allocation and priors (algorithm.md section 3).

Both estimators know prompts by stable ids, and not by positions in a batch. Both return a Beta distribution per prompt.
Its mean is the prediction. Its mass a + b says how many responses the prediction is worth. Their state consists of
numbers, lists and arrays, without pickle, and is restored bit for bit. P is the number of prompts of a step, F of
features, D of regression weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.core.schema import STRICT, Bounds, ByKind, Positive, Quantile
from nemo_ada.errors import InvariantError, UserError

MAX_WIDTH = 64
WEIGHT_VARIANCE = 10.0  # prior variance of the part of the logit that comes from the features
BIAS_VARIANCE = 4.0
INNER_STEPS = 8
"""Steps of an update towards the mode. They stop short of it, and the next update goes on from there: with 8 features
and 24 prompts by a tenth of the weights in the first update, and by 0.4 % in the fortieth."""
MIN_MASS = 1e-3
FORGOTTEN = 0.05  # a prompt whose decayed counts have fewer responses is dropped from the memory
_ARRAYS = ("weight_D", "precision_DD", "mean_F", "spread_F")


class PassRateEstimator(Protocol):
    """Predicts pass rates before a step and learns from its pools afterwards."""

    def predict_beta(
        self, prompt_ids: Sequence[str], features_PF: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return (a, b) of each prompt's Beta distribution. The prediction is a / (a + b)."""
        ...

    def update(
        self,
        prompt_ids: Sequence[str],
        pos_P: IntArray | FloatArray,
        total_P: IntArray,
        features_PF: FloatArray | None = None,
    ) -> None:
        """Learn that pos_P of total_P responses were correct, or that their rewards sum to pos_P.

        Prompts without responses do not change.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        ...


@dataclass(frozen=True)
class EmaSettings:
    """The settings of decayed counts with a Beta prior per prompt (algorithm.md section 3)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    needs_features: ClassVar[bool] = False
    """Whether a back end computes features of the prompts for it."""
    kind: Literal["ema"] = "ema"
    decay: Quantile = 0.9
    """Factor on a prompt's counts at each visit."""
    prior_positive: Positive = 1.0
    """a of the Beta prior, in responses."""
    prior_negative: Positive = 1.0
    """b of the Beta prior, in responses."""
    adaptive_prior: bool = False
    """Whether the prior's mean follows the recent pass rate over all prompts. Its weight a + b stays."""
    per_prompt: bool = True
    """Whether every prompt has its counts. Without them one running mean over all prompts needs `adaptive_prior: true`.
    """

    @property
    def one_mean(self) -> bool:
        """Whether one number predicts every prompt. Then it cannot tell which prompts should get more responses."""
        return not self.per_prompt

    def make(self, features: int) -> PassRateEstimator:
        """Make the estimator. It looks at no feature."""
        return EmaBeta(self)


@dataclass(frozen=True)
class ValueSettings:
    """The settings of an online Bayesian logistic regression of the pass rate on prompt features."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    needs_features: ClassVar[bool] = True
    """Whether a back end computes features of the prompts for it."""
    one_mean: ClassVar[bool] = False
    """Whether one number predicts every prompt."""
    kind: Literal["value"] = "value"
    decay: Quantile = 0.97
    """Share of the regression's precision that each step keeps. A lower share follows a faster policy."""
    strength: Positive = 4.0
    """Number of responses that a sure prediction is worth as a prior."""
    memory: Annotated[float, Bounds(ge=0, lt=1)] = 0.0
    """Share that each step keeps of the prompt's labels of earlier steps, which are added. With 0 none are added. Use
    0.95 for few prompts that come again."""

    def make(self, features: int) -> PassRateEstimator:
        """Make the estimator for prompts with so many features."""
        return ValueRegressor(features, self)


EstimatorSettings = Annotated[EmaSettings | ValueSettings, ByKind()]


class EmaBeta:
    """Decayed counts: N_tot <- decay N_tot + n, N_pos <- decay N_pos + k.

    The prediction is (N_pos + a) / (N_tot + a + b), which is never 0 or 1. A prompt that occurs twice in one step
    decays once. With an adaptive prior, a + b stays, and a / (a + b) follows the decayed pass rate of all prompts of
    recent steps. That is also the prediction for a prompt that was never drawn.
    """

    def __init__(self, settings: EmaSettings | None = None) -> None:
        """Begin without counts. With None the default settings are used."""
        settings = EmaSettings() if settings is None else settings
        self.decay, self.a, self.b = settings.decay, settings.prior_positive, settings.prior_negative
        self.adaptive_prior, self.per_prompt = settings.adaptive_prior, settings.per_prompt
        self._slot: dict[str, int] = {}
        self._pos: FloatArray = np.zeros(0)
        self._total: FloatArray = np.zeros(0)
        self._all_pos = self._all_total = 0.0

    def predict_beta(
        self, prompt_ids: Sequence[str], features_PF: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return (a, b) of each prompt's Beta distribution."""
        slot_P = np.array([self._slot.get(prompt_id, -1) for prompt_id in prompt_ids], np.int64)
        pos_P, total_P = np.zeros(len(slot_P)), np.zeros(len(slot_P))
        known_P = slot_P >= 0
        pos_P[known_P] = self._pos[slot_P[known_P]]
        total_P[known_P] = self._total[slot_P[known_P]]
        prior_pos, prior_neg = self._compute_prior()
        return pos_P + prior_pos, total_P - pos_P + prior_neg

    def _compute_prior(self) -> tuple[float, float]:
        if not self.adaptive_prior:
            return self.a, self.b
        mass = self.a + self.b
        mean = (self._all_pos + self.a) / (self._all_total + mass)
        return mass * mean, mass * (1.0 - mean)

    def update(
        self,
        prompt_ids: Sequence[str],
        pos_P: IntArray | FloatArray,
        total_P: IntArray,
        features_PF: FloatArray | None = None,
    ) -> None:
        """Learn that pos_P of total_P responses were correct."""
        drawn_P = np.asarray(total_P) > 0
        names = zip(prompt_ids, drawn_P.tolist(), strict=True)
        seen = [prompt_id for prompt_id, drawn in names if drawn and self.per_prompt]
        slot_P = np.array([self._slot.setdefault(prompt_id, len(self._slot)) for prompt_id in seen], np.int64)
        new = len(self._slot) - len(self._pos)
        self._pos = np.concatenate([self._pos, np.zeros(new)])
        self._total = np.concatenate([self._total, np.zeros(new)])
        self._all_pos = self.decay * self._all_pos + float(np.sum(pos_P))
        self._all_total = self.decay * self._all_total + float(np.sum(total_P))
        if not self.per_prompt:
            return
        touched = np.unique(slot_P)
        for kept, drawn_counts_P in ((self._pos, pos_P), (self._total, total_P)):
            kept[touched] *= self.decay
            np.add.at(kept, slot_P, np.asarray(drawn_counts_P)[drawn_P].astype(np.float64))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        everywhere = {"all_pos": self._all_pos, "all_total": self._all_total}
        return {"ids": list(self._slot), "pos": self._pos.copy(), "total": self._total.copy()} | everywhere

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._slot = {prompt_id: slot for slot, prompt_id in enumerate(state["ids"])}
        self._pos = np.array(state["pos"], np.float64)
        self._total = np.array(state["total"], np.float64)
        self._all_pos, self._all_total = float(state["all_pos"]), float(state["all_total"])


@dataclass
class LabelMemory:
    """Counts of each prompt's own responses that decay with every step, so that they follow the policy.

    Attributes:
        decay: share of the counts that a step keeps, in [0, 1). With 0 nothing is remembered.
    """

    decay: float
    _kept: dict[str, tuple[float, float]] = field(default_factory=dict)

    def get_counts(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return the counts of correct and of incorrect responses of each prompt."""
        kept_P2 = np.array([self._kept.get(prompt_id, (0.0, 0.0)) for prompt_id in prompt_ids]).reshape(-1, 2)
        return kept_P2[:, 0], kept_P2[:, 1]

    def add(self, prompt_ids: Sequence[str], pos_P: IntArray | FloatArray, total_P: IntArray) -> None:
        """Add the pools of one step."""
        if not self.decay:
            return
        aged = {name: (pos * self.decay, neg * self.decay) for name, (pos, neg) in self._kept.items()}
        self._kept = {name: kept for name, kept in aged.items() if sum(kept) >= FORGOTTEN}
        for name, pos, total in zip(prompt_ids, pos_P, total_P, strict=True):
            before = self._kept.get(name, (0.0, 0.0))
            self._kept[name] = before[0] + float(pos), before[1] + float(total - pos)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        counts_P2 = np.array(list(self._kept.values()), np.float64).reshape(-1, 2)
        return {"remembered": list(self._kept), "counts_P2": counts_P2}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        counts = np.asarray(state["counts_P2"]).tolist()
        self._kept = {name: (pos, neg) for name, (pos, neg) in zip(state["remembered"], counts, strict=True)}


class ValueRegressor:
    """Bayesian logistic regression of the pass rate on prompt features, online and with forgetting.

    Unlike EmaBeta it generalises over prompts. After each step the weights are near the mode of the step's likelihood
    times the Gaussian of the steps before, whose precision first decays towards the prior's (Laplace approximation).
    Features are standardised with their running mean and variance and clipped at 5 deviations. More than 64 go through
    a fixed random projection to 64, so the state stays small.

    `strength` says how many responses a sure prediction is worth in `predict_beta`. A prediction with uncertain weights
    is worth less. `strength` is also the scatter of prompts with equal features: n responses of one prompt count
    (strength + 1) / (strength + n) each.
    """

    def __init__(self, features: int, settings: ValueSettings | None = None) -> None:
        """Begin with the prior.

        Args:
            features: width of the input.
            settings: the settings. With None the default settings are used.
        """
        settings = ValueSettings() if settings is None else settings
        self.features, self.decay, self.strength = features, settings.decay, settings.strength
        width = min(self.features, MAX_WIDTH)
        self._memory = LabelMemory(settings.memory)
        self._seen = 0.0
        self._prior_D = 1.0 / np.r_[np.full(width, WEIGHT_VARIANCE), BIAS_VARIANCE]
        self._precision_DD: FloatArray = np.diag(self._prior_D)
        self._weight_D: FloatArray = np.zeros(width + 1)
        # Mean, and sum of squared deviations: checkpoints have it under the name spread_F.
        self._mean_F, self._spread_F = np.zeros(self.features), np.zeros(self.features)
        self._project_FD = np.eye(self.features)
        if self.features > width:
            self._project_FD = np.random.default_rng(0).normal(size=(self.features, width)) / np.sqrt(width)

    def predict_beta(
        self, prompt_ids: Sequence[str], features_PF: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return (a, b) of each prompt's Beta distribution."""
        input_PD = self._standardise(self._check_features(prompt_ids, features_PF))
        logit_P = input_PD @ self._weight_D
        variance_P = (input_PD @ np.linalg.inv(self._precision_DD) * input_PD).sum(axis=1)
        rate_P = _sigmoid(logit_P / np.sqrt(1.0 + np.pi / 8.0 * variance_P))  # MacKay (1992)
        rate_P = np.clip(rate_P, 1e-4, 1.0 - 1e-4)
        sure = self.strength / (self.strength + 1.0)  # share of a label's variance that remains with certain weights
        # Uncertain weights add rate (1 - rate) variance of a label's variance to what is not known (delta method).
        left_P = sure / (1.0 + rate_P * (1.0 - rate_P) * variance_P)
        # With a Beta of mass m, a share of m / (m + 1) of a label's variance remains when the pass rate is known.
        mass_P = np.maximum(left_P / (1.0 - left_P), MIN_MASS)
        pos_P, neg_P = self._memory.get_counts(prompt_ids)
        return mass_P * rate_P + pos_P, mass_P * (1.0 - rate_P) + neg_P

    def update(
        self,
        prompt_ids: Sequence[str],
        pos_P: IntArray | FloatArray,
        total_P: IntArray,
        features_PF: FloatArray | None = None,
    ) -> None:
        """Learn that pos_P of total_P responses were correct."""
        drawn_P = np.asarray(total_P) > 0
        raw_PF = self._check_features(prompt_ids, features_PF)[drawn_P]
        seen = [prompt_id for prompt_id, drawn in zip(prompt_ids, drawn_P.tolist(), strict=True) if drawn]
        self._memory.add(seen, np.asarray(pos_P, np.float64)[drawn_P], np.asarray(total_P)[drawn_P])
        if len(raw_PF) == 0:  # the memory has faded all the same
            return
        self._observe(raw_PF)
        input_PD = self._standardise(raw_PF)
        total_P = np.asarray(total_P)[drawn_P]
        count_P = total_P * (self.strength + 1.0) / (self.strength + total_P)
        rate_P = np.asarray(pos_P)[drawn_P] / total_P
        before_D = self._weight_D
        kept_DD = self.decay * self._precision_DD + (1.0 - self.decay) * np.diag(self._prior_D)
        # This bound on the curvature makes each step climb (Boehning and Lindsay, 1988).
        step_DD = np.linalg.inv(kept_DD + (input_PD * (count_P / 4.0)[:, None]).T @ input_PD)
        for _ in range(INNER_STEPS):
            error_P = count_P * (rate_P - _sigmoid(input_PD @ self._weight_D))
            slope_D = error_P @ input_PD - kept_DD @ (self._weight_D - before_D)
            self._weight_D = self._weight_D + step_DD @ slope_D
        found_P = _sigmoid(input_PD @ self._weight_D)
        self._precision_DD = kept_DD + (input_PD * (count_P * found_P * (1.0 - found_P))[:, None]).T @ input_PD

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        arrays = {name: getattr(self, "_" + name).copy() for name in _ARRAYS}
        return arrays | {"seen": self._seen} | self._memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        if len(state["mean_F"]) != self.features:
            raise UserError(
                f"the saved value estimator has {len(state['mean_F'])} features, this run has {self.features}; "
                "resume with the model that the run was started with"
            )
        for name in _ARRAYS:
            setattr(self, "_" + name, np.array(state[name], np.float64))
        self._seen = float(state["seen"])
        self._memory.load_state_dict(state)

    def _check_features(self, prompt_ids: Sequence[str], features_PF: FloatArray | None) -> FloatArray:
        if features_PF is None or features_PF.shape != (len(prompt_ids), self.features):
            given = None if features_PF is None else features_PF.shape
            raise InvariantError(f"value estimator: features of shape {given}, not {(len(prompt_ids), self.features)}")
        bad_P = ~np.isfinite(features_PF).all(axis=1)
        if bad_P.any():
            raise InvariantError(f"value estimator: features of prompt {prompt_ids[int(bad_P.argmax())]!r} not finite")
        return np.asarray(features_PF, np.float64)

    def _observe(self, raw_PF: FloatArray) -> None:
        """Update mean and sum of squared deviations with a batch (Chan, Golub and LeVeque)."""
        batch, mean_F = float(len(raw_PF)), raw_PF.mean(axis=0)
        total, shift_F = self._seen + batch, mean_F - self._mean_F
        within_F = ((raw_PF - mean_F) ** 2).sum(axis=0)
        self._spread_F = self._spread_F + within_F + shift_F**2 * (self._seen * batch / total)
        self._mean_F = self._mean_F + shift_F * (batch / total)
        self._seen = total

    def _standardise(self, raw_PF: FloatArray) -> FloatArray:
        deviation_F = np.sqrt(self._spread_F / max(self._seen, 1.0))
        scale_F = np.where(deviation_F > 1e-8, 1.0 / np.maximum(deviation_F, 1e-8), 0.0)
        # The root keeps the logit's prior variance near WEIGHT_VARIANCE, however many features there are.
        scaled_PF = np.clip((raw_PF - self._mean_F) * scale_F, -5.0, 5.0) / np.sqrt(self.features)
        return np.hstack([scaled_PF @ self._project_FD, np.ones((len(raw_PF), 1))])


def _sigmoid(logit_P: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logit_P, -40.0, 40.0))))
