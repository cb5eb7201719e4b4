"""What is evaluated on: a YAML in configs/eval, a local file, or a YAML that names several of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from nemo_ada.config.strict import Section, parse
from nemo_ada.config.yaml_file import read_yaml
from nemo_ada.errors import UserError
from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS

PRESETS = Path("configs") / "eval"
ROOT = Path(__file__).resolve().parents[2]


class Benchmark(Section):
    """One set of problems and how a model is asked and judged on it."""

    name: str
    """Name of its folder and of its row in tables."""
    source: str
    """A data set of the hub (owner/name), or a .jsonl or .parquet file."""
    split: str = "test"
    """Split of a hub data set."""
    subset: str | None = None
    """Configuration of a hub data set."""
    revision: str | None = None
    """Commit of a hub data set."""
    prompt_fields: Annotated[tuple[str, ...], Field(min_length=1)] = PROMPT_FIELDS
    """Column of the problem; the first one that a row has is used."""
    answer_fields: Annotated[tuple[str, ...], Field(min_length=1)] = ANSWER_FIELDS
    """Column of the reference answer."""
    verifier: Literal["math", "exact"] = "math"
    """math: the last box, by value; exact: normalised text."""
    unfinished: Literal["wrong", "judged"] = "wrong"
    """Responses that were cut off at the token limit."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """auto: the tokenizer's chat template where it has one."""
    system: str | None = None
    """System message."""
    suffix: str = ""
    """Text after every problem."""
    max_prompt_tokens: PositiveInt = 1024
    """Longer prompts are listed and not evaluated."""
    max_new_tokens: PositiveInt = 4096
    """Longest response, tokens."""
    expected_problems: PositiveInt | None = None
    """How many problems the published set has; another number is reported."""


class Suite(Section):
    """Several benchmarks under one name."""

    benchmarks: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names or paths of their YAML files."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings from the command line that replace a benchmark's own (those that are not None)."""

    changes: dict[str, Any]

    def apply(self, data: dict[str, Any]) -> dict[str, Any]:
        return data | {key: value for key, value in self.changes.items() if value is not None}


def resolve(names: list[str], choice: Choice) -> list[Benchmark]:
    """Benchmarks of preset names, YAML files, data files and NAME=FILE (a preset on a local copy of its problems).

    Raises UserError for an unknown name and for two benchmarks of one name.
    """
    found = [benchmark for name in names for benchmark in _one(name, choice)]
    repeated = sorted({b.name for b in found if sum(other.name == b.name for other in found) > 1})
    if repeated:
        raise UserError(f"--data: {', '.join(repeated)} is given twice; use NAME=FILE to tell two files apart")
    return found


def presets() -> dict[str, Path]:
    """Name -> YAML of the presets, of the working directory or of this checkout."""
    folder = PRESETS if PRESETS.is_dir() else ROOT / PRESETS
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _one(name: str, choice: Choice) -> list[Benchmark]:
    known = presets()
    label, equals, file = name.partition("=")
    if equals:
        own = _load(known[label]) if label in known else {}
        if "benchmarks" in own:
            raise UserError(f"--data={name}: {label} is a suite; name one of {', '.join(own['benchmarks'])}")
        return [_benchmark(own | {"name": label, "source": file, "expected_problems": None}, name, choice)]
    path = Path(name)
    if name in known or path.suffix in (".yaml", ".yml"):
        data = _load(known.get(name, path))
        if "benchmarks" in data:
            suite = parse(Suite, data, name)
            return [benchmark for inner in suite.benchmarks for benchmark in _one(inner, choice)]
        return [_benchmark(data, name, choice)]
    if path.suffix in (".jsonl", ".json", ".ndjson", ".parquet") or path.exists() or "/" in name:
        return [_benchmark({"name": path.stem, "source": name}, name, choice)]
    raise UserError(f"--data={name}: no preset and no file; presets: {', '.join(known)}; or give a .jsonl file")


def _benchmark(data: dict[str, Any], where: str, choice: Choice) -> Benchmark:
    return parse(Benchmark, choice.apply(data), where)


def _load(path: Path) -> dict[str, Any]:
    try:
        data = read_yaml(path, "the benchmark")
    except UserError as problem:
        raise UserError(f"--data={path} cannot be read: {problem}") from None
    if not isinstance(data, dict):
        raise UserError(f"--data={path} must hold the settings of a benchmark, as the files in configs/eval do")
    return data
