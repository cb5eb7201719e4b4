"""Evaluate a model on benchmarks with k responses per problem. All responses are kept.

    OUT/settings.json                 model, sampling, benchmarks
    OUT/<benchmark>/responses.jsonl   {id, line, index, seed, tokens, finished, reward, [cause], text}, as they end
    OUT/<benchmark>/problems.jsonl    {id, line, responses, correct, failed, timed_out, tokens, finished, majority}
    OUT/<benchmark>/rejected.jsonl    problems that cannot be used, with the reason
    OUT/results.json                  estimates per benchmark and over all prompts; written last

The same command continues a killed evaluation. All benchmarks are one stream of requests to one engine.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_ada import __version__
from nemo_ada.errors import UserError
from nemo_ada.lab.data.kept import RESPONSES, Responses, begin_or_continue, dump
from nemo_ada.lab.data.measure import Measurement, Question, SamplingSpec, Watch, watch_nothing
from nemo_ada.lab.data.problem import Problem
from nemo_ada.lab.data.providers import ResponseProvider
from nemo_ada.lab.data.source import Source
from nemo_ada.lab.data.stages import Selection
from nemo_ada.lab.evaluation.benchmark import Benchmark
from nemo_ada.lab.evaluation.majority import compute_majority, read_vote
from nemo_ada.lab.evaluation.results import COUNTS, BenchmarkResult, summarise_results
from nemo_ada.run.files import claim_folder, write_atomically
from nemo_ada.run.json_lines import Record
from nemo_ada.tasks.prompting import ModelTokenizer

log = logging.getLogger(__name__)

RESULTS = "results.json"
EncoderOf = Callable[[Benchmark], ModelTokenizer]


def evaluate(
    benchmarks: Sequence[Benchmark],
    encoder_of: EncoderOf,
    provider: ResponseProvider,
    drawing: SamplingSpec,
    out: Path,
    watch: Watch = watch_nothing,
) -> dict[str, Any]:
    """Evaluate, or continue an evaluation. Where it is complete, only its results are read.

    Args:
        benchmarks: The benchmarks.
        encoder_of: Gives the encoder that makes prompts of a benchmark's problems.
        provider: The model.
        drawing: Which responses are drawn.
        out: The folder of the evaluation.
        watch: Called after every part of the responses.

    Returns:
        The content of results.json.

    Raises:
        UserError: `out` holds another evaluation, or a benchmark has no problem.
    """
    sources = [benchmark.open_problems() for benchmark in benchmarks]
    settings = {
        "model": {"name": provider.name, "fingerprint": provider.fingerprint},
        "tokenizer": encoder_of(benchmarks[0]).name,
        "k": drawing.k,
        "seed": drawing.seed,
        "max_prompts": drawing.max_prompts,
        "temperature": provider.limits.temperature,
        "top_p": provider.limits.top_p,
        "benchmarks": {
            one.name: {
                **one.model_dump(mode="json", exclude={"name", "source", "split", "subset", "revision"}),
                "source": source.identity,
                "judged_by": one.judge().version,
            }
            for one, source in zip(benchmarks, sources, strict=True)
        },
        "nemo_ada": __version__,
    }
    with closing(claim_folder(out, "eval", "--out")):
        before = begin_or_continue(out, settings, RESULTS)
        if before is not None:
            return before
        tasks = [
            _Task(one, encoder_of(one), source, drawing.max_prompts, out)
            for one, source in zip(benchmarks, sources, strict=True)
        ]
        try:
            asked = [question for task in tasks for question in task.questions]
            Measurement(provider, drawing, limits_are_wrong=True).draw(asked, watch)
        finally:
            for task in tasks:
                task.judge.close()
        content = {"settings": settings, **summarise_results([task.write_result() for task in tasks], drawing.k)}
        write_atomically(out / RESULTS, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        return content


class _Task:
    """One benchmark while it is evaluated: its judge, its questions, its responses."""

    def __init__(
        self, benchmark: Benchmark, encoder: ModelTokenizer, source: Source, limit: int | None, out: Path
    ) -> None:
        """Read the problems. Raises UserError where none can be used."""
        self.benchmark, self.judge, self._folder = benchmark, benchmark.judge(), out / benchmark.name
        self._folder.mkdir(exist_ok=True)
        rows = islice(source.records(), limit)
        selection = Selection(rows, benchmark.prompt_fields, benchmark.answer_fields, self.judge)
        selection.keep_distinct()
        selection.keep_short_enough(encoder, benchmark.max_prompt_tokens)
        self._rejected = len(selection.left_out)
        write_atomically(self._folder / "rejected.jsonl", dump(selection.left_out))
        if not selection.problems:
            raise UserError(f"{benchmark.name}: no problem can be used; see {self._folder / 'rejected.jsonl'}")
        if selection.left_out:
            log.warning("%s: %d problems are left out; see %s", benchmark.name, self._rejected, self._folder)
        self.judge.try_on(selection.problems[0].reference)
        self._responses = Responses(self._folder / RESPONSES)
        self.questions = [
            Question(problem, encoder, self.judge, benchmark.max_new_tokens, self._responses)
            for problem in selection.problems
        ]

    def write_result(self) -> BenchmarkResult:
        """Return the counts of all problems, and write them."""
        counts = {one.problem.uid: self._make_empty_counts(one.problem) for one in self.questions}
        votes: dict[str, list[tuple[str, bool]]] = {uid: [] for uid in counts}
        boxed = self.benchmark.verifier == "math" and self.benchmark.reward is None
        for line in (one for one in self._responses.read() if one["id"] in counts):
            own, right = counts[line["id"]], line["reward"] == 1.0
            own["responses"] += line["reward"] is not None
            own["correct"] += right
            own["failed"] += line["reward"] is None
            own["timed_out"] += line["reward"] is not None and "cause" in line
            own["tokens"] += line["tokens"]
            own["finished"] += line["finished"]
            read = line["reward"] is not None and (line["finished"] or self.benchmark.unfinished == "judged")
            if read and (answer := read_vote(line["text"], boxed=boxed)) is not None:
                votes[line["id"]].append((answer, right))
        for uid, own in counts.items():
            if own["responses"]:
                own["majority"] = compute_majority(votes[uid])
        rows = list(counts.values())
        write_atomically(self._folder / "problems.jsonl", dump(rows))
        return BenchmarkResult.of(self.benchmark.name, rows, self._rejected)

    def _make_empty_counts(self, problem: Problem) -> Record:
        groups = {name: str(problem.columns[name]) for name in self.benchmark.group_by if name in problem.columns}
        counts: Record = {"id": problem.uid, "line": problem.line, **dict.fromkeys(COUNTS, 0)}
        return counts | ({"columns": groups} if groups else {})
