"""No config of recipes/benchmarks/config_rules.py passes `check` in silence, and none is refused for another reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "recipes" / "benchmarks"))
import config_rules  # noqa: E402

from nemo_ada.check.command import recipe  # noqa: E402
from nemo_ada.cluster.config import load_config  # noqa: E402

pytestmark = pytest.mark.skipif(
    "NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set"
)


@pytest.fixture(scope="module")
def config() -> dict:
    return load_config(config_rules.CONFIG)


def test_the_config_that_the_list_breaks_has_no_errors(config: dict) -> None:
    assert [found for found in recipe(config) if found.level == "error"] == []


def test_the_list_has_sixty_ways_to_break_it() -> None:
    named = {(broken.key, str(broken.value), str(broken.others)) for broken in config_rules.BROKEN}
    assert len(named) == len(config_rules.BROKEN) >= 60


@pytest.mark.parametrize("broken", config_rules.BROKEN, ids=lambda broken: f"{broken.key}={broken.value}")
def test_a_config_that_cannot_work_is_named_under_its_key(
    config: dict, broken: config_rules.Broken, tmp_path: Path
) -> None:
    config_rules.write_files(tmp_path)
    said = config_rules.found(config, broken, tmp_path)
    assert said is not None, "check says nothing"
    assert said.level == broken.level and len(said.message) > 20
