"""The processes of an embedded run: a private Ray, one rollout actor, one learner group. Leaves nothing behind."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import ray

from nemo_ada.config.run import RunConfig
from nemo_ada.embedded.engine_env import ENVIRONMENT
from nemo_ada.embedded.group import LearnerGroup
from nemo_ada.embedded.rollout import Rollout
from nemo_ada.embedded.settings import LearnerConfig
from nemo_ada.embedded.shape import ModelShape
from nemo_ada.errors import FailedResponsesError, InvariantError, UserError
from nemo_ada.tasks.protocol import Task

log = logging.getLogger(__name__)

START_SECONDS = 180.0
CALL_SECONDS = 1800.0
OBJECT_STORE_BYTES = 256 << 20


def model_shape(config: RunConfig, task: Task) -> ModelShape:
    """Shape of the small model that a run without `policy.model_name` makes."""
    model = config.policy.model
    return ModelShape(
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_layers=model.num_layers,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups,
        vocab_size=task.tokenizer.vocab_size,
        max_position_embeddings=max(128, task.max_prompt_tokens + max_new_tokens(config, task)),
    )


def max_new_tokens(config: RunConfig, task: Task) -> int:
    """Longest response, tokens."""
    return config.policy.generation.max_new_tokens or task.max_new_tokens


def learner_config(config: RunConfig, shape: ModelShape) -> LearnerConfig:
    """The learner's settings of a run; raises UserError for a layout that the model does not split into."""
    policy, optimizer = config.policy, config.policy.megatron_cfg.optimizer
    return LearnerConfig(
        shape=shape,
        tensor_parallel=policy.megatron_cfg.tensor_model_parallel_size,
        pipeline_parallel=policy.megatron_cfg.pipeline_model_parallel_size,
        data_parallel=policy.data_parallel_size,
        micro_batch_size=policy.train_micro_batch_size,
        lr=optimizer.lr,
        betas=(optimizer.adam_beta1, optimizer.adam_beta2),
        eps=optimizer.adam_eps,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=policy.max_grad_norm,
        warmup_steps=policy.megatron_cfg.scheduler.lr_warmup_iters,
        ratio_clip_min=config.loss_fn.ratio_clip_min,
        ratio_clip_max=config.loss_fn.ratio_clip_max,
        ratio_clip_c=config.loss_fn.ratio_clip_c,
        entropy_coefficient=config.loss_fn.entropy_coefficient,
        seed=config.base.seed,
    )


class Stack:
    """A context: Ray and the rollout actor start on entry, the learner on `learner`, all end on exit.

    Runs that follow each other in one process (comparisons) share it, because the imports take longer than the models.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._folder = ""
        self._learner: LearnerGroup | None = None
        self._rollout: Any = None

    def __enter__(self) -> Stack:
        self._folder = tempfile.mkdtemp(prefix="ada-")  # short: Ray puts sockets below it
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=self._folder,
        )
        actor = ray.remote(Rollout).options(num_cpus=0, max_restarts=0, runtime_env={"env_vars": dict(ENVIRONMENT)})
        self._rollout = actor.remote(self._config.task, self._config.base.cache_dir)
        self._rollout.warm_up.remote()
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            if self._learner is not None:
                self._learner.shutdown()
        finally:
            ray.shutdown()
            shutil.rmtree(self._folder, ignore_errors=True)

    def learner(self, config: LearnerConfig, weights: Path | None) -> LearnerGroup:
        """A learner with these settings, in the processes of the last one where they suffice."""
        if self._learner is not None and config.world_size > self._learner.processes:
            self._learner.shutdown()
            self._learner = None
        if self._learner is None:
            self._learner = LearnerGroup(config, weights)
        else:
            self._learner.restart(config, weights)
        return self._learner

    def fetch(self, reference: Any) -> Any:
        """What a reference to Ray's object store (the learner's weights) stands for."""
        return ray.get(reference, timeout=CALL_SECONDS)

    def call(self, method: str, *args: Any, timeout: float = CALL_SECONDS) -> Any:
        """Run a method of the rollout and wait for it. Raises InvariantError when the actor died or is late."""
        pending = getattr(self._rollout, method).remote(*args)
        try:
            return ray.get(pending, timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            raise InvariantError(f"the rollout did not answer `{method}` within {timeout:g} s") from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, (UserError, FailedResponsesError, InvariantError)):
                raise error.cause from None
            raise InvariantError(f"the rollout failed in `{method}`: {error.cause!r}") from error
        except ray.exceptions.RayError as error:
            raise InvariantError(f"the rollout died during `{method}`: {str(error).splitlines()[0]}") from None
