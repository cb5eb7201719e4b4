"""Statistics and pages of the leaderboard: leaderboard.md (a summary), leaderboard_tables.md (every table), .csv (all
columns), .jsonl (the results), and figures.

S seeds of a method, E evaluations of a run. Two methods are compared over the same seeds, and so over the same bases.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from nemo_ada.core.arrays import FloatArray
from nemo_ada.lab.evaluation.statistics import student_quantile
from nemo_ada.lab.plan.roofline import FAR, H200_STEP, MEAN, NEAR
from nemo_ada.lab.report.draw import choose_colour
from nemo_ada.run.files import write_atomically

FOUR, TUNED = "four updates", "tuned updates"
SUMMED = "summed_rates"
GPU = "gpu_seconds"
ENDS = {GPU: MEAN, f"{GPU}_near": NEAR, f"{GPU}_far": FAR}
AXES = ("responses", "updates", SUMMED, "prompts", "live_rows", "tokens", *ENDS)
GPU_ROWS, GPU_TOKENS = 256, 450.0
"""Rows of a step and tokens of a response that the GPU's seconds are for: those of recipes/results/gpu.md at 1,024."""
LAST = 3  # evaluations whose mean is a run's final accuracy
LEVEL = 0.05
Result = Mapping[str, Any]
KEPT = (
    "task",
    "method",
    "updates",
    "rate",
    "seed",
    "base",
    "version",
    "commit",
    "date",
    "seconds",
    "warmup_steps",
    "area",
)


@dataclass(frozen=True, slots=True)
class Effect:
    """A paired mean difference.

    Attributes:
        mean: the mean, nan without a pair.
        half: half of the 95 % interval, nan for fewer than two pairs.
        p: two-sided p-value of the paired t test, nan for fewer than two pairs.
        bound: what runs that never reach a target make of the mean: ">" a lower bound, "<" an upper bound, "~" neither.
    """

    mean: float
    half: float
    p: float
    bound: str = ""

    def looked_at(self, times: int) -> Effect:
        """Return the effect of runs that were decided after a look at earlier ones: its p-value counts so often."""
        return replace(self, p=min(1.0, times * self.p))


def setting(protocol: Mapping[str, Any], task: str, name: str) -> Any:
    """Return a setting of a task: its own one, or else that of the protocol."""
    return protocol["tasks"][task].get(name, protocol.get(name))


def one_seed(found: Effect, seeds: int) -> tuple[float, float]:
    """Return the interval that holds the difference of one more seed with 95 %, from the effect over `seeds` seeds."""
    half = found.half * math.sqrt(seeds + 1)
    return found.mean - half, found.mean + half


def effect(difference_S: Sequence[float], bound: str = "") -> Effect:
    """Return the mean difference with its interval and p-value."""
    value_S = np.asarray(difference_S, np.float64)
    count = len(value_S)
    if count < 2:
        return Effect(float(value_S.mean()) if count else math.nan, math.nan, math.nan, bound)
    error = float(value_S.std(ddof=1)) / math.sqrt(count)
    mean = float(value_S.mean())
    p = 2.0 * float(special.stdtr(count - 1, -abs(mean) / error)) if error > 0 else float(mean == 0.0)
    return Effect(mean, student_quantile(count - 1) * error, p, bound)


def holm(p_T: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Say which of a table's tests are significant at `level` after Holm's correction. A nan is no test."""
    order = [i for i in np.argsort(np.asarray(p_T, np.float64), kind="stable").tolist() if not math.isnan(p_T[i])]
    rejected = [False] * len(p_T)
    for rank, i in enumerate(order):
        if p_T[i] > level / (len(order) - rank):
            break
        rejected[i] = True
    return rejected


def costs(result: Result, axis: str) -> FloatArray:
    """Return what a run had cost at each evaluation.

    `summed_rates` is the sum of the learning rates of its updates, which is small in the warm-up. `gpu_seconds` are
    those that an H200 would take if its steps of GPU_ROWS rows had this run's shares of responses and trained rows,
    with the mean of its sampling and refit. `gpu_seconds_near` and `_far` have the ends of both.
    """
    if axis in ENDS:
        steps, responses, live, rows = (costs(result, name) for name in ("steps", "responses", "live_rows", "rows"))
        scale = GPU_TOKENS * GPU_ROWS * steps[-1] / rows[-1]  # a step of the run has fewer rows
        return np.asarray(H200_STEP.seconds(steps, scale * responses, scale * live, ENDS[axis]))
    if axis != SUMMED:
        return np.array([point[axis] for point in result["points"]], np.float64)
    done = np.array([point["updates"] for point in result["points"]], np.float64)
    warm = float(result["warmup_steps"] * result["updates"])
    return float(result["rate"]) * np.where(done <= warm, done * (done + 1) / (2 * warm), (warm + 1) / 2 + done - warm)


def area(result: Result, axis: str, limit: float) -> float:
    """Return the mean accuracy up to a cost: the exact integral of the straight lines between the evaluations."""
    corners = costs(result, axis)
    x = np.concatenate([[0.0], corners[(corners > 0.0) & (corners < limit)], [limit]])
    return float(np.trapezoid(_curve(result, axis, x), x) / limit)


def _curve(result: Result, axis: str, x: FloatArray) -> FloatArray:
    """Return a run's accuracy at costs, by linear interpolation between the evaluations."""
    return np.interp(x, costs(result, axis), [point["accuracy"] for point in result["points"]])


def final(result: Result, key: str = "accuracy") -> float:
    """Return the mean score of a run's last evaluations."""
    return float(np.mean([point[key] for point in result["points"][-LAST:]]))


def rising(y_E: FloatArray) -> FloatArray:
    """Return the rising curve that is nearest to the points (pool adjacent violators), so noise crosses no target."""
    blocks: list[tuple[float, int]] = []
    for value in y_E.tolist():
        block = (value, 1)
        while blocks and blocks[-1][0] > block[0]:
            before = blocks.pop()
            count = before[1] + block[1]
            block = ((before[0] * before[1] + block[0] * block[1]) / count, count)
        blocks.append(block)
    return np.concatenate([np.full(count, value) for value, count in blocks])


def responses_to(result: Result, target: float) -> float:
    """Return the responses after which a run's rising curve reaches the target, inf if it never does."""
    x = np.array([point["responses"] for point in result["points"]], np.float64)
    y = rising(np.array([point["accuracy"] for point in result["points"]], np.float64))
    reached = np.flatnonzero(y >= target)
    if not len(reached):
        return math.inf
    i = int(reached[0])
    if i == 0:
        return float(x[0])
    return float(x[i - 1] + (target - y[i - 1]) / (y[i] - y[i - 1]) * (x[i] - x[i - 1]))


def targets(baseline: Sequence[Result], share: float) -> dict[int, float]:
    """Return per base the share of the baseline's final accuracy, averaged over the seeds of that base."""
    bases = {int(result["base"]) for result in baseline}
    return {base: share * float(np.mean([final(r) for r in baseline if r["base"] == base])) for base in bases}


def ratio(mine: Sequence[Result], baseline: Sequence[Result], share: float) -> Effect:
    """Compare the responses until the baseline's final accuracy (or a share of it): the log of their ratio.

    A run that never reaches it counts with its budget. The effect is then a lower bound where this is a run of the
    method, an upper bound where it is one of the baseline, and neither where it happens to both.
    """
    target, logs, late = targets(baseline, share), [], [False, False]
    for own, base in zip(mine, baseline, strict=True):
        budget = float(own["points"][-1]["responses"])
        needed = [responses_to(run, target[int(run["base"])]) for run in (own, base)]
        late = [before or math.isinf(responses) for before, responses in zip(late, needed, strict=True)]
        logs.append(math.log(max(min(needed[0], budget), 1.0) / max(min(needed[1], budget), 1.0)))
    return effect(logs, {(False, False): "", (True, False): ">", (False, True): "<"}.get((late[0], late[1]), "~"))


def gain(mine: Sequence[Result], baseline: Sequence[Result], value: Callable[[Result, Result], float]) -> Effect:
    """Compare a value of (run, other run of its pair)."""
    return effect([value(own, base) - value(base, own) for own, base in zip(mine, baseline, strict=True)])


def gain_at(mine: Sequence[Result], baseline: Sequence[Result], axis: str) -> Effect:
    """Compare the areas up to the cost that both runs of a pair reached."""
    return gain(mine, baseline, lambda run, other: area(run, axis, min(costs(r, axis)[-1] for r in (run, other))))


def effects(mine: Sequence[Result], baseline: Sequence[Result]) -> dict[str, Effect]:
    """Return all effects of a method against the baseline over the same seeds."""
    found = {"accuracy": gain(mine, baseline, lambda run, _: final(run)),
             "pass4": gain(mine, baseline, lambda run, _: final(run, "pass4"))}  # fmt: skip
    found |= {f"area at equal {axis}": gain_at(mine, baseline, axis) for axis in AXES}
    found |= {"responses to 1": ratio(mine, baseline, 1.0), "responses to .9": ratio(mine, baseline, 0.9)}
    for tier in range(len(baseline[0]["tier_sizes"])):
        pairs = [(own, base) for own, base in zip(mine, baseline, strict=True) if own["tier_sizes"][tier]]
        found[f"tier {tier}"] = effect([_tier(own, tier) - _tier(base, tier) for own, base in pairs])
    return found


def _tier(result: Result, tier: int) -> float:
    return float(np.mean([point["tiers"][tier] for point in result["points"][-LAST:]]))


def text(found: Effect, bold: bool, *, log: bool = False) -> str:
    """Return an effect as one word: +.021±.005, or with `log` the ratio and its interval."""
    if math.isnan(found.mean):
        return "-"
    if log:
        middle = f"{found.bound}{math.exp(found.mean):.2f}"
        ends = "" if math.isnan(found.half) else f"[{math.exp(found.mean - found.half):.2f},{math.exp(found.mean + found.half):.2f}]"  # fmt: skip  # noqa: E501
        word = middle + ends
    else:
        half = "" if math.isnan(found.half) else f"±{_short(found.half)}"
        word = f"{'+' if found.mean >= 0 else '-'}{_short(abs(found.mean))}{half}"
    return f"**{word}**" if bold else word


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


@dataclass(frozen=True, slots=True)
class Row:
    """A method in a table.

    Attributes:
        method: its key in the protocol.
        cell: updates per step and learning rate.
        tried: learning rates that were tried with these updates per step.
        seeds: reported seeds that both it and the baseline have.
        results: its results, by seed.
        effects: effects against the baseline. Empty for the baseline.
    """

    method: str
    cell: tuple[int, float]
    tried: list[float]
    seeds: list[int]
    results: dict[int, Result]
    effects: dict[str, Effect]


def start(result: Result) -> tuple[Any, ...]:
    """Return what a run's base had scored. Two machines that train a base of the same number get two models."""
    return tuple(result["tier_sizes"]), result["points"][0]["accuracy"]


def rows_of(
    protocol: Mapping[str, Any],
    results: Any,
    task: str,
    updates: Sequence[int],
    baseline: str,
    methods: Iterable[str] | None = None,
) -> list[Row]:
    """Return the rows of a table: the baseline, and every method with a reported seed in common with it.

    A seed is common where both runs started from the same base model.

    Args:
        protocol: the protocol file.
        results: the results (`leaderboard.Results`).
        task: name of the task.
        updates: numbers of updates per step from which each method's best is taken.
        baseline: name of the baseline.
        methods: names of the other methods. None takes all of the task.
    """
    found: list[Row] = []
    base: dict[int, Result] = {}
    allowed = setting(protocol, task, "methods")
    for name in dict.fromkeys([baseline, *(allowed if methods is None else methods)]):
        if name not in allowed:
            continue
        cell = results.best(task, name, updates)
        if cell is None:
            continue
        mine = {
            seed: result
            for seed in setting(protocol, task, "reported_seeds")
            if (result := results.reported(task, name, cell, seed))
        }
        if name == baseline:
            base = mine
        seeds = sorted(seed for seed in mine if seed in base and start(mine[seed]) == start(base[seed]))
        if not seeds:
            continue
        compared = {} if name == baseline else effects([mine[s] for s in seeds], [base[s] for s in seeds])
        tried = [rate for number, rate in results.tries(task, name, updates) if number == cell[0]]
        found.append(Row(name, cell, tried, seeds, mine, compared))
    return found


def significant(effects_M: Sequence[Mapping[str, Effect]], names: Sequence[str]) -> list[set[str]]:
    """Return the names of each row's effects that are significant after Holm's correction over the table.

    Effects of a row that are the same numbers are one test. A row without effects has none.
    """
    distinct = {(m, found[name].mean, found[name].half): found[name].p
                for m, found in enumerate(effects_M) for name in names if name in found}  # fmt: skip
    passed = dict(zip(distinct, holm(list(distinct.values())), strict=True))
    return [{name for name in names if name in found and passed[m, found[name].mean, found[name].half]}
            for m, found in enumerate(effects_M)]  # fmt: skip


def all_columns(protocol: Mapping[str, Any], tables: Mapping[tuple[str, str], Sequence[Row]]) -> str:
    """Return every effect of every table as CSV: mean, half of the interval, p-value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["task", "table", "method", "updates", "rate", "seeds", "commits", "measure", "mean", "half", "p"])

    def write(about: Sequence[Any], values: Mapping[str, Effect]) -> None:
        for measure, found in values.items():
            numbers = ["" if math.isnan(v) else f"{v:.5g}" for v in (found.mean, found.half, found.p)]
            writer.writerow([*about, measure, *numbers])

    for (task, name), rows in tables.items():
        for row in rows:
            commits = "+".join(sorted({str(row.results[s]["commit"]) for s in row.seeds}))
            about = [task, name, row.method, row.cell[0], f"{row.cell[1]:g}", len(row.seeds), commits]
            write(about, row.effects | own_means([row.results[seed] for seed in row.seeds]))
    for (task, method), (values, runs) in joined_effects(protocol, tables).items():
        commits = "+".join(sorted({str(run["commit"]) for run in runs}))
        write([task, FOUR, method, 4, "", len(runs), commits], values | own_means(runs))
    return out.getvalue()


def own_means(runs: Sequence[Result]) -> dict[str, Effect]:
    """Return the means over runs of what the loop measured, and of the final accuracy. They have no interval."""
    found = {}
    for key in sorted({key for run in runs for key in run["why"]}):
        found[f"mean of {key}"] = float(np.mean([run["why"][key] for run in runs if key in run["why"]]))
    found["own accuracy"] = float(np.mean([final(run) for run in runs]))
    return {name: Effect(mean, math.nan, math.nan) for name, mean in found.items()}


SUMMARY = """\
# Leaderboard

Gains in area, which is the mean held-out accuracy over a run, against GRPO with n = 4. The first number of a cell is at
equal **responses**, the second at equal **prompts**: a method with one response per prompt takes four times GRPO's
prompts, and a method with extra waves takes fewer. Both have 95 % intervals over base models. Bold: significant after
Holm's correction over this table. `recipes/benchmarks/leaderboard.py page` writes it from
[leaderboard.jsonl](leaderboard.jsonl).

{table}

![Accuracy over responses](figures/leaderboard.png)
{joined}
**Protocol.** A run draws {budget} responses from a small model that was trained before. Every method tries the same
learning rates on {tuning} seeds that are not reported. Each reported seed has a base model, problems and a held-out set
of its own, so intervals speak of base models.

**Read it with care.** The models have .3 million parameters, and no task is a GPU run. Where a cell is empty, nothing
was run. Tasks with several seeds per base model are in leaderboard.csv only. [A language model](smollm2.md) has a page.

[leaderboard.csv](leaderboard.csv) has all tables: every axis of cost, final accuracy, tuned updates, both targets,
pass@4, p-values, what the loop measured, and the commits. [protocol of the bench](../benchmarks/leaderboard.yaml).
"""
IN_SUMMARY = ("grpo8", "grpo16", "value4", "mean", "single_value", "popo", "balance", "lean", "ngu", "dapo")
BOTH = ("area at equal responses", "area at equal prompts")
ALL_AXES = (*BOTH, "area at equal updates", f"area at equal {GPU}")
JOINED = """
**More bases.** Five methods ran on twelve base models each of sudoku and words. Six of these had chosen the methods.
"Fresh" leaves them out. Nothing was tuned on sums. Two methods have further bases, decided after a look at the first,
so that their p-values are doubled (eighteen bases) or tripled (twenty-four). Gains at equal responses, prompts,
updates and estimated seconds of an H200 ([steps](gpu.md#steps)), over all bases. In brackets: the gain if sampling and
the refit cost what the ends of the measured steps say.

{table}
"""


def joined_effects(
    protocol: Mapping[str, Any], tables: Mapping[tuple[str, str], Sequence[Row]]
) -> dict[tuple[str, str], tuple[dict[str, Effect], list[Result]]]:
    """Return (name of the joined tasks, method) -> effects and runs over the seeds of several tasks.

    Empty until all runs of all tasks are there: the correction is for all comparisons, so a part would say too much.
    """
    cells: dict[tuple[str, str], tuple[dict[str, Effect], list[Result]]] = {}
    for name, tasks in protocol.get("joined", {}).items():
        found = [{row.method: row for row in tables.get((task, FOUR), ())} for task in tasks]
        for method in (
            one for one in protocol["methods"] if all(one in setting(protocol, t, "methods") for t in tasks)
        ):
            pairs = [(rows.get(method), rows.get(protocol["baseline"])) for rows in found]
            runs = [
                (mine.results[seed], base.results[seed]) for mine, base in pairs if mine and base for seed in mine.seeds
            ]
            if len(runs) < sum(len(setting(protocol, task, "reported_seeds")) for task in tasks):
                return {}
            if method != protocol["baseline"]:
                own, looks = [mine for mine, _ in runs], protocol.get("looks", {}).get(name, 1)
                found_effects = effects(own, [base for _, base in runs])
                cells[name, method] = {key: one.looked_at(looks) for key, one in found_effects.items()}, own
    return cells


def between(found: Mapping[str, Effect]) -> str:
    """Return the gains at equal GPU seconds at the ends of what a step was seen to cost."""
    ends = sorted(found[f"area at equal {axis}"].mean for axis in ENDS if axis != GPU)
    return " to ".join(text(Effect(mean, math.nan, math.nan), bold=False) for mean in ends)


def joined(protocol: Mapping[str, Any], tables: Mapping[tuple[str, str], Sequence[Row]]) -> str:
    """Return the table of methods over the seeds of several tasks."""
    cells = {key: found for key, (found, _) in joined_effects(protocol, tables).items()}
    if not cells:
        return ""
    bold = dict(zip(cells, significant(list(cells.values()), ALL_AXES), strict=True))
    names = list(dict.fromkeys(name for name, _ in cells))
    lines = ["| method | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for method in dict.fromkeys(method for _, method in cells):
        row = [
            "<br>".join(text(cells[name, method][axis], axis in bold[name, method]) for axis in ALL_AXES)
            + f" ({between(cells[name, method])})"
            if (name, method) in cells
            else ""
            for name in names
        ]
        lines.append(f"| {protocol['methods'][method]['name']} | " + " | ".join(row) + " |")
    return JOINED.format(table="\n".join(lines))


def a_base_each(protocol: Mapping[str, Any], task: str) -> bool:
    """Return whether each reported seed of a task has a base model of its own, so that intervals speak of bases."""
    seeds = setting(protocol, task, "reported_seeds")
    return len({seed % setting(protocol, task, "bases") for seed in seeds}) == len(seeds)


def summary(protocol: Mapping[str, Any], tables: Mapping[tuple[str, str], Sequence[Row]]) -> str:
    """Return the page that people read first: one table of methods and tasks, at equal responses and prompts."""
    again = {task for tasks in protocol.get("joined", {}).values() for task in tasks[1:]}
    rows = {task: {row.method for row in found} for (task, name), found in tables.items()
            if name == FOUR and a_base_each(protocol, task)}  # fmt: skip
    tasks = [task for task in protocol["tasks"] if rows.get(task, set()) & {*IN_SUMMARY} and task not in again]
    cells = {(row.method, task): row.effects for task in tasks for row in tables[task, FOUR] if row.effects}
    compared = [key for key in cells if key[0] in IN_SUMMARY]
    bold = dict(zip(compared, significant([cells[key] for key in compared], BOTH), strict=True))
    lines = ["| method | " + " | ".join(tasks) + " |", "|---|" + "---|" * len(tasks)]
    for method in IN_SUMMARY:
        row = [
            "<br>".join(text(cells[method, task][name], name in bold[method, task]) for name in BOTH)
            if (method, task) in cells
            else ""
            for task in tasks
        ]
        if any(row):
            lines.append(f"| {protocol['methods'][method]['name']} | " + " | ".join(row) + " |")
    return SUMMARY.format(table="\n".join(lines), joined=joined(protocol, tables), **_numbers(protocol))


def _numbers(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol's numbers that the pages name."""
    return {
        "budget": f"{protocol['budget']:,}",
        "tuning": len(protocol["tuning_seeds"]),
        "reported": f"{min(protocol['reported_seeds'])} to {max(protocol['reported_seeds'])}",
    }


def page(protocol: Mapping[str, Any], results: Any) -> tuple[str, str]:
    """Return the page, and the CSV of all tables."""
    tables: dict[tuple[str, str], Sequence[Row]] = {}
    for task in protocol["tasks"]:
        chosen = {FOUR: [4], TUNED: list(setting(protocol, task, "grid"))}
        for name, updates in chosen.items():
            rows = rows_of(protocol, results, task, updates, protocol["baseline"])
            if len(rows) < 2:
                continue
            tables[task, name] = rows
    return summary(protocol, tables), all_columns(protocol, tables)


def draw_curves(protocol: Mapping[str, Any], results: Any, name: str, path: Path) -> None:
    """Draw a figure of the protocol: accuracy over a cost, a panel per task where its methods ran and per axis.

    A method is drawn when it has all seeds of the baseline. A curve ends where the cheapest of its seeds ended. An
    older figure is removed when there is nothing to draw.
    """
    settings = protocol["figures"][name]
    order, axes_names = settings["methods"], settings.get("axes", ["responses"])
    shown = []
    for task in settings.get("tasks", protocol["tasks"]):
        rows = rows_of(protocol, results, task, [4], order[0], order[1:])
        complete = [row for row in rows if row.seeds == rows[0].seeds]
        shown += [(task, axis, complete) for axis in axes_names if len(complete) > 1]
    path.unlink(missing_ok=True)
    if not shown:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def end(row: Row, axis: str) -> float:
        return float(min(costs(row.results[seed], axis)[-1] for seed in row.seeds))

    columns = 3 if len(axes_names) == 3 else min(2, len(shown))
    height = math.ceil(len(shown) / columns)
    size = (max(6.5, 5.0 * columns), 4.2 * height + 0.6)
    figure, grid = plt.subplots(height, columns, figsize=size, squeeze=False)
    panels, lines = list(grid.flat), {}
    for unused in panels[len(shown) :]:
        unused.remove()
    for panel, (task, axis, rows) in zip(panels, shown, strict=False):
        for row in rows:
            x = np.linspace(0.0, end(row, axis), 60)
            mean = np.mean([_curve(row.results[seed], axis, x) for seed in row.seeds], axis=0)
            colour = choose_colour(order.index(row.method))
            (lines[protocol["methods"][row.method]["name"].replace("`", "")],) = panel.plot(x, mean, color=colour)
            if row.effects and len(row.seeds) > 1:
                both = x[x <= end(rows[0], axis)]
                difference_SX = [_curve(row.results[s], axis, both) - _curve(rows[0].results[s], axis, both)
                                 for s in row.seeds]  # fmt: skip
                error = np.std(difference_SX, axis=0, ddof=1) / math.sqrt(len(row.seeds))
                half, middle = student_quantile(len(row.seeds) - 1) * error, mean[: len(both)]
                panel.fill_between(both, middle - half, middle + half, color=colour, alpha=0.12, lw=0)
        panel.set_title(f"{task}, {len(rows[0].seeds)} seeds, four updates per step", fontsize=10)
        panel.set_xlabel(axis.replace(SUMMED, "sum of learning rates").replace("_", " "))
        panel.locator_params(axis="x", nbins=6)
        panel.grid(alpha=0.3)
    for left in grid[:, 0]:
        left.set_ylabel("held-out accuracy")
    inches = figure.get_figheight()
    baseline = next(iter(lines))
    note = f"band: 95 % interval of the paired difference to {baseline}, at one point, as far as both curves go"
    figure.text(0.5, 0.05 / inches, note, ha="center", fontsize=8)
    across = 2 if columns < 3 else 3
    figure.legend(list(lines.values()), list(lines), loc="lower center", ncol=across, fontsize=8, frameon=False,
                  bbox_to_anchor=(0.5, 0.2 / inches))  # fmt: skip
    figure.tight_layout(rect=(0, (0.3 + 0.22 * math.ceil(len(lines) / across)) / inches, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80, metadata={"Software": None}, pil_kwargs={"optimize": True})
    plt.close(figure)


def packed(result: Result, reported: bool) -> dict[str, Any]:
    """Return a result for leaderboard.jsonl. A try that is not reported keeps its score only.

    The seconds of its points are left out: they are those of a shared machine, and no axis uses them.
    """
    kept = {key: result[key] for key in KEPT}
    if not reported:
        return kept
    points = result["points"]
    columns = {key: [point[key] for point in points] for key in points[0] if key != "seconds"}
    kept |= {"halves": result["halves"]} if "halves" in result else {}
    return kept | {"tier_sizes": result["tier_sizes"], "why": result["why"], "points": columns}


def unpacked(line: Mapping[str, Any]) -> dict[str, Any]:
    """Restore what `packed` made."""
    if "points" not in line:
        return dict(line)
    columns = line["points"]
    count = len(columns["responses"])
    return dict(line) | {"points": [{key: values[i] for key, values in columns.items()} for i in range(count)]}


def reported_or_tuned(protocol: Mapping[str, Any], task: str) -> set[int]:
    """Return the seeds of a task in the protocol. `again` runs others."""
    return {*setting(protocol, task, "reported_seeds"), *setting(protocol, task, "tuning_seeds")}


def write_page(protocol: Mapping[str, Any], results: Any, folder: Path) -> None:
    """Write leaderboard.md, .csv, .jsonl and the figures."""
    markdown, table_csv = page(protocol, results)
    lines = [
        json.dumps(
            {"key": key} | packed(result, result["seed"] in setting(protocol, result["task"], "reported_seeds")),
            separators=(",", ":"),
        )
        for key, result in sorted(results.everything().items())
        if result["seed"] in reported_or_tuned(protocol, result["task"])
    ]
    write_atomically(folder / "leaderboard.md", markdown)
    write_atomically(folder / "leaderboard.csv", table_csv)
    write_atomically(folder / "leaderboard.jsonl", "".join(line + "\n" for line in lines))
    for name in protocol["figures"]:
        draw_curves(protocol, results, name, folder / "figures" / f"{name}.png")
