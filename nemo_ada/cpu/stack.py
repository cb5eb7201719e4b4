"""The processes of a CPU run: a private Ray, one rollout actor and one learner group. They end with the run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import ray

from nemo_ada.cpu.engine.vllm_engine import ENVIRONMENT
from nemo_ada.cpu.learner.group import LearnerGroup
from nemo_ada.cpu.learner.settings import LearnerConfig
from nemo_ada.cpu.learner.shape import PolicyShape
from nemo_ada.cpu.model_folder import read_shape
from nemo_ada.cpu.processes import actors as processes
from nemo_ada.cpu.processes import private_ray
from nemo_ada.cpu.rollout import Rollout, choose_max_new_tokens, load_tokenizer
from nemo_ada.cpu.settings import RunConfig
from nemo_ada.errors import FailedResponsesError, InvariantError, ProcessLostError, StallError, UserError
from nemo_ada.run.files import private_folder, text_of, write_atomically
from nemo_ada.tasks.protocol import Task
from nemo_ada.tasks.registry import build_task

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 256 << 20
FLOAT_BYTES = 4
WEIGHT_COPIES = 3  # number of copies of the weights for which the object store has room during a refit
GCS_SECONDS = 10  # a head on this machine that does not answer for longer will not come back


def build_run_task(config: RunConfig) -> Task:
    """The task of a run, with the tokenizer of its model. Raises UserError for a file that cannot be used."""
    return build_task(config.task, Path(config.base.cache_dir), load_tokenizer(config.policy))


def choose_model_shape(config: RunConfig, task: Task) -> PolicyShape:
    """Shape of the small model that a run without `policy.model_name` makes."""
    return PolicyShape(
        **config.policy.model.model_dump(),
        vocab_size=task.tokenizer.vocab_size,
        max_position_embeddings=max(128, task.max_prompt_tokens + choose_max_new_tokens(config.policy, task)),
    )


def packs_rows(config: RunConfig) -> bool:
    """Return whether the learner packs rows. With a small model it pads them, as it did for the published numbers."""
    return config.policy.model_name is not None and config.policy.sequence_packing.enabled


def make_learner_config(config: RunConfig, shape: PolicyShape) -> LearnerConfig:
    """Settings of a run's learner. Raises UserError when the model does not split into the layout."""
    policy = config.policy
    return LearnerConfig(
        shape=shape,
        tensor_parallel=policy.megatron_cfg.tensor_model_parallel_size,
        pipeline_parallel=policy.megatron_cfg.pipeline_model_parallel_size,
        data_parallel=policy.data_parallel_size,
        micro_batch_size=policy.train_micro_batch_size,
        packed_tokens=policy.sequence_packing.train_mb_tokens if packs_rows(config) else None,
        threads=policy.threads,
        optimizer=policy.megatron_cfg.optimizer,
        max_grad_norm=policy.max_grad_norm,
        warmup_updates=policy.megatron_cfg.scheduler.lr_warmup_iters * config.updates_per_step,
        loss=config.loss_fn,
        temperature=policy.generation.temperature,
        halves=config.logger.gradient_cosine,
        seed=config.base.seed,
        call_timeout_s=config.stall_seconds,
    )


class Stack:
    """A context with the processes of a run. Ray and the rollout actor start on entry, and the learner with `learner`.

    All end on exit. Runs that follow each other in one process share a stack, because its imports take longer than
    building their models.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._folder = Path()
        self._files = ExitStack()
        self._learner: LearnerGroup | None = None
        self._rollout: Any = None
        self._warm: Any = None
        self._rollout_pid = 0

    def __enter__(self) -> Self:
        self._folder = self._files.enter_context(private_folder(private_ray.LONGEST - len("/r")))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        """Start Ray, and begin to start the rollout. Raises StallError when Ray does not come up (a busy machine)."""
        stacks, temporary = self._folder / "stacks", self._folder / "tmp"
        stacks.mkdir()
        temporary.mkdir()
        os.environ[processes.STACKS] = str(stacks)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(GCS_SECONDS))
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(temporary)  # the actors' temporary files are removed with our folder
        try:
            private_ray.start(
                self._folder / "r",  # Ray opens it to all users of the machine
                num_cpus=4,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=_choose_object_store_bytes(self._config),
            )
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before
        actor = ray.remote(Rollout).options(num_cpus=0, max_restarts=0, runtime_env={"env_vars": dict(ENVIRONMENT)})
        self._rollout = actor.remote(self._config.task, self._config.base.cache_dir)
        self._warm = self._rollout.warm_up.remote()

    def __exit__(self, *_exc: object) -> None:
        try:
            if self._learner is not None:
                self._learner.shutdown()
        finally:
            if self._rollout_pid:
                with suppress(ray.exceptions.RayError):  # Ray may have lost its head. The process is ended below
                    ray.kill(self._rollout, no_restart=True)
                processes.end_processes([self._rollout_pid], grace=2.0)
            ray.shutdown()
            os.environ.pop(processes.STACKS, None)
            self._files.close()

    @property
    def pids(self) -> dict[str, int]:
        """Name -> process id of each actor that has started."""
        learners = {} if self._learner is None else self._learner.pids
        return learners | ({"rollout": self._rollout_pid} if self._rollout_pid else {})

    def keep_stacks(self, folder: Path) -> None:
        """Copy the stacks that stalled processes have written to `folder`."""
        for path in (self._folder / "stacks").glob("*.txt"):
            if path.stat().st_size:
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / path.name, text_of(path, errors="replace"))

    def learner(self, config: LearnerConfig, weights: Path | None) -> LearnerGroup:
        """Return a learner with these settings. It reuses the processes of the last one if they live and are enough."""
        if self._learner is not None and (self._learner.closed or config.world_size > self._learner.processes):
            self._learner.shutdown()
            self._learner = None
        if self._learner is None:
            self._learner = LearnerGroup(config, weights)
        else:
            self._learner.restart(config, weights)
        return self._learner

    def call(self, method: str, *args: Any, seconds: float | None = None) -> Any:
        """Run a method of the rollout and wait for its result.

        Args:
            method: Name of the method.
            *args: Its arguments.
            seconds: Longest wait. None takes the run's `stall_seconds`.

        Raises:
            ProcessLostError: The actor died.
            StallError: The result did not come in time.
            UserError: The method raised it. The same holds for FailedResponsesError.
            InvariantError: The method failed.
        """
        return self.begin(method, *args, seconds=seconds)()

    def begin(self, method: str, *args: Any, seconds: float | None = None) -> Callable[[], Any]:
        """Start a method of the rollout, which runs its calls one by one.

        Returns:
            A function that waits for the result and raises the errors of `call`.
        """
        if not self._rollout_pid:
            self._rollout_pid = self._answer("warm_up", self._warm, processes.START_SECONDS)
        limit = self._config.stall_seconds if seconds is None else seconds
        return partial(self._answer, method, getattr(self._rollout, method).remote(*args), limit)

    def _answer(self, method: str, pending: Any, seconds: float) -> Any:
        """Wait for the result of a method. Raises the errors of `call`."""
        try:
            return ray.get(pending, timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            stacks = "".join(f"; {line}" for line in processes.dump_stacks(self.pids))
            raise StallError(f"the rollout did not answer `{method}` within {seconds:g} s{stacks}") from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, (UserError, FailedResponsesError, InvariantError)):
                raise error.cause from None
            raise InvariantError(f"the rollout failed in `{method}`: {error.cause!r}") from error
        except ray.exceptions.RayError as error:
            raise ProcessLostError(f"the rollout died during `{method}`: {str(error).splitlines()[0]}") from None


def _choose_object_store_bytes(config: RunConfig) -> int:
    """Size of Ray's object store, in which the weights pass from the learner to the engine."""
    if config.policy.model_name is None:
        return OBJECT_STORE_BYTES
    parameters = read_shape(config.policy.model_name).parameters
    return max(OBJECT_STORE_BYTES, WEIGHT_COPIES * FLOAT_BYTES * parameters)
