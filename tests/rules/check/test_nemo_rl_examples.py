"""Every example config of NeMo-RL that trains with GRPO, with README's section over it, passes the rules.

Those that do not are in examples.yaml beside this file. Each has its reason, the place in NeMo-RL's source that was
read for it, and the date. The number of rows stays that of the example, as README's comment asks for.

What a user brings is there: the variables that examples read, the files of their data sets (most of their paths are
placeholders such as /path/to/train.jsonl), and the variable with which NeMo-RL's own scripts start some of them.

The checkout is the one that NEMO_RL_HOME names.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from nemo_ada.config import load
from nemo_ada.config.load import resolve_config
from nemo_ada.config.paths import make_paths_whole
from nemo_ada.errors import UserError
from nemo_ada.rules import rulebook
from nemo_ada.rules.facts import config_file, version
from nemo_ada.run.redaction import find_secret_keys

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME (a NeMo-RL checkout) is not set"),
]

ROOT = Path(__file__).resolve().parents[3]
REASONS = Path(__file__).with_name("examples.yaml")
ROWS = ("num_prompts_per_step", "num_generations_per_prompt")
WANTED = {"v0.7.0": 171, "main": 209, "v0.8.0": 209}
"""Checkout -> how many examples must pass, of 189, 245 and 246.

v0.8.0 is recipes/upstream/release_tree.py's tree.
"""


def home() -> Path:
    return Path(os.environ["NEMO_RL_HOME"]).resolve()


def checkout() -> str:
    """Return which checkout NEMO_RL_HOME names: main has the single controller, and v0.8.0's masks rows."""
    if version.read_version(home()).masks_rows:
        return "v0.8.0"
    return "main" if (home() / "nemo_rl/algorithms/single_controller.py").is_file() else "v0.7.0"


def section() -> dict[str, Any]:
    """Return the keys of README's YAML that turns Reinforce-Ada on, without those that name the run and its rows."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```yaml\n(defaults: your_config.*?)```", text, re.DOTALL)
    (block,) = (one for one in blocks if "reinforce_ada:" in one)
    keys: dict[str, Any] = yaml.safe_load(block)
    for name in ("defaults", "run_dir", "resume"):
        keys.pop(name, None)
    for name in ROWS:
        del keys["grpo"][name]
    return keys


def examples() -> Iterator[tuple[str, DictConfig | str]]:
    """Name in the checkout -> the config with its parents, or why it cannot be read."""
    for path in sorted((home() / "examples").rglob("*.yaml")):
        name = str(path.relative_to(home()))
        try:
            config = load.load_yaml(path)
        except UserError as problem:
            if "grpo:" in path.read_text():
                yield name, str(problem)
            continue
        if "grpo" in config and "policy" in config:
            yield name, config


def refusals(name: str, example: DictConfig | str) -> list[tuple[str, str]]:
    """(key, text) of every error that the rules find in an example with README's section over it."""
    if isinstance(example, str):
        return [("configuration", example)]
    upstream = OmegaConf.to_container(example, resolve=False)
    merged = OmegaConf.merge(example, section())
    try:
        for key in find_secret_keys(OmegaConf.to_container(merged, resolve=False)):
            return [(key, "is a secret")]
        config = with_data(make_paths_whole(resolve_config(merged), [home() / name]))
    except UserError as problem:
        return [("configuration", str(problem))]
    return [(f.key, f.message) for f in rulebook.apply_rules(config, upstream) if f.level == "error"]


def with_data(config: dict[str, Any]) -> dict[str, Any]:
    """Give a config files where it names data that are not here, and where an example has a placeholder of a file."""
    data = config["data"]
    for split in ("train", "validation"):
        for part in data[split] if isinstance(data.get(split), list) else [data.get(split)]:
            if part and str(part.get("data_path", "")).endswith(".jsonl") and not Path(part["data_path"]).is_file():
                part["data_path"] = str(lines())
    template = config["policy"]["tokenizer"].get("chat_template")
    if template and str(template).startswith("/path/to/"):
        config["policy"]["tokenizer"]["chat_template"] = str(lines())
    return config


@functools.cache
def lines() -> Path:
    """A file with requests for NeMo-Gym, which also has the columns of NeMo-RL's own data sets."""
    path = Path(tempfile.mkdtemp()) / "data.jsonl"
    row = {"responses_create_params": {"input": "1 + 1?"}, "agent_ref": {"name": "math"}, "input": "1 + 1?",
           "output": "2"}  # fmt: skip
    path.write_text((json.dumps(row) + "\n") * 20_000)
    return path


@pytest.fixture(scope="module")
def found() -> dict[str, list[tuple[str, str]]]:
    """Refusals of every example. Variables that the examples read are set, as on a user's machine."""
    with pytest.MonkeyPatch.context() as patch:
        read = functools.cache(load.read_yaml)
        patch.setattr(load, "read_yaml", read)
        for path in (home() / "examples").rglob("*.yaml"):
            for variable in re.findall(r"oc\.env:(\w+)\}", path.read_text()):
                if variable not in os.environ:
                    patch.setenv(variable, f"/tmp/{variable}")
        patch.setenv("NRL_IGNORE_TP_ACCURACY_CHECK", "1")  # as the scripts of these examples do
        config_file.register_arithmetic()
        return {name: refusals(name, example) for name, example in examples()}


def known() -> list[dict[str, Any]]:
    reasons: list[dict[str, Any]] = yaml.safe_load(REASONS.read_text())
    return reasons


def test_every_example_passes_or_has_a_reason_that_was_read(found: dict[str, list[tuple[str, str]]]) -> None:
    here = [reason for reason in known() if _is_of(reason, checkout())]
    unexplained = {
        name: [(key, text) for key, text in errors if not any(_explains(reason, name, key) for reason in here)]
        for name, errors in found.items()
    }
    assert {name: errors for name, errors in unexplained.items() if errors} == {}


def test_no_reason_is_left_over(found: dict[str, list[tuple[str, str]]]) -> None:
    for reason in known():
        if _is_of(reason, checkout()):
            assert any(_explains(reason, name, key) for name, errors in found.items() for key, _ in errors), reason


def test_every_reason_names_its_source_and_its_date() -> None:
    for reason in known():
        assert isinstance(reason["date"], date) and reason["read"] and reason["why"], reason


def test_as_many_examples_pass_as_are_wanted(found: dict[str, list[tuple[str, str]]]) -> None:
    assert sum(not errors for errors in found.values()) >= WANTED[checkout()]


def _is_of(reason: dict[str, Any], checkout: str) -> bool:
    """Whether a reason is of a checkout. What main refuses, the tree of v0.8.0 refuses unless `mended` says so."""
    return checkout in reason["checkouts"] or (
        checkout == "v0.8.0" and "main" in reason["checkouts"] and not reason.get("mended")
    )


def _explains(reason: dict[str, Any], name: str, key: str) -> bool:
    files = reason.get("files")
    return key in reason["keys"] and (files is None or any(re.search(part, name) for part in files))
