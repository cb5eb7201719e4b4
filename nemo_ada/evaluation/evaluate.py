"""Evaluate a model on benchmarks: k responses per problem, every response kept, resumable.

    OUT/settings.json                 model, sampling, benchmarks
    OUT/<benchmark>/responses.jsonl   {id, line, index, seed, tokens, finished, reward, text, [cause]}
    OUT/<benchmark>/problems.jsonl    {id, line, responses, correct, tokens, finished}
    OUT/<benchmark>/rejected.jsonl    problems that could not be asked, with the reason
    OUT/results.json                  estimates of every benchmark and over all prompts

A killed evaluation is continued by the same command. `results.json` is written last.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_ada import __version__
from nemo_ada.data.journal import Journal, dump
from nemo_ada.data.judge import Judge
from nemo_ada.data.measure import Judged, Measurement, ResponseProvider
from nemo_ada.data.problem import Fields, Problem
from nemo_ada.data.prompting import PromptEncoder
from nemo_ada.data.source import Source, open_source
from nemo_ada.data.stages import Distinct, Length, Read, Record, Stage
from nemo_ada.data.workfolder import claim
from nemo_ada.errors import UserError
from nemo_ada.evaluation.benchmark import Benchmark
from nemo_ada.evaluation.results import BenchmarkResult, results
from nemo_ada.run.files import write_atomically

log = logging.getLogger(__name__)

Watch = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class BenchmarkJob:
    """A benchmark with what answers it. The provider is started by its first request and closed after the benchmark."""

    benchmark: Benchmark
    encoder: PromptEncoder
    provider: ResponseProvider


@dataclass(frozen=True, slots=True)
class Drawing:
    """k responses per problem; seed of all of them; chunk: problems between two commits; max_prompts: the first so many
    problems of each benchmark (None: all). sampling: temperature and the like, for the record."""

    k: int
    seed: int
    sampling: dict[str, Any]
    chunk: int = 16
    max_prompts: int | None = None


def evaluate(
    asked: Sequence[BenchmarkJob], drawing: Drawing, out: Path, watch: Watch = lambda _name, _done, _total: None
) -> dict[str, Any]:
    """Evaluate, or continue, or only return the results of a complete evaluation.

    watch: called with (benchmark, problems done, problems). Raises UserError where `out` holds another evaluation and
    where a benchmark has no problem.
    """
    sources = [_source(one.benchmark) for one in asked]
    settings = _settings(asked, sources, drawing)
    claim(out, settings, cleared=lambda: _cleared(out))
    finished = out / "results.json"
    if finished.exists():
        try:
            found: dict[str, Any] = json.loads(finished.read_text(encoding="utf-8"))
        except ValueError as problem:
            raise UserError(f"{finished} is damaged ({problem}); remove it and repeat the command") from None
        return found
    scored = [
        _benchmark(one, source, drawing, out / one.benchmark.name, watch)
        for one, source in zip(asked, sources, strict=True)
    ]
    content = {"settings": settings, **results(scored, drawing.k, drawing.seed)}
    write_atomically(finished, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return content


def _cleared(out: Path) -> bool:
    """Remove what an evaluation left that drew no response; False where there is more to keep."""
    if (out / "results.json").exists() or any(path.stat().st_size for path in out.glob("*/responses.jsonl")):
        return False
    for folder in [path for path in out.iterdir() if path.is_dir()]:
        for name in ("rejected.jsonl", "responses.jsonl", "responses.jsonl.state.json"):
            (folder / name).unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()
    return True


def _settings(asked: Sequence[BenchmarkJob], sources: Sequence[Source], drawing: Drawing) -> dict[str, Any]:
    return {
        "model": {"name": asked[0].provider.name, "fingerprint": asked[0].provider.fingerprint},
        "tokenizer": asked[0].encoder.name,
        "k": drawing.k,
        "seed": drawing.seed,
        "max_prompts": drawing.max_prompts,
        "chunk": drawing.chunk,
        **drawing.sampling,
        "benchmarks": {
            one.benchmark.name: {
                **one.benchmark.model_dump(mode="json", exclude={"name", "source", "split", "subset", "revision"}),
                "source": source.identity(),
                "judged_by": _judge(one.benchmark).version,
            }
            for one, source in zip(asked, sources, strict=True)
        },
        "nemo_ada": __version__,
    }


def _source(benchmark: Benchmark) -> Source:
    return open_source(
        benchmark.source,
        split=benchmark.split,
        subset=benchmark.subset,
        revision=benchmark.revision,
        where=f"{benchmark.name}.source",
    )


def _judge(benchmark: Benchmark) -> Judge:
    return Judge(benchmark.verifier, benchmark.unfinished)


def _benchmark(one: BenchmarkJob, source: Source, drawing: Drawing, folder: Path, watch: Watch) -> BenchmarkResult:
    benchmark = one.benchmark
    folder.mkdir(exist_ok=True)
    problems, rejected = _problems(one, source, drawing.max_prompts)
    write_atomically(folder / "rejected.jsonl", "".join(map(dump, rejected)))
    if rejected:
        kinds = Counter(record["kind"] for record in rejected)
        counts = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        log.warning("%s: %d problems are not asked (%s): %s", benchmark.name, len(rejected), counts, folder)
    if not problems:
        raise UserError(f"{benchmark.name}: no problem can be asked; see {folder / 'rejected.jsonl'}")
    found = len(problems) + len(rejected)
    if benchmark.expected_problems not in (None, found) and drawing.max_prompts is None:
        log.warning("%s has %d problems, %s were expected", benchmark.name, found, benchmark.expected_problems)
    journal = Journal(folder / "responses.jsonl")
    judge = _judge(benchmark)
    try:
        _draw(Measurement(one.provider, one.encoder, judge, drawing.k, drawing.seed), problems, drawing, journal,
              lambda done: watch(benchmark.name, done, len(problems)))  # fmt: skip
    finally:
        judge.close()
        one.provider.close()
    counts_by_problem = list(_counts(problems, journal))
    write_atomically(folder / "problems.jsonl", "".join(map(dump, counts_by_problem)))
    return BenchmarkResult.of(benchmark.name, counts_by_problem, len(rejected))


def _draw(
    measurement: Measurement,
    problems: Sequence[Problem],
    drawing: Drawing,
    journal: Journal,
    watch: Callable[[int], None],
) -> None:
    watch(journal.items)
    if journal.complete:
        return
    rest = iter(problems[journal.items :])
    while chunk := list(islice(rest, drawing.chunk)):
        drawn: list[list[Judged]] = measurement.draw(chunk)
        lines = [judged.record(problem, text=True) for problem, own in zip(chunk, drawn, strict=True) for judged in own]
        journal.commit(lines, len(chunk), len(chunk))
        watch(journal.items)
    journal.finish()


def _problems(one: BenchmarkJob, source: Source, limit: int | None) -> tuple[list[Problem], list[Record]]:
    """Problems in the order of the source, and the records of those that cannot be asked."""
    benchmark = one.benchmark
    stages: list[Stage] = [
        Read(Fields(benchmark.prompt_fields, benchmark.answer_fields)),
        Distinct(),
        Length(one.encoder, benchmark.max_prompt_tokens),
    ]
    records: list[Any] = list(islice(source.records(), limit))
    rejected: list[Record] = []
    for stage in stages:
        processed = stage.process(records)
        rejected += [{**record, "stage": stage.name} for record in processed if "reason" in record]
        records = [record for record in processed if "reason" not in record]
    return [Problem.of(record) for record in records], rejected


def _counts(problems: Sequence[Problem], journal: Journal) -> Iterator[Record]:
    """Per problem, its judged responses, the correct ones, and what they cost; in the order of the problems."""
    found: dict[str, Record] = {
        problem.uid: {
            "id": problem.uid, "line": problem.line,
            "responses": 0, "correct": 0, "failed": 0, "tokens": 0, "finished": 0,
        }
        for problem in problems
    }  # fmt: skip
    for line in journal.read():
        counts = found[line["id"]]
        counts["responses"] += line["reward"] is not None
        counts["correct"] += line["reward"] == 1.0
        counts["failed"] += line["reward"] is None
        counts["tokens"] += line["tokens"]
        counts["finished"] += line["finished"]
    yield from found.values()
