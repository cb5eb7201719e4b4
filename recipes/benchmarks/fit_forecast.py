"""Fit the forecast's six efficiencies to published step times, and write the page with their errors.

    python recipes/benchmarks/fit_forecast.py            # a minute on a laptop; writes recipes/results/forecast.md

The efficiencies minimise squared logarithms of forecast over published seconds: of whole steps, and with half the
weight of each published phase. A weak prior (USUAL, weight PRIOR) keeps what the points cannot tell at a usual value.
Leave-one-out leaves out all points of a model on that number of GPUs, so that no rerun gives the answer away. Points
with `held_out` never enter a fit. The script prints what `nemo_ada/lab/plan/roofline.py` should hold.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import yaml
from measure import measure

from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.lab.plan.planned_run import PlannedRun, Schedule, count_concurrent
from nemo_ada.lab.plan.roofline import (
    DENSE,
    EXPERTS,
    MEAN,
    PROMPT_TOKENS,
    RANGE,
    Efficiencies,
    Roofline,
    Spread,
    StepCost,
)
from nemo_ada.lab.plan.sampling import SimulatedRun, make_variant
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.lab.simulate.steps import MeasuredRates
from nemo_ada.rules.facts.cards import A100, H100, Card
from nemo_ada.rules.facts.models import TABLE, ModelShape
from nemo_ada.rules.facts.nemo_config import NemoConfig

ROOT = Path(__file__).parents[2]
POINTS = ROOT / "nemo_ada/lab/plan/published.yaml"
PAGE = ROOT / "recipes/results/forecast.md"
NAMES = ("dense MFU", "expert MFU", "dense layer_step", "expert layer_step", "refit", "rest")
USUAL = np.log([0.4, 0.1, 1.2e-4, 2.0e-4, 0.25, 3.0])
PRIOR, PHASE_WEIGHT, SIGMA = 0.2, 0.5, 0.7
PHASES = ("update", "logprobs", "generation", "refit")


@dataclass(frozen=True)
class Point:
    """One line of published.yaml."""

    facts: dict[str, Any]

    @property
    def setting(self) -> tuple[str, int]:
        """What a leave-one-out leaves out together."""
        return self.facts["model"], self.facts["gpus"]

    @property
    def held_out(self) -> bool:
        return bool(self.facts.get("held_out"))

    @cached_property
    def shape(self) -> ModelShape:
        return TABLE[self.facts["model"]]

    @cached_property
    def config(self) -> NemoConfig:
        """The published run as a config."""
        f = self.facts
        tp, pp, cp, ep = f["train"]
        longest = f.get("max_new", f["max_length"] - f["prompt"])
        learner = {
            "enabled": True, "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp,
            "context_parallel_size": cp, "expert_model_parallel_size": ep, "sequence_parallel": tp > 1,
            "activation_checkpointing": f.get("recompute", False),
            "optimizer": {"use_precision_aware_optimizer": True},
        }  # fmt: skip
        policy = {
            "model_name": f["model"], "max_total_sequence_length": f["max_length"], "train_micro_batch_size": 1,
            "train_global_batch_size": f["update_rows"], "sequence_packing": {"enabled": True},
            "megatron_cfg": learner,
            "generation": {
                "max_new_tokens": longest,
                "vllm_cfg": {"tensor_parallel_size": f["vllm_tp"], "gpu_memory_utilization": 0.6},
            },
        }  # fmt: skip
        return NemoConfig.of({
            "card": f.get("card", H100.name), "policy": policy, "optimizer_offload": "pageable",  # as NeMo-RL does it
            "cluster": {"num_nodes": f["gpus"] // 8, "gpus_per_node": 8},
            "grpo": {
                "num_prompts_per_step": 64, "num_generations_per_prompt": f["rows"] // 64,
                "skip_reference_policy_logprobs_calculation": f["passes"] == 1,
            },
            "data": {"max_input_seq_length": f["prompt"]},
        })  # fmt: skip

    @cached_property
    def work(self) -> tuple[float, float]:
        """Engine steps and tokens of the simulated phase. The longest of thousands of responses reaches the limit."""
        config, longest = self.config, self.config.rollout.max_new
        ada: AdaSettings = parse_ada_settings({"preset": "grpo"})
        run = PlannedRun(
            backend="nemo_rl", ada=ada, rollout=config.rollout, max_concurrent=count_concurrent(config, self.shape),
            gpus=config.gpus, draws_ahead=False, placeholders=False, schedule=Schedule(1, 0, 0, 50, 0.0), data="",
            roofline=None,
        )  # fmt: skip
        lengths = LengthModel(median_of(self.facts["response"], longest), SIGMA, 1.0, longest)
        plan = make_variant(ada, config.rollout.group, longest)
        phases = SimulatedRun(run, MeasuredRates((0.5,)), lengths, 2).steps_of(plan)
        return max(float(np.median(phases.engine_steps_S)), longest), self.facts["rows"] * self.facts["response"]

    def phases(self, efficiencies: Efficiencies, card: Card | None = None) -> dict[str, float]:
        """Forecast seconds, on the point's card or on another one."""
        config = self.config if card is None else replace(self.config, card=card)
        roofline = Roofline(config, self.shape, efficiencies)
        rows, response = self.facts["rows"], self.facts["response"]
        per_step, per_token = roofline.clock(response)
        engine_steps, tokens = self.work
        return {
            "update": roofline.update_seconds(rows, response),
            "logprobs": roofline.logprob_seconds(rows, response),
            "generation": per_step * engine_steps + per_token * tokens,
            "refit": roofline.refit,
            "rest": efficiencies.rest,
        }

    def seconds(self, theta: np.ndarray, card: Card | None = None) -> float:
        """Forecast of the whole step."""
        return sum(self.phases(efficiencies_of(theta, bool(self.shape.experts)), card).values())


def median_of(mean: float, longest: int) -> float:
    """Median of a log-normal that has this mean once it is cut at `longest`."""
    normal = NormalDist()
    spread = np.exp(SIGMA * np.array([normal.inv_cdf((i + 0.5) / 2000) for i in range(2000)]))
    low, high = 1.0, 1e6
    for _ in range(50):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if np.minimum(middle * spread, longest).mean() < mean else (low, middle)
    return low


def efficiencies_of(theta: np.ndarray, experts: bool) -> Efficiencies:
    """theta: logarithms in the order of NAMES."""
    dense_mfu, expert_mfu, dense_step, expert_step, refit, rest = np.exp(theta)
    return Efficiencies(expert_mfu if experts else dense_mfu, expert_step if experts else dense_step, refit, rest)


def residuals(theta: np.ndarray, points: Sequence[Point]) -> np.ndarray:
    """Logarithms of forecast over published, and the prior."""
    found = []
    for point in points:
        forecast = point.phases(efficiencies_of(theta, bool(point.shape.experts)))
        found.append(math.log(sum(forecast.values()) / point.facts["seconds"]))
        for name, seconds in point.facts.get("phases", {}).items():
            found.append(PHASE_WEIGHT * math.log(forecast[name] / seconds))
    return np.append(found, PRIOR * (theta - USUAL))


def fit(points: Sequence[Point]) -> np.ndarray:
    """Damped Gauss-Newton."""
    theta, step = USUAL.copy(), 1e-4
    for _ in range(30):
        base = residuals(theta, points)
        slope = np.stack(
            [(residuals(theta + step * unit, points) - base) / step for unit in np.eye(len(theta))], axis=1
        )
        change = np.linalg.solve(slope.T @ slope + 1e-3 * np.eye(len(theta)), -slope.T @ base)
        theta = theta + np.clip(change, -0.5, 0.5)
    return theta


@dataclass(frozen=True)
class Judged:
    """A published point beside its forecast, seconds."""

    point: Point
    forecast: float
    left_out: float

    @property
    def row(self) -> str:
        """Of the table of fitted points."""
        f = self.point.facts
        return row(
            f["name"], f["source"], f"{f['seconds']:g}", f"{self.forecast:.0f}", f"{self.left_out:.0f}",
            f"{self.left_out / f['seconds']:.2f}",
        )  # fmt: skip


def row(*cells: str) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def judge(points: Sequence[Point]) -> tuple[np.ndarray, list[Judged]]:
    """The fit, and every fitted point with the forecast of a fit without its setting."""
    fitted = [point for point in points if not point.held_out]
    theta = fit(fitted)
    without = {
        setting: fit([point for point in fitted if point.setting != setting])
        for setting in {point.setting for point in fitted}
    }
    return theta, [Judged(p, p.seconds(theta), p.seconds(without[p.setting])) for p in fitted]


def error_range(judged: Sequence[Judged]) -> tuple[float, float]:
    """Published seconds over left-out forecast, smallest and largest."""
    ratios = [item.point.facts["seconds"] / item.left_out for item in judged]
    return min(ratios), max(ratios)


def constants(theta: np.ndarray, spread: tuple[float, float]) -> str:
    """What roofline.py should hold."""
    lines = []
    for name, experts in (("DENSE", False), ("EXPERTS", True)):
        e = efficiencies_of(theta, experts)
        lines.append(
            f"{name} = Efficiencies(mfu={e.mfu:.3g}, layer_step={e.layer_step:.3g}, refit={e.refit:.3g}, "
            f"rest={e.rest:.3g})"
        )
    return "\n".join([*lines, f"RANGE = ({spread[0]:.2f}, {spread[1]:.2f})"])


def phase_row(point: Point, theta: np.ndarray) -> str:
    """Forecast beside published seconds of each phase."""
    forecast = point.phases(efficiencies_of(theta, bool(point.shape.experts)))
    name = f"{point.facts['name']} ({'held out' if point.held_out else 'fitted'})"
    return row(name, *(f"{forecast[phase]:.0f} / {point.facts['phases'][phase]}" for phase in PHASES))


def held_row(point: Point, theta: np.ndarray) -> str:
    """A held-out point; the authors' hardware is not certain."""
    f, forecast = point.facts, point.seconds(theta)
    a100 = f"as A100: {point.seconds(theta, A100):.0f}" if f["source"] == "paper" else ""
    return row(f["name"], f["source"], f"{f['seconds']:g}", f"{forecast:.0f}", f"{forecast / f['seconds']:.2f}", a100)


def page(points: Sequence[Point], theta: np.ndarray, judged: Sequence[Judged]) -> str:
    """The results page."""
    errors = sorted(abs(math.log(item.left_out / item.point.facts["seconds"])) for item in judged)
    others = [point for point in points if "card" in point.facts]
    held = [point for point in points if point.held_out and point not in others]
    nemo = [
        abs(math.log(p.seconds(theta) / p.facts["seconds"])) for p in held if p.facts["source"] != "paper"
    ]  # fmt: skip
    low, high = error_range(judged)
    return PAGE_TEXT.format(
        median=100 * (math.exp(errors[len(errors) // 2]) - 1), worst=math.exp(errors[-1]), low=low, high=high,
        held=len(held), held_worst=100 * (math.exp(max(nemo)) - 1), held_own=len(nemo),
        fitted="\n".join(item.row for item in judged),
        held_rows="\n".join(held_row(point, theta) for point in held),
        others="\n".join(held_row(point, theta) for point in others),
        phases="\n".join(phase_row(point, theta) for point in points if "phases" in point.facts),
        **gpu_section(),
    )  # fmt: skip


PAGE_TEXT = """# How well `plan` forecasts a step

Without a run of your own, `nemo-ada plan` computes step times with a roofline. Six efficiencies are fitted to
published GRPO step times on H100-80GB (`nemo_ada/lab/plan/published.yaml`, with sources; [our H200](gpu.md) is not
among them). Left-out points miss by {median:.0f} % in the median and by a factor of {worst:.2f} at worst. So a
forecast is a range: {low:.2f} to {high:.2f} times the median step.

Made by `python recipes/benchmarks/fit_forecast.py` (a minute on a laptop).

## Fitted points

"Left out" is the forecast of a fit without any point of that model on that number of GPUs.

| model and GPUs | source | published s | fitted s | left out s | left out / published |
|---|---|---|---|---|---|
{fitted}

## Points held out

These {held} were named before anything was fitted. The {held_own} runs of NeMo-RL miss by at most {held_worst:.0f} %.

| model and GPUs | source | published s | forecast s | forecast / published | |
|---|---|---|---|---|---|
{held_rows}

The authors trained with verl, which has other efficiencies. Paper v3 says A100, v1 says H100, and their response
lengths are assumed. One choice was made after a look at a held-out point, the 70B at 16k (then 0.42 of the published
seconds): one response of a published point reaches the limit. Left-out errors chose the prior's weight.

## Other cards

A100-80GB, H200, B200 and GB200 have their own figures (`nemo_ada/rules/facts/cards.py`) and the efficiencies of the
H100. Step times of NeMo-RL were found for GB200 only, and never fitted:

| model and GPUs | source | published s | forecast s | forecast / published | |
|---|---|---|---|---|---|
{others}

## Phases

Forecast / published seconds. No fitted point of a mixture of experts has them.

| model and GPUs | update | log-probs | generation | refit |
|---|---|---|---|---|
{phases}

## A step on one H200

The steps of [our H200](gpu.md#steps) (1.5B, 256 rows) give a model of their own. The leaderboard reads it for its GPU
seconds, and `plan` takes its spread for the column `x grpo`:

{gpu}

The near end has the fastest sampling and the slowest refit that were seen, the far end the opposite. With each step's
own refit the model meets every ratio of a step to GRPO's within 10 %. The refit is the largest unknown: it took
{low_refit:.1f} to {high_refit:.1f} s, whatever the method. The model is for this size and card, and knows no other one.

## Constants

The constants stand in `nemo_ada/lab/plan/roofline.py`; a test refits the fitted ones. Others come from
[our H200](gpu.md): the optimizer's way to the CPU (.35 seconds per GB on a GPU as NeMo-RL moves it, .04 through pinned
memory, which only copies have shown), and an engine's least time for a token. Not in the forecast: the first step's
compilation, a judge model, shared networks. No sampling phase is forecast to be shorter than the driver's 2.6 ms per
response on one core.
"""


GPU = ROOT / "recipes/results/gpu"
LIMITS = {"steps_512": 225.0, "steps_1024": 450.0, "steps_1024_lean_idle": 450.0, "steps_2048": 926.0}
"""Table of steps on the H200 -> mean tokens of its responses, where a run counted them."""


@dataclass(frozen=True)
class GpuStep:
    """A step that ran on the H200: its tokens and its seconds."""

    limit: str
    run: str
    drawn: float
    trained: float
    sampling: float
    refit: float
    seconds: float


def gpu_steps() -> list[GpuStep]:
    """Return the steps but the first of each process, whose kernels were not compiled yet."""
    found = []
    for name, mean in LIMITS.items():
        for row in csv.DictReader((GPU / f"{name}.csv").read_text(encoding="utf-8").splitlines()):
            if (row["run"], row["step"]) == ("grpo", "1"):
                continue
            live = 256 * (1 - float(row["zero-signal groups"] or 0))
            drawn = float(row["tokens"] or 256 * mean)
            seconds = (float(row[f"{phase}, s"]) for phase in ("sampling", "refit", "step"))
            found.append(GpuStep(name.split("_")[1], row["run"], drawn, mean * live, *seconds))
    return found


def step_cost(steps: Sequence[GpuStep]) -> tuple[StepCost, Spread, Spread]:
    """Fit the seconds of a step to those that were measured. Return them and the ends of sampling and refit."""
    per_token = np.array([step.sampling / step.drawn for step in steps])
    drawn = math.exp(float(np.log(per_token).mean()))
    refit = np.array([step.refit for step in steps])
    rest = np.array([step.seconds - step.sampling - step.refit for step in steps])
    table = np.array([[1.0, step.trained] for step in steps])
    fixed, trained = np.linalg.lstsq(table, rest, rcond=None)[0].tolist()
    counted = np.array([step.sampling / step.drawn for step in steps if step.run != "grpo"]) / drawn
    far = refit / refit.mean()
    return (StepCost(fixed, float(refit.mean()), drawn, trained),
            Spread(float(counted.min()), float(far.max())), Spread(float(counted.max()), float(far.min())))  # fmt: skip


def gpu_section() -> dict[str, Any]:
    """Return what the page says of the steps on the H200."""
    steps = gpu_steps()
    cost, near, far = step_cost(steps)
    refits = [step.refit for step in steps]
    rows = [
        row("", "mean", "near", "far"),
        "|---|---|---|---|",
        row("every step, s", f"{cost.fixed:.1f}", "", ""),
        row("its refit, s", *(f"{end.refit * cost.refit:.1f}" for end in (MEAN, near, far))),
        row("a token that is drawn, µs", *(f"{1e6 * end.sampling * cost.drawn:.0f}" for end in (MEAN, near, far))),
        row("a token that is trained on, µs", f"{1e6 * cost.trained:.0f}", "", ""),
    ]
    return {"gpu": "\n".join(rows), "low_refit": min(refits), "high_refit": max(refits)}


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    points = read_points()
    theta, judged = judge(points)
    PAGE.write_text(page(points, theta, judged), encoding="utf-8")
    print(constants(theta, error_range(judged)))
    print(f"now: {DENSE}\n{EXPERTS}\n{RANGE}", *step_cost(gpu_steps()), sep="\n")


def read_points() -> list[Point]:
    """Of published.yaml. Raises ValueError where the prompt's mean is not the one that the roofline assumes."""
    points = [Point(facts) for facts in yaml.safe_load(POINTS.read_text(encoding="utf-8"))]
    if any(point.facts["prompt"] != PROMPT_TOKENS for point in points):
        raise ValueError(f"{POINTS}: prompt must be {PROMPT_TOKENS:g}")
    return points


if __name__ == "__main__":
    measure(main)
