"""The single controller's actor with Reinforce-Ada.

    actor_args, timings = setup_single_controller(config, tokenizer)
    controller = controller_actor(config).remote(master_config=config, actor_args=actor_args,
                                                 setup_timing_metrics=timings)

`controller_actor` stands where NeMo-RL's example has `SingleControllerActor`. The actor replaces these objects when it
starts:

- `rollout_manager`: a group draws waves until its session has enough (rollout.py)
- `tq_buffer`: pools beside the buffer, sample mask 0 for rows outside the loss (buffer.py)
- `dataloader`: prompts by ticket, so that a resumed run trains on each of them once
- `advantage_estimator`: the pools' advantages (step.py)
- `sampler`: whole steps only; with ready_first no group is older than a bound (step.py)

The estimator of pass rates is saved in reinforce_ada.json of a checkpoint, prompts in train_dataloader.pt, pools in
replay_buffer.pt.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nemo_rl.algorithms.async_utils.staleness_sampler import ReadyFirstSampler
from nemo_rl.algorithms.single_controller import SingleControllerActor
from nemo_rl.algorithms.single_controller_utils.utils import tensor_field
from nemo_rl.experience.rollout_manager import AsyncNemoGymRolloutImpl, AsyncRolloutImpl

from nemo_ada.config.values import Values, as_dicts
from nemo_ada.core.sampler import SampledStep
from nemo_ada.errors import UserError
from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.groups.drawing import Groups
from nemo_ada.nemo.groups.prompt_queue import Delivered, PromptQueue, saved_queue
from nemo_ada.nemo.launch.checkpoint import methods_replaced, restore, saved_with
from nemo_ada.nemo.launch.lost import losses_said
from nemo_ada.nemo.launch.records import TIMING, Records
from nemo_ada.nemo.launch.stop_and_save import Progress, job_timeout, timed_saves
from nemo_ada.nemo.single_controller.buffer import AdaBuffer
from nemo_ada.nemo.single_controller.rollout import (
    AdaGymRollout,
    AdaRolloutManager,
    ControllerRollout,
    DrawnGroup,
)
from nemo_ada.nemo.single_controller.step import ControllerEstimator, ReadyGroups, StepSampler
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.upstream import ADVICE, CONTROLLER, CONTROLLER_METHODS
from nemo_ada.rules.single_controller import LATE, lookahead
from nemo_ada.run.folder import RunDir
from nemo_ada.run.job_control import JobControl

log = logging.getLogger(__name__)
ROLLOUTS = {AsyncRolloutImpl: ControllerRollout, AsyncNemoGymRolloutImpl: AdaGymRollout}
PLAIN: Any = SingleControllerActor.__ray_metadata__.modified_class.__ray_actor_class__


def controller_actor(master_config: Any) -> Any:
    """Return the Ray actor class for a configuration: ours, or NeMo-RL's without the section `reinforce_ada:`.

    Args:
        master_config: the single controller's MasterConfig with our section `reinforce_ada:`.

    Raises:
        UserError: for settings that cannot work together, and in v0.8.0. It is raised before anything starts.
    """
    if not nemo_settings.uses_reinforce_ada(master_config):
        return SingleControllerActor
    nemo_settings.read(master_config)
    if version.here().keeps_prompts:
        raise UserError(
            "v0.8.0's controller stays as it is: start its SingleControllerActor with the arguments that "
            "nemo_ada.nemo.single_controller.plug_in.plugged_in(config, actor_args) returns"
        )
    check_methods()
    return importlib.import_module("ray").remote(num_cpus=1, num_gpus=0)(AdaController)


def check_methods() -> None:
    """Raise UserError when the imported single controller is not as our subclasses need it."""
    for name, expected in CONTROLLER_METHODS.items():
        owner, _, last = name.rpartition(".")
        module, _, cls = owner.rpartition(".")
        holder: Any = PLAIN if owner == CONTROLLER else None
        if holder is None:
            holder = importlib.import_module(owner if cls.islower() else module)
            holder = holder if cls.islower() else getattr(holder, cls, None)
        function = getattr(holder, last, None)
        found = () if function is None else tuple(inspect.signature(function).parameters)
        if found[: len(expected)] != expected:
            raise UserError(f"{name} takes ({', '.join(found)}) first, expected ({', '.join(expected)}): {ADVICE}")


class Parts:
    """The objects of Reinforce-Ada in one controller.

    Attributes:
        settings: settings of the run.
        sampler: the run's sampler. All sessions and the advantages use it.
        queue: the prompts.
        groups: what the groups in flight share.
        estimator: it computes the advantages.
        buffer: the buffer.
        manager: the rollout manager.
        steps: steps that were put together so far.
        lists: metrics of the last step that are lists, which NeMo-RL's loggers do not take.
        ahead: versions of the weights by which sampling may run ahead of training.
    """

    def __init__(self, master_config: Any, actor_args: Any) -> None:
        """Build the objects that replace NeMo-RL's.

        Raises:
            UserError: NeMo-RL's rollouts are of a class that is unknown here, or the newest checkpoint is not ours.
        """
        manager = actor_args.rollout_manager
        rollout = ROLLOUTS.get(type(manager._impl))
        if rollout is None:
            known = " and ".join(cls.__name__ for cls in ROLLOUTS)
            raise UserError(
                f"the single controller draws with {type(manager._impl).__name__}, and Reinforce-Ada knows {known} only"
            )
        self.settings = settings = nemo_settings.read(master_config)
        self.sampler = settings.sampler()
        self.steps, self.lists = 0, dict[str, list[int]]()
        self.manager: Any = as_subclass(manager, AdaRolloutManager)
        values = Values(as_dicts(master_config))
        self.ahead = lookahead(values)
        self.groups = Groups(
            settings, self.sampler, lambda: self.manager._weight_version, first=1, rounds=max(self.ahead, 1)
        )
        shuffled = bool(Values(master_config).get("data.shuffle", True))
        self.queue = PromptQueue(
            actor_args.dataloader,
            size=settings.prompts,
            seed=settings.seed if shuffled else None,
            delivered=Delivered(),
            state=saved_queue(actor_args.last_checkpoint_path),
        )
        self.estimator = ControllerEstimator(settings, self.sampler, self._finished)
        self.manager._impl = as_subclass(manager._impl, rollout, groups=self.groups, begun=self.queue.begin)
        self.manager.dropped = self._dropped
        self.buffer: Any = as_subclass(
            actor_args.tq_buffer, AdaBuffer, drawn={}, restored=self._restored, evicted=self._evicted
        )

    def _finished(self, sampled: SampledStep) -> None:
        self.steps += 1
        self.lists = sampled.lists
        for text in sampled.warnings:
            log.warning("%s", text)

    def _dropped(self, target: int, ticket: int) -> None:
        self.groups.drop(target, ticket)
        self.queue.done(ticket)

    def _restored(self, drawn: DrawnGroup) -> None:
        self.groups.restore(drawn.target, drawn.group)
        self.queue.hold([drawn.ticket])

    def _evicted(self, ticket: int) -> None:
        self.queue.put_back([ticket])

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the last step."""
        return self.estimator.last_metrics | self.estimator.counted

    def state_dict(self) -> dict[str, Any]:
        """Return the state for reinforce_ada.json of a checkpoint."""
        return {"draws": self.steps, "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.steps = int(state["draws"])
        if state["sampler"] is not None:
            self.sampler.load_state_dict(state["sampler"])


class AdaController(PLAIN):  # type: ignore[misc]
    """NeMo-RL's controller with the objects of Reinforce-Ada."""

    def __init__(
        self, master_config: Any, actor_args: Any, setup_timing_metrics: Any, run_dir: str | None = None
    ) -> None:
        """Start NeMo-RL's controller with our objects.

        Args:
            master_config: NeMo-RL's configuration.
            actor_args: what `setup_single_controller` has built.
            setup_timing_metrics: its timings.
            run_dir: folder of a run of `nemo-ada train`. It gets the records of the steps, and a stop file there ends
                the run.
        """
        self._ada = ada = Parts(master_config, actor_args)
        super().__init__(
            master_config,
            dataclasses.replace(
                actor_args,
                rollout_manager=ada.manager,
                tq_buffer=ada.buffer,
                dataloader=ada.queue,
                advantage_estimator=ada.estimator,
            ),
            setup_timing_metrics,
        )
        ada.groups.gate = self._rollout_permitted
        sampler = vars(self)["_sampler"]
        if isinstance(sampler, ReadyFirstSampler):
            sampler = as_subclass(sampler, ReadyGroups, oldest=ada.ahead + LATE)
        self._sampler = StepSampler(sampler, ada.buffer, ada.queue, ada.estimator, ada.groups.forget)
        state = restore(self._checkpointer)
        if state is not None:
            ada.load_state_dict(state)
        self._ada_stack = ExitStack()  # it lives as long as the actor
        self._ada_stack.enter_context(saved_with(self._checkpointer, ada.state_dict))
        log_metrics = self._logger.log_metrics

        def with_ours(metrics: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("prefix") == "train":
                metrics = {**metrics, **ada.metrics}
            return log_metrics(metrics, *args, **kwargs)

        self._ada_stack.enter_context(methods_replaced(self._logger, {"log_metrics": with_ours}))
        self._control: JobControl | None = None
        if run_dir is not None:
            self._supervise(Path(run_dir))

    def _supervise(self, run_dir: Path) -> None:
        """Write records, and ask the files of the job whether to stop. NeMo-RL's own TimeoutChecker asks, too."""
        ada, config = self._ada, self._master_config
        self._control = control = JobControl(run_dir, int(config.grpo.max_num_steps))
        self._progress = progress = Progress.of(self._save_state, None, ada.settings.prompts)
        timeout = job_timeout(type(vars(self)["_timeout"]), control, progress, None, None)
        self._timeout = timeout(timeout=config.checkpointing["checkpoint_must_save_by"], fit_last_save_time=True)
        self._timeout.start_iterations()
        self._ada_stack.enter_context(timed_saves(self._checkpointer, control, progress))
        rows = ada.settings.group * ada.settings.prompts
        records = Records.continued(
            RunDir(run_dir), rows, lambda: {**ada.lists, **ada.estimator.counted}, progress.total_steps, TIMING
        )
        self._ada_stack.enter_context(records.of(self._logger))

    async def stop(self, reason: str) -> None:
        """Save and end after the current step."""
        if self._control is not None:
            self._control.request(reason)

    async def run(self) -> dict[str, Any]:
        """Train to the end, or until a stop is requested. The result also has the reason of a stop.

        Raises:
            ProcessLostError: a process has died, such as an engine. NeMo-RL's own error does not say so in another
                process.
            Exception: the first error of a group. NeMo-RL wraps the errors of its groups.
        """
        try:
            with losses_said():
                result: dict[str, Any] = await super().run()
        except ExceptionGroup as group:
            raise first_error(group) from group
        return result | {"reason": None if self._control is None else self._progress.reason}

    async def _advantage_stage(self, meta: Any) -> Any:
        """Compute the advantages of a step. The estimator also compares engine and learner."""
        if self._policy_logprobs_required:
            name = self._advantage_cfg.generation_logprobs_field
            data = await self._call_dp(
                "get_samples", sample_ids=meta.sample_ids, partition_id=meta.partition_id, select_fields=[name]
            )
            self._ada.estimator.generation_logprobs = tensor_field(data, name)
        return await super()._advantage_stage(meta)

    async def _save_checkpoint(self, step_metrics: dict[str, Any]) -> None:
        """Save a checkpoint. `checkpointing.metric_name` may name one of our metrics."""
        await super()._save_checkpoint({**step_metrics, **self._ada.metrics})


def first_error(error: BaseException) -> BaseException:
    """Return the first error that is no group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def as_subclass(instance: Any, cls: Any, **attributes: Any) -> Any:
    """Return a copy of an object that has a subclass of its class and these attributes, too. The parts are shared."""
    copy = cls.__new__(cls)
    vars(copy).update({**vars(instance), **attributes})
    return copy
