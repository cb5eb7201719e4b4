"""Methods of the leaderboard that change what the learner does with a step's rows (`rival` in leaderboard.yaml).

Each is written after its paper's abstract and summaries, because the papers were not at hand. What a rule leaves open
is ours, and its docstring says so. R rows of a step, T tokens, P prompts, H hidden width.
"""

from __future__ import annotations

import math
import tempfile
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import ray

from nemo_ada.core.arrays import FloatArray
from nemo_ada.cpu.learner.batch import Rows
from nemo_ada.cpu.learner.update import mini_batches, summary, train_on, update
from nemo_ada.cpu.rollout import StepData
from nemo_ada.cpu.trainer import Trainer
from nemo_ada.errors import InvariantError


@dataclass
class Plain:
    """The loop as it is, which rivals change."""

    def counted(self, drawn: float) -> float:
        """Return how many of the drawn responses or tokens count as costs."""
        return drawn

    def update(self, trainer: Trainer, data: StepData, step: int) -> dict[str, float]:
        """Train on the rows of a step. Returns the learner's metrics."""
        return train_on(trainer.learner, data, trainer.config, step)

    def settings(self) -> dict[str, Any]:
        """Return the settings, with the defaults."""
        return {one.name: getattr(self, one.name) for one in fields(self) if not one.name.startswith("_")}

    def evaluated_weights(self) -> dict[str, Any] | None:
        """Return the weights for an evaluation. None stands for the learner's own."""
        return None


@dataclass
class Replay(Plain):
    """Rows of earlier steps take the place of weak prompts' rows.

    With `weakest: 0` only prompts without a gradient give way (POPO, arXiv 2606.01281: replay by recency and quality,
    importance weights that are decoupled from the clipping). Otherwise it is that share of the prompts, those with the
    smallest sum of |advantage|, when a stored prompt has a larger one. Ours: the quality is that sum, every step of age
    multiplies it by `decay`, a group is replayed once and forgotten after `steps`, and the importance weight is
    min(`cap`, pi / pi_old) of the whole response. The clipping is around pi, the policy at the start of the step. The
    gradient is biased: stored advantages are old, and the choice by |advantage| prefers surprising labels.

    Attributes:
        weakest: share of the prompts that give way. 0 takes the prompts without a gradient.
        steps: steps for which rows are kept.
        decay: factor on the quality per step of age.
        cap: largest importance weight.
    """

    weakest: float = 0.0
    steps: int = 8
    decay: float = 0.8
    cap: float = 2.0
    _groups: list[tuple[float, int, dict[str, Any]]] = field(default_factory=list)

    def update(self, trainer: Trainer, data: StepData, step: int) -> dict[str, float]:
        mixed = self.mixed(trainer, data, step)
        strength_P = strengths(data)
        for p in np.flatnonzero(strength_P > 0).tolist():
            rows = np.flatnonzero((data.prompt_R == p) & (data.weight_R > 0))
            self._groups.append((float(strength_P[p]), step, data.columns(rows)))
        self._groups = [group for group in self._groups if step - group[1] < self.steps]
        return super().update(trainer, mixed, step)

    def mixed(self, trainer: Trainer, data: StepData, step: int) -> StepData:
        """Return the step's rows with replayed ones in the place of weak ones."""
        strength_P = strengths(data)
        weak = np.flatnonzero(strength_P == 0)
        if self.weakest:
            weak = np.argsort(strength_P, kind="stable")[: int(self.weakest * len(strength_P))]
        best = sorted(self._groups, key=lambda group: -group[0] * self.decay ** (step - group[1]))
        taken: list[tuple[int, dict[str, Any]]] = []
        used: set[int] = set()
        for p, group in zip(weak.tolist(), best, strict=False):
            if group[0] * self.decay ** (step - group[1]) > strength_P[p]:
                taken.append((p, self.corrected(trainer, group[2])))
                used.add(id(group))
        self._groups = [group for group in self._groups if id(group) not in used]
        kept = np.flatnonzero(~np.isin(data.prompt_R, [p for p, _ in taken]))
        parts = [data.columns(kept), *(columns for _, columns in taken)]
        places = [data.prompt_R[kept], *(np.full(len(c["length_R"]), p) for p, c in taken)]
        prompt_R = np.concatenate(places)
        order = np.argsort(prompt_R, kind="stable")
        columns = {name: values[order] for name, values in joined(parts).items()}
        return replace(data, **columns, prompt_R=prompt_R[order])

    def corrected(self, trainer: Trainer, columns: dict[str, Any]) -> dict[str, Any]:
        """Return rows of an older policy with importance weights and the present policy's log-probabilities."""
        rows = Rows(**columns)
        now_RT = trainer.learner.logprobs(rows.tokens_RT, rows.length_R, rows.prompt_length_R)
        at = np.arange(rows.tokens_RT.shape[1])
        response_RT = (at >= rows.prompt_length_R[:, None]) & (at < rows.length_R[:, None])
        ratio_R = np.exp(np.where(response_RT, now_RT - rows.old_logprob_RT, 0.0).sum(axis=1))
        return columns | {"weight_R": np.minimum(ratio_R, self.cap).astype(np.float32), "old_logprob_RT": now_RT}


@dataclass
class Gated(Plain):
    """A step's rows are trained on several times, until a gate closes (DGG, arXiv 2605.19425).

    The gate watches the energy (squared norm) of the output layer's gradient. From the second pass on, an update is
    undone and the step ends when the energy has risen by more than `threshold` standard deviations above the mean rise
    of the last `window` updates. The paper recommends at most 4 passes and a threshold of .1 to .5. Ours: the window's
    length. An update is undone from a saved state; the paper looks before it updates, which has the same effect. Until
    the window is full the gate is open. A rise is that between two mini-batches. The warm-up counts updates, so it ends
    after fewer responses here.

    Attributes:
        passes: largest number of passes.
        threshold: largest z-score of the rise.
        window: number of updates that the mean and the standard deviation are over.
    """

    passes: int = 4
    threshold: float = 0.3
    window: int = 32
    _rise: deque[float] = field(default_factory=deque)
    _last: float = math.nan

    def update(self, trainer: Trainer, data: StepData, step: int) -> dict[str, float]:
        batches = list(mini_batches(data, trainer.config, step))
        taken: list[dict[str, float]] = []
        with tempfile.TemporaryDirectory(prefix="dgg-") as saved:
            for number in range(self.passes * len(batches)):
                watched = number >= len(batches) and len(self._rise) == self.window
                if watched:
                    trainer.learner.save(saved)
                metrics = update(trainer.learner, batches[number % len(batches)], step)
                energy = metrics["output_grad_norm"] ** 2
                rise = energy - self._last
                closed = watched and rise > np.mean(self._rise) + self.threshold * np.std(self._rise)
                if not math.isnan(rise):
                    self._rise.append(rise)
                if len(self._rise) > self.window:
                    self._rise.popleft()
                if closed:
                    trainer.learner.load(saved)
                    break
                self._last = energy
                taken.append(metrics)
        return summary(taken, trainer.config)


@dataclass
class Averaged(Plain):
    """Evaluations use an exponential moving average of the weights (Polyak). Training and sampling do not.

    Attributes:
        decay: share of the average that stays at a step.
    """

    decay: float = 0.8
    _mean: dict[str, Any] = field(default_factory=dict)

    def update(self, trainer: Trainer, data: StepData, step: int) -> dict[str, float]:
        learned = super().update(trainer, data, step)
        for name, tensor in ray.get(trainer.learner.weights()).items():
            self._mean[name] = self._mean.get(name, tensor) * self.decay + tensor * (1.0 - self.decay)
        return learned

    def evaluated_weights(self) -> dict[str, Any] | None:
        return self._mean or None


@dataclass
class Prefixes(Plain):
    """Every token's baseline is a prediction from the response up to there, instead of one baseline per response.

    The prediction is a ridge regression of the reward on the mean hidden state of the prefix, learned on earlier steps.
    It needs rewards of 0 and 1 and a baseline between them, whose sign gives the reward.

    Attributes:
        ridge: strength of the regularisation.
        decay: factor on the weight of earlier steps.
    """

    ridge: float = 0.01
    decay: float = 0.9
    _gram: FloatArray | None = None
    _moment: FloatArray | None = None

    def update(self, trainer: Trainer, data: StepData, step: int) -> dict[str, float]:
        live = np.flatnonzero(data.weight_R > 0)
        row_N = np.repeat(live, (data.length_R - data.prompt_length_R)[live])
        at_N = np.concatenate([np.arange(data.prompt_length_R[r], data.length_R[r]) for r in live.tolist()])
        hidden_NH = np.asarray(trainer.learner.features(data.tokens_RT[row_N], at_N), np.float64)
        x_NF = np.concatenate([hidden_NH, np.ones((len(row_N), 1))], axis=1)
        reward_N = (data.advantage_R[row_N] > 0).astype(np.float64)
        advantage_RT = np.repeat(data.advantage_R[:, None], data.tokens_RT.shape[1], axis=1)
        if self._gram is None or self._moment is None:
            self._gram, self._moment = np.zeros((x_NF.shape[1],) * 2), np.zeros(x_NF.shape[1])
        else:
            coefficient_F = np.linalg.solve(self._gram + self.ridge * np.eye(x_NF.shape[1]), self._moment)
            advantage_RT[row_N, at_N] = reward_N - np.clip(x_NF @ coefficient_F, 0.0, 1.0)
        self._gram = self.decay * self._gram + x_NF.T @ x_NF
        self._moment = self.decay * self._moment + x_NF.T @ reward_N
        return super().update(trainer, replace(data, advantage_R=advantage_RT.astype(np.float32)), step)


@dataclass
class FreeBaseline(Plain):
    """One response per prompt is trained on. Its baseline is the mean reward of `others` responses that cost nothing.

    No method can do this. It shows what the best prediction of the pass rate could gain. It needs groups of `others` +
    1 rows whose advantage is the difference to their mean.

    Attributes:
        others: responses of a prompt that only make the baseline. They are not counted as drawn.
    """

    others: int = 8

    def counted(self, drawn: float) -> float:
        return drawn / (self.others + 1)

    def update(self, trainer: Trainer, data: StepData, step: int) -> dict[str, float]:
        prompts, first_P, rows_P = np.unique(data.prompt_R, return_index=True, return_counts=True)
        if (rows_P != self.others + 1).any():
            found = f"{len(prompts)} prompts have {rows_P.min()} to {rows_P.max()} rows"
            raise InvariantError(f"{found}; {self.others + 1} are needed")
        chosen_R = np.isin(np.arange(len(data.prompt_R)), first_P)
        without_own = (self.others + 1) / self.others  # the group's mean contains the row's own reward
        weight_R = np.where(chosen_R, data.weight_R, 0).astype(np.float32)
        advantage_R = (data.advantage_R * without_own).astype(np.float32)
        return super().update(trainer, replace(data, weight_R=weight_R, advantage_R=advantage_R), step)


RIVALS: Mapping[str, type[Plain]] = {
    "replay": Replay,
    "gated": Gated,
    "averaged": Averaged,
    "prefixes": Prefixes,
    "free_baseline": FreeBaseline,
}


def rival(settings: Mapping[str, Any] | None) -> Plain:
    """Return the rival of a method's settings `{kind: NAME, ...}`, or the plain loop without settings."""
    if settings is None:
        return Plain()
    return RIVALS[settings["kind"]](**{name: value for name, value in settings.items() if name != "kind"})


def strengths(data: StepData) -> FloatArray:
    """Return the sum of |advantage| of each prompt's rows [P]."""
    return np.asarray(np.bincount(data.prompt_R, np.abs(data.advantage_R) * (data.weight_R > 0)), np.float64)


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the columns of rows. Token columns get the width of the widest part."""
    width = max(part["tokens_RT"].shape[1] for part in parts)
    columns: dict[str, Any] = {}
    for name in (column.name for column in fields(Rows)):
        values: list[Any] = [part[name] for part in parts]
        if values[0].ndim == 2:
            values = [np.pad(value, ((0, 0), (0, width - value.shape[1]))) for value in values]
        columns[name] = np.concatenate(values)
    return columns
