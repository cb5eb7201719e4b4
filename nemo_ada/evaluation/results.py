"""From counts per problem to avg@k and pass@k, per benchmark, over all prompts, and by difficulty."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.errors import UserError
from nemo_ada.evaluation.statistics import BoolArray, FloatArray, IntArray, estimate, paired_test, pass_at_k
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
    """Counts over the P problems of a benchmark. rejected: problems that cannot be used.

    failed: responses without a label, which count nowhere. timed_out: answers that hit the verifier's limits, which
    count as wrong.
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

    @classmethod
    def of(cls, name: str, records: Sequence[Mapping[str, Any]], rejected: int) -> BenchmarkResult:
        """From the lines of problems.jsonl."""
        columns: dict[str, Any] = {
            f"{key}_P": np.array([record.get(key, 0) for record in records], np.int64) for key in COUNTS
        }
        columns["majority_P"] = np.array([record.get("majority", math.nan) for record in records], np.float64)
        groups = tuple(record.get("columns", {}) for record in records)
        return cls(name, tuple(record["id"] for record in records), rejected=rejected, columns=groups, **columns)

    def only(self, keep_P: BoolArray) -> BenchmarkResult:
        """The same for some of the problems."""
        names = [f"{key}_P" for key in (*COUNTS, "majority")]
        parts: dict[str, Any] = {name: getattr(self, name)[keep_P] for name in names}
        ids = tuple(itertools.compress(self.ids, keep_P.tolist()))
        return BenchmarkResult(self.name, ids, rejected=0, **parts)

    def groups(self, k: int) -> dict[str, dict[str, Any]]:
        """column -> value -> summary, for columns with 2 to MAX_GROUPS values. Problems without it are not there."""
        found: dict[str, dict[str, Any]] = {}
        for column in dict.fromkeys(name for own in self.columns for name in own):
            values = [own.get(column) for own in self.columns]
            distinct = sorted({value for value in values if value is not None}, key=_by_number)
            if 2 <= len(distinct) <= MAX_GROUPS:
                found[column] = {
                    value: _summary([self.only(np.array([own == value for own in values]))], k) for value in distinct
                }
        return found

    @property
    def rate_P(self) -> FloatArray:
        """Share of correct responses per problem, nan without a judged response."""
        return np.where(self.responses_P > 0, self.correct_P / np.maximum(self.responses_P, 1), np.nan)

    def at(self, k: int) -> FloatArray:
        """pass@k per problem."""
        return pass_at_k(self.responses_P, self.correct_P, k)


def _by_number(value: str) -> tuple[str, int, str]:
    """Sorts "Level 2" before "Level 10"."""
    digits = "".join(filter(str.isdigit, value))[:9]
    return value.rstrip("0123456789"), int(digits) if digits.isascii() and digits else 0, value


def ladder(k: int) -> list[int]:
    """The k for which pass@k is reported: powers of two below k, and k."""
    return sorted({2**i for i in range(1, k.bit_length()) if 2**i <= k} | {k})


def results(benchmarks: Sequence[BenchmarkResult], k: int) -> dict[str, Any]:
    """The content of results.json. `overall` is weighted by prompts."""
    summaries = {own.name: _summary([own], k) | {"groups": own.groups(k)} for own in benchmarks}
    return {"benchmarks": summaries, "overall": _summary(benchmarks, k)}


def _summary(benchmarks: Sequence[BenchmarkResult], k: int) -> dict[str, Any]:
    stratum_P = np.repeat(np.arange(len(benchmarks)), [len(b.ids) for b in benchmarks])
    drawn = sum(int((b.responses_P + b.failed_P).sum()) for b in benchmarks)
    rate_P = np.concatenate([b.rate_P for b in benchmarks])
    summary: dict[str, Any] = {
        "prompts": len(rate_P),
        f"avg@{k}": asdict(estimate(rate_P, stratum_P)),
    }
    for rung in ladder(k) if k > 1 else []:
        summary[f"pass@{rung}"] = asdict(estimate(np.concatenate([b.at(rung) for b in benchmarks]), stratum_P))
    if k > 1:
        summary[f"maj@{k}"] = asdict(estimate(np.concatenate([b.majority_P for b in benchmarks]), stratum_P))
    summary |= {
        "by_verdict": _by_verdict(benchmarks),
        "mean_tokens": sum(int(b.tokens_P.sum()) for b in benchmarks) / drawn,
        "finished": sum(int(b.finished_P.sum()) for b in benchmarks) / drawn,
        "unjudged": sum(int(b.failed_P.sum()) for b in benchmarks),
        "timed_out": sum(int(b.timed_out_P.sum()) for b in benchmarks),
        "rejected_problems": sum(b.rejected for b in benchmarks),
    }
    return summary


def _by_verdict(benchmarks: Sequence[BenchmarkResult]) -> dict[str, dict[str, float | None]]:
    """Length and truncation of right and of wrong responses. None where there is no such response."""

    def total(name: str) -> int:
        return sum(int(getattr(own, name).sum()) for own in benchmarks)

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
    """A complete evaluation, read from its folder."""

    folder: Path
    k: int
    settings: Mapping[str, Any]
    benchmarks: Mapping[str, BenchmarkResult]

    @classmethod
    def read(cls, folder: Path) -> Evaluation:
        """Raises UserError for a folder without a complete evaluation."""
        try:
            content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
            benchmarks = {
                name: BenchmarkResult.of(name, _lines(folder / name / "problems.jsonl"), summary["rejected_problems"])
                for name, summary in content["benchmarks"].items()
            }
            return cls(folder, content["settings"]["k"], content["settings"], benchmarks)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as problem:
            why = f"no {problem}" if isinstance(problem, KeyError) else problem
            raise UserError(
                f"{folder} holds no complete evaluation ({why}); make one with nemo-ada eval MODEL --out {folder}"
            ) from None


def _lines(path: Path) -> list[dict[str, Any]]:
    return [record for _, record in records(path)]


def compare(first: Evaluation, second: Evaluation, base: Evaluation | None = None) -> dict[str, dict[str, Any]]:
    """avg@k of `second` minus `first`, over the problems that both have.

    Rows: per benchmark, and `overall` (weighted by prompts). With the evaluation of a base model, also per bucket of
    its pass rate. The base must be a third evaluation: buckets by a model's own luck regress to the mean. Raises
    UserError where no benchmark has two problems in common, and where the base is one of the two.
    """
    if base is not None and _draws(base) in (_draws(first), _draws(second)):
        raise UserError(
            f"--base={base.folder} has the same responses as one of the two evaluations, so its buckets would regress "
            "to the mean; evaluate the base model again with another --seed"
        )
    rows: dict[str, dict[str, Any]] = {}
    pairs: list[FloatArray] = []
    for name in (name for name in first.benchmarks if name in second.benchmarks):
        rate_MP, left_out = _pair(name, first, second, base)
        if rate_MP.shape[1] >= 2:
            pairs.append(rate_MP)
            rows[name] = _row(rate_MP, np.zeros(rate_MP.shape[1], np.int64)) | {"left_out": left_out}
    if not pairs:
        raise UserError(
            f"{first.folder} ({', '.join(first.benchmarks)}) and {second.folder} ({', '.join(second.benchmarks)}) have "
            "no benchmark with two problems in common"
        )
    rate_MP = np.concatenate(pairs, axis=1)
    stratum_P = np.repeat(np.arange(len(pairs)), [pair.shape[1] for pair in pairs])
    rows["overall"] = _row(rate_MP, stratum_P) | {"left_out": sum(row["left_out"] for row in rows.values())}
    if base is not None:
        bucket_P, names = bucket_of(rate_MP[2])
        for number, name in enumerate(names):
            own = bucket_P == number
            if own.sum() >= 2:
                rows[name] = _row(rate_MP[:, own], stratum_P[own])
    return rows


def setting_differences(first: Evaluation, second: Evaluation) -> list[str]:
    """Settings of the two evaluations that differ, except model and seed. A fair comparison has none."""
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


def _pair(name: str, first: Evaluation, second: Evaluation, base: Evaluation | None) -> tuple[FloatArray, int]:
    """Pass rates of the models M (two, and the base if there is one) on their common problems P; how many others."""
    rates = [
        dict(zip(result.ids, result.rate_P.tolist(), strict=True))
        for evaluation in (first, second, *([] if base is None else [base]))
        if (result := evaluation.benchmarks.get(name)) is not None
    ]
    if base is not None and len(rates) < 3:
        raise UserError(f"--base={base.folder} has no benchmark {name}; evaluate the base model on it as well")
    ids = [i for i in rates[0] if all(i in other and not math.isnan(other[i]) for other in rates)]
    rate_MP = np.array([[own[i] for i in ids] for own in rates], np.float64)
    return rate_MP, len({*rates[0], *rates[1]}) - len(ids)


def _row(rate_MP: FloatArray, stratum_P: IntArray) -> dict[str, Any]:
    first_P, second_P = rate_MP[:2]
    test = paired_test(first_P, second_P, stratum_P)
    return {"first": float(first_P.mean()), "second": float(second_P.mean()), **asdict(test)}


def bucket_of(rate_P: FloatArray) -> tuple[IntArray, list[str]]:
    """Bucket of each base pass rate, and the buckets' names: 0, four quarters without the ends, 1."""
    quarters = np.searchsorted(BUCKET_EDGES[1:-1], rate_P, side="left") + 1
    last = len(BUCKET_EDGES)
    bucket_P = np.where(rate_P <= 0.0, 0, np.where(rate_P >= 1.0, last, quarters)).astype(np.int64)
    names = [f"base in ({low:g}, {high:g}{')' if high == 1 else ']'}" for low, high in itertools.pairwise(BUCKET_EDGES)]
    return bucket_P, ["base = 0", *names, "base = 1"]
