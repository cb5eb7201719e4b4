"""The numbers of README, choosing.md and their sources: `claims.yaml` says where each comes from, and this computes it.

python recipes/benchmarks/claims.py          # what each claim computes to, and where a page says something else

A claim is a phrase of a page. `{}` in it stands for a number that is computed: from recipes/results/leaderboard.csv
(`task/table/method/measure:form`), from recipes/results/gpu/engine_1024.csv (`engine/NAME/RESPONSES:form`), or from the
list of mutants (`mutants:count`). Without `{}` its numbers must stand in the file that `from` names.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from leaderboard_page import Effect
from measure import measure

from nemo_ada.errors import UserError
from nemo_ada.run.files import text_of
from nemo_ada.run.yaml_file import read_yaml

ROOT = Path(__file__).resolve().parents[2]
CLAIMS, TABLE = ROOT / "recipes/results/claims.yaml", ROOT / "recipes/results/leaderboard.csv"
ENGINES, MUTANTS = ROOT / "recipes/results/gpu/engine_1024.csv", ROOT / "tests/mutation"
FORMS = ("mean", "size", "size_interval", "interval", "ends", "interval_ends", "count", "points", "of_grpo")
"""`ends` are those of a gain at equal GPU seconds, `count` is a whole number, `points` are percent. `of_grpo` divides
by what GRPO has on the first six base models, because every run of GRPO draws as many answers per step."""
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d[\d,]*)?\.?\d+(?![\w])")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
NOT_CLAIMS = re.compile(
    r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|\(#[^)]*\)"  # code, addresses
    r"|Python 3\.\d+ to 3\.\d+|arXiv \d{4}\.\d+|v0\.\d\.0|Apache-2\.0"  # versions
    r"|[A-Za-z]+\d?(?:\.\d+)?-[\w.-]*\d\w*|H100|H200|A100"  # models and cards
)


@cache
def effects() -> Mapping[tuple[str, str, str], Mapping[str, tuple[Effect, int]]]:
    """Return task, table, method -> measure -> effect and number of seeds."""
    found: dict[tuple[str, str, str], dict[str, tuple[Effect, int]]] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            mean, half, p = (float(row[name]) if row[name] else math.nan for name in ("mean", "half", "p"))
            key = (row["task"], row["table"], row["method"])
            found.setdefault(key, {})[row["measure"]] = (Effect(mean, half, p), int(row["seeds"]))
    return found


def engine_pace(name: str, responses: str) -> float:
    """Return the tokens per second of an engine with so many responses at once, on the H200."""
    for row in csv.DictReader(text_of(ENGINES).splitlines()):
        if (row["engine"], row["responses at once"]) == (name, responses):
            return int(row["tokens"]) / float(row["seconds"])
    raise UserError(f"claim engine/{name}/{responses}: {ENGINES.name} has no such row")


def value(spec: str) -> str:
    """Return the number of a claim (above). Raises UserError where there is none."""
    where, _, form = spec.rpartition(":")
    if where == "mutants":
        return str(sum(len(json.loads(text_of(file))) for file in MUTANTS.glob("named*.json")))
    if where.startswith("engine/"):
        name, responses = where.split("/")[1:]
        pace = engine_pace(name, responses)
        return f"{pace:,.0f}" if form == "pace" else f"{pace / engine_pace('sync', responses):.1f}"
    task, table, method, measure = where.split("/", 3)
    if form not in FORMS:
        raise UserError(f"claim {spec}: no such form; use {', '.join(FORMS)}")
    try:
        found = effects()[task, table, method][measure][0]
    except KeyError:
        raise UserError(f"claim {spec}: {TABLE.name} has no such row") from None
    if form == "ends":
        low, high = sorted(effects()[task, table, method][f"{measure}_{end}"][0].mean for end in ("near", "far"))
        return " to ".join(f"{'+' if end >= 0 else '-'}{_three(abs(end))}" for end in (low, high))
    if form == "interval_ends":
        return f"{value(f'{where}:interval')} ({value(f'{where}:ends')})"
    if form == "count":
        return f"{found.mean:.0f}"
    if form == "points":
        return f"{100 * found.mean:.1f}"
    if form == "of_grpo":
        return f"{found.mean / effects()['sudoku6', table, 'grpo4'][measure][0].mean:.1f}"
    if form.startswith("size"):
        return _three(abs(found.mean)) + ("" if form == "size" else f" ± {_three(found.half)}")
    sign = "+" if found.mean >= 0 else "-"
    return f"{sign}{_three(abs(found.mean))}" + ("" if form == "mean" else f" ± {_three(found.half)}")


def _three(number: float) -> str:
    return f"{number:.3f}".removeprefix("0")


def claims() -> list[dict[str, Any]]:
    """Return the entries of claims.yaml, each with the phrase that its page must have as `phrase`."""
    return [entry | {"phrase": str(entry["says"]).format(*map(value, entry.get("values", ())))}
            for entry in read_yaml(CLAIMS, "the claims")["claims"]]  # fmt: skip


def problems(page: str, text: str, entries: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what a page says without a source, or says otherwise than its source.

    Args:
        page: Path of the page, from the top of the checkout.
        text: Its text.
        entries: All claims, from `claims`.
    """
    rest = " ".join(NOT_CLAIMS.sub(" ", FENCE.sub(" ", text)).split())
    for entry in entries:
        if page not in entry["pages"]:
            continue
        phrase = " ".join(NOT_CLAIMS.sub(" ", entry["phrase"]).split())
        if phrase not in rest:
            yield f"{page} does not say: {entry['phrase']}"
        rest = rest.replace(phrase, " ")
        if "from" in entry:
            source = text_of(ROOT / entry["from"])
            absent = [number for number in NUMBER.findall(phrase) if number.strip("+") not in source]
            if absent:
                yield f"{page}: {entry['from']} does not have {', '.join(absent)} of: {entry['phrase']}"
    for found in NUMBER.finditer(rest):
        yield f"{page}: no source for {found[0]} in: ... {rest[max(found.start() - 60, 0) : found.end() + 40]} ..."


def main() -> int:
    """Print what is wrong."""
    entries = claims()
    found = [line for page in sorted({page for entry in entries for page in entry["pages"]})
             for line in problems(page, text_of(ROOT / page), entries)]  # fmt: skip
    print("\n".join([*(f"{entry['pages'][0]}: {entry['phrase']}" for entry in entries), "", *found]))
    return 1 if found else 0


if __name__ == "__main__":
    measure(main)
