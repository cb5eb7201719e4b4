"""What `check` says of a value's type is what NeMo-RL's own configuration class says when a run starts."""

from __future__ import annotations

import copy
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.value_types import check_value_types

sys.path.insert(0, str(Path(__file__).parent))
from nemo_support.compat import use_typing_extensions_typed_dict

HOME = os.environ.get("NEMO_RL_HOME")
pytestmark = [
    pytest.mark.nemo_rl,
    pytest.mark.skipif(
        HOME is None or importlib.util.find_spec("nemo_rl") is None,
        reason="NeMo-RL cannot be imported here, or NEMO_RL_HOME is not set",
    ),
]
RECIPE = Path(__file__).parents[2] / "configs/qwen2.5-math-7b.yaml"
WORDS = (
    "policy.tokenizer.chat_template=null", "policy.tokenizer.chat_template=x", "checkpointing.keep_top_k=null",
    "++policy.megatron_cfg.env_vars.X=1", "++policy.megatron_cfg.env_vars.X='1'", "++policy.megatron_cfg.env_vars=null",
    "logger.wandb_enabled=null", "logger.wandb_enabled=maybe", "logger.wandb_enabled=1", "grpo.val_batch_size=null",
    "grpo.val_batch_size='4'", "grpo.val_batch_size=4.5", "policy.generation.stop_strings=[a]",
    "policy.generation.stop_strings=a", "policy.generation.top_k=null", "++data.train.split_validation_size=a",
    "policy.dynamic_batching.enabled=7", "policy.sequence_packing.enabled=null", "cluster.gpus_per_node='8'",
    "policy.megatron_cfg.enabled=false", "++policy.dtensor_cfg.enabled=true", "~cluster.num_nodes",
    "~grpo.max_num_steps", "++data.validation=null", "env=null", "++policy.megatron_cfg.optimizer.lr=fast",
    "policy.sequence_packing.train_mb_tokens=many", "++grpo.async_grpo=null", "++loss_fn.ratio_clip_c=null",
)  # fmt: skip


def refuses(config: dict[str, Any]) -> str:
    """What NeMo-RL's class says of a config, empty where it takes it."""
    use_typing_extensions_typed_dict()
    from nemo_rl.algorithms.grpo import MasterConfig

    try:
        MasterConfig(**config)
    except ValidationError as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize("word", WORDS)
def test_check_and_nemo_rl_agree_on_a_value(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_RL_HOME", str(HOME))
    config = load_config(RECIPE, [word])
    key = word.lstrip("+~").split("=")[0].removesuffix("=")
    ours = {finding.key for finding in check_value_types(config)}
    theirs = refuses(config)
    assert bool(ours) == bool(theirs), (ours, theirs)
    assert all(one.startswith(key) or key.startswith(one) for one in ours), ours


def places(section: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all keys below a section."""
    for key, value in section.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from places(value, (*above, key))


def test_check_and_nemo_rl_agree_on_any_value_of_any_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_RL_HOME", str(HOME))
    config = load_config(RECIPE)
    differ = []
    for path in places(config):
        for value in (None, "x", 7, 1.5, True, [1], {"a": 1}):
            changed = copy.deepcopy(config)
            node = changed
            for part in path[:-1]:
                node = node[part]
            node[path[-1]] = value
            found = [finding.key for finding in check_value_types(changed)]
            theirs = refuses(changed)
            if bool(found) != bool(theirs) and "Value error" not in theirs:  # a rule of theirs, and not a type
                differ.append((path, value, found))
    assert differ == []
