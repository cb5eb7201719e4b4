"""features.md says only what together.yaml can show: each test exists, and `check` refuses what a row calls refused."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import together
import yaml
from omegaconf import OmegaConf

from nemo_ada.rules import rulebook
from recipes import changed

ROOT = Path(__file__).parents[2]
ROWS = together.rows()
REFUSED = [row for row in ROWS if "refuse" in row]
ISSUE = (
    "LoRA on Megatron", "lora_cfg", "DTensor v1", "DTensor v2", "GSPO", "CISPO", "dual clip", "KL penalty",
    "reward scaling and shaping", "overlong filtering", "dynamic sampling", "reward-model environment",
    "several environments", "GDPO", "several turns, tools", "code ", "VLM", "SGLang", "Megatron inference",
    "speculative decoding", "router replay", "context parallelism", "sequence packing", "dynamic batching", "FP8",
    "MXFP8", "Muon", "several data loaders", "distillation", "NeMo-Gym", "single controller",
)  # fmt: skip


def of(row: dict[str, Any]) -> str:
    return str(row["feature"])


def test_the_page_has_the_tables_of_the_file() -> None:
    text = together.PAGE.read_text(encoding="utf-8")
    assert text == together.page(text), "python recipes/guide/together.py"


def test_every_feature_that_adopters_asked_for_has_a_row() -> None:
    features = "\n".join(map(of, ROWS))
    assert [name for name in ISSUE if name not in features] == []


@pytest.mark.parametrize("row", ROWS, ids=of)
def test_a_state_has_its_evidence(row: dict[str, Any]) -> None:
    states = {row["v0.7.0"], together.on_main(row)}
    assert states <= set(together.STATES)
    if "rehearsed" in states:
        assert isinstance(row["date"], date)
        words = row["command"].split()
        assert words[:2] == ["nemo-ada", "rehearse"]
        assert all((ROOT / word).is_file() for word in words if word.startswith("configs/"))
    if "tested" in states:
        assert row["tests"]
    if "refused" in states:
        assert ("refuse" in row or "tests" in row) and "instead" in row
    if states & {"should work", "read only"}:
        assert "why" in row or row["v0.7.0"] in together.RAN
    for test in row.get("tests", ()):
        path, _, name = test.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"^(async )?def {name}\(", text, re.M), test


def test_a_use_is_found_by_value_by_size_and_by_text() -> None:
    config = OmegaConf.create({"a": {"on": True, "size": 4, "name": "Nemotron-H"}, "none": None})
    for used in ({"a.on": True}, {"a.size": 2}, {"a.name": "^nemo"}, {"a.on": True, "a.name": "h$"}):
        assert together.uses(config, used)
    for used in ({"a.on": False}, {"a.size": 5}, {"a.name": "llama"}, {"none": "."}, {"b.c": 1}, {"a.on": 1}):
        assert not together.uses(config, used)


@pytest.mark.parametrize("row", REFUSED, ids=of)
def test_check_refuses_it_under_its_key(row: dict[str, Any]) -> None:
    overrides = dict(word.split("=", 1) for word in row["refuse"])
    config = changed({key: yaml.safe_load(value) for key, value in overrides.items()})
    key = row.get("key", next(iter(overrides)))
    assert key in {finding.key for finding in rulebook.apply_rules(config) if finding.level == "error"}
    without = changed({})
    assert key not in {finding.key for finding in rulebook.apply_rules(without) if finding.level == "error"}
