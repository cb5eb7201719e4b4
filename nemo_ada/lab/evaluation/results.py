"""Compute avg@k and pass@k from counts per problem: per benchmark, over all prompts, and by difficulty."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.core.arrays import BoolArray, FloatArray, IntArray
from nemo_ada.errors import UserError
from nemo_ada.lab.evaluation.statistics import estimate, paired_test, pass_at_k
from nemo_ada.run.files import json_of
from nemo_ada.run.folder import changed_keys, flatten
from nemo_ada.run.json_lines import records

MAX_GROUPS = 30
BUCKET_EDGES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Difficulty by the base model's pass rate: 0, (0, .25], (.25, .5], (.5, .75], (.75, 1), 1."""
COUNTS = (
    "responses", "correct", "failed", "timed_out", "tokens", "finished",
    "right_tokens", "right_finished", "wrong_tokens", "wrong_finished",
)  # fmt: skip
"""Per problem: responses with a label, ..., and tokens and ended responses by verdict."""
EXPECTED_TO_DIFFER = ("model", "tokenizer", "seed", "chunk", "nemo_ada")


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkResult:
    """Counts over the P problems of a benchmark.

    Attributes:
        name: The name of the benchmark.
        ids: The ids of the problems.
        responses_P: The number of responses with a label.
        correct_P: The number of right responses.
        failed_P: The number of responses without a label. They count nowhere.
        timed_out_P: The number of answers that hit the verifier's limits. They count as wrong.
        tokens_P: The tokens of all responses.
        finished_P: The number of responses that ended by themselves.
        right_tokens_P: The tokens of right responses.
        right_finished_P: The number of right responses that ended by themselves.
        wrong_tokens_P: The tokens of wrong responses.
        wrong_finished_P: The number of wrong responses that ended by themselves.
        majority_P: The chance that the answer of most responses is right.
        rejected: The number of problems that cannot be used.
        columns: Per problem its values in the columns of the groups.
        cluster_P: The number of each problem's cluster, None where the problems are independent.
    """

    name: str
    ids: tuple[str, ...]
    responses_P: IntArray
    correct_P: IntArray
    failed_P: IntArray
    timed_out_P: IntArray
    tokens_P: IntArray
    finished_P: IntArray
    right_tokens_P: IntArray
    right_finished_P: IntArray
    wrong_tokens_P: IntArray
    wrong_finished_P: IntArray
    majority_P: FloatArray
    rejected: int
    columns: tuple[Mapping[str, str], ...] = ()
    cluster_P: IntArray | None = None

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
            UserError: A problem has no such column.
        """
        columns: dict[str, Any] = {
            f"{key}_P": np.array([record.get(key, 0) for record in records], np.int64) for key in COUNTS
        }
        columns["majority_P"] = np.array([record.get("majority", math.nan) for record in records], np.float64)
        groups = tuple(record.get("columns", {}) for record in records)
        columns["cluster_P"] = _clusters(name, records, column)
        return cls(name, tuple(record["id"] for record in records), rejected=rejected, columns=groups, **columns)

    def only(self, keep_P: BoolArray) -> BenchmarkResult:
        """Return the counts of some of the problems."""
        names = [f"{key}_P" for key in (*COUNTS, "majority")]
        parts: dict[str, Any] = {name: getattr(self, name)[keep_P] for name in names}
        ids = tuple(itertools.compress(self.ids, keep_P.tolist()))
        clusters = None if self.cluster_P is None else self.cluster_P[keep_P]
        return BenchmarkResult(self.name, ids, rejected=0, cluster_P=clusters, **parts)

    def groups(self, k: int) -> dict[str, dict[str, Any]]:
        """Return a summary per column and value, for columns with 2 to MAX_GROUPS values."""
        groups: dict[str, dict[str, Any]] = {}
        for column in dict.fromkeys(name for of_problem in self.columns for name in of_problem):
            values = [of_problem.get(column) for of_problem in self.columns]
            distinct = sorted({value for value in values if value is not None}, key=_by_number)
            if 2 <= len(distinct) <= MAX_GROUPS:
                groups[column] = {
                    value: _summary([self.only(np.array([other == value for other in values]))], k)
                    for value in distinct
                }
        return groups

    @property
    def rate_P(self) -> FloatArray:
        """The share of correct responses per problem, nan without a judged response."""
        return np.where(self.responses_P > 0, self.correct_P / np.maximum(self.responses_P, 1), np.nan)

    def at(self, k: int) -> FloatArray:
        """Return pass@k per problem."""
        return pass_at_k(self.responses_P, self.correct_P, k)


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
    summaries = {one.name: _summary([one], k) | {"groups": one.groups(k)} for one in benchmarks}
    return {"benchmarks": summaries, "overall": _summary(benchmarks, k)}


def _summary(benchmarks: Sequence[BenchmarkResult], k: int) -> dict[str, Any]:
    stratum_P = np.repeat(np.arange(len(benchmarks)), [len(b.ids) for b in benchmarks])
    drawn = sum(int((b.responses_P + b.failed_P).sum()) for b in benchmarks)
    rate_P = np.concatenate([b.rate_P for b in benchmarks])
    cluster_P = joined_clusters([(len(b.ids), b.cluster_P) for b in benchmarks])
    summary: dict[str, Any] = {
        "prompts": len(rate_P),
        **({} if cluster_P is None else {"clusters": len(np.unique(cluster_P))}),
        f"avg@{k}": _mean(rate_P, stratum_P, cluster_P),
    }
    for rung in ladder(k) if k > 1 else []:
        summary[f"pass@{rung}"] = _mean(np.concatenate([b.at(rung) for b in benchmarks]), stratum_P, cluster_P)
    if k > 1:
        summary[f"maj@{k}"] = _mean(np.concatenate([b.majority_P for b in benchmarks]), stratum_P, cluster_P)
    summary |= {
        "by_verdict": _by_verdict(benchmarks),
        "mean_tokens": sum(int(b.tokens_P.sum()) for b in benchmarks) / drawn,
        "finished": sum(int(b.finished_P.sum()) for b in benchmarks) / drawn,
        "unjudged": sum(int(b.failed_P.sum()) for b in benchmarks),
        "timed_out": sum(int(b.timed_out_P.sum()) for b in benchmarks),
        "rejected_problems": sum(b.rejected for b in benchmarks),
    }
    return summary


def joined_clusters(parts: Sequence[tuple[int, IntArray | None]]) -> IntArray | None:
    """Return numbers of clusters over several benchmarks. A problem of one without clusters is a cluster of its own.

    Args:
        parts: Per benchmark the number of its problems, and their clusters.
    """
    if all(clusters is None for _, clusters in parts):
        return None
    joined, first = [], 0
    for count, clusters in parts:
        joined.append(first + (np.arange(count) if clusters is None else clusters))
        first = int(joined[-1].max(initial=first)) + 1
    return np.concatenate(joined)


def _mean(value_P: FloatArray, stratum_P: IntArray, cluster_P: IntArray | None) -> dict[str, float | None]:
    """Return a mean over problems with its interval. JSON has no NaN, so a mean of no problem is None."""
    one_value = cluster_P is not None and len(np.unique(cluster_P[~np.isnan(value_P)])) < 2
    found = estimate(value_P, stratum_P, None if one_value else cluster_P)
    prompts = int((~np.isnan(value_P)).sum())
    mean, low, high = (value if prompts else None for value in (found.value, found.low, found.high))
    return {"mean": mean, "low": low, "high": high, "prompts": prompts}


def _by_verdict(benchmarks: Sequence[BenchmarkResult]) -> dict[str, dict[str, float | None]]:
    """Return length and truncation of right and of wrong responses, None where there is no such response."""

    def total(name: str) -> int:
        return sum(int(getattr(benchmark, name).sum()) for benchmark in benchmarks)

    right = total("correct_P")
    numbers = {"right": right, "wrong": total("responses_P") - right}
    return {
        verdict: {
            "responses": number,
            "mean_tokens": total(f"{verdict}_tokens_P") / number if number else None,
            "finished": total(f"{verdict}_finished_P") / number if number else None,
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
    pairs: list[FloatArray] = []
    clusters: list[tuple[int, IntArray | None]] = []
    for name in (name for name in first.benchmarks if name in second.benchmarks):
        rate_MP, cluster_P, left_out = _pair(name, first, second, base)
        if rate_MP.shape[1] >= 2:
            pairs.append(rate_MP)
            clusters.append((rate_MP.shape[1], cluster_P))
            rows[name] = _row(rate_MP, np.zeros(rate_MP.shape[1], np.int64), cluster_P) | {"left_out": left_out}
    if not pairs:
        raise UserError(
            f"{first.folder} ({', '.join(first.benchmarks)}) and {second.folder} ({', '.join(second.benchmarks)}) have "
            "no benchmark with two problems in common"
        )
    rate_MP = np.concatenate(pairs, axis=1)
    stratum_P = np.repeat(np.arange(len(pairs)), [pair.shape[1] for pair in pairs])
    all_P = joined_clusters(clusters)
    rows["overall"] = _row(rate_MP, stratum_P, all_P) | {"left_out": sum(row["left_out"] for row in rows.values())}
    if base is not None:
        bucket_P, names = bucket_of(rate_MP[2])
        for number, name in enumerate(names):
            inside_P = bucket_P == number
            if inside_P.sum() >= 2 and (all_P is None or len(np.unique(all_P[inside_P])) >= 2):
                rows[name] = _row(rate_MP[:, inside_P], stratum_P[inside_P], None if all_P is None else all_P[inside_P])
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


def _pair(
    name: str, first: Evaluation, second: Evaluation, base: Evaluation | None
) -> tuple[FloatArray, IntArray | None, int]:
    """Return the pass rates of the models M on their common problems P, their clusters, and how many others there are.

    M are the two models, and the base if there is one.
    """
    rates = [
        dict(zip(result.ids, result.rate_P.tolist(), strict=True))
        for evaluation in (first, second, *([] if base is None else [base]))
        if (result := evaluation.benchmarks.get(name)) is not None
    ]
    if base is not None and len(rates) < 3:
        raise UserError(f"--base={base.folder} has no benchmark {name}; evaluate the base model on it as well")
    ids = [i for i in rates[0] if all(i in other and not math.isnan(other[i]) for other in rates)]
    rate_MP = np.array([[rate_of[i] for i in ids] for rate_of in rates], np.float64)
    own = next((r for r in (first.benchmarks[name], second.benchmarks[name]) if r.cluster_P is not None), None)
    of = {} if own is None or own.cluster_P is None else dict(zip(own.ids, own.cluster_P.tolist(), strict=True))
    cluster_P = np.array([of[i] for i in ids], np.int64) if of else None
    return rate_MP, cluster_P, len({*rates[0], *rates[1]}) - len(ids)


def _row(rate_MP: FloatArray, stratum_P: IntArray, cluster_P: IntArray | None) -> dict[str, Any]:
    first_P, second_P = rate_MP[:2]
    test = paired_test(first_P, second_P, stratum_P, cluster_P)
    numbers = {} if cluster_P is None else {"clusters": len(np.unique(cluster_P))}
    return numbers | {"first": float(first_P.mean()), "second": float(second_P.mean()), **asdict(test)}


def bucket_of(rate_P: FloatArray) -> tuple[IntArray, list[str]]:
    """Return the bucket of each base pass rate, and the names of the buckets.

    The buckets are 0, four quarters without the ends, and 1.
    """
    quarters = np.searchsorted(BUCKET_EDGES[1:-1], rate_P, side="left") + 1
    last = len(BUCKET_EDGES)
    bucket_P = np.where(rate_P <= 0.0, 0, np.where(rate_P >= 1.0, last, quarters)).astype(np.int64)
    names = [f"base in ({low:g}, {high:g}{')' if high == 1 else ']'}" for low, high in itertools.pairwise(BUCKET_EDGES)]
    return bucket_P, ["base = 0", *names, "base = 1"]
