"""The base model of a run on the CPU, for a config that names no checkpoint (`policy.model_name`).

A model with random weights is never right, and reinforcement learning needs right answers. So this one is trained on
the task's demonstrations. It is trained once per setting, and cached as a Hugging Face folder with its pass rates.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

from nemo_ada import trust
from nemo_ada.cpu.learner.settings import LearnerConfig
from nemo_ada.cpu.learner.shape import HF_NAMES, PolicyShape
from nemo_ada.cpu.settings import OptimizerSettings, RunConfig
from nemo_ada.cpu.stack import Stack, choose_model_shape
from nemo_ada.cpu.supervision import make_demonstration_batches
from nemo_ada.errors import UserError
from nemo_ada.run.files import verify_folder, write_atomically, write_folder
from nemo_ada.tasks.protocol import Task
from nemo_ada.tasks.reasoning import NOT_OURS
from nemo_ada.tasks.settings import list_data_facts

log = logging.getLogger(__name__)

PROBE_PROMPTS, PROBE_RESPONSES = 256, 32
WARMUP_SHARE = 0.05
REPORT = "base.json"  # the file of the pass rates, beside the model
VERSION = 1  # increase it when this module makes another model from the same settings


def choose_base_folder(config: RunConfig, task: Task) -> Path:
    """The cache folder of this run's base model. Its name depends on everything that determines the model."""
    shape = choose_model_shape(config, task)
    facts = {
        "version": VERSION,
        "task": list_data_facts(config.task),
        "data": getattr(task, "fingerprint", ""),
        "shape": {name: getattr(shape, name) for name in (*HF_NAMES, "tied_embeddings")},
        "base": config.base.model_dump(exclude={"cache_dir"}),
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return Path(config.base.cache_dir) / f"{task.name}-{key}"


def prepare_base(
    config: RunConfig, task: Task, stack: Stack, progress: Callable[[int, int, float], None] | None = None
) -> Path:
    """Find or train the base model of a run. Its pass rates are measured once and cached, too.

    Args:
        config: Config of the run.
        task: The run's task.
        stack: Processes of the run.
        progress: Called with (step, steps, loss) while the model trains.

    Returns:
        Hugging Face folder of the user's checkpoint, of the cached model, or of a model that was trained now.

    Raises:
        UserError: The cached model is damaged, or it may be somebody else's.
    """
    if config.policy.model_name is not None:
        return Path(config.policy.model_name)
    folder = choose_base_folder(config, task)
    if folder.exists():
        trust.check_tree(folder, NOT_OURS)
        try:
            verify_folder(folder, needs=[REPORT])
        except UserError as damage:
            raise UserError(f"cached base model: {damage}; remove the folder to train it again") from None
        return folder
    started = time.perf_counter()
    learner = stack.learner(_make_learner_config(config, choose_model_shape(config, task)), None)
    base, demonstrations = config.base, task.splits().supervision
    batches = make_demonstration_batches(demonstrations, task.tokenizer, base.batch_size, base.seed)
    for step, rows in enumerate(islice(batches, base.steps), start=1):
        metrics = learner.supervised(rows)
        if progress is not None:
            progress(step, base.steps, metrics["loss"])
    trained = time.perf_counter() - started

    def fill(partial: Path) -> None:
        learner.export_hf(partial, {"eos_token_id": task.tokenizer.eos_id, "pad_token_id": task.tokenizer.pad_id})
        task.tokenizer.write_hf(partial)
        rates = _measure_pass_rates(config, task, stack, partial)
        report = {"mean": float(rates.mean()), "seconds": trained, "rates": rates.tolist()}
        write_atomically(partial / REPORT, json.dumps(report))

    write_folder(folder, fill, replace=False)  # another run may have trained the same model in the meantime
    log.info("base model trained in %.0f s: %s", trained, folder)
    return folder


def _make_learner_config(config: RunConfig, shape: PolicyShape) -> LearnerConfig:
    """Return the settings of the learner that trains the base model, on one rank.

    They do not depend on the run's optimizer settings, because runs with different ones share the cached model.
    """
    return LearnerConfig(
        shape=shape,
        # A micro-batch holds a whole batch of demonstrations, which are short.
        micro_batch_size=max(config.policy.train_micro_batch_size, config.base.batch_size),
        optimizer=OptimizerSettings(lr=config.base.lr),
        warmup_updates=max(1, round(WARMUP_SHARE * config.base.steps)),
        decay_updates=config.base.steps + 1,  # the rate is 0 at this update, and the last one should still teach
        seed=config.base.seed,
        call_timeout_s=config.stall_seconds,
    )


def _measure_pass_rates(config: RunConfig, task: Task, stack: Stack, folder: Path) -> np.ndarray:
    """Pass rates [P] of up to PROBE_PROMPTS training prompts with the model in `folder`, of PROBE_RESPONSES each.

    PK is prompts x responses.
    """
    count = min(PROBE_PROMPTS, len(task.splits().train))
    # The rollout opens with a sampler, of which only the bound of failed responses counts here. Step and seed are any.
    sampler = config.reinforce_ada.sampler(config.grpo.num_generations_per_prompt, 1, run_seed=0, features=1)
    stack.call("open", str(folder.resolve()), sampler, config.policy)
    measured = stack.call("measure_train", list(range(count)), PROBE_RESPONSES, 0)
    return np.asarray(measured.reward_PK.mean(axis=1))
