"""Saves and stops grpo_train when its job ends. job_control.py has the files and the exit codes.

At a step's end NeMo-RL asks its TimeoutChecker whether to save and return. `JobTimeout` answers, so NeMo-RL saves with
its own code. During sampling, `SamplingStopCheck` answers the sampler. A requested stop issues no new waves and
finishes the step. The step is dropped when its update, a validation and the save no longer fit, or when nothing has
been drawn yet. Then `save_between_steps` saves the state after the step before.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from nemo_ada.config.values import Values
from nemo_ada.errors import ProcessLostError
from nemo_ada.nemo.hooks import Hooks
from nemo_ada.nemo.launch.checkpoint import replace_methods, wrap_finalizers
from nemo_ada.nemo.patch_points import replace_names
from nemo_ada.nemo.rollouts.requests import STALL_SECONDS
from nemo_ada.rules.facts.upstream import ASYNC_ROLLOUT, GYM_ROLLOUT, GYM_SYNC, ROLLOUT
from nemo_ada.run.folder import RunDir
from nemo_ada.run.job_control import STOP_FILE, JobControl

CHECK_SECONDS = 0.5
# The longest update of so many steps predicts the next one. The first step of an attempt is slow, because it compiles.
RECENT_STEPS = 10
GYM_CALLS = (GYM_ROLLOUT.name, GYM_SYNC.name)
ROLLOUT_CALLS = (ROLLOUT.name, ASYNC_ROLLOUT.name, *GYM_CALLS)
BEAT_SECONDS = 30.0
VALIDATE_SYNC = "validate_sync"  # of the trainer with a data plane


@dataclass
class Progress:
    """Where the loop is after its last complete step.

    Attributes:
        total_steps: complete steps of the run.
        current_step: complete steps of the epoch.
        current_epoch: complete epochs.
        consumed_samples: prompts of all complete steps.
        steps_per_epoch: batches of the data loader.
        prompts: prompts per step.
        loader_state: state of the data loader.
        sampler_state: state of Reinforce-Ada's sampler.
        updates: seconds of the last steps without their sampling.
        pause_seconds: seconds of validations and saves since the last step ended. They are not part of a step.
        reason: why the run stops. None while it does not stop.
        signals: the stop signals that arrived.
    """

    total_steps: int
    current_step: int
    current_epoch: int
    consumed_samples: int
    steps_per_epoch: int
    prompts: int
    loader_state: Any = None
    sampler_state: Mapping[str, Any] | None = None
    updates: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    pause_seconds: float = 0.0
    reason: str | None = None
    signals: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, save_state: Any, dataloader: Any, prompts: int) -> Progress:
        """Read the progress from the state with which grpo_train starts.

        Args:
            save_state: NeMo-RL's counters.
            dataloader: NeMo-RL's data loader. None for async_grpo_train, which counts steps only and gives the loader
                to another process.
            prompts: prompts per step.
        """
        steps, in_epoch, epoch, samples = (
            int(Values(save_state).get(name, 0))
            for name in ("total_steps", "current_step", "current_epoch", "consumed_samples")
        )
        if dataloader is None:
            return cls(in_epoch, in_epoch, 0, samples, 1, prompts)  # its current_step counts all steps, without epochs
        return cls(
            total_steps=steps,
            current_step=in_epoch,
            current_epoch=epoch,
            consumed_samples=samples,
            steps_per_epoch=max(len(dataloader), 1),
            prompts=prompts,
            loader_state=dataloader.state_dict(),
        )

    def advance(self, dataloader: Any) -> None:
        """Count one complete step."""
        if self.current_step >= self.steps_per_epoch:
            self.current_step, self.current_epoch = 0, self.current_epoch + 1
        self.total_steps += 1
        self.current_step += 1
        self.consumed_samples += self.prompts
        self.loader_state = None if dataloader is None else dataloader.state_dict()


COUNTERS = ("total_steps", "current_step", "current_epoch", "consumed_samples")
SCORES = ("val_reward", "val:", "train:")  # the names of a step's scores in its checkpoint begin so


class SamplingStopCheck:
    """Touches the heartbeat before each decision of the sampler and checks whether the job ends."""

    def __init__(self, control: JobControl, progress: Progress) -> None:
        self._control, self._progress = control, progress
        self._next = 0.0

    def __call__(self) -> Literal["drain", "drop"] | None:
        """Return what the sampler does with the responses in flight. With None it goes on."""
        now = time.time()
        if now < self._next:
            return None
        self._next = now + CHECK_SECONDS
        progress = self._progress
        self._control.heartbeat(progress.total_steps, "sampling")
        end = self._control.end
        if end is not None and now + max(progress.updates, default=0.0) + self._control.closing > end:
            progress.reason = f"{end - now:.0f} s are left of the job: too few to finish step"
            return "drop"
        if progress.signals:
            progress.reason = progress.signals[0]
            return "drain"
        if (self._control.run_dir / STOP_FILE).exists():
            return "drain"  # the step completes, and check_save reads from the file why
        return None


def make_job_timeout(
    original: type, control: JobControl, progress: Progress, dataloader: Any, hooks: Hooks | None
) -> type:
    """Build a subclass of NeMo-RL's TimeoutChecker that also checks the job's end, the stop file and signals.

    A subclass, because the loop makes the checker itself, from a name of its module. It is asked once per step, which
    also makes it the place where a step is counted.

    Args:
        original: NeMo-RL's class.
        control: files and forecasts of the job.
        progress: where the loop is. The class updates it.
        dataloader: NeMo-RL's data loader. None for async_grpo_train.
        hooks: the hooks of Reinforce-Ada. None with another estimator.
    """

    class JobTimeout(original):  # type: ignore[misc]
        def start_iterations(self) -> None:
            """NeMo-RL calls it before its first step."""
            super().start_iterations()
            self.last_check = time.monotonic()

        def check_save(self) -> bool:
            """Return whether to save and end the run. NeMo-RL calls it once per step, after the update.

            Main's asynchronous loop calls it before it writes down how long the step took, so the time is taken here.
            """
            progress.advance(dataloader)
            progress.sampler_state = None if hooks is None else hooks.state_dict()
            now = time.monotonic()
            seconds = max(now - self.last_check - progress.pause_seconds, 0.0)
            self.last_check, progress.pause_seconds = now, 0.0
            control.observe_step(seconds)
            progress.updates.append(seconds - (hooks.sampling_seconds if hooks is not None else 0.0))
            control.heartbeat(progress.total_steps)
            control.status("running", progress.total_steps)
            progress.reason = control.find_stop_reason()
            if progress.reason is not None:
                return True
            if super().check_save():
                progress.reason = "checkpointing.checkpoint_must_save_by"
                return True
            return False

    return JobTimeout


@contextmanager
def raise_errors(loop: Any) -> Iterator[None]:
    """Within the block async_grpo_train raises its errors. NeMo-RL would print them and end without an error code."""
    show = traceback.print_exc

    def print_exc(*args: Any, **kwargs: Any) -> None:
        show(*args, **kwargs)
        error = sys.exc_info()[1]
        if error is not None and sys._getframe(1).f_globals is vars(loop):  # other callers only want to print
            raise error

    with replace_names(traceback, {"print_exc": print_exc}):
        yield


@contextmanager
def time_saves(checkpointer: Any, control: JobControl, progress: Progress) -> Iterator[None]:
    """Within the block the control gets the seconds of every save, and the heartbeat shows the phase.

    Each checkpoint has what the run has read (`run.inputs`), as on the CPU.
    """
    begin = checkpointer.init_tmp_checkpoint
    started = [time.monotonic()]

    def init_tmp_checkpoint(*args: Any, **kwargs: Any) -> Any:
        control.heartbeat(progress.total_steps, "save")
        started[0] = time.monotonic()
        return begin(*args, **kwargs)

    def timed(end: Callable[..., Any]) -> Callable[..., Any]:
        def finalize(*args: Any, **kwargs: Any) -> Any:
            for checkpoint in args[:1]:  # its folder
                RunDir(control.run_dir).copy_inputs(Path(checkpoint))
            result = end(*args, **kwargs)
            seconds = time.monotonic() - started[0]
            progress.pause_seconds += seconds
            control.observe_save(seconds)
            control.heartbeat(progress.total_steps)
            return result

        return finalize

    methods = {"init_tmp_checkpoint": init_tmp_checkpoint, **wrap_finalizers(checkpointer, timed)}
    with replace_methods(checkpointer, methods):
        yield


@contextmanager
def time_validations(loop: Any, control: JobControl, progress: Progress, hooks: Hooks | None) -> Iterator[None]:
    """Within the block the control gets the seconds of every validation.

    Each rollout call touches the heartbeat, and so does a validation over NeMo-Gym, which is one call, while it waits.
    Without our hooks NeMo-RL's own call over NeMo-Gym says nothing until its last response has come. A thread touches
    the heartbeat then, for STALL_SECONDS at most.
    """
    name = VALIDATE_SYNC if hasattr(loop, VALIDATE_SYNC) else "validate"
    validate = getattr(loop, name)
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

    def beat() -> None:
        control.heartbeat(progress.total_steps, phase[0])

    def beating(name: str) -> Callable[..., Any]:
        rollout, silent = getattr(loop, name), hooks is None and name in GYM_CALLS

        def call(*args: Any, **kwargs: Any) -> Any:
            beat()
            with _beat_meanwhile(beat) if silent else nullcontext():
                return rollout(*args, **kwargs)

        return call

    if hooks is not None:
        hooks.on_wait = beat
    rollouts = {call: beating(call) for call in ROLLOUT_CALLS if hasattr(loop, call)}
    with replace_names(loop, {name: timed, **rollouts}):
        yield


@contextmanager
def _beat_meanwhile(beat: Callable[[], None]) -> Iterator[None]:
    """Within the block a thread calls `beat` every BEAT_SECONDS, for STALL_SECONDS at most."""
    ended = threading.Event()

    def run() -> None:
        for _ in range(int(STALL_SECONDS / BEAT_SECONDS)):
            if ended.wait(BEAT_SECONDS):
                return
            beat()

    thread = threading.Thread(target=run, name="nemo-ada-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def save_between_steps(parts: Mapping[str, Any], progress: Progress, hooks: Hooks | None) -> bool:
    """Save the state after the last complete step. It is called when a step was dropped while it sampled.

    The data loader has moved on since then. Under dynamic sampling, the sampler may have moved on, too. So their states
    after the complete step are written, and a resumed run draws the prompts of the dropped step again.

    Args:
        parts: policy, policy_generation, checkpointer, save_state and master_config, by name.
        progress: where the loop is.
        hooks: the hooks of Reinforce-Ada. None with another estimator.

    Returns:
        Whether a save was needed.

    Raises:
        ProcessLostError: the engine does not release its memory. A save could then run out of memory and hang.
    """
    checkpointer, config, policy = parts["checkpointer"], parts["master_config"], parts["policy"]
    _finish_renaming(checkpointer)
    newest = checkpointer.get_latest_checkpoint_path()
    saved = int(Path(newest).name.removeprefix("step_")) if newest is not None else 0
    if not Values(config).get("checkpointing.enabled", False) or saved >= progress.total_steps:
        return False
    if parts["policy_generation"].finish_generation() is False:
        raise ProcessLostError(
            f"the engine cannot be put to sleep, so the state after step {progress.total_steps} is not saved; "
            f"resume=auto continues from step {saved}"
        )
    if hooks is not None and progress.sampler_state is not None:
        hooks.load_state_dict(progress.sampler_state)
    policy.prepare_for_training()
    state = parts["save_state"]
    fields = state if isinstance(state, dict) else vars(state)
    for name in [name for name in fields if name.startswith(SCORES)]:
        del fields[name]
    fields.update({name: getattr(progress, name) for name in COUNTERS})
    path = Path(checkpointer.init_tmp_checkpoint(progress.total_steps, fields, config))
    policy.save_checkpoint(
        weights_path=str(path / "policy" / "weights"),
        optimizer_path=str(path / "policy" / "optimizer") if checkpointer.save_optimizer else None,
        tokenizer_path=str(path / "policy" / "tokenizer"),
        checkpointing_cfg=Values(config).get("checkpointing"),
    )
    torch.save(progress.loader_state, path / "train_dataloader.pt")
    if hasattr(checkpointer, "begin_finalization"):
        checkpointer.begin_finalization(path, wait_fn=policy.finalize_async_save)
        _finish_renaming(checkpointer)
    else:
        checkpointer.finalize_checkpoint(path)
    return True


def _finish_renaming(checkpointer: Any) -> None:
    """Wait for the thread in which NeMo-RL's main branch renames a checkpoint."""
    if hasattr(checkpointer, "finalize_pending"):
        checkpointer.finalize_pending()
