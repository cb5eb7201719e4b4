"""Data sets and their columns, prompt files, the container image, the verifier."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from nemo_ada.check.finding import Findings, error, ok, skipped, warning
from nemo_ada.check.recipe import Values
from nemo_ada.verify import MathVerifier, VerifierLimits, VerifierSelfTestError

PUBLISHED = {  # columns of the authors' sets
    f"RLHFlow/{name}": ("problem", "gt")
    for name in (
        "reinforce_ada_simple_prompt_1-5b", "reinforce_ada_hard_prompt_1-5b", "reinforce_ada_easy_prompt",
        "reinforce_ada_hard_prompt", "reinforce_ada_hard_prompt_llama",
    )
}  # fmt: skip


def dataset(values: Values, split: str = "train") -> Findings:
    """The columns that `input_key` and `output_key` name exist in a local file or a published set."""
    here = f"data.{split}"
    path = values.get(f"{here}.data_path")
    if path is None:
        yield skipped(here, f"{values.get(f'{here}.dataset_name', 'no data set')}: read by NeMo-RL's own loader")
        return
    wanted = {
        f"{here}.{key}": str(values.get(f"{here}.{key}", default))
        for key, default in (("input_key", "input"), ("output_key", "output"))
    }
    local = Path(str(path))
    if local.suffix in (".json", ".jsonl"):
        columns = _first_record(local)
        if columns is None:
            yield error(f"{here}.data_path", f"{local} cannot be read as JSON lines; name a .jsonl file that exists")
            return
    elif str(path) in PUBLISHED:
        columns = PUBLISHED[str(path)]
    else:
        yield skipped(f"{here}.data_path", f"{path} is neither a local .jsonl nor a set whose columns are known here")
        return
    missing = {key: name for key, name in wanted.items() if name not in columns}
    for key, name in missing.items():
        yield error(key, f"{path} has no column {name!r}; its columns are {', '.join(columns)}")
    if not missing:
        yield ok(f"{here}.data_path", f"{path}: columns {', '.join(wanted.values())}")


def _first_record(path: Path) -> tuple[str, ...] | None:
    """Columns of the first line, None where there is none."""
    try:
        with path.open(encoding="utf-8") as file:
            record = json.loads(file.readline())
    except (OSError, ValueError):
        return None
    return tuple(record) if isinstance(record, Mapping) else None


def prompt_files(values: Values) -> Findings:
    """Prompt files are read by path, relative to the working directory."""
    for key in ("data.default.prompt_file", "data.default.system_prompt_file"):
        named = values.get(key)
        if named is not None and not Path(str(named)).is_file():
            yield error(key, f"{named} is not there; start in the project's root or give an absolute path")


def image() -> Findings:
    """CONTAINER, as slurm/site.env sets it: a file must exist, a registry's name cannot be looked up here."""
    name = os.environ.get("CONTAINER", "")
    if not name:
        yield skipped("CONTAINER", "not set: bare nodes, or site.env was not read here")
    elif name.startswith(("/", ".")) and not Path(name).is_file():
        yield error(
            "CONTAINER", f"{name} is not there; import the image first (docker/README.md) or correct slurm/site.env"
        )
    elif name.startswith(("/", ".")):
        yield ok("CONTAINER", name)
    else:
        yield skipped("CONTAINER", f"{name}: an image of a registry is not looked up")


def verifier() -> Findings:
    """math-verify judges known pairs and survives a hanging input."""
    try:
        with MathVerifier(VerifierLimits(workers=1)):
            pass  # it judges its known pairs when it starts
    except VerifierSelfTestError as problem:
        yield error("verifier", str(problem))
        return
    except (ImportError, OSError, RuntimeError) as problem:
        yield error("verifier", f"math-verify could not be started: {problem}; install this project's dependencies")
        return
    yield ok("verifier", "the self-test's known pairs and its hanging answer were judged rightly")


def method(config: Mapping[str, object]) -> Findings:
    """The section `reinforce_ada:` and the combinations that NeMo-RL's hooks refuse."""
    from nemo_ada.errors import UserError
    from nemo_ada.nemo import settings

    if not settings.chosen(config):
        yield warning("grpo.adv_estimator.name", f"is not {settings.NAME}: this would be NeMo-RL's own algorithm")
        return
    try:
        settings.read(config)
    except UserError as problem:
        yield error("reinforce_ada", str(problem))
