"""Trains with NeMo-RL from a YAML. `nemo-ada train` runs it for `backend: nemo_rl`, and so do cluster jobs.

The order is that of NeMo-RL's examples/run_grpo.py. grpo_train runs within our context manager, and a run directory is
open for both. A run can stop at any time (stop file, end of the job, signal). It continues with resume=auto.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from nemo_ada.config.values import Values, as_dicts
from nemo_ada.errors import InvariantError, ProcessLostError, StallError, UserError
from nemo_ada.nemo.hooks import StepDroppedError
from nemo_ada.nemo.install import check_config, reinforce_ada
from nemo_ada.nemo.launch.checkpoint import remove_abandoned
from nemo_ada.nemo.launch.contract import write_contract
from nemo_ada.nemo.launch.examples import configure_generation, configure_processes, end_telemetry, start_telemetry
from nemo_ada.nemo.launch.lost import find_lost_process
from nemo_ada.nemo.launch.records import Records
from nemo_ada.nemo.launch.server import set_wandb_server
from nemo_ada.nemo.launch.stop_and_save import (
    Progress,
    SamplingStopCheck,
    make_job_timeout,
    raise_errors,
    save_between_steps,
    time_saves,
    time_validations,
)
from nemo_ada.nemo.optimizer_offload import move_through_pinned_memory
from nemo_ada.nemo.patch_points import replace_names
from nemo_ada.nemo.weights_socket import move_sockets, remove_links
from nemo_ada.rules import rulebook
from nemo_ada.rules.data import uses_media
from nemo_ada.rules.facts.checkout import PACKAGE
from nemo_ada.rules.facts.config_file import load_config, load_upstream_part
from nemo_ada.rules.facts.nemo_config import DEFAULT_RUN_DIR, OFFLOAD, OFFLOADS, Loop
from nemo_ada.rules.facts.upstream import CONTROLLER_CONFIG, LOOP, SYNC_LOOP
from nemo_ada.rules.gym import ENVIRONMENT, uses_gym
from nemo_ada.run.files import json_of, write_atomically
from nemo_ada.run.folder import RunDir, get_identity
from nemo_ada.run.job_control import JobControl, StoppedEarly, find_key_to_lower, handle_signals, stop_early
from nemo_ada.run.start import join_named_cluster, leave_out_working_folder
from nemo_ada.run.yaml_file import read_yaml
from nemo_ada.standing import get_whole_path, share_temporary

log = logging.getLogger(__name__)

TRAINERS = {Loop.SYNC: "grpo_train", Loop.ASYNC: "async_grpo_train", Loop.DATA_PLANE: "grpo_train_sync"}
"""NeMo-RL's function of each loop."""
AUTO_CONNECT = "RAY_ENABLE_AUTO_CONNECT"  # Ray reads it when it is imported
ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
END_SECONDS = 5.0  # for an environment to end
TRACKING = "tracking.json"  # in the run folder: the id of its run of W&B
DERIVED = ("policy.megatron_cfg.train_iters",)  # NeMo-RL's set-up derives it from grpo.max_num_steps


def load(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Load YAMLs as `check`, `plan` and `rehearse` do: what is checked is what runs.

    Args:
        path: the configuration.
        overrides: overlays and `key=value`.

    Returns:
        The resolved configuration.

    Raises:
        UserError: NeMo-RL cannot be imported, or a file or an override is wrong.
    """
    # NeMo-RL's objects call Ray when they are deleted. At exit Ray would start a new instance for that, and hang.
    os.environ.setdefault(AUTO_CONNECT, "0")
    try:
        importlib.import_module(PACKAGE)
    except ImportError as error:
        raise UserError(
            f"backend=nemo_rl needs NeMo-RL, which cannot be imported here ({error}); run inside its container or "
            "environment with its checkout on PYTHONPATH, or use a recipe of configs/cpu (backend=embedded)"
        ) from None
    return load_config(path, overrides)


def run(config_path: Path, overrides: Sequence[str] = ()) -> int:
    """Train to the end or until a stop is requested.

    Args:
        config_path: the configuration.
        overrides: overlays and `key=value`.

    Returns:
        The process's exit code (job_control.py).
    """
    resolved = load(config_path, overrides)
    return train(resolved, load_upstream_part(config_path, overrides))


def train(resolved: dict[str, Any], upstream: Mapping[str, Any] | None = None, *, judged: bool = False) -> int:
    """`run` for a configuration that is loaded already.

    Args:
        resolved: the configuration.
        upstream: the part of it that comes from NeMo-RL's own files. Without it key names are not checked.
        judged: whether the rules were applied already. A rehearsal applies them to the config at its full size, and
            the small one has sizes and a learning rate that they refuse.

    Returns:
        The process's exit code.

    Raises:
        UserError: the config has what `nemo-ada check` calls an error. It is raised before anything starts.
        ProcessLostError: a process has died. Another attempt may succeed.
        StallError: a process does not answer. Another attempt may succeed.
    """
    run_dir = RunDir(get_whole_path(Path(str(resolved.get("run_dir", DEFAULT_RUN_DIR)))))
    resume = resolved.get("resume", "never")
    run_dir.check(resolved, resume=resume == "auto")
    control = JobControl(run_dir.path, int(resolved["grpo"]["max_num_steps"]))
    training = Loop.of(Values(resolved))
    progress: Progress | None = None
    parts: dict[str, Any] = {}
    try:
        with handle_signals(stop_early):  # it passes NeMo-RL's `except Exception`
            if not judged:
                rulebook.refuse(resolved, upstream)
            loop, master_config = _make_config(resolved)
            run_dir.open(resolved, resume=resume == "auto")
            write_contract(run_dir.path, Values(resolved))
            control.heartbeat(0, "set-up")
            control.status("running", 0)
            parts = _set_up(loop, master_config, run_dir.path, resolved)
            if resolved.get(OFFLOAD, OFFLOADS[0]) == OFFLOADS[0]:
                move_through_pinned_memory(parts.get("policy"))
            if Values(resolved).get("policy.generation.colocated.enabled", True):
                move_sockets(parts.get("policy"))
            loader = None if training.draws_ahead else parts["dataloader"]
            progress = Progress.of(parts["save_state"], loader, int(resolved["grpo"]["num_prompts_per_step"]))
            check_checkpoint(parts["checkpointer"], parts["master_config"], resume=resume == "auto")
            if (newest := parts["checkpointer"].get_latest_checkpoint_path()) is not None:
                run_dir.check_inputs(resolved, Path(newest))
            run_dir.note_inputs(resolved)  # set-up has filled the hub's cache
            remove_abandoned(parts["checkpointer"])
        if training is Loop.CONTROLLER:
            from nemo_ada.nemo.launch import controller

            with handle_signals(stop_early):
                stopped = controller.run_controller(parts, control, progress)
        else:
            trainer = importlib.import_module(SYNC_LOOP) if training is Loop.DATA_PLANE else loop
            stopped = run_loop(trainer, parts, control, progress)
        reason = str(progress.reason) if stopped else None
        saved = bool(Values(parts["master_config"]).get("checkpointing.enabled", False))
        code, message = control.report_end(progress.total_steps, reason, saved=saved)
    except StoppedEarly as signal:
        code, message = control.report_early_end(str(signal))
    except BaseException as error:
        if not run_dir.is_open:
            raise
        step = 0 if progress is None else progress.total_steps
        lost = find_lost_process(error)
        again = lost is not None or isinstance(error, StallError | ProcessLostError)
        control.status("interrupted" if again else "failed", step)
        if lost is not None:
            raise ProcessLostError(f"a process of the run was lost after step {step}: {lost}") from error
        if advice := find_key_to_lower(error, find_memory_keys(resolved)):
            raise InvariantError(f"after step {step}: {str(error).strip().splitlines()[-1]}; {advice}") from error
        raise
    finally:
        run_dir.close()
        _end_parts(parts)
    if message:
        log.warning("%s", message)
    return code


def _make_config(resolved: dict[str, Any]) -> tuple[Any, Any]:
    """Return NeMo-RL's module with the loop, and its configuration. Raises UserError for one that cannot train here."""
    loop = importlib.import_module(LOOP)
    module = _import_controller_config() if Loop.of(Values(resolved)) is Loop.CONTROLLER else loop
    master_config = module.MasterConfig(**resolved)
    check_config(master_config)
    check_environments(resolved)
    check_architectures(resolved)
    return loop, master_config


def _import_controller_config() -> Any:
    """Import the module with the single controller's configuration. Raises UserError where this NeMo-RL has none."""
    try:
        return importlib.import_module(CONTROLLER_CONFIG)
    except ModuleNotFoundError:
        raise UserError(
            "async_rl: this NeMo-RL has no single controller; use v0.8.0, or remove async_rl",
            key="async_rl",
        ) from None


def _end_parts(parts: Mapping[str, Any]) -> None:
    """End the environments, and the workers of the engine and of the learner. Both may be one object."""
    end_environments(parts.get("environments", {}))
    with suppress(Exception):  # as below, a worker may be gone
        remove_links(parts.get("policy"), END_SECONDS)
    ended: list[Any] = []
    for part in (parts.get(name) for name in ("policy_generation", "policy")):
        if part is not None and part not in ended:
            ended.append(part)
            with suppress(Exception):  # an error here must not hide the error of the run
                part.shutdown()
    end_telemetry()


def end_environments(environments: Mapping[str, Any]) -> None:
    """End environments before the engine that they ask, and kill those that do not end."""
    import ray

    for name, handle in environments.items():
        if name == ENVIRONMENT:
            from nemo_ada.nemo.gym.set_up import end_servers

            end_servers(handle)
            continue
        try:
            ray.get(handle.shutdown.remote(), timeout=END_SECONDS)
        except Exception:  # noqa: BLE001 - an error here must not hide the error of the run
            with suppress(Exception):
                ray.kill(handle)


def find_memory_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a part of the text of a worker's error -> the setting that needs less memory."""
    packed = Values(config).get("policy.sequence_packing.enabled", False)
    dynamic = Values(config).get("policy.dynamic_batching.enabled", False)
    section = "sequence_packing" if packed else "dynamic_batching" if dynamic else None
    train, logprobs = (
        f"policy.{rows}" if section is None else f"policy.{section}.{tokens}"
        for rows, tokens in (
            ("train_micro_batch_size", "train_mb_tokens"),
            ("logprob_batch_size", "logprob_mb_tokens"),
        )
    )
    return {
        "logprobs(": logprobs,
        "PolicyWorker": train,
        "Vllm": "policy.generation.vllm_cfg.gpu_memory_utilization",
        "": train,
    }


def run_loop(loop: Any, parts: dict[str, Any], control: JobControl, progress: Progress) -> bool:
    """Run grpo_train, async_grpo_train or grpo_train_sync under the job's control.

    Args:
        loop: NeMo-RL's module with the training loop.
        parts: the results of NeMo-RL's set-up, by name.
        control: files and forecasts of the job.
        progress: where the loop is.

    Returns:
        Whether it was stopped before its last step.
    """
    with ExitStack() as stack:
        checkpointer = parts["checkpointer"]
        if hasattr(checkpointer, "shutdown"):  # NeMo-RL main renames checkpoints in a thread, which must finish
            stack.callback(checkpointer.shutdown)
        stack.enter_context(_stop_on_signals(control, progress))
        stop_check = SamplingStopCheck(control, progress)
        ada = reinforce_ada(parts["master_config"], checkpointer=checkpointer, stop_check=stop_check)
        hooks = stack.enter_context(ada)
        stack.enter_context(time_saves(checkpointer, control, progress))
        stack.enter_context(time_validations(loop, control, progress, hooks))
        if hooks is not None:
            rows = hooks.settings.group * progress.prompts
            records = Records(RunDir(control.run_dir), rows, lambda: hooks.unlogged, progress.total_steps)
            stack.enter_context(records.log_from(parts["logger"]))
        config = parts["master_config"]
        ahead = Loop.of(Values(config)).draws_ahead
        loader = None if ahead else parts["dataloader"]
        timeout = make_job_timeout(loop.TimeoutChecker, control, progress, loader, hooks)
        stack.enter_context(replace_names(loop, {"TimeoutChecker": timeout}))
        names = ("policy", "policy_generation", "dataloader", "val_dataloader", "tokenizer", "loss_fn", "task_to_env",
                 "val_task_to_env", "logger", "checkpointer", "save_state", "master_config")  # fmt: skip
        arguments = [parts[name] for name in names]
        train = getattr(loop, TRAINERS[Loop.of(Values(config))])
        options: dict[str, Any] = {}
        if "processor" in inspect.signature(train).parameters:  # main's loops pass it to a refit's calibration
            options["processor"] = parts.get("processor")
        try:
            if ahead:
                stack.enter_context(raise_errors(loop))
                options["max_trajectory_age_steps"] = int(
                    Values(config).get("grpo.async_grpo.max_trajectory_age_steps")
                )
            train(*arguments, **options)
        except StepDroppedError as dropped:
            log.warning("%s", dropped)
            save_between_steps(parts, progress, hooks)
    return progress.reason is not None and progress.total_steps < control.max_steps


def _set_up(loop: Any, master_config: Any, run_dir: Path, resolved: dict[str, Any]) -> dict[str, Any]:
    """Call NeMo-RL's set-up functions in the order of its example."""
    from nemo_rl.algorithms.utils import get_tokenizer
    from nemo_rl.data.utils import setup_response_data
    from nemo_rl.distributed.virtual_cluster import init_ray
    from nemo_rl.utils.logger import get_next_experiment_dir

    values = Values(master_config)
    values.assign("logger.log_dir", get_next_experiment_dir(values.get("logger.log_dir")))
    continue_tracking(master_config.logger, run_dir)
    with ExitStack() as started:
        started.enter_context(leave_out_working_folder(importlib.import_module("ray.job_config").JobConfig))
        started.enter_context(join_named_cluster(importlib.import_module("ray._private.services")))
        configure_processes(values)
        start_telemetry(master_config)
        if os.environ.get("RAY_ADDRESS"):
            share_temporary()
        init_ray()
    if Loop.of(Values(resolved)) is Loop.CONTROLLER:
        from nemo_ada.nemo.launch import controller

        return controller.set_up(master_config)
    media = uses_media(Values(resolved))
    processor = get_tokenizer(master_config.policy["tokenizer"], get_processor=True) if media else None
    tokenizer = get_tokenizer(master_config.policy["tokenizer"]) if processor is None else processor.tokenizer
    configure_generation(master_config, tokenizer)
    gym = uses_gym(Values(master_config))
    if gym:
        from nemo_ada.nemo.gym.set_up import prepare_for_gym

        data, val_data = prepare_for_gym(master_config, tokenizer)
    else:
        data, val_data, task_to_env, val_task_to_env = setup_response_data(
            processor or tokenizer, master_config.data, master_config.env, is_vlm=media
        )
    options: dict[str, Any] = {"processor": processor} if media else {}
    if Loop.of(Values(resolved)) is Loop.DATA_PLANE:
        from nemo_rl.models.policy.tq_policy import TQPolicy

        options["policy_factory"] = functools.partial(TQPolicy, dp_cfg=master_config.data_plane)
    parts = loop.setup(master_config, tokenizer, data, val_data, **options)
    if gym:  # NeMo-RL's set-up starts Gym's servers, because they need the address of the engine
        task_to_env = val_task_to_env = {ENVIRONMENT: parts[2]}
    names = ("dataloader", "val_dataloader", "loss_fn", "logger", "checkpointer", "save_state", "master_config")
    return {
        "policy": parts[0],
        "policy_generation": parts[1],
        **dict(zip(names, parts[4:11], strict=True)),
        "tokenizer": tokenizer,
        "processor": processor,
        "task_to_env": task_to_env,
        "val_task_to_env": val_task_to_env,
        "environments": {**(val_task_to_env or {}), **(task_to_env or {})},
    }


def check_environments(config: Mapping[str, Any]) -> None:
    """Register our environment and the user's. Raises UserError for an environment of the data that does not exist."""
    from nemo_rl.data.datasets.utils import extract_necessary_env_names
    from nemo_rl.environments.utils import ENV_REGISTRY

    from nemo_ada.nemo import environment

    sections = config.get("env") or {}
    environment.register(sections)
    for name in extract_necessary_env_names(config["data"]):
        if name not in ENV_REGISTRY:
            raise UserError(
                f"data: env_name={name}: NeMo-RL has no such environment; choices: {', '.join(sorted(ENV_REGISTRY))}; "
                f"for your own, name its class: env.{name}.class=MODULE.CLASS",
                key=f"env.{name}.class",
            )


def check_architectures(config: Mapping[str, Any]) -> None:
    """Raise UserError if Megatron's workers need TORCH_CUDA_ARCH_LIST and it is not set on this machine."""
    if Values(config).get("policy.megatron_cfg.enabled", False) and ARCHITECTURES not in os.environ:
        raise UserError(
            f"{ARCHITECTURES} is not set, which policy.megatron_cfg.enabled=true needs (NVIDIA's image sets it); name "
            f"your cards' compute capability: export {ARCHITECTURES}=9.0 for H100 and H200, 8.0 for A100, 10.0 for "
            "B200 and GB200",
            key="policy.megatron_cfg.enabled",
        )


def continue_tracking(logger: Any, run_dir: Path) -> None:
    """Give a W&B run an id and write it into the run directory. So a resumed run continues the same W&B run.

    An id in the configuration stays as it is.

    Args:
        logger: NeMo-RL's section `logger`, a mapping or v0.8.0's model. It is changed.
        run_dir: the run directory.
    """
    values = Values(logger)
    if values.get("wandb_enabled", False):
        set_wandb_server()
    if not values.get("wandb_enabled", False) or values.get("wandb.id"):
        return
    path = run_dir / TRACKING
    if not path.exists():
        write_atomically(path, json.dumps({"wandb_id": uuid.uuid4().hex[:8]}))
    values.assign("wandb.id", str(json_of(path)["wandb_id"]))
    values.assign("wandb.resume", "allow")


def check_checkpoint(checkpointer: Any, master_config: Any, *, resume: bool) -> None:
    """Raise UserError unless the newest checkpoint may be continued and was made with this configuration.

    NeMo-RL writes the configuration into every checkpoint as it is after set-up. Both sides are compared in that state.

    Args:
        checkpointer: NeMo-RL's checkpointer.
        master_config: NeMo-RL's configuration after set-up.
        resume: whether a checkpoint may be continued.
    """
    newest = checkpointer.get_latest_checkpoint_path()
    if newest is None:
        return
    if not resume:
        raise UserError(
            f"checkpointing.checkpoint_dir={checkpointer.checkpoint_dir} already holds {Path(newest).name}; set "
            "resume=auto to continue it or name another folder"
        )
    saved = read_yaml(Path(newest) / "config.yaml", "the checkpoint's configuration", written=True)
    old, new = (_flatten_comparable(config) for config in (saved, as_dicts(master_config)))
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    if changed:
        shown = ", ".join(f"{key}: {old.get(key)} -> {new.get(key)}" for key in changed[:5])
        raise UserError(
            f"{newest} was made with another configuration ({shown}{' and more' if len(changed) > 5 else ''}); undo "
            "these changes, or name another checkpointing.checkpoint_dir"
        )
    if checkpointer.save_optimizer and checkpointer.get_resume_paths(newest)[1] is None:
        raise UserError(
            f"{newest}: NeMo-RL finds no optimizer state in it; optimizer and learning rate would start anew without "
            "an error. NeMo-RL v0.7.0 looks in policy/weights/iter_0000000/common.pt, which megatron-core does not "
            "write since July 2026; use the megatron-core that your NeMo-RL pins, or a newer NeMo-RL"
        )


def _flatten_comparable(config: Mapping[str, Any]) -> dict[str, str]:
    """Return dotted keys and values as JSON text, without the keys that may change between attempts."""
    values = {key: value for key, value in get_identity(config).items() if key not in DERIVED}
    return {key: json.dumps(value, default=str, sort_keys=True) for key, value in values.items()}


@contextmanager
def _stop_on_signals(control: JobControl, progress: Progress) -> Iterator[None]:
    """Within the block SIGINT, SIGTERM and SIGHUP request a stop at the end of the step, which draws no new wave."""

    def stop(reason: str) -> None:
        progress.signals.append(reason)
        control.request(reason)

    with handle_signals(stop):
        yield
