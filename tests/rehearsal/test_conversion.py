"""`nemo-ada prepare` converts a model with NeMo-RL's own code, on one GPU: here with the rehearsal's CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.nemo.launch.prepare import convert
from nemo_ada.rehearsal import command, installation
from nemo_ada.rehearsal.shrink import shrink
from nemo_ada.rules.facts.config_file import load_config

ROOT = Path(__file__).resolve().parents[2]
TWO_RANKS = ROOT / "configs/qwen2.5-math-7b.yaml"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_model_of_two_ranks_is_converted_by_one_process_and_stays_for_the_job(tmp_path: Path) -> None:
    try:
        installed = installation.find()
    except UserError as problem:
        pytest.skip(str(problem))
    config = load_config(TWO_RANKS)
    shrinker, layout = shrink(config, model=tmp_path / "model", data=tmp_path / "data", out=tmp_path / "run", steps=1)
    command.furnish(config, shrinker, layout, installed, tmp_path)
    made = tmp_path / "megatron"
    environment = installed.environment(name="conversion", gpus=1, events=tmp_path / "events.jsonl", conversions=made)
    assert convert(Values(shrinker.config), installed.policy, environment) == "converted to Megatron's format"
    assert [path.parent.parent.name for path in made.glob("*/iter_0000000/metadata.json")] == [
        "model_" + str(tmp_path / "model").replace("/", "_")
    ]
