"""What the hooks need of NeMo-RL: the functions and methods that they replace, with their parameters and results.

These are data. A run compares them with the imported NeMo-RL (nemo/patch_points.py, nemo/asynchronous/actors.py),
`nemo-ada check` with the source of a checkout, and recipes/upstream/contract.py compares two checkouts in these names.
The attributes that we read of NeMo-RL's objects are in no list here, because attributes.py finds them in our own files.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.rules.facts import attributes
from nemo_ada.rules.facts.checkout import Checkout, Function, describe_return, list_parameters
from nemo_ada.rules.facts.nemo_config import Loop

LOOP = "nemo_rl.algorithms.grpo"
ROLLOUTS = "nemo_rl.experience.rollouts"
MASTER_CONFIG = f"{LOOP}.MasterConfig"
ACTORS = "nemo_rl.algorithms.async_utils"
_ROLLOUT = (
    "policy_generation",
    "input_batch",
    "tokenizer",
    "task_to_env",
    "max_seq_len",
    "max_rollout_turns",
    "greedy",
)
ADVICE = (
    "the hooks ran on NeMo-RL v0.7.0, on main of August 2026, and with the known changes of v0.8.0; use v0.7.0, and "
    "`python recipes/upstream/contract.py OLD NEW` lists what differs in this one"
)
BASELINES, SCALE, SHAPE = "calculate_baseline_and_std_per_prompt", "scale_rewards", "apply_reward_shaping"
REWARD_SECTIONS = {SCALE: "grpo.reward_scaling", SHAPE: "grpo.reward_shaping"}
"""Function that changes rewards -> its section, in the order of the loop's calls."""
_SAMPLE = ("sample_idx", "initial_sample_state", "policy_generation", "tokenizer", "task_to_env", "max_seq_len")


SYNC_LOOP = "nemo_rl.algorithms.grpo_sync"
"""The synchronous trainer with a data plane."""
LOGGER = "nemo_rl.utils.logger.Logger"
CHECKPOINTS = "nemo_rl.utils.checkpoint.CheckpointManager"
TOUCHED: Mapping[str, str] = {
    f"{LOOP}.print_performance_metrics": "replaced while a run lasts, where the loop has it",
    f"{SYNC_LOOP}.print_performance_metrics": "replaced while a run lasts",
    f"{LOOP}.calculate_trivial_reward_distributions": "replaced while a run lasts, where the loop has it (v0.8.0)",
    f"{LOOP}.TimeoutChecker": "subclassed for the end of a job",
    f"{SYNC_LOOP}.TimeoutChecker": "subclassed for the end of a job",
    f"{LOOP}.grpo_train": "called by nemo-ada train",
    f"{LOOP}.async_grpo_train": "called by nemo-ada train",
    f"{LOOP}.setup": "called by nemo-ada train",
    f"{LOGGER}.log_metrics": "wrapped on the instance for the records",
    f"{LOGGER}.log_plot_token_mult_prob_error": "replaced for rows without tokens in the loss",
    f"{LOGGER}.log_batched_dict_as_jsonl": "replaced for the files of training batches",
    f"{CHECKPOINTS}.init_tmp_checkpoint": "wrapped on the instance for the time of a save",
    f"{CHECKPOINTS}.finalize_checkpoint": "wrapped on the instance for the sampler's state",
    f"{CHECKPOINTS}.begin_finalization": "the same, on main",
    f"{CHECKPOINTS}.get_latest_checkpoint_path": "called for the newest checkpoint",
    f"{CHECKPOINTS}.get_resume_paths": "called for the optimizer's state",
    "nemo_rl.distributed.batched_data_dict.BatchedDataDict.select_indices": "called for the rows of prompts",
    "nemo_rl.distributed.batched_data_dict.BatchedDataDict.repeat_interleave": "called for the rows of prompts",
    "nemo_rl.distributed.batched_data_dict.BatchedDataDict.from_batches": "called for the choice of prompts",
    "nemo_rl.data.multimodal_utils.PackedTensor": "read for the identity of a prompt",
    "nemo_rl.experience.rollout_manager.AsyncNemoGymRolloutImpl": "subclassed for the single controller",
}
"""What else the hooks and the launcher touch: dotted name -> what touches it."""
BATCH_WORKER = "_run_rollout_batch_worker"
COLLECTOR = "AsyncTrajectoryCollector"
METHODS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    COLLECTOR: {
        "start_collection": ("self", "dataloader"),
        "_calculate_target_weights": ("self", "generation_weight_version"),
        "_get_next_target_for_generation": ("self", "generation_weight_version"),
        "_process_batch": ("self", "batch"),
        "wait_for_pending_generations": ("self",),
        "get_dataloader_state": ("self",),
        "get_weight_version": ("self",),
    },
    "ReplayBuffer": {
        "add": ("self", "trajectory", "weight_version", "target_weight_version"),
        "sample": ("self", "num_prompt_groups", "current_weight_version", "max_age_steps"),
        "size": ("self",),
        "has_complete_batch": ("self", "target_step", "num_prompts_per_step", "max_age_steps"),
        "state_dict": ("self",),
        "load_state_dict": ("self", "state"),
    },
}
PER_GROUP = {
    "_run_prompt_group_worker": (
        "self", "repeated_batch", "generation_weight_version", "target_weight_version", "prompt_idx",
    ),
}  # fmt: skip
PER_BATCH = {
    BATCH_WORKER: (
        "self", "repeated_batch", "generation_weight_version", "target_weight_version", "num_generations",
        "use_nemo_gym",
    ),
    "_iter_rollout_groups": (
        "self", "repeated_batch", "num_generations", "use_nemo_gym", "task_index_to_group_index",
    ),
    "_enqueue_rollout_group": ("self", "rollout_result", "generation_weight_version", "target_weight_version"),
}  # fmt: skip
CONTROLLER = "nemo_rl.algorithms.single_controller.SingleControllerActor"
CONTROLLER_CONFIG = "nemo_rl.algorithms.single_controller_utils.config"
_MANAGER = "nemo_rl.experience.rollout_manager"
PLUG_IN_METHODS: Mapping[str, tuple[str, ...]] = {
    f"{CONTROLLER}.__init__": ("self", "master_config", "actor_args", "setup_timing_metrics"),
    f"{_MANAGER}.RolloutManager.generate_and_push": ("self", "input_sample", "target_step", "inflight_registry"),
    f"{_MANAGER}.RolloutManager.run_rollout": ("self", "input_sample"),
    f"{_MANAGER}.AsyncRolloutImpl.run_rollout": ("self", "input_sample"),
    f"{_MANAGER}.AsyncRolloutImpl._run_single_rollout": ("self", "input_sample", "traj_idx"),
    f"{_MANAGER}.AsyncRolloutImpl._aggregate_rollout_metrics": ("self", "completions", "all_sample_metrics"),
}
"""What the plug-in of the single controller uses (nemo/single_controller.py), read at 00420a15.

Function or method -> its first parameters.
"""
PLUG_IN_FIELDS: Mapping[str, tuple[str, ...]] = {
    "nemo_rl.algorithms.single_controller_utils.setup.SingleControllerActorArgs": (
        "rollout_manager", "advantage_estimator",
    ),
    f"{CONTROLLER_CONFIG}.AdvantageConfig": ("reward_field", "token_mask_field", "mask_sample_field"),
    "nemo_rl.experience.interfaces.Completion": ("message_log", "env_extras", "truncated", "reward"),
    "nemo_rl.experience.interfaces.PromptGroupRecord": ("metadata", "completions", "rollout_metrics"),
}  # fmt: skip
"""Class -> the fields that the plug-in sets, or that carry its numbers."""


@dataclass(frozen=True, slots=True)
class PatchPoint:
    """A function in the loop's module that the hooks replace.

    Attributes:
        name: Name of the function.
        origin: Module that defines it.
        parameters: Names of its first parameters.
        returns: What it may return, in the words of `describe_return`. Empty where the source does not tell.
        wanted: Further parameters that it may want. None where others do not matter, because the loop gives them.
    """

    name: str
    origin: str
    parameters: tuple[str, ...]
    returns: tuple[str, ...] = ()
    wanted: tuple[str, ...] | None = None

    def unknown(self, without_default: Iterable[str]) -> list[str]:
        """Return which of a function's parameters without a default nobody here knows."""
        known = {*self.parameters, *(self.wanted or ())}
        return [] if self.wanted is None else [name for name in without_default if name not in known]

    def check(self, module: Any) -> None:
        """Raise UserError when the function is missing, is not the original, or takes other arguments."""
        function = getattr(module, self.name, None)
        here = f"{module.__name__}.{self.name}"
        if function is None:
            raise UserError(f"{here} does not exist: {ADVICE}")
        if function.__module__ != self.origin:
            raise UserError(
                f"{here} comes from {function.__module__} instead of {self.origin}: reinforce_ada is already active "
                "or another program replaced it; undo that first"
            )
        actual = tuple(inspect.signature(function).parameters)[: len(self.parameters)]
        if actual != self.parameters:
            raise UserError(
                f"{here} takes ({', '.join(actual)}) first, expected ({', '.join(self.parameters)}): {ADVICE}"
            )
        given = inspect.signature(function).parameters.values()
        if strange := self.unknown(one.name for one in given if one.default is one.empty):
            raise UserError(f"{here} wants {', '.join(strange)}, which nobody here knows: {ADVICE}")


ROLLOUT = PatchPoint("run_multi_turn_rollout", ROLLOUTS, _ROLLOUT)
ASYNC_ROLLOUT = PatchPoint("run_async_multi_turn_rollout", ROLLOUTS, _ROLLOUT)
PATCH_POINTS = (
    ROLLOUT,
    ASYNC_ROLLOUT,
    PatchPoint(
        "validate",
        LOOP,
        ("policy_generation", "val_dataloader", "tokenizer", "val_task_to_env", "step", "master_config", "logger"),
    ),
    PatchPoint("_create_advantage_estimator", LOOP, ("master_config",)),
    PatchPoint(
        BASELINES,
        "nemo_rl.algorithms.utils",
        ("prompts", "rewards", "valid_mask", "leave_one_out_baseline"),
        ("2 values", "3 values"),  # v0.8.0 has the third one (nemo/trivial_groups.py)
    ),
    PatchPoint(SCALE, LOOP, ("repeated_batch", "reward_scaling_cfg")),
    PatchPoint(SHAPE, "nemo_rl.algorithms.reward_functions", ("batch", "cfg")),
)
ROLLOUT_ACTOR = "nemo_rl.experience.sync_rollout_actor.SyncRolloutActor"
COMPONENTS = "get_gdpo_reward_component_keys"
_VALIDATE_SYNC = ("rollout_actor", "policy", "val_dataloader", "val_task_to_env", "step", "master_config")
DATA_PLANE_POINTS = (
    PatchPoint("validate_sync", SYNC_LOOP, _VALIDATE_SYNC),
    *(point for point in PATCH_POINTS if point.name in ("_create_advantage_estimator", BASELINES, SCALE, SHAPE)),
    PatchPoint(COMPONENTS, "nemo_rl.algorithms.utils", ("batch",)),
)
"""What is replaced in SYNC_LOOP. The actor's module has the rollout functions, which PATCH_POINTS names."""
DATA_PLANE_METHODS: Mapping[str, tuple[str, ...]] = {
    f"{ROLLOUT_ACTOR}.__init__": (
        "self", "policy_generation", "tokenizer", "task_to_env", "master_config", "dp_cfg",
    ),
    f"{ROLLOUT_ACTOR}.rollout_to_tq": ("self", "input_batch", "partition_id", "group_size"),
    "nemo_rl.models.policy.tq_policy.TQPolicy.__init__": ("self",),
    f"{SYNC_LOOP}.grpo_train_sync": ("policy", "policy_generation", "wrapped_dataloader", "val_dataloader"),
}  # fmt: skip
"""What else is subclassed or called for it: function or method -> its first parameters."""
SAMPLE_ROLLOUT = PatchPoint("run_sample_multi_turn_rollout", ROLLOUTS, _SAMPLE)
_GYM = ("policy_generation", "input_batch", "tokenizer", "task_to_env", "generation_config")
_GYM_MORE = ("num_generations", "log_full_result_tables", "max_seq_len", "max_rollout_turns")
GYM_ROLLOUT = PatchPoint("run_async_nemo_gym_rollout", ROLLOUTS, _GYM, wanted=_GYM_MORE)
"""NeMo-Gym's rollout. v0.7.0's loop calls it. On main it is an asynchronous generator, and the loop calls GYM_SYNC."""
PER_PROMPT = "num_generations_per_prompt"
"""v0.8.0's loop says with it which rows of its call belong to one prompt (rollouts.py at 7b235d3e)."""
GYM_SYNC = PatchPoint("run_nemo_gym_rollout_sync", ROLLOUTS, _GYM, wanted=(*_GYM_MORE, PER_PROMPT))


def choose_gym_point(loop: Any) -> PatchPoint:
    """Return the function of the loop's module that draws responses over NeMo-Gym."""
    return GYM_SYNC if hasattr(loop, GYM_SYNC.name) else GYM_ROLLOUT


def find_misfits(checkout: Checkout, loop: Loop = Loop.SYNC, *, gym: bool = False) -> Iterator[str]:
    """Yield what in a checkout is not as the hooks need it. Empty where they fit.

    Args:
        checkout: the source of a NeMo-RL.
        loop: the training loop. The actors of asynchronous training count beside grpo's functions, and the single
            controller counts alone.
        gym: whether the rollout functions of NeMo-Gym count, too.
    """
    said = list(_find_name_misfits(checkout, loop, gym=gym))
    yield from said
    if loop is Loop.CONTROLLER and checkout.parse(CONTROLLER.rpartition(".")[0]) is None:
        return
    readers: tuple[attributes.Reader, ...] = attributes.LAUNCHER
    if loop is Loop.CONTROLLER:
        readers += attributes.CONTROLLER
    else:
        readers += attributes.LOOPS + (attributes.DATA_PLANE if loop is Loop.DATA_PLANE else ())
    if loop is Loop.ASYNC:
        of_batches = _find_function(checkout, f"{ACTORS}.{COLLECTOR}.{BATCH_WORKER}") is not None
        readers += attributes.BUFFER
        readers += attributes.COLLECTOR_OF_BATCHES if of_batches else attributes.COLLECTOR_OF_GROUPS
    for name, file in dict(attributes.find_missing(checkout, readers)).items():
        if not any(one.startswith(f"{name} ") for one in said):
            yield f"{name} does not exist, and nemo_ada/{file} reads it"


def _find_name_misfits(checkout: Checkout, loop: Loop, *, gym: bool) -> Iterator[str]:
    """Yield the functions and fields that a checkout lacks, or has with other parameters."""
    if loop is Loop.CONTROLLER:
        yield from find_controller_misfits(checkout)
        return
    if loop is Loop.DATA_PLANE:
        if checkout.parse(SYNC_LOOP) is None:
            yield f"it has no {SYNC_LOOP}, which data_plane.enabled=true asks for; set it to false"
            return
        yield from _find_method_misfits(checkout, DATA_PLANE_METHODS)
    on_main = _find_function(checkout, f"{ROLLOUTS}.{GYM_SYNC.name}") is not None
    of_gym = ([GYM_ROLLOUT, GYM_SYNC] if on_main else [GYM_ROLLOUT]) if gym else []
    of_plane = DATA_PLANE_POINTS if loop is Loop.DATA_PLANE else ()
    needed = (*PATCH_POINTS, SAMPLE_ROLLOUT, *of_gym, *of_plane)
    points = {f"{point.origin}.{point.name}": point for point in needed}
    for name, point in points.items():
        function = _find_function(checkout, name)
        if function is None:
            yield f"{name} does not exist"
            continue
        others = list(_compare_parameters(name, function, point.parameters))
        yield from others
        plain = (one.removeprefix("*, ") for one in list_parameters(function) if not one.endswith("="))
        strange = point.unknown(one for one in plain if not one.startswith("*"))
        if strange and not others:
            yield f"{name} wants {', '.join(strange)}, which nobody here knows"
        if point.returns and describe_return(function) not in point.returns:
            yield f"{name} returns {describe_return(function)}, expected {' or '.join(point.returns)}"
    if loop is Loop.ASYNC:
        for actor in METHODS:
            path = f"{ACTORS}.{actor}"
            of_batches = _find_function(checkout, f"{path}.{BATCH_WORKER}") is not None
            for method, expected in list_methods(actor, of_batches=of_batches).items():
                function = _find_function(checkout, f"{path}.{method}")
                if function is None:
                    yield f"{path}.{method} does not exist"
                else:
                    yield from _compare_parameters(f"{path}.{method}", function, expected)


def find_controller_misfits(checkout: Checkout) -> Iterator[str]:
    """Yield what in a checkout's single controller is not as the plug-in needs it."""
    if checkout.parse(CONTROLLER.rpartition(".")[0]) is None:
        yield "it has no single controller, which the section async_rl asks for; name v0.8.0, or remove async_rl"
        return
    yield from _find_method_misfits(checkout, PLUG_IN_METHODS)
    for name, wanted in PLUG_IN_FIELDS.items():
        found = checkout.find(name)
        if found is None or not isinstance(found.node, ast.ClassDef):
            yield f"{name} does not exist"
            continue
        has = {
            one.target.id
            for one in found.node.body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
        yield from (f"{name} has no field {field}" for field in wanted if field not in has)


def _find_method_misfits(checkout: Checkout, methods: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for name, expected in methods.items():
        function = _find_function(checkout, name)
        if function is None:
            yield f"{name} does not exist"
        else:
            yield from _compare_parameters(name, function, expected)


def list_methods(actor: str, *, of_batches: bool) -> dict[str, tuple[str, ...]]:
    """Return the methods of an actor class that we replace, with their first parameters.

    Args:
        actor: name of the class.
        of_batches: whether the collector draws a whole batch per thread (pull request 3000).
    """
    of_collector = PER_BATCH if of_batches else PER_GROUP
    return {**METHODS[actor], **(of_collector if actor == COLLECTOR else {})}


def _find_function(checkout: Checkout, name: str) -> Function | None:
    found = checkout.find(name)
    node = None if found is None else found.node
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _compare_parameters(name: str, function: Function, expected: tuple[str, ...]) -> Iterator[str]:
    actual = tuple(one.removeprefix("*, ").rstrip("=") for one in list_parameters(function))[: len(expected)]
    if actual != expected:
        yield f"{name} takes ({', '.join(actual)}) first, expected ({', '.join(expected)})"
