"""`nemo-ada train` reads YAMLs and words with the reader of `check`, which reads NeMo-RL's files as NeMo-RL does."""

import importlib
import os
import runpy
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_ada.config.load import load_yaml
from nemo_ada.rules.check.command import examine
from nemo_ada.rules.facts.config_file import load_config

HOME = os.environ.get("NEMO_RL_HOME")
pytestmark = pytest.mark.skipif(HOME is None, reason="NEMO_RL_HOME names no checkout")
CONFIG = Path(__file__).parents[2] / "configs" / "qwen2.5-math-7b.yaml"
WORDS = [
    "reinforce_ada.budget.max_samples=2048",  # a new key without a +
    "policy.generation.vllm_kwargs.enable_chunked_prefill=true",
    "policy.tokenizer.chat_template_kwargs.enable_thinking=false",
    "data.train.data_path=/data/my set (1).jsonl",  # what hydra's grammar has no words for
    "run_dir=/shared/läufe",
    "policy.model_name=~/models/x",
    "logger.wandb.name=run, first of many",
]


def their_reader():
    """NeMo-RL's own `load_config`, of a file that needs nothing but OmegaConf and hydra."""
    return runpy.run_path(str(Path(HOME) / "nemo_rl" / "utils" / "config.py"))["load_config"]


def test_yamls_of_nemo_rl_read_as_nemo_rl_reads_them():
    """Each that replaces a section or has several parents, and every tenth of the others: all take two minutes."""
    texts = {path: path.read_text() for path in sorted((Path(HOME) / "examples").rglob("*.yaml"))}
    chosen = [path for number, (path, text) in enumerate(texts.items())
              if number % 10 == 0 or "_override_" in text or "defaults:\n" in text]  # fmt: skip
    assert len(chosen) > 20
    read = their_reader()
    for path in chosen:
        assert OmegaConf.to_container(load_yaml(path)) == OmegaConf.to_container(read(path)), path


def test_a_mark_in_a_deeper_section_replaces_nothing_and_check_says_so(tmp_path):
    own = tmp_path / "own.yaml"
    base = f"{HOME}/examples/configs/grpo_math_1B.yaml"
    own.write_text(f"defaults: {base}\npolicy: {{optimizer: {{_override_: true, name: torch.optim.SGD}}}}\n")
    kept = load_yaml(own).policy.optimizer
    assert kept == their_reader()(own).policy.optimizer
    assert kept.kwargs.betas == [0.9, 0.999]
    assert "policy.optimizer._override_" in {one.key for one in examine(own, verifier=False) if one.level == "error"}


@pytest.mark.parametrize("word", WORDS)
def test_a_job_takes_the_words_that_check_takes(word, monkeypatch):
    monkeypatch.syspath_prepend(HOME)
    launch = importlib.import_module("nemo_ada.nemo.launch.command")
    assert launch.load(CONFIG, [word]) == load_config(CONFIG, [word])
