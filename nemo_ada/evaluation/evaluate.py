"""Evaluate a model on benchmarks: k responses per problem, all of them kept, resumable.

    OUT/settings.json                 model, sampling, benchmarks
    OUT/<benchmark>/responses.jsonl   {id, line, index, seed, tokens, finished, reward, [cause], text}
    OUT/<benchmark>/problems.jsonl    {id, line, responses, correct, failed, tokens, finished}
    OUT/<benchmark>/rejected.jsonl    problems that cannot be used, with the reason
    OUT/results.json                  estimates per benchmark and over all prompts; written last

The same command continues a killed evaluation.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_ada import __version__
from nemo_ada.data.journal import Journal, claimed, dump
from nemo_ada.data.measure import Measurement
from nemo_ada.data.problem import Problem
from nemo_ada.data.providers import ResponseProvider
from nemo_ada.data.source import Source, open_source
from nemo_ada.data.stages import Record, Stage, Watch, distinct_stage, kept, length_stage, read_stage, run_stage
from nemo_ada.errors import UserError
from nemo_ada.evaluation.benchmark import Benchmark
from nemo_ada.evaluation.results import COUNTS, BenchmarkResult, results
from nemo_ada.run.files import write_atomically
from nemo_ada.tasks.prompting import PromptEncoder
from nemo_ada.verify.judge import Judge

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BenchmarkJob:
    """A benchmark and its model. The provider starts with its first request and closes after the benchmark."""

    benchmark: Benchmark
    encoder: PromptEncoder
    provider: ResponseProvider


@dataclass(frozen=True, slots=True)
class Drawing:
    """k responses per problem. seed: of all of them. chunk: problems between two commits.

    max_prompts: only the first problems of each benchmark (None: all). sampling: temperature etc., for the record.
    """

    k: int
    seed: int
    sampling: dict[str, Any]
    chunk: int = 16
    max_prompts: int | None = None


def evaluate(
    jobs: Sequence[BenchmarkJob], drawing: Drawing, out: Path, watch: Watch = lambda _name, _done, _total: None
) -> dict[str, Any]:
    """Evaluate, or continue. A complete evaluation only returns its results.

    watch: called with (benchmark, problems done, problems). Raises UserError where `out` holds another evaluation, and
    where a benchmark has no problem.
    """
    sources = [_source(job.benchmark) for job in jobs]
    settings = _settings(jobs, sources, drawing)
    with claimed(out, settings, inner=_benchmarks, results=("results.json", "*/responses.jsonl")):
        path = out / "results.json"
        if path.exists():
            try:
                before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as problem:
                raise UserError(f"{path} is damaged ({problem}); remove it and repeat the command") from None
            return before
        scored = [
            _run(job, source, drawing, out / job.benchmark.name, watch)
            for job, source in zip(jobs, sources, strict=True)
        ]
        content = {"settings": settings, **results(scored, drawing.k, drawing.seed)}
        write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return content


def _benchmarks(settings: Mapping[str, Any]) -> list[str]:
    """Names of the benchmarks' folders."""
    return [name for name in settings.get("benchmarks", ()) if "/" not in name and name not in (".", "..")]


def _settings(jobs: Sequence[BenchmarkJob], sources: Sequence[Source], drawing: Drawing) -> dict[str, Any]:
    return {
        "model": {"name": jobs[0].provider.name, "fingerprint": jobs[0].provider.fingerprint},
        "tokenizer": jobs[0].encoder.name,
        "k": drawing.k,
        "seed": drawing.seed,
        "max_prompts": drawing.max_prompts,
        "chunk": drawing.chunk,
        **drawing.sampling,
        "benchmarks": {
            job.benchmark.name: {
                **job.benchmark.model_dump(mode="json", exclude={"name", "source", "split", "subset", "revision"}),
                "source": source.identity(),
                "judged_by": Judge(job.benchmark.verifier).version,
            }
            for job, source in zip(jobs, sources, strict=True)
        },
        "nemo_ada": __version__,
    }


def _source(one: Benchmark) -> Source:
    where = f"{one.name}.source"
    return open_source(one.source, split=one.split, subset=one.subset, revision=one.revision, where=where)


def _run(job: BenchmarkJob, source: Source, drawing: Drawing, folder: Path, watch: Watch) -> BenchmarkResult:
    benchmark = job.benchmark
    folder.mkdir(exist_ok=True)
    problems, rejected = _problems(job, source, drawing.max_prompts)
    write_atomically(folder / "rejected.jsonl", "".join(map(dump, rejected)))
    if rejected:
        kinds = Counter(record["kind"] for record in rejected)
        counts = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        log.warning("%s: %d problems are left out (%s): %s", benchmark.name, len(rejected), counts, folder)
    if not problems:
        raise UserError(f"{benchmark.name}: no problem can be used; see {folder / 'rejected.jsonl'}")
    number = len(problems) + len(rejected)
    if benchmark.expected_problems not in (None, number) and drawing.max_prompts is None:
        log.warning("%s has %d problems, expected %s", benchmark.name, number, benchmark.expected_problems)
    journal = Journal(folder / "responses.jsonl")
    judge = Judge(benchmark.verifier, benchmark.unfinished)
    measurement = Measurement(job.provider, job.encoder, judge, drawing.k, drawing.seed)

    def draw(chunk: Sequence[Problem]) -> list[Record]:
        drawn = measurement.draw(chunk)
        return [judged.record(problem) for problem, own in zip(chunk, drawn, strict=True) for judged in own]

    try:
        run_stage(Stage(benchmark.name, draw, drawing.chunk), problems, len(problems), journal, watch)
    finally:
        judge.close()
        job.provider.close()
    counts_by_problem = _counts(problems, journal)
    write_atomically(folder / "problems.jsonl", "".join(map(dump, counts_by_problem)))
    return BenchmarkResult.of(benchmark.name, counts_by_problem, len(rejected))


def _problems(job: BenchmarkJob, source: Source, limit: int | None) -> tuple[list[Problem], list[Record]]:
    """Problems in the order of the source, and the records of the others."""
    own = job.benchmark
    read = read_stage(own.prompt_fields, own.answer_fields)
    records: list[Any] = list(islice(source.records(), limit))
    rejected: list[Record] = []
    for stage in (read, distinct_stage(), length_stage(job.encoder, own.max_prompt_tokens)):
        processed = stage.process(records)
        rejected += [{**record, "stage": stage.name} for record in processed if "reason" in record]
        records = list(kept(processed))
    return [Problem.of(record) for record in records], rejected


def _counts(problems: Sequence[Problem], journal: Journal) -> list[Record]:
    """Per problem, in order: judged responses, correct ones, failures of the verifier, and costs."""
    counts: dict[str, Record] = {
        problem.uid: {"id": problem.uid, "line": problem.line, **dict.fromkeys(COUNTS, 0)} for problem in problems
    }
    seen: set[tuple[str, int]] = set()
    for line in journal.read():
        key = (line["id"], line["index"])
        if key in seen or line["id"] not in counts:
            what = "twice" if key in seen else "but its benchmark has no such problem"
            raise UserError(
                f"{journal.path} holds the response {key[1]} of problem {key[0]} {what}; it is damaged, so remove the "
                "folder and start again"
            )
        seen.add(key)
        own = counts[line["id"]]
        own["responses"] += line["reward"] is not None
        own["correct"] += line["reward"] == 1.0
        own["failed"] += line["reward"] is None
        own["tokens"] += line["tokens"]
        own["finished"] += line["finished"]
    return list(counts.values())
