"""The answer of `nemo-ada whatif`: a log, its pass rates, and what other ways of sampling would have changed.

`read_log` reads rollouts (rollouts.py) or averages of steps (averages.py). `answer` fits the distribution of their pass
rates (mixture.py) and computes from it a row per way of sampling (forecast.py). render.py prints the answer.

Axes: N responses, G groups, U prompts, J pass rates of the mixture, K different pairs of correct and all responses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from nemo_ada.core.arrays import FloatArray
from nemo_ada.core.schema import STRICT, Bounds
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import Estimate, estimate
from nemo_ada.lab.whatif.averages import Averages, average_steps, read_averages
from nemo_ada.lab.whatif.forecast import Forecast, Row, make_rows
from nemo_ada.lab.whatif.mixture import RATE_J, Mixture, compute_binomial, compute_no_spread
from nemo_ada.lab.whatif.reading import find_files, open_log
from nemo_ada.lab.whatif.rollouts import Labels, Rollouts, count_labels, lacks_reward, read_rollouts

PRIOR_RESPONSES = 20.0  # responses with the mean length that join those of each pass rate
DOUBTFUL = 1.0  # bounds that had to grow by their own width come from a wrong reading of the log
USUAL_PROMPTS = 64  # per step, for the row of dapo, where a log does not say
MUCH = 0.95  # share of groups with equal labels above which all is lost, for whatever reason
SOME = 0.05  # share of right answers, and of wrong ones, at which so many equal groups hint at greedy decoding
FEW_TEXTS = 5  # groups with a wrong answer whose texts say that answers repeat
FEW_GROUPS = 20  # below which many equal groups may be chance
REPEATED = (
    "the answers of a group repeat each other, as with greedy decoding (temperature 0), a cache of answers or one seed "
    "for all; so its labels are not independent, and no forecast from them holds"
)


@dataclass(frozen=True, slots=True)
class Options:
    """What a user asks for. Outside the bounds there is no answer, or it takes hours."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    group: Annotated[int, Bounds(ge=2, le=64)] | None = None
    """n, rows per prompt (default: responses per prompt of the log)."""
    presets: tuple[str, ...] = ()
    """Presets to compare, or dapo (default: all that fit)."""
    max_responses: tuple[Annotated[int, Bounds(ge=2, le=1024)], ...] = ()
    """Another largest number of responses per prompt; may be repeated."""
    threshold: Annotated[float, Bounds(ge=-1e12, le=1e12)] = 0.7
    """A response is correct when its reward is above this."""


@dataclass(frozen=True, slots=True)
class LogReport:
    """What the logs hold. A log of averages says nothing about single groups and prompts.

    Attributes:
        steps: Steps.
        depth: A number of responses that nearly all groups have.
        pass_rate: Mean pass rate of the groups.
        zero_signal: Share of groups whose logged rewards are all equal, whatever the threshold. NaN where the log does
            not say.
        equal_labels: The share whose labels, right or wrong, are all equal. The forecasts are about these.
        tokens: Mean tokens of a response. NaN where nobody knows.
        responses: Responses.
        groups: Groups.
        prompts: Prompts.
        never_correct: Share of prompts that never taught because they have no correct response.
        always_correct: Share of prompts without an incorrect one.
        repeated: Whether the answers of a group repeat each other, as under greedy decoding.
    """

    steps: int
    depth: int
    pass_rate: Estimate
    zero_signal: Estimate
    equal_labels: float
    tokens: float
    responses: int | None = None
    groups: int | None = None
    prompts: int | None = None
    never_correct: float | None = None
    always_correct: float | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """A forecast of whole groups from the first half of each, beside what the log shows.

    Attributes:
        half: Responses of each group that the forecast used.
        predicted: Share of whole groups whose labels are all equal.
        seen: What the log shows.
    """

    half: int
    predicted: Estimate
    seen: float


@dataclass(frozen=True, slots=True)
class WhatifReport:
    """Everything that `nemo-ada whatif` says.

    Attributes:
        log: The log.
        group: The group size n of the rows.
        prompts: Prompts per step.
        rows: The ways of sampling.
        notes: What a reader must know.
        check: A forecast that the log itself answers. None for groups below 4, and for a log of averages.
        widened: By how much the bounds had to grow until some distribution fits. Above DOUBTFUL the figures say little.
    """

    log: LogReport
    group: int
    prompts: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    check: Check | None
    widened: float


def read_log(
    paths: Sequence[Path], columns: Mapping[str, str] | None = None, values: tuple[float, float] | None = None
) -> Rollouts | Averages:
    """Read the rollouts or the averages of files and folders.

    Args:
        paths: Files, or folders that are searched for files.
        columns: What is asked (`names.FIELDS` and `names.QUANTITIES`) -> the user's name for it.
        values: The rewards of a wrong and of a right response, for averages. None takes what the log
            says, else 0 and 1.

    Raises:
        UserError: A file cannot be read, or some hold rollouts and others averages.
    """
    columns = columns or {}
    files, notes = list[tuple[int, Path]](), list[str]()
    for log, path in enumerate(paths):
        found = find_files(path)
        lacking = [file for file in found if lacks_reward(file, columns)] if path.is_dir() else []
        if lacking and (others := find_files(path, lacking)):
            found = others
            names = ", ".join(file.name for file in lacking)[:200]
            notes.append(f"without a reward, and so not read: {names}; --column reward=FIELD names that of rollouts")
        files += [(log, file) for file in found]
    kinds = {open_log(file, columns)[0]: file for _, file in files}
    if len(kinds) == 2:
        raise UserError(f"{kinds[False]} holds rollouts or nothing, and {kinds[True]} averages; give logs of one kind")
    if True in kinds:
        averages = read_averages(files, columns, values)
        return replace(averages, notes=(*averages.notes, *notes))
    if not files:
        raise UserError(f"{paths[0]} holds no rollouts and no curves; `nemo-ada whatif --help` lists what can be read")
    rollouts = read_rollouts(files, columns)
    return replace(rollouts, notes=(*rollouts.notes, *notes))


def answer(log: Rollouts | Averages, options: Options) -> WhatifReport:
    """Answer from the rollouts of a log, or from the averages of its steps.

    Raises:
        UserError: The log says too little, or an option does not fit it.
    """
    seen, forecast, notes, check = (
        _answer_averages(log, options) if isinstance(log, Averages) else _answer_rollouts(log, options)
    )
    mixture = forecast.mixture
    if seen.repeated:
        notes.append(REPEATED)
    if mixture.widened > 0.0:
        notes.append(
            "no distribution of pass rates explains this log, as if its responses were not independent (greedy "
            f"decoding, or a filtered log) or the group had another size; the bounds were made {mixture.widened:.0%} "
            "wider"
        )
    found, left_out = make_rows(forecast, options.presets, options.max_responses)
    return WhatifReport(
        seen, forecast.group, forecast.prompts, tuple(found), (*notes, *left_out), check, mixture.widened
    )


def _answer_rollouts(log: Rollouts, options: Options) -> tuple[LogReport, Forecast, list[str], Check | None]:
    threshold, frame = options.threshold, log.frame
    logged = count_labels(log, threshold)
    mixture = Mixture.fit(logged)
    prompt_U = np.unique(logged.prompt_G, return_inverse=True)[1]
    pos_U, total_U = (np.bincount(prompt_U, one_G) for one_G in (logged.pos_G, logged.total_G))
    equal_G = (logged.pos_G == 0) | (logged.pos_G == logged.total_G)
    rewards = frame.dropna(subset="reward").groupby("group")["reward"].agg(["min", "max", "size"])
    rewards = rewards[rewards["size"] > 1]
    tokens = frame["tokens"].to_numpy(np.float64)
    report = LogReport(
        frame["step"].nunique(), logged.depth, estimate(logged.pos_G / logged.total_G),
        estimate((rewards["min"] == rewards["max"]).to_numpy(np.float64)), float(equal_G.mean()),
        float(np.nanmean(tokens)) if np.isfinite(tokens).any() else math.nan, len(frame), len(logged.pos_G),
        frame["prompt"].nunique(), float((pos_U == 0).mean()), float((pos_U == total_U).mean()),
        _answers_repeat(log, logged, threshold),
    )  # fmt: skip
    per_step = frame.dropna(subset="reward").groupby("step")["group"].nunique()
    tokens_by_rate = _estimate_tokens_by_rate(log, logged, mixture, threshold)
    forecast = Forecast(mixture, options.group or logged.depth, int(per_step.median()), *tokens_by_rate)
    return report, forecast, [*log.notes, *_write_notes(log, logged, threshold)], _check(log, logged, threshold)


def _answers_repeat(log: Rollouts, logged: Labels, threshold: float) -> bool:
    """Return whether the answers of a group repeat each other.

    Where the log has texts, those of groups with a wrong answer say it, because short right answers are often the same.
    Else only labels do: nearly all groups are of one kind, and some are all right and others all wrong.
    """
    never_G, always_G = logged.pos_G == 0, logged.pos_G == logged.total_G
    frame = log.frame[(log.frame["text"] != 0) & log.frame["reward"].notna()]
    groups = frame.assign(wrong=~log.correct_N(threshold)[frame.index]).groupby("group")
    texts = groups.agg(size=("text", "size"), different=("text", "nunique"), wrong=("wrong", "any"))
    texts = texts[texts["size"] > 1]
    if len(texts) > 0.5 * len(logged.pos_G):
        wrong = texts[texts["wrong"]]
        return len(wrong) >= FEW_TEXTS and bool((wrong["different"] == 1).mean() > 1.0 - 2 * SOME)
    return bool(
        len(logged.pos_G) >= FEW_GROUPS
        and (never_G | always_G).mean() > MUCH
        and min(never_G.mean(), always_G.mean()) > SOME
    )


def _answer_averages(log: Averages, options: Options) -> tuple[LogReport, Forecast, list[str], None]:
    group = options.group or log.group
    if group is None:
        raise UserError(
            "the log has averages of steps, which do not say how many responses a prompt got; give --group (TRL's "
            "num_generations, 8 where it was not set; verl's rollout.n; NeMo-RL's num_generations_per_prompt)"
        )
    tokens = float(np.nanmean(log.tokens_T)) if np.isfinite(log.tokens_T).any() else math.nan
    zero = average_steps(log.zero_T)
    mean = average_steps(log.mean_T)
    repeated = zero.value > MUCH and SOME < mean.value < 1.0 - SOME
    report = LogReport(len(log.mean_T), group, mean, zero, zero.value, tokens, repeated=repeated)
    tokens_J = np.full((2, len(RATE_J)), tokens)
    return report, Forecast(log.fit_mixture(group), group, USUAL_PROMPTS, tokens_J), list(log.notes), None


def _write_notes(log: Rollouts, logged: Labels, threshold: float) -> list[str]:
    """Return what a reader must know about rewards and groups."""
    notes = []
    keep_N = log.frame["reward"].notna().to_numpy()
    there, correct = log.frame["reward"][keep_N], log.correct_N(threshold)[keep_N]
    values, told = np.unique(there), log.frame["right"][keep_N].notna()
    if told.any():
        notes.append(f"{told.mean():.0%} of the responses say themselves if they are right: {correct.mean():.1%} are")
    elif len(values) > 2 or correct.all() or not correct.any():
        notes.append(
            f"rewards have {len(values):,} values, from {values[0]:g} to {values[-1]:g}; a response counts as correct "
            f"above {threshold:g} ({correct.mean():.1%} of them); --threshold changes this"
        )
    without = len(log.frame) - len(there)
    if without:
        notes.append(
            f"{without:,} of {len(log.frame):,} responses have no label: their reward is null or NaN. They are "
            "failures, or placeholder rows of an adaptive run, whose rows are a selection. Use a log of all responses"
        )
    sizes, counts = np.unique(logged.total_G, return_counts=True)
    if counts.max() < 0.9 * counts.sum():
        notes.append(
            f"groups have {sizes[0]} to {sizes[-1]} responses. The bounds use the first {logged.depth} of each, in the "
            "order of the log. They are wrong where labels decided which responses were kept"
        )
    return notes


def _estimate_tokens_by_rate(
    log: Rollouts, logged: Labels, mixture: Mixture, threshold: float
) -> tuple[FloatArray, float]:
    """Return the mean tokens of correct and of incorrect responses by pass rate [2, J]: hard prompts have longer ones.

    Nobody knows the pass rate of a group. So each of its responses counts for every pass rate, by the chance that the
    group's labels give it, and PRIOR_RESPONSES of the overall mean keep a rate with few responses near that mean.

    Also the relative standard error of the mean tokens over prompts. Without tokens the means are NaN.
    """
    known_N = (log.frame["tokens"].notna() & log.frame["reward"].notna()).to_numpy()
    group_N, prompt_N, tokens_N = (log.frame[name].to_numpy()[known_N] for name in ("group", "prompt", "tokens"))
    if not tokens_N.any():
        return np.full((2, len(RATE_J)), math.nan), 0.0
    correct_N = log.correct_N(threshold)[known_N]
    groups = int(log.frame["group"].max()) + 1
    pos_G, total_G = (np.bincount(one_N, minlength=groups) for one_N in (group_N[correct_N], group_N))
    pair_KI, place_G = np.unique(np.stack([pos_G, total_G], axis=1), axis=0, return_inverse=True)
    share_KJ = compute_binomial(*pair_KI.T) * np.maximum(mixture.weight_J, 1e-12)
    share_KJ /= share_KJ.sum(axis=1, keepdims=True)
    means, mean = [], float(tokens_N.mean())
    for side_N in (correct_N, ~correct_N):
        overall = float(tokens_N[side_N].mean()) if side_N.any() else mean
        place_N = place_G.ravel()[group_N[side_N]]
        sum_K, count_K = np.bincount(place_N, tokens_N[side_N], len(pair_KI)), np.bincount(place_N, None, len(pair_KI))
        means.append((sum_K @ share_KJ + PRIOR_RESPONSES * overall) / (count_K @ share_KJ + PRIOR_RESPONSES))
    excess_U = np.bincount(prompt_N, tokens_N - mean)
    return np.array(means), math.sqrt(float((excess_U**2).sum())) / len(tokens_N) / mean


def _check(log: Rollouts, logged: Labels, threshold: float) -> Check | None:
    """Forecast the whole groups from the first half of each. None where a half has no two responses."""
    half, depth = logged.depth // 2, logged.depth
    if half < 2:
        return None
    pos_G = logged.first_pos_G[logged.total_G >= depth]
    predicted = Mixture.fit(count_labels(log, threshold, half)).share(compute_no_spread(depth))
    return Check(half, predicted, float(((pos_G == 0) | (pos_G == depth)).mean()))
