"""Evaluate a model on benchmarks with k responses per problem. All responses are kept.

    OUT/settings.json                 model, sampling, benchmarks
    OUT/<benchmark>/responses.jsonl   {id, line, index, seed, tokens, finished, reward, [cause], text}
    OUT/<benchmark>/problems.jsonl    {id, line, responses, correct, failed, timed_out, tokens, finished, ..., majority}
    OUT/<benchmark>/rejected.jsonl    problems that cannot be used, with the reason
    OUT/results.json                  estimates per benchmark and over all prompts; written last

The same command continues a killed evaluation. All benchmarks are one stream of requests to one engine.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from nemo_ada import __version__
from nemo_ada.config.parsing import Size
from nemo_ada.core.schema import STRICT
from nemo_ada.errors import UserError
from nemo_ada.lab.data.journal import Journal, claimed, dump
from nemo_ada.lab.data.judging import RewardJudge
from nemo_ada.lab.data.measure import Judged, Measurement, Question
from nemo_ada.lab.data.problem import Problem
from nemo_ada.lab.data.providers import ResponseProvider
from nemo_ada.lab.data.source import Source, pinned
from nemo_ada.lab.data.stages import Record, Watch, distinct_stage, kept, length_stage, read_stage, run_stages, silent
from nemo_ada.lab.evaluation.benchmark import Benchmark
from nemo_ada.lab.evaluation.majority import majority, vote
from nemo_ada.lab.evaluation.results import COUNTS, BenchmarkResult, results
from nemo_ada.run.files import json_of, write_atomically
from nemo_ada.tasks.prompting import PromptEncoder
from nemo_ada.verify.judge import Judge

log = logging.getLogger(__name__)

EncoderOf = Callable[[Benchmark], PromptEncoder]


@dataclass(frozen=True)
class SamplingSpec:
    """How responses are drawn and written."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
    k: Size
    """Responses per problem."""
    seed: int
    """Seed of the responses."""
    sampling: dict[str, Any]
    """Temperature and the like, for the record."""
    chunk: Size = 16
    """Problems between two commits of the journal."""
    max_prompts: Size | None = None
    """Only the first N problems of each benchmark."""


def evaluate(
    benchmarks: Sequence[Benchmark],
    encoder_of: EncoderOf,
    provider: ResponseProvider,
    drawing: SamplingSpec,
    out: Path,
    watch: Watch = silent,
) -> dict[str, Any]:
    """Evaluate, or continue an evaluation. Where it is complete, only its results are read.

    The provider starts with its first request and is closed at the end.

    Args:
        benchmarks: The benchmarks.
        encoder_of: Gives the encoder that makes prompts of a benchmark's problems.
        provider: The model.
        drawing: How responses are drawn and written.
        out: The folder of the evaluation.
        watch: Called with a benchmark, the number of its finished problems, and the number of its problems.

    Returns:
        The content of results.json.

    Raises:
        UserError: `out` holds another evaluation, or a benchmark has no problem.
    """
    sources = [benchmark.opened() for benchmark in benchmarks]
    settings = _settings(benchmarks, encoder_of(benchmarks[0]).name, provider, sources, drawing)
    with claimed(out, settings, inner=_benchmarks, results=("results.json", "*/responses.jsonl")):
        path = out / "results.json"
        if path.exists():
            try:
                before: dict[str, Any] = json_of(path)
            except ValueError as problem:
                raise UserError(f"{path} is damaged ({problem}); remove it and repeat the command") from None
            return before
        at_commits = pinned(out, {one.name: source for one, source in zip(benchmarks, sources, strict=True)})
        scored = _run(
            [_Task(one, encoder_of(one), at_commits[one.name], drawing, out) for one in benchmarks],
            Measurement(provider, drawing.k, drawing.seed, limits_are_wrong=True),
            watch,
        )
        commits = {name: commit for name, source in at_commits.items() if (commit := source.commit())}
        content = {"settings": settings, "commits": commits, **results(scored, drawing.k)}
        write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        return content


def _benchmarks(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the benchmarks' folders."""
    return [name for name in settings.get("benchmarks", ()) if "/" not in name and name not in (".", "..")]


def _settings(
    benchmarks: Sequence[Benchmark],
    tokenizer: str,
    provider: ResponseProvider,
    sources: Sequence[Source],
    drawing: SamplingSpec,
) -> dict[str, Any]:
    return {
        "model": {"name": provider.name, "fingerprint": provider.fingerprint},
        "tokenizer": tokenizer,
        "k": drawing.k,
        "seed": drawing.seed,
        "max_prompts": drawing.max_prompts,
        **drawing.sampling,
        "benchmarks": {
            one.name: {
                **one.model_dump(mode="json", exclude={"name", "source", "split", "subset", "revision"}),
                "source": source.identity(),
                "judged_by": one.judge().version,
            }
            for one, source in zip(benchmarks, sources, strict=True)
        },
        "nemo_ada": __version__,
    }


class _Task:
    """One benchmark while it is evaluated: its problems, its journal, its judge."""

    def __init__(
        self, benchmark: Benchmark, encoder: PromptEncoder, source: Source, drawing: SamplingSpec, out: Path
    ) -> None:
        """Read the problems. Raises UserError where none can be used."""
        self.benchmark, self.encoder = benchmark, encoder
        self.name, self.folder = benchmark.name, out / benchmark.name
        self.folder.mkdir(exist_ok=True)
        self.judge = benchmark.judge()
        self.problems, self.rejected = _problems(benchmark, encoder, source, drawing.max_prompts, self.judge)
        self._say_rejected(drawing)
        if isinstance(self.judge, RewardJudge):
            self.judge.try_on(self.problems[0].reference)
        self.journal = Journal(self.folder / "responses.jsonl")
        self._chunk = drawing.chunk
        self._finished: list[list[Record]] = []

    def _say_rejected(self, drawing: SamplingSpec) -> None:
        benchmark, rejected = self.benchmark, self.rejected
        write_atomically(self.folder / "rejected.jsonl", "".join(map(dump, rejected)))
        if rejected:
            kinds = Counter(record["kind"] for record in rejected)
            counts = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
            log.warning("%s: %d problems are left out (%s): %s", self.name, len(rejected), counts, self.folder)
        if not self.problems:
            raise UserError(f"{self.name}: no problem can be used; see {self.folder / 'rejected.jsonl'}")
        if (column := benchmark.cluster) is not None:
            without = next((problem for problem in self.problems if column not in problem.columns), None)
            if without is not None:
                columns = ", ".join(without.columns) or "no other column"
                raise UserError(
                    f"--cluster={column}: line {without.line} of {self.name} has {columns}; name one of them"
                )
            if len({str(problem.columns[column]) for problem in self.problems}) < 2 < len(self.problems):
                raise UserError(f"--cluster={column}: all problems of {self.name} are in one cluster; leave it out")
        number = len(self.problems) + len(rejected)
        if benchmark.expected_problems not in (None, number) and drawing.max_prompts is None:
            log.warning("%s has %d problems, expected %s", self.name, number, benchmark.expected_problems)

    def questions(self) -> Iterator[Question]:
        """Yield the problems that the journal does not cover."""
        for problem in self.problems[self.journal.items :]:
            yield Question(problem, self.encoder, self.judge, self.benchmark.max_new_tokens)

    def add(self, drawn: Sequence[Judged], watch: Watch) -> None:
        """Keep the responses of the next problem."""
        problem = self.problems[self.journal.items + len(self._finished)]
        self._finished.append([judged.record(problem) for judged in drawn])
        if len(self._finished) == self._chunk:
            self.save(watch)

    def save(self, watch: Watch) -> None:
        """Commit what has come since the last commit."""
        finished, self._finished = self._finished, []
        if finished:
            self.journal.commit([record for of_problem in finished for record in of_problem], len(finished))
            self.say(watch)

    def say(self, watch: Watch) -> None:
        """Report how many problems are finished."""
        watch(self.name, self.journal.items, len(self.problems))

    def result(self) -> BenchmarkResult:
        """Return the counts of all problems, and write them."""
        counts = _counts(self.problems, self.journal, self.benchmark)
        write_atomically(self.folder / "problems.jsonl", "".join(map(dump, counts)))
        return BenchmarkResult.of(self.name, counts, len(self.rejected))


def _run(tasks: Sequence[_Task], measurement: Measurement, watch: Watch) -> list[BenchmarkResult]:
    """Draw what is missing, as one stream over all benchmarks."""
    owners = [task for task in tasks for _ in range(len(task.problems) - task.journal.items)]
    drawn = measurement.draw(question for task in tasks for question in list(task.questions()))
    current = owners[0] if owners else None
    if current is not None:
        current.say(watch)
    try:
        for task, responses in zip(owners, drawn, strict=True):
            if current is not None and task is not current:
                current.save(watch)
                task.say(watch)
            current = task
            task.add(responses, watch)
    finally:
        for task in tasks:
            task.save(watch)
            task.judge.close()
        measurement.provider.close()
    for task in tasks:
        if not task.journal.complete:
            task.journal.finish()
    return [task.result() for task in tasks]


def _problems(
    benchmark: Benchmark, encoder: PromptEncoder, source: Source, limit: int | None, judge: Judge
) -> tuple[list[Problem], list[Record]]:
    """Return the problems in the order of the source, and the records of those that cannot be used."""
    stages = (
        read_stage(benchmark.prompt_fields, benchmark.answer_fields, judge), distinct_stage(judge),
        length_stage(encoder, benchmark.max_prompt_tokens),
    )  # fmt: skip
    found = run_stages(stages, list(islice(source.records(), limit)))
    rejected = [
        {**record, "stage": name} for name, records in found.items() for record in records if "reason" in record
    ]
    return [Problem.of(record) for record in kept(found["length"])], rejected


def _no_counts(problem: Problem, benchmark: Benchmark) -> Record:
    counts: Record = {"id": problem.uid, "line": problem.line, **dict.fromkeys(COUNTS, 0)}
    groups = {name: str(problem.columns[name]) for name in benchmark.group_by if name in problem.columns}
    if benchmark.cluster is not None:
        counts["cluster"] = str(problem.columns[benchmark.cluster])
    return counts | ({"columns": groups} if groups else {})


def _counts(problems: Sequence[Problem], journal: Journal, benchmark: Benchmark) -> list[Record]:
    """Return counts and maj@k per problem, in their order."""
    counts = {problem.uid: _no_counts(problem, benchmark) for problem in problems}
    votes: dict[str, list[tuple[str, bool]]] = {problem.uid: [] for problem in problems}
    seen: set[tuple[str, int]] = set()
    boxed = benchmark.verifier == "math" and benchmark.reward is None
    for line in journal.read():
        key = (line["id"], line["index"])
        if key in seen or line["id"] not in counts:
            what = "twice" if key in seen else "but its benchmark has no such problem"
            raise UserError(
                f"{journal.path} holds the response {key[1]} of problem {key[0]} {what}; it is damaged, so remove the "
                "folder and start again"
            )
        seen.add(key)
        _count(counts[line["id"]], line)
        answer = vote(line["text"], boxed=boxed) if line["finished"] or benchmark.unfinished == "judged" else None
        if answer is not None and line["reward"] is not None:
            votes[line["id"]].append((answer, line["reward"] == 1.0))
    for uid, of_problem in counts.items():
        if of_problem["responses"]:
            of_problem["majority"] = majority(votes[uid])
    return list(counts.values())


def _count(counts: Record, line: Record) -> None:
    """Add a response to the counts of its problem."""
    labelled, right = line["reward"] is not None, line["reward"] == 1.0
    counts["responses"] += labelled
    counts["correct"] += right
    counts["failed"] += not labelled
    counts["timed_out"] += labelled and "cause" in line
    counts["tokens"] += line["tokens"]
    counts["finished"] += line["finished"]
    if labelled:
        verdict = "right" if right else "wrong"
        counts[f"{verdict}_tokens"] += line["tokens"]
        counts[f"{verdict}_finished"] += line["finished"]
