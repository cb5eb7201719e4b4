"""Pass-rate estimates that live across steps, for allocation and priors (algorithm.md section 3).

Both estimators know prompts by stable ids, never by positions in a batch. Both return a Beta distribution per prompt:
its mean is the prediction, its mass a + b says how many responses the prediction is worth. Their state is numbers,
lists and arrays (no pickle) and restores bit for bit. P prompts of a step, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from nemo_ada.core.arrays import FloatArray, IntArray
from nemo_ada.errors import InvariantError, UserError


class PassRateEstimator(Protocol):
    """Predicts pass rates before a step and learns from its pools afterwards."""

    def beta(self, prompt_ids: Sequence[str], features_PF: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """(a, b) of each prompt's Beta distribution; a / (a + b) is the prediction."""
        ...

    def update(
        self, prompt_ids: Sequence[str], pos_P: IntArray, total_P: IntArray, features_PF: FloatArray | None = None
    ) -> None:
        """Learn that pos_P of total_P responses were correct; prompts without responses are left as they are."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass
class EmaBeta:
    """Decayed counts: N_tot <- decay N_tot + n, N_pos <- decay N_pos + k. The prediction is never 0 or 1:
    (N_pos + a) / (N_tot + a + b).

    decay in (0, 1): how fast old policies are forgotten. A prompt that occurs twice in one step decays once.
    adaptive_prior: a + b stays, and a / (a + b) follows the pass rate of all prompts of recent steps (decayed counts).
    That is the prediction for a prompt that was never drawn.
    """

    decay: float = 0.9
    a: float = 1.0
    b: float = 1.0
    adaptive_prior: bool = False
    _slot: dict[str, int] = field(default_factory=dict)
    _pos: FloatArray = field(default_factory=lambda: np.zeros(0))
    _total: FloatArray = field(default_factory=lambda: np.zeros(0))
    _all_pos: float = 0.0
    _all_total: float = 0.0

    def predict(self, prompt_ids: Sequence[str], features_PF: FloatArray | None = None) -> FloatArray:
        a_P, b_P = self.beta(prompt_ids)
        return a_P / (a_P + b_P)

    def beta(self, prompt_ids: Sequence[str], features_PF: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        slot_P = np.array([self._slot.get(prompt_id, -1) for prompt_id in prompt_ids], np.int64)
        pos_P, total_P = np.zeros(len(slot_P)), np.zeros(len(slot_P))
        known_P = slot_P >= 0
        pos_P[known_P] = self._pos[slot_P[known_P]]
        total_P[known_P] = self._total[slot_P[known_P]]
        prior_pos, prior_neg = self._prior()
        return pos_P + prior_pos, total_P - pos_P + prior_neg

    def _prior(self) -> tuple[float, float]:
        if not self.adaptive_prior:
            return self.a, self.b
        mass = self.a + self.b
        mean = (self._all_pos + self.a) / (self._all_total + mass)
        return mass * mean, mass * (1.0 - mean)

    def update(
        self, prompt_ids: Sequence[str], pos_P: IntArray, total_P: IntArray, features_PF: FloatArray | None = None
    ) -> None:
        drawn_P = np.asarray(total_P) > 0
        seen = [prompt_id for prompt_id, drawn in zip(prompt_ids, drawn_P.tolist(), strict=True) if drawn]
        slot_P = np.array([self._slot.setdefault(prompt_id, len(self._slot)) for prompt_id in seen], np.int64)
        new = len(self._slot) - len(self._pos)
        self._pos = np.concatenate([self._pos, np.zeros(new)])
        self._total = np.concatenate([self._total, np.zeros(new)])
        self._all_pos = self.decay * self._all_pos + float(np.sum(pos_P))
        self._all_total = self.decay * self._all_total + float(np.sum(total_P))
        touched = np.unique(slot_P)
        for kept, drawn_counts_P in ((self._pos, pos_P), (self._total, total_P)):
            kept[touched] *= self.decay
            np.add.at(kept, slot_P, np.asarray(drawn_counts_P)[drawn_P].astype(np.float64))

    def state_dict(self) -> dict[str, Any]:
        everywhere = {"all_pos": self._all_pos, "all_total": self._all_total}
        return {"ids": list(self._slot), "pos": self._pos.copy(), "total": self._total.copy()} | everywhere

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._slot = {prompt_id: slot for slot, prompt_id in enumerate(state["ids"])}
        self._pos = np.array(state["pos"], np.float64)
        self._total = np.array(state["total"], np.float64)
        self._all_pos, self._all_total = float(state["all_pos"]), float(state["all_total"])


@dataclass
class ValueRegressor:
    """Logistic regression of the pass rate on prompt features, trained online with the Bernoulli log loss.

    Features are standardised with their running mean and variance, clipped at 5 deviations and scaled by 1/sqrt(F). So
    one learning rate suits hidden states of any width. Each update takes `inner_steps` Adagrad steps on the step's
    prompts, weighted by their responses, with an L2 penalty. Unlike EmaBeta it generalises over prompts.
    strength: how many responses a prediction is worth in `beta`.
    """

    features: int
    learning_rate: float = 0.5
    inner_steps: int = 8
    l2: float = 1e-3
    initial_pass_rate: float = 0.5
    strength: float = 4.0
    _weight_F: FloatArray = field(init=False)
    _bias: float = field(init=False)
    _square_F: FloatArray = field(init=False)
    _bias_square: float = field(init=False, default=0.0)
    _seen: float = field(init=False, default=0.0)
    _mean_F: FloatArray = field(init=False)
    _spread_F: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self._weight_F, self._square_F = np.zeros(self.features), np.zeros(self.features)
        self._mean_F, self._spread_F = np.zeros(self.features), np.zeros(self.features)
        self._bias = float(np.log(self.initial_pass_rate / (1.0 - self.initial_pass_rate)))

    def predict(self, prompt_ids: Sequence[str], features_PF: FloatArray | None = None) -> FloatArray:
        input_PF = self._standardised(self._checked(prompt_ids, features_PF))
        return np.clip(_sigmoid(input_PF @ self._weight_F + self._bias), 1e-4, 1.0 - 1e-4)

    def beta(self, prompt_ids: Sequence[str], features_PF: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        rate_P = self.predict(prompt_ids, features_PF)
        return self.strength * rate_P, self.strength * (1.0 - rate_P)

    def update(
        self, prompt_ids: Sequence[str], pos_P: IntArray, total_P: IntArray, features_PF: FloatArray | None = None
    ) -> None:
        drawn_P = np.asarray(total_P) > 0
        raw_PF = self._checked(prompt_ids, features_PF)[drawn_P]
        if len(raw_PF) == 0:
            return
        self._observe(raw_PF)
        input_PF = self._standardised(raw_PF)
        pos_P, total_P = np.asarray(pos_P)[drawn_P], np.asarray(total_P)[drawn_P]
        share_P, rate_P = total_P / total_P.sum(), pos_P / total_P
        step = self.learning_rate
        for _ in range(self.inner_steps):
            error_P = share_P * (_sigmoid(input_PF @ self._weight_F + self._bias) - rate_P)
            slope_F = error_P @ input_PF + self.l2 / self.features * self._weight_F
            self._square_F = self._square_F + slope_F**2
            self._weight_F = self._weight_F - step * slope_F / (np.sqrt(self._square_F) + 1e-12)
            slope = float(error_P.sum())
            self._bias_square += slope**2
            self._bias -= step * slope / (float(np.sqrt(self._bias_square)) + 1e-12)

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).copy() for name in ("_weight_F", "_square_F", "_mean_F", "_spread_F")}
        scalars = {name: float(getattr(self, name)) for name in ("_bias", "_bias_square", "_seen")}
        return {name.lstrip("_"): value for name, value in (arrays | scalars).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if len(state["weight_F"]) != self.features:
            raise UserError(
                f"the saved value estimator has {len(state['weight_F'])} features, this run has {self.features}; "
                "resume with the model that the run was started with"
            )
        for name in ("weight_F", "square_F", "mean_F", "spread_F"):
            setattr(self, "_" + name, np.array(state[name], np.float64))
        for name in ("bias", "bias_square", "seen"):
            setattr(self, "_" + name, float(state[name]))

    def _checked(self, prompt_ids: Sequence[str], features_PF: FloatArray | None) -> FloatArray:
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

    def _standardised(self, raw_PF: FloatArray) -> FloatArray:
        deviation_F = np.sqrt(self._spread_F / max(self._seen, 1.0))
        scale_F = np.where(deviation_F > 1e-8, 1.0 / np.maximum(deviation_F, 1e-8), 0.0)
        return np.asarray(np.clip((raw_PF - self._mean_F) * scale_F, -5.0, 5.0) / np.sqrt(self.features))


def _sigmoid(logit_P: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logit_P, -40.0, 40.0))))
