"""Read benchmarks from a YAML in configs/eval, a local file, or a YAML that names several of them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, field_validator

from nemo_ada import by_name
from nemo_ada.config.parsing import Section, parse
from nemo_ada.config.paths import locate_packaged
from nemo_ada.errors import UserError
from nemo_ada.lab.data.source import Source, open_source
from nemo_ada.run.data_files import is_data_file
from nemo_ada.run.yaml_file import read_yaml
from nemo_ada.standing import get_users_folder, get_whole_path, show_path
from nemo_ada.tasks.heldout import HELDOUT
from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS
from nemo_ada.tasks.prompting import PromptFormat
from nemo_ada.tasks.settings import Verifier
from nemo_ada.verify.judge import Judge, Unfinished, make_judge

PRESETS = Path("configs") / "eval"
NAME = re.compile(r"\w([\w .+()-]*[\w)])?")
RESERVED = ("overall", "settings.json", "results.json")  # a row of the tables, and files beside the folders


class Benchmark(Section):
    """One set of problems, with its prompts and its verifier."""

    name: Annotated[str, Field(max_length=100)]
    """Name of its folder and of its row in tables: letters, digits, and . _ - + ( ) or spaces between them."""
    source: str
    """A data set of the hub (owner/name), or a .jsonl or .parquet file, beside the YAML or in the working folder."""
    split: str = "test"
    """Split of a hub data set."""
    subset: str | None = None
    """Configuration of a hub data set."""
    revision: str | None = None
    """Commit of a hub data set."""
    prompt_fields: Annotated[tuple[str, ...], Field(min_length=1)] = PROMPT_FIELDS
    """Columns of the problem. The first one that a row has is used."""
    answer_fields: Annotated[tuple[str, ...], Field(min_length=1)] = ANSWER_FIELDS
    """Columns of the reference answer."""
    verifier: Verifier = "math"
    """math: the last box by value. exact: normalised text."""
    reward: str | None = None
    """package.module:function, (response, reference) -> score in [0, 1], instead of the verifier."""
    unfinished: Unfinished = "wrong"
    """Responses that were cut off at the token limit."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """auto: the tokenizer's chat template if it has one."""
    system: str | None = None
    """System message."""
    suffix: str = ""
    """Text after every problem."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, such as `enable_thinking: false`."""
    max_prompt_tokens: PositiveInt = 1024
    """Longer prompts are left out."""
    max_new_tokens: PositiveInt = 4096
    """Longest response, tokens."""

    group_by: tuple[str, ...] = ("level", "subject", "source", "type", "category", "difficulty")
    """Columns with a table of their own, where the problems have them."""

    @field_validator("name")
    @classmethod
    def _is_no_path(cls, name: str) -> str:
        if not NAME.fullmatch(name) or name.casefold() in RESERVED:
            raise ValueError(
                "must be the name of a folder: letters, digits, spaces and . _ - + ( ), with a letter or digit at both "
                f"ends, and not {' or '.join(RESERVED)}"
            )
        return name

    def prompt_format(self) -> PromptFormat:
        """Return how a problem becomes a prompt."""
        return PromptFormat(self.template, self.system, self.suffix, dict(self.chat_template_kwargs))

    def judge(self) -> Judge:
        """Return what decides whether an answer is right."""
        return make_judge(self.verifier, self.reward, self.unfinished, points=False, key="--reward")

    def open_problems(self, where: str = "") -> Source:
        """Open the problems. `where` is their name in messages, which is the key of the source without one."""
        where = where or f"{self.name}.source"
        return open_source(self.source, split=self.split, subset=self.subset, revision=self.revision, where=where)


class Suite(Section):
    """Several benchmarks under one name."""

    benchmarks: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names or paths of their YAML files."""


def find_benchmarks(names: list[str], changes: Mapping[str, Any]) -> list[Benchmark]:
    """Find the benchmarks that the command line names.

    Args:
        names: Preset names, YAML files, data files and NAME=FILE (a preset with a local copy of its problems).
        changes: Settings of the command line. Those that are not None replace a benchmark's own.

    Raises:
        UserError: A name is unknown, or two benchmarks have the same name. There is no such reward (by_name.py).
    """
    chosen = {key: value for key, value in changes.items() if value is not None}
    if (reward := chosen.get("reward")) is not None:
        chosen["reward"] = by_name.find("--reward", reward)
        by_name.announce_file("--reward", reward, chosen["reward"], "the command line")
    benchmarks = [parse(Benchmark, data | chosen, where) for name in names for data, where in _read_settings(name)]
    repeated = sorted(name for name, count in Counter(b.name.casefold() for b in benchmarks).items() if count > 1)
    if repeated:
        raise UserError(f"--data: {', '.join(repeated)} is given twice; use NAME=FILE to rename a file")
    return benchmarks


def find_run(model: Path, *, wanted: bool) -> Path | None:
    """Return the folder of the CPU run that a model came from, if it is above the model and has held-out problems.

    Args:
        model: The folder of the model.
        wanted: Whether the held-out problems will be used. A file of them that is not the user's is then an error.

    Raises:
        UserError: What was found is somebody else's, or names code, which only a file does that the user has named.
    """
    parents = Path(os.path.realpath(model)).parents[:3]  # of a loop of links, too
    found = next((folder for folder in parents if (folder / HELDOUT).is_file()), None)
    if found is None:
        return None
    named = f"name it with --data {found / HELDOUT} where you trust it"
    try:
        content = read_yaml(found / HELDOUT, "the held-out problems", found=named)
    except UserError:
        if wanted:
            raise
        return None
    if not wanted:
        return found
    if isinstance(content, dict) and content.get("reward") is not None:
        raise UserError(
            f"{found / HELDOUT} was found above the model, and names code: reward: {content['reward']!r}; {named}"
        )
    return found


def list_presets() -> dict[str, Path]:
    """Return the YAML files of this package's presets by name. Another YAML goes by its path."""
    return {path.stem: path for path in sorted(locate_packaged(PRESETS).glob("*.yaml"))}


def _read_settings(name: str) -> list[tuple[dict[str, Any], str]]:
    """Return the settings of the benchmarks of one name, and how messages name each."""
    known = list_presets()
    label, equals, file = name.partition("=")
    if equals:
        preset = _load_yaml(known[label]) if label in known else {}
        if "benchmarks" in preset:
            raise UserError(f"--data={name}: {label} is a suite; use one of {', '.join(preset['benchmarks'])}")
        return [(preset | {"name": label, "source": file}, name)]
    path = get_whole_path(Path(name))
    if name in known or path.suffix in (".yaml", ".yml"):
        path = known.get(name, path)
        data = _load_yaml(path)
        if "benchmarks" not in data:
            beside = path.parent / str(data.get("source"))
            if (reward := data.get("reward")) is not None:
                data["reward"] = by_name.find(f"{name}: reward", str(reward), [path.parent, get_users_folder()])
                by_name.announce_file("reward", str(reward), data["reward"], str(show_path(path)))
            return [(data | {"source": str(beside)} if is_data_file(beside) and beside.is_file() else data, name)]
        return [one for inner in parse(Suite, data, name).benchmarks for one in _read_settings(inner)]
    if is_data_file(path) or path.exists() or "/" in name:
        return [({"name": path.stem, "source": name}, name)]
    raise UserError(f"--data={name}: no preset and no file; presets: {', '.join(known)}; or give a .jsonl file")


def _load_yaml(path: Path) -> dict[str, Any]:
    data = read_yaml(path, "the benchmark")
    if not isinstance(data, dict):
        raise UserError(f"--data={path} must hold a benchmark's settings, like the files in configs/eval")
    return data
