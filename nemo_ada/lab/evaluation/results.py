"""Compute avg@k and pass@k from counts per problem: per benchmark, over all prompts, and by difficulty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nemo_ada.core.arrays import IntArray
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import estimate, paired_test, pass_at_k
from nemo_ada.run.files import json_of
from nemo_ada.run.folder import changed_keys, flatten
from nemo_ada.run.json_lines import records

MAX_GROUPS = 30
BUCKETS = {
    "base = 0": 0.0, "base in (0, 0.25]": 0.25, "base in (0.25, 0.5]": 0.5, "base in (0.5, 0.75]": 0.75,
    "base in (0.75, 1)": math.nextafter(1.0, 0.0), "base = 1": 1.0,
}  # fmt: skip
"""Difficulty by the base model's pass rate: the name of a bucket -> its largest pass rate."""
COUNTS = (
    "responses", "correct", "failed", "timed_out", "tokens", "finished",
    "right_tokens", "right_finished", "wrong_tokens", "wrong_finished",
)  # fmt: skip
"""Per problem: responses with a label, ..., and tokens and ended responses by verdict."""
EXPECTED_TO_DIFFER = ("model", "tokenizer", "seed", "chunk", "nemo_ada")


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkResult:
    """Counts over the problems of a benchmark.

    Attributes:
        name: The name of the benchmark.
        table: A row per problem, by its id. The columns are COUNTS, `rate` (the share of right responses, nan without
            a judged one), `majority` (the chance that the answer of most responses is right) and, where the problems
            are not independent, `cluster` (the number of each problem's cluster).
        rejected: The number of problems that cannot be used.
        columns: Per problem its values in the columns of the groups.
    """

    name: str
    table: pd.DataFrame
    rejected: int
    columns: tuple[Mapping[str, str], ...] = ()

    @classmethod
    def of(
        cls, name: str, records: Sequence[Mapping[str, Any]], rejected: int, column: str | None = None
    ) -> BenchmarkResult:
        """Read the counts from the lines of problems.jsonl.

        Args:
            name: The name of the benchmark.
            records: The lines.
            rejected: The number of problems that cannot be used.
            column: The column whose values are the clusters, None for those that the evaluation has.

        Raises:
            UserError: A problem has no such column, or there are two lines for a problem.
        """
        counts = {key: np.array([record.get(key, 0) for record in records], np.int64) for key in COUNTS}
        table = pd.DataFrame(counts, index=[str(record["id"]) for record in records])
        if table.index.has_duplicates:
            raise UserError(
                f"problems.jsonl of {name} has the problem {table.index[table.index.duplicated()][0]} twice"
            )
        table["rate"] = np.where(table["responses"] > 0, table["correct"] / table["responses"].clip(lower=1), np.nan)
        table["majority"] = np.array([record.get("majority", math.nan) for record in records], np.float64)
        clusters = _clusters(name, records, column)
        if clusters is not None:
            table["cluster"] = clusters
        return cls(name, table, rejected, tuple(record.get("columns", {}) for record in records))

    def groups(self, k: int) -> dict[str, dict[str, Any]]:
        """Return a summary per column and value, for columns with 2 to MAX_GROUPS values."""
        groups: dict[str, dict[str, Any]] = {}
        for column in dict.fromkeys(name for of_problem in self.columns for name in of_problem):
            values = [of_problem.get(column) for of_problem in self.columns]
            distinct = sorted({value for value in values if value is not None}, key=_by_number)
            if 2 <= len(distinct) <= MAX_GROUPS:
                groups[column] = {
                    value: _summary(_together([self.table[[other == value for other in values]]]), 0, k)
                    for value in distinct
                }
        return groups


def _clusters(name: str, records: Sequence[Mapping[str, Any]], column: str | None) -> IntArray | None:
    """Return the number of each problem's cluster, None where there are none."""
    if column is None:
        values = [record.get("cluster") for record in records]
    else:
        values = [record.get("columns", {}).get(column) for record in records]
        if None in values:
            has = ", ".join(dict.fromkeys(key for record in records for key in record.get("columns", {})))
            raise UserError(f"--cluster={column}: problems.jsonl of {name} has no such column; it has {has or 'none'}")
    if None in values or not values:
        return None
    return np.unique(np.array(values, str), return_inverse=True)[1].astype(np.int64)


def _by_number(value: str) -> tuple[str, int, str]:
    """Return a key that sorts "Level 2" before "Level 10"."""
    digits = "".join(filter(str.isdigit, value))[:9]
    return value.rstrip("0123456789"), int(digits) if digits.isascii() and digits else 0, value


def ladder(k: int) -> list[int]:
    """Return the k for which pass@k is reported: powers of two below k, and k."""
    return sorted({2**i for i in range(1, k.bit_length()) if 2**i <= k} | {k})


def results(benchmarks: Sequence[BenchmarkResult], k: int) -> dict[str, Any]:
    """Return the content of results.json. `overall` is weighted by prompts."""
    summaries = {
        one.name: _summary(_together([one.table]), one.rejected, k) | {"groups": one.groups(k)} for one in benchmarks
    }
    whole = _together([one.table for one in benchmarks])
    return {"benchmarks": summaries, "overall": _summary(whole, sum(one.rejected for one in benchmarks), k)}


def _together(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the problems of several benchmarks, with the number of each problem's benchmark in `stratum`.

    Numbers of clusters are made different. A problem of a benchmark without clusters is a cluster of its own.
    """
    parts, first = [], 0
    for number, table in enumerate(tables):
        part = table.assign(stratum=number)
        if any("cluster" in one for one in tables):
            part["cluster"] = first + (table["cluster"] if "cluster" in table else np.arange(len(table)))
            first = int(part["cluster"].max()) + 1 if len(part) else first
        parts.append(part)
    return pd.concat(parts)


def _clusters_of(table: pd.DataFrame) -> IntArray | None:
    return table["cluster"].to_numpy() if "cluster" in table else None


def _summary(table: pd.DataFrame, rejected: int, k: int) -> dict[str, Any]:
    """Return a row of results.json for these problems."""
    total = {name: int(table[name].sum()) for name in COUNTS}
    drawn = total["responses"] + total["failed"]
    summary: dict[str, Any] = {
        "prompts": len(table),
        **_number_of_clusters(table),
        f"avg@{k}": _mean(table, table["rate"]),
    }
    for rung in ladder(k) if k > 1 else []:
        summary[f"pass@{rung}"] = _mean(table, pass_at_k(table["responses"], table["correct"], rung))
    if k > 1:
        summary[f"maj@{k}"] = _mean(table, table["majority"])
    return summary | {
        "by_verdict": _by_verdict(total),
        "mean_tokens": total["tokens"] / drawn,
        "finished": total["finished"] / drawn,
        "unjudged": total["failed"],
        "timed_out": total["timed_out"],
        "rejected_problems": rejected,
    }


def _number_of_clusters(table: pd.DataFrame) -> dict[str, int]:
    return {"clusters": int(table["cluster"].nunique())} if "cluster" in table else {}


def _mean(table: pd.DataFrame, values: Any) -> dict[str, float | None]:
    """Return a mean over problems with its interval. JSON has no NaN, so a mean of no problem is None."""
    value_P, cluster_P = np.asarray(values, np.float64), _clusters_of(table)
    there_P = ~np.isnan(value_P)
    one_value = cluster_P is not None and len(np.unique(cluster_P[there_P])) < 2
    found = estimate(value_P, table["stratum"].to_numpy(), None if one_value else cluster_P)
    mean, low, high = (value if there_P.any() else None for value in (found.value, found.low, found.high))
    return {"mean": mean, "low": low, "high": high, "prompts": int(there_P.sum())}


def _by_verdict(total: Mapping[str, int]) -> dict[str, dict[str, float | None]]:
    """Return length and truncation of right and of wrong responses, None where there is no such response."""
    numbers = {"right": total["correct"], "wrong": total["responses"] - total["correct"]}
    return {
        verdict: {
            "responses": number,
            "mean_tokens": total[f"{verdict}_tokens"] / number if number else None,
            "finished": total[f"{verdict}_finished"] / number if number else None,
        }
        for verdict, number in numbers.items()
    }


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
    def read(cls, folder: Path, cluster: str | None = None) -> Evaluation:
        """Read an evaluation. Raises UserError for a folder without a complete one.

        Args:
            folder: The folder.
            cluster: The column whose values are clusters, None for the evaluation's own.
        """
        try:
            content = json_of(folder / "results.json")
            benchmarks = {
                name: BenchmarkResult.of(
                    name, _lines(folder / name / "problems.jsonl"), summary["rejected_problems"], cluster
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


def _lines(path: Path) -> list[dict[str, Any]]:
    return [record for _, record in records(path)]


def compare(first: Evaluation, second: Evaluation, base: Evaluation | None = None) -> dict[str, dict[str, Any]]:
    """Compare avg@k of two evaluations, over the problems that both have.

    Args:
        first: The evaluation that is subtracted.
        second: The other evaluation.
        base: The evaluation of a base model. Its pass rates sort the problems into buckets. It must be a third
            evaluation, because buckets by a model's own luck regress to the mean.

    Returns:
        A row per benchmark, `overall` (weighted by prompts), and with `base` a row per bucket.

    Raises:
        UserError: No benchmark has two problems in common, or the base is one of the two evaluations.
    """
    if base is not None and _draws(base) in (_draws(first), _draws(second)):
        raise UserError(
            f"--base={base.folder} has the same responses as one of the two evaluations, so its buckets would regress "
            "to the mean; evaluate the base model again with another --seed"
        )
    rows: dict[str, dict[str, Any]] = {}
    pairs: list[pd.DataFrame] = []
    for name in (name for name in first.benchmarks if name in second.benchmarks):
        pair, left_out = _pair(name, first, second, base)
        if len(pair) >= 2:
            pairs.append(pair)
            rows[name] = _row(_together([pair])) | {"left_out": left_out}
    if not pairs:
        raise UserError(
            f"{first.folder} ({', '.join(first.benchmarks)}) and {second.folder} ({', '.join(second.benchmarks)}) have "
            "no benchmark with two problems in common"
        )
    whole = _together(pairs)
    rows["overall"] = _row(whole) | {"left_out": sum(row["left_out"] for row in rows.values())}
    if base is not None:
        for name, inside in whole.groupby(buckets(whole["base"]), observed=True):
            if len(inside) >= 2 and _number_of_clusters(inside).get("clusters", 2) >= 2:
                rows[name] = _row(inside)
    return rows


def setting_differences(first: Evaluation, second: Evaluation) -> list[str]:
    """Return the settings that differ, except model and seed. A fair comparison has none."""
    old, new = flatten(first.settings), flatten(second.settings)
    shared = {name for name in first.benchmarks if name in second.benchmarks}
    return [
        f"{key}: {old.get(key)!r} and {new.get(key)!r}"
        for key in changed_keys(old, new)
        if key.partition(".")[0] not in EXPECTED_TO_DIFFER
        and (not key.startswith("benchmarks.") or key.split(".")[1] in shared)
    ]


def _draws(evaluation: Evaluation) -> tuple[Any, Any]:
    return evaluation.settings["model"]["fingerprint"], evaluation.settings["seed"]


def _pair(name: str, first: Evaluation, second: Evaluation, base: Evaluation | None) -> tuple[pd.DataFrame, int]:
    """Return the pass rates of the models on their common problems, with their clusters, and how many others there are.

    The columns are `first`, `second`, with a base `base`, and where there are clusters `cluster`.
    """
    tables = {"first": first.benchmarks[name].table, "second": second.benchmarks[name].table}
    if base is not None:
        if name not in base.benchmarks:
            raise UserError(f"--base={base.folder} has no benchmark {name}; evaluate the base model on it as well")
        tables["base"] = base.benchmarks[name].table
    pair = pd.concat({model: table["rate"] for model, table in tables.items()}, axis=1, join="inner").dropna()
    clustered = next((one for one in (tables["first"], tables["second"]) if "cluster" in one), None)
    if clustered is not None:
        pair["cluster"] = clustered["cluster"]
    return pair, len(tables["first"].index.union(tables["second"].index)) - len(pair)


def _row(pair: pd.DataFrame) -> dict[str, Any]:
    first_P, second_P = pair["first"].to_numpy(), pair["second"].to_numpy()
    test = paired_test(first_P, second_P, pair["stratum"].to_numpy(), _clusters_of(pair))
    return _number_of_clusters(pair) | {
        "first": float(first_P.mean()),
        "second": float(second_P.mean()),
        **asdict(test),
    }


def buckets(rates: pd.Series) -> pd.Series:
    """Return the name of the bucket of each base pass rate."""
    return pd.cut(rates, [-1.0, *BUCKETS.values()], labels=list(BUCKETS))
