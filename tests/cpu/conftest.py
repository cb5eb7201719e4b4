"""One stack for all tests of the CPU back end: one Ray, one engine process, two learner ranks, one base model.

The task is a bandit with two contexts: the last letter of a prompt says which of four digits is right. The base model's
demonstrations hold each digit equally often, so it answers about one prompt in five correctly, whatever the letter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.cpu.settings import RunConfig, load_run
from nemo_ada.tasks.registry import build_task
from tests.lazy import Lazy

embedded, training = Lazy("nemo_ada.cpu.stack"), Lazy("nemo_ada.cpu.trainer")

JSONL = Path(__file__).resolve().parents[2] / "configs" / "cpu" / "jsonl.yaml"
PROMPTS = 300
TEST_SECONDS = 1800  # far above any test, also where twenty other programs want the same core


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


class Bandit:
    """`config(name, *overrides)` gives the configuration of a tiny run below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._write([(f"{n:03d}{'ab'[n % 2]}", "01"[n % 2]) for n in range(PROMPTS)])
        taught = {demonstration.prompt_text: i for i, demonstration in enumerate(self.task().splits().supervision)}
        texts = [f"{n:03d}{'ab'[n % 2]}" for n in range(PROMPTS)]
        self._write([(text, str(taught[text] % 4) if text in taught else "01"["ab".index(text[-1])]) for text in texts])

    def _write(self, rows: list[tuple[str, str]]) -> None:
        lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in rows]
        (self.root / "bandit.jsonl").write_text("\n".join(lines))

    def config(self, name: str, *overrides: str) -> RunConfig:
        return load_run(
            JSONL,
            [
                f"task.path={self.root}/bandit.jsonl",
                f"run_dir={self.root}/{name}",
                f"base.cache_dir={self.root}/cache",
                "base.steps=60",
                "grpo.num_prompts_per_step=8",
                "grpo.max_num_steps=4",
                "grpo.val_period=2",
                "checkpointing.save_period=2",
                "logger.tensorboard=false",
                "policy.generation.max_new_tokens=6",
                "policy.model.hidden_size=64",
                "policy.model.ffn_hidden_size=64",
                "policy.model.num_attention_heads=2",
                *overrides,
            ],
        )

    def task(self):
        config = self.config("task")
        return build_task(config.task, Path(config.base.cache_dir))


@pytest.fixture(scope="session")
def bandit(tmp_path_factory) -> Bandit:
    return Bandit(tmp_path_factory.mktemp("bandit"))


@pytest.fixture(scope="session")
def make(bandit):
    """make(name, *overrides): the configuration of a tiny run."""
    return bandit.config


@pytest.fixture(scope="session")
def task(bandit):
    return bandit.task()


@pytest.fixture(scope="session")
def stack(make, task):
    """Ray, the engine's process and two learner ranks; every learner of these tests takes their processes."""
    config = make("stack", "policy.megatron_cfg.tensor_model_parallel_size=2")
    with embedded.Stack(config) as running:
        running.learner(embedded.make_learner_config(config, embedded.choose_model_shape(config, task)), None)
        yield running


@pytest.fixture(scope="session")
def start(make, stack, task):
    """start(*overrides, name=...): a trainer whose model and engine are up, before its first step."""

    def started(*overrides: str, name: str) -> Any:
        quiet = ("reinforce_ada.preset=grpo", "grpo.val_at_start=false")
        config = make(f"started-{name}", *quiet, *overrides)
        trainer = training.Trainer(config, stack, task)
        trainer.run_dir.open(config.model_dump(mode="json"), resume=False)
        trainer._start()
        return trainer

    return started
