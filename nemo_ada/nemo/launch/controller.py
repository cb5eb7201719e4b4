"""Trains with NeMo-RL's single controller, in the order of its examples/run_grpo_single_controller.py.

The controller is a Ray actor of NeMo-RL's own class, which knows no files of a run. So the driver sets it up, watches
it, and keeps the files.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_ada.config.values import Values
from nemo_ada.errors import StallError
from nemo_ada.nemo.gym.set_up import configure_for_gym
from nemo_ada.nemo.launch.examples import configure_generation
from nemo_ada.nemo.launch.stop_and_save import Progress
from nemo_ada.rules.facts import version
from nemo_ada.rules.gym import uses_gym
from nemo_ada.run.job_control import JobControl, stop_early

PLUG_IN = "nemo_ada.nemo.single_controller"
WATCH_SECONDS = 5.0


def set_up(master_config: Any) -> dict[str, Any]:
    """Call NeMo-RL's set-up functions. Ray must run.

    Returns:
        The arguments of the actor and the parts that the driver ends, by name.
    """
    from nemo_rl.algorithms.single_controller_utils import setup_single_controller
    from nemo_rl.algorithms.utils import get_tokenizer
    from nemo_rl.utils.checkpoint import CheckpointManager

    tokenizer = get_tokenizer(master_config.policy["tokenizer"])
    configure_generation(master_config, tokenizer)
    if uses_gym(Values(master_config)):
        configure_for_gym(master_config, tokenizer)
    actor_args, timings = setup_single_controller(master_config, tokenizer)
    return {
        "actor_args": actor_args,
        "timings": timings,
        "save_state": actor_args.save_state,
        "policy_generation": actor_args.gen_handle,
        "policy": actor_args.trainer_handle,
        "environments": actor_args.env_handles,
        "checkpointer": CheckpointManager(master_config.checkpointing),
        "tokenizer": tokenizer,
        "master_config": master_config,
    }


def run_controller(parts: Mapping[str, Any], control: JobControl, progress: Progress) -> bool:
    """Run the controller to its end under the job's control. Only NeMo-RL itself saves, at its own times.

    Args:
        parts: what `set_up` returned.
        control: files of the job.
        progress: where the run is.

    Returns:
        Whether it ended before its last step, such as for `checkpoint_must_save_by`.

    Raises:
        StallError: the controller has not answered for as long as async_rl.stall_watchdog.stall_timeout_s.
        StoppedEarly: a stop file or the end of the job was seen. The last save stays.
    """
    import ray

    config = parts["master_config"]
    actor_class = importlib.import_module(version.CONTROLLER_MODULE).SingleControllerActor
    controller = actor_class.remote(
        master_config=config,
        actor_args=importlib.import_module(PLUG_IN).plug_in(config, parts["actor_args"]),
        setup_timing_metrics=parts["timings"],
    )
    patience = float(Values(config).get("async_rl.stall_watchdog.stall_timeout_s", 600.0))
    finished, silent = controller.run.remote(), 0.0
    while not ray.wait([finished], timeout=WATCH_SECONDS)[0]:
        if (reason := control.find_stop_reason()) is not None:
            stop_early(reason)
        try:
            answer = ray.get(controller.ping.remote(), timeout=WATCH_SECONDS)
        except ray.exceptions.GetTimeoutError:
            silent += 2 * WATCH_SECONDS  # the wait above and the one for the answer
            if silent > patience:
                raise StallError(f"the single controller has not answered for {silent:.0f} s") from None
            continue
        silent, progress.total_steps = 0.0, int(answer["train_steps"])
        control.heartbeat(progress.total_steps, "training")
        _note_save(parts["checkpointer"], control)
    _note_save(parts["checkpointer"], control)
    result = ray.get(finished)
    progress.total_steps, progress.reason = int(result["train_steps"]), result.get("reason")
    return progress.reason is not None and progress.total_steps < control.max_steps


def _note_save(checkpointer: Any, control: JobControl) -> None:
    """Tell the batch script the newest checkpoint, because a run ends after several slots that saved nothing new."""
    newest = checkpointer.get_latest_checkpoint_path()
    saved = 0 if newest is None else int(Path(newest).name.removeprefix("step_"))
    if saved > control.saved_step:
        control.status("running", saved)
        control.observe_save(0.0)  # it took no time of the driver's
