"""`nemo-ada train` reads YAMLs and words with the reader of `check`, which reads NeMo-RL's files as NeMo-RL does."""

import importlib
import json
import os
import runpy
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_ada.config.load import load_yaml
from nemo_ada.config.values import Values
from nemo_ada.rules import data
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


PAIR = {"problem": "1 + 1?", "gt": "2"}
FILES = {  # content -> what the run makes of it, by the level of the finding
    "same.jsonl": ("ok", [PAIR]),
    "numbers.jsonl": ("ok", [PAIR | {"gt": 2}, PAIR | {"gt": 2.5}]),
    "same.csv": ("ok", "problem,gt\n1 + 1?,2\n"),
    "messages.jsonl": ("error", [PAIR | {"messages": [{"role": "user", "content": "another"},
                                                      {"role": "assistant", "content": "7"}]}]),
    "dates.jsonl": ("error", [PAIR | {"gt": "2024-01-01"}]),
    "twice.jsonl": ("error", '{"problem": "a", "problem": "b", "gt": "2"}\n'),
    "semicolons.csv": ("error", "problem;gt\n1 + 1?;2\n"),
    "missing.csv": ("error", "problem,gt\n1 + 1?,NA\n"),
    "zeros.csv": ("warning", "problem,gt\n1 + 1?,007\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_check_knows_what_the_loader_of_a_job_makes_of_a_file(name, tmp_path):
    level, content = FILES[name]
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content))
    section = f"data.train={{data_path: {path}, input_key: problem, output_key: gt}}"
    values = Values(load_config(CONFIG, [section]))
    found = [*data.check_dataset(values), *data.check_loading(values)]
    assert {one.level for one in found} - {"ok"} == {level} - {"ok"}, found
    try:
        theirs = importlib.import_module("nemo_rl.data.datasets.response_datasets.response_dataset").ResponseDataset
    except ImportError as problem:
        pytest.skip(f"NeMo-RL's own loader cannot be imported here: {problem}")
    try:
        read = [[turn["content"] for turn in row["messages"]] for row in theirs(str(path), "problem", "gt").dataset]
    except Exception as problem:  # noqa: BLE001 - of datasets and of pyarrow
        read = str(problem)
    written = [list(row.values())[:2] for row in content] if isinstance(content, list) else [["1 + 1?", 2]]
    assert (read == written) is (level == "ok"), read


def test_a_file_has_no_other_split_than_train(tmp_path):
    (tmp_path / "set.jsonl").write_text(json.dumps(PAIR) + "\n")
    section = f"{{data_path: {tmp_path}/set.jsonl, input_key: problem, output_key: gt, split: test}}"
    (found,) = data.check_loading(Values(load_config(CONFIG, [f"data.train={section}"])))
    assert "the split 'train' only" in found.message
