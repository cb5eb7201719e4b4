"""A number on a first page comes from data or names its file; a page that says another number fails here."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import claims
import numpy as np
import pytest

from nemo_ada.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = ("README.md", "recipes/guide/choosing.md", "recipes/results/open_questions.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_number_of_a_page_has_a_source(page: str) -> None:
    assert list(claims.problems(page, (ROOT / page).read_text(encoding="utf-8"), claims.claims())) == []


def test_a_number_without_a_source_is_found() -> None:
    text = README.read_text(encoding="utf-8")
    entries = claims.claims()
    assert len(list(claims.problems("README.md", text + "\nIt is 3.7 times as fast.\n", entries))) == 1
    other = text.replace("+.030 ± .007", "+.040 ± .007")
    assert any("+.030" in line for line in claims.problems("README.md", other, entries))


# The rest reads the raw rows anew, with none of the leaderboard's code.
TASKS = {
    "sudoku, twelve bases": ("sudoku6", "sudoku6e"),
    "sudoku, six fresh": ("sudoku6e",),
    "sudoku, eighteen bases": ("sudoku6", "sudoku6b", "sudoku6e"),
    "words, twelve bases": ("words6", "words6e"),
    "words, twenty-four bases": ("words6", "words6b", "words6c", "words6e"),
    "hard, six bases": ("hard6",),
}
"""Name of a claim's task -> the raw tasks that it joins. Others are their own."""
T = {5: 2.776445, 6: 2.570582, 12: 2.200985, 18: 2.109816, 24: 2.068658}
"""Number of base models -> quantile .975 of Student's t, from a printed table."""
SECONDS = {"gpu_seconds": (1.0, 1.0), "gpu_seconds_near": (0.84, 1.58), "gpu_seconds_far": (1.13, 0.62)}
"""Factors of sampling and of the refit in recipes/results/forecast.md's model of a step on one H200."""


@cache
def rows() -> dict[tuple[str, str], dict[tuple[str, int], dict[str, list[float]]]]:
    """Return task, method -> task, base model -> columns of its reported run with four updates per step."""
    found: dict[tuple[str, str], dict[tuple[str, int], dict[str, list[float]]]] = {}
    with (ROOT / "recipes/results/leaderboard.jsonl").open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if "points" in line and line["updates"] == 4:
                own = line["points"] | {"rate": [line["rate"]], "warm": [4.0 * line["warmup_steps"]]}
                found.setdefault((line["task"], line["method"]), {})[line["task"], line["base"]] = own
    return found


def cost(run: dict[str, list[float]], axis: str) -> np.ndarray:
    """Return what a run had spent at each of its evaluations."""
    if axis in SECONDS:
        sampling, refit = SECONDS[axis]
        steps, drawn, trained = (np.array(run[name], float) for name in ("steps", "responses", "live_rows"))
        tokens = 450.0 * 256.0 / (run["rows"][-1] / run["steps"][-1])  # of a response, where a step has 256 rows
        return (6.33 + 8.98 * refit) * steps + tokens * (78.3e-6 * sampling * drawn + 33.9e-6 * trained)
    if axis == "summed_rates":
        done, warm = np.array(run["updates"], float), run["warm"][0]
        each = [min(number / warm, 1.0) if warm else 1.0 for number in range(1, int(done[-1]) + 1)]
        sums = np.concatenate([[0.0], np.cumsum(each)])
        return run["rate"][0] * sums[done.astype(int)]
    return np.array(run[axis], float)


def gains(task: str, method: str, axis: str) -> np.ndarray:
    """Return per base model the accuracy less GRPO's, averaged up to the cost that both reached."""
    values = []
    for raw in TASKS.get(task, (task,)):
        for key, mine in rows()[raw, method].items():
            other = rows()[raw, "grpo4"][key]
            x, y = cost(mine, axis), cost(other, axis)
            grid = np.linspace(0.0, min(x[-1], y[-1]), 8001)
            values.append((np.interp(grid, x, mine["accuracy"]) - np.interp(grid, y, other["accuracy"])).mean())
    return np.array(values)


def areas() -> list[str]:
    """Return every claim of a gain at an equal cost."""
    specs = {spec for entry in claims.claims() for spec in entry.get("values", ()) if "area at equal " in spec}
    return sorted({spec.rpartition(":")[0] for spec in specs})


@pytest.mark.parametrize("where", areas())
def test_a_gain_comes_out_of_the_raw_rows_by_another_way(where: str) -> None:
    task, table, method, measure = where.split("/")
    assert table == "four updates"
    axis = measure.removeprefix("area at equal ")
    own = gains(task, method, axis)
    mean, half = claims.value(f"{where}:interval").split(" ± ")
    assert float(mean) == pytest.approx(own.mean(), abs=0.0006)  # pages have three digits
    assert float(half) == pytest.approx(T[len(own)] * own.std(ddof=1) / len(own) ** 0.5, abs=0.0006)
    if axis == "gpu_seconds":
        ends = sorted(float(gains(task, method, name).mean()) for name in ("gpu_seconds_near", "gpu_seconds_far"))
        assert [float(end) for end in claims.value(f"{where}:ends").split(" to ")] == pytest.approx(ends, abs=0.0006)


def test_the_first_page_s_words_about_all_twelve_base_models_hold() -> None:
    assert (gains("sudoku, twelve bases", "balance", "updates") > 0).all()
    assert (gains("sudoku, twelve bases", "balance", "responses") < 0).all()  # "at equal answers it is behind"
    rates = {run["rate"][0] for run in rows()["sudoku6e", "balance"].values()}
    assert rates == {2 * run["rate"][0] for run in rows()["sudoku6e", "grpo4"].values()}  # "bear twice GRPO's"


def test_the_engines_paces_are_those_of_the_raw_table() -> None:
    with (ROOT / "recipes/results/gpu/engine_1024.csv").open(encoding="utf-8", newline="") as file:
        raw = {(row[0], row[1]): int(row[2]) / float(row[4]) for row in list(csv.reader(file))[1:]}
    for (engine, responses), pace in raw.items():
        assert claims.value(f"engine/{engine}/{responses}:pace") == f"{pace:,.0f}"
    assert claims.value("engine/graphs/1024:times") == "2.1" == f"{raw['graphs', '1024'] / raw['sync', '1024']:.1f}"
    assert max(raw[name, "256"] for name in ("few", "graphs")) < 1.05 * raw["sync", "256"]  # "and none at 256"


@pytest.mark.long
def test_the_first_page_s_numbers_of_tests_are_what_pytest_collects() -> None:
    def count(*words: str) -> int:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *words, "tests"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return sum("::" in line for line in listed.splitlines())

    text = " ".join(README.read_text(encoding="utf-8").split())
    floor, own = (int(text.split(words)[0].rsplit(None, 1)[-1].replace(",", ""))
                  for words in (" tests hold what", " of them run NeMo-RL's own code"))  # fmt: skip
    assert floor <= count() < 1.2 * floor
    assert own == pytest.approx(count("-m", "nemo_rl"), rel=0.1)


def test_a_claim_about_a_row_that_nobody_has_is_refused() -> None:
    with pytest.raises(UserError, match="no such row"):
        claims.value("sudoku/four updates/magic/accuracy:mean")
    with pytest.raises(UserError, match="no such row"):
        claims.value("engine/magic/64:pace")
