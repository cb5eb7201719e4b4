"""Compute avg@k and pass@k from counts per problem: per benchmark, over all prompts, and by difficulty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import estimate, paired_test, pass_at_k
from nemo_ada.run.files import json_of
from nemo_ada.run.folder import find_changed_keys, flatten
from nemo_ada.run.json_lines import read_records

MAX_GROUPS = 30
COUNTS = ("responses", "correct", "failed", "timed_out", "tokens", "finished")
"""Per problem: responses with a label, right ones, ones without a label, and so on."""
EXPECTED_TO_DIFFER = ("model", "tokenizer", "seed", "nemo_ada")


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkResult:
    """Counts over the problems of a benchmark.

    Attributes:
        name: The name of the benchmark.
        table: A row per problem, by its id. The columns are COUNTS, `rate` (the share of right responses, nan without
            a judged one) and `majority` (the chance that the answer of most responses is right).
        rejected: The number of problems that cannot be used.
        columns: Per problem its values in the columns of the groups.
    """

    name: str
    table: pd.DataFrame
    rejected: int
    columns: tuple[Mapping[str, str], ...] = ()

    @classmethod
    def of(cls, name: str, records: Sequence[Mapping[str, Any]], rejected: int) -> BenchmarkResult:
        """Read the counts from the lines of problems.jsonl. Raises UserError where there are two for a problem."""
        counts = {key: np.array([record.get(key, 0) for record in records], np.int64) for key in COUNTS}
        table = pd.DataFrame(counts, index=[str(record["id"]) for record in records])
        if table.index.has_duplicates:
            raise UserError(
                f"problems.jsonl of {name} has the problem {table.index[table.index.duplicated()][0]} twice"
            )
        table["rate"] = np.where(table["responses"] > 0, table["correct"] / table["responses"].clip(lower=1), np.nan)
        table["majority"] = np.array([record.get("majority", math.nan) for record in records], np.float64)
        return cls(name, table, rejected, tuple(record.get("columns", {}) for record in records))

    def groups(self, k: int) -> dict[str, dict[str, Any]]:
        """Return a summary per column and value, for columns with 2 to MAX_GROUPS values."""
        groups: dict[str, dict[str, Any]] = {}
        for column in dict.fromkeys(name for of_problem in self.columns for name in of_problem):
            values = [of_problem.get(column) for of_problem in self.columns]
            distinct = sorted({value for value in values if value is not None}, key=_sort_key)
            if 2 <= len(distinct) <= MAX_GROUPS:
                groups[column] = {
                    value: _summarise_table(_join_tables([self.table[[other == value for other in values]]]), 0, k)
                    for value in distinct
                }
        return groups


def _sort_key(value: str) -> tuple[str, int, str]:
    """Return a key that sorts "Level 2" before "Level 10"."""
    digits = "".join(filter(str.isdigit, value))[:9]
    return value.rstrip("0123456789"), int(digits) if digits.isascii() and digits else 0, value


def choose_ks(k: int) -> list[int]:
    """Return the k for which pass@k is reported: powers of two below k, and k."""
    return sorted({2**i for i in range(1, k.bit_length()) if 2**i <= k} | {k})


def summarise_results(benchmarks: Sequence[BenchmarkResult], k: int) -> dict[str, Any]:
    """Return the content of results.json. `overall` is weighted by prompts."""
    summaries = {
        one.name: _summarise_table(_join_tables([one.table]), one.rejected, k) | {"groups": one.groups(k)}
        for one in benchmarks
    }
    whole = _join_tables([one.table for one in benchmarks])
    return {"benchmarks": summaries, "overall": _summarise_table(whole, sum(one.rejected for one in benchmarks), k)}


def _join_tables(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the problems of several benchmarks, with the number of each problem's benchmark in `stratum`."""
    return pd.concat([table.assign(stratum=number) for number, table in enumerate(tables)])


def _summarise_table(table: pd.DataFrame, rejected: int, k: int) -> dict[str, Any]:
    """Return a row of results.json for these problems."""
    total = {name: int(table[name].sum()) for name in COUNTS}
    drawn = total["responses"] + total["failed"]
    summary: dict[str, Any] = {"prompts": len(table), f"avg@{k}": _estimate_mean(table, table["rate"])}
    for rung in choose_ks(k) if k > 1 else []:
        summary[f"pass@{rung}"] = _estimate_mean(table, pass_at_k(table["responses"], table["correct"], rung))
    if k > 1:
        summary[f"maj@{k}"] = _estimate_mean(table, table["majority"])
    return summary | {
        "mean_tokens": total["tokens"] / drawn,
        "finished": total["finished"] / drawn,
        "unjudged": total["failed"],
        "timed_out": total["timed_out"],
        "rejected_problems": rejected,
    }


def _estimate_mean(table: pd.DataFrame, values: Any) -> dict[str, float | None]:
    """Return a mean over problems with its interval. JSON has no NaN, so a mean of no problem is None."""
    value_P = np.asarray(values, np.float64)
    there = int((~np.isnan(value_P)).sum())
    found = estimate(value_P, table["stratum"].to_numpy())
    mean, low, high = (value if there else None for value in (found.value, found.low, found.high))
    return {"mean": mean, "low": low, "high": high, "prompts": there}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A complete evaluation, read from its folder.

    Attributes:
        folder: The folder.
        k: The number of responses per problem.
        settings: The settings that it was made with.
        benchmarks: The counts per benchmark.
    """

    folder: Path
    k: int
    settings: Mapping[str, Any]
    benchmarks: Mapping[str, BenchmarkResult]

    @classmethod
    def read(cls, folder: Path) -> Evaluation:
        """Read an evaluation. Raises UserError for a folder without a complete one."""
        try:
            content = json_of(folder / "results.json")
            benchmarks = {
                name: BenchmarkResult.of(
                    name,
                    [one for _, one in read_records(folder / name / "problems.jsonl")],
                    summary["rejected_problems"],
                )
                for name, summary in content["benchmarks"].items()
            }
            return cls(folder, content["settings"]["k"], content["settings"], benchmarks)
        except UserError:
            raise
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as problem:
            why = f"no {problem}" if isinstance(problem, KeyError) else problem
            raise UserError(
                f"{folder} holds no complete evaluation ({why}); make one with nemo-ada eval MODEL --out {folder}"
            ) from None


def compare_evaluations(first: Evaluation, second: Evaluation) -> dict[str, dict[str, Any]]:
    """Compare avg@k of two evaluations, over the problems that both have.

    Args:
        first: The evaluation that is subtracted.
        second: The other evaluation.

    Returns:
        A row per benchmark, and `overall` (weighted by prompts).

    Raises:
        UserError: No benchmark has two problems in common.
    """
    rows: dict[str, dict[str, Any]] = {}
    pairs: list[pd.DataFrame] = []
    for name in (name for name in first.benchmarks if name in second.benchmarks):
        rates = {side: one.benchmarks[name].table["rate"] for side, one in (("first", first), ("second", second))}
        pair = pd.concat(rates, axis=1, join="inner").dropna()
        if len(pair) >= 2:
            pairs.append(pair)
            left_out = len(rates["first"].index.union(rates["second"].index)) - len(pair)
            rows[name] = _compare_rates(_join_tables([pair])) | {"left_out": left_out}
    if not pairs:
        raise UserError(
            f"{first.folder} ({', '.join(first.benchmarks)}) and {second.folder} ({', '.join(second.benchmarks)}) have "
            "no benchmark with two problems in common"
        )
    rows["overall"] = _compare_rates(_join_tables(pairs)) | {"left_out": sum(row["left_out"] for row in rows.values())}
    return rows


def find_setting_differences(first: Evaluation, second: Evaluation) -> list[str]:
    """Return the settings that differ, except model and seed. A fair comparison has none."""
    old, new = flatten(first.settings), flatten(second.settings)
    shared = {name for name in first.benchmarks if name in second.benchmarks}
    return [
        f"{key}: {old.get(key)!r} and {new.get(key)!r}"
        for key in find_changed_keys(old, new)
        if key.partition(".")[0] not in EXPECTED_TO_DIFFER
        and (not key.startswith("benchmarks.") or key.split(".")[1] in shared)
    ]


def _compare_rates(pair: pd.DataFrame) -> dict[str, Any]:
    first_P, second_P = pair["first"].to_numpy(), pair["second"].to_numpy()
    test = paired_test(first_P, second_P, pair["stratum"].to_numpy())
    return {"first": float(first_P.mean()), "second": float(second_P.mean()), **asdict(test)}
