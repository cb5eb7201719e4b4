"""The end of a job, seen from inside grpo_train: when to save and stop (operations.md, jobcontrol.py).

At a step's end NeMo-RL asks its own TimeoutChecker whether to save and return; `JobTimeout` answers that question, so
NeMo-RL saves with its own code. While responses are drawn, `Watch` answers the sampler: a stop that was asked for lets
the step finish without new waves; when its update, a validation and the save would not fit, or nothing has been drawn
yet, the step is dropped and what is there is saved as of the step before (`save_between_steps`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from nemo_ada.nemo.access import get
from nemo_ada.nemo.checkpoint import methods_replaced
from nemo_ada.nemo.hooks import Hooks
from nemo_ada.nemo.targets import replaced
from nemo_ada.run.job_control import STOP_FILE, JobControl, job_end

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
RECENT_STEPS = 10  # whose longest update says how long the next one may take: the first step of an attempt compiles
ROLLOUT_CALLS = ("run_multi_turn_rollout", "run_async_multi_turn_rollout")


@dataclass
class Progress:
    """Where the loop stands after its last complete step, in the terms of its save state."""

    total_steps: int
    current_step: int
    current_epoch: int
    consumed_samples: int
    steps_per_epoch: int
    prompts: int
    loader_state: Any = None
    updates: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    pause_seconds: float = 0.0  # validations and saves since the loop's last mark, which are no part of a step
    reason: str | None = None
    signals: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, save_state: Any, dataloader: Any, prompts: int) -> Progress:
        """From the state that grpo_train starts with."""
        return cls(
            total_steps=int(get(save_state, "total_steps", 0)),
            current_step=int(get(save_state, "current_step", 0)),
            current_epoch=int(get(save_state, "current_epoch", 0)),
            consumed_samples=int(get(save_state, "consumed_samples", 0)),
            steps_per_epoch=max(len(dataloader), 1),
            prompts=prompts,
            loader_state=dataloader.state_dict(),
        )

    def advance(self, dataloader: Any) -> None:
        """One step is done."""
        if self.current_step >= self.steps_per_epoch:
            self.current_step, self.current_epoch = 0, self.current_epoch + 1
        self.total_steps += 1
        self.current_step += 1
        self.consumed_samples += self.prompts
        self.loader_state = dataloader.state_dict()


COUNTERS = ("total_steps", "current_step", "current_epoch", "consumed_samples")
SCORES = ("val_reward", "val:", "train:")  # of the step that was saved with them


class Watch:
    """Asked before each decision of the sampler: touches the heartbeat and looks whether the job ends."""

    def __init__(self, control: JobControl, progress: Progress) -> None:
        self._control, self._progress = control, progress
        self._end = job_end()
        self._next = 0.0

    def __call__(self) -> Literal["drain", "drop"] | None:
        now = time.time()
        if now < self._next:
            return None
        self._next = now + LOOK_SECONDS
        progress = self._progress
        self._control.heartbeat(progress.total_steps, "sampling")
        if self._end is not None and now + max(progress.updates, default=0.0) + self._control.closing > self._end:
            progress.reason = f"{self._end - now:.0f} s are left of the job: too few to finish step"
            return "drop"
        if progress.signals:
            progress.reason = progress.signals[0]
            return "drain"
        if (self._control.run_dir / STOP_FILE).exists():
            return "drain"
        return None


def job_timeout(original: type, control: JobControl, progress: Progress, dataloader: Any, hooks: Hooks | None) -> type:
    """A subclass of NeMo-RL's TimeoutChecker that also knows the job's end, the stop file and signals."""

    class JobTimeout(original):  # type: ignore[misc]
        def check_save(self) -> bool:
            """Called once per step, after its update: True saves and ends the run."""
            progress.advance(dataloader)
            seconds = max(self.iteration_times[-1] - progress.pause_seconds, 0.0)
            progress.pause_seconds = 0.0
            control.observe_step(seconds)
            progress.updates.append(seconds - (hooks.sampling_seconds if hooks is not None else 0.0))
            control.heartbeat(progress.total_steps)
            control.status("running", progress.total_steps)
            progress.reason = control.stop_reason()
            if progress.reason is not None:
                return True
            if super().check_save():
                progress.reason = "checkpointing.checkpoint_must_save_by"
                return True
            return False

    return JobTimeout


@contextmanager
def timed_saves(checkpointer: Any, control: JobControl, progress: Progress) -> Iterator[None]:
    """Within the block the duration of every save is known to the control, and the heartbeat tells of it."""
    begin, end = checkpointer.init_tmp_checkpoint, checkpointer.finalize_checkpoint
    started = [time.monotonic()]

    def init_tmp_checkpoint(*args: Any, **kwargs: Any) -> Any:
        control.heartbeat(progress.total_steps, "save")
        started[0] = time.monotonic()
        return begin(*args, **kwargs)

    def finalize_checkpoint(*args: Any, **kwargs: Any) -> Any:
        result = end(*args, **kwargs)
        seconds = time.monotonic() - started[0]
        progress.pause_seconds += seconds
        control.observe_save(seconds)
        control.heartbeat(progress.total_steps)
        return result

    methods = {"init_tmp_checkpoint": init_tmp_checkpoint, "finalize_checkpoint": finalize_checkpoint}
    with methods_replaced(checkpointer, methods):
        yield


@contextmanager
def timed_validations(loop: Any, control: JobControl, progress: Progress) -> Iterator[None]:
    """Within the block the control knows every validation's duration, and each rollout call, of training too, beats."""
    validate = loop.validate
    phase = ["sampling"]

    def timed(*args: Any, **kwargs: Any) -> Any:
        started, phase[0] = time.monotonic(), "evaluation"
        control.heartbeat(progress.total_steps, phase[0])
        try:
            result = validate(*args, **kwargs)
        finally:
            phase[0] = "sampling"
        seconds = time.monotonic() - started
        progress.pause_seconds += seconds
        control.observe_validation(seconds)
        control.heartbeat(progress.total_steps)
        return result

    def beating(rollout: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            control.heartbeat(progress.total_steps, phase[0])
            return rollout(*args, **kwargs)

        return call

    rollouts = {name: beating(getattr(loop, name)) for name in ROLLOUT_CALLS}
    with replaced(loop, {"validate": timed, **rollouts}):
        yield


def save_between_steps(parts: Mapping[str, Any], progress: Progress) -> bool:
    """Save the state after the last complete step, when a step was dropped while it sampled; whether it was needed.

    Nothing but the data loader had moved on, and its state as of that step is written. parts: policy,
    policy_generation, checkpointer, save_state, master_config. The prompts of the dropped step are drawn again.
    """
    checkpointer, config = parts["checkpointer"], parts["master_config"]
    newest = checkpointer.get_latest_checkpoint_path()
    saved = int(Path(newest).name.removeprefix("step_")) if newest is not None else 0
    if not get(config, "checkpointing.enabled", False) or saved >= progress.total_steps:
        return False
    parts["policy_generation"].finish_generation()
    parts["policy"].prepare_for_training()
    state = parts["save_state"]
    for name in COUNTERS:
        if isinstance(state, dict):
            state[name] = getattr(progress, name)
        else:
            setattr(state, name, getattr(progress, name))
    if isinstance(state, dict):
        for name in [name for name in state if name.startswith(SCORES)]:
            del state[name]
    path = Path(checkpointer.init_tmp_checkpoint(progress.total_steps, state, config))
    parts["policy"].save_checkpoint(
        weights_path=str(path / "policy" / "weights"),
        optimizer_path=str(path / "policy" / "optimizer") if checkpointer.save_optimizer else None,
        tokenizer_path=str(path / "policy" / "tokenizer"),
        checkpointing_cfg=get(config, "checkpointing"),
    )
    torch.save(progress.loader_state, path / "train_dataloader.pt")
    checkpointer.finalize_checkpoint(path)
    return True
