"""Rules for the single controller of NeMo-RL main: what it needs, and settings that it would ignore.

A config that has the section `async_rl` is one for the single controller.
"""

from __future__ import annotations

from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.values import Values
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.finding import Findings, error, warning
from nemo_ada.rules.gym import GYM, uses_gym
from nemo_ada.rules.gym import SECTION as GYM_SECTION

CONTROLLER = Loop.CONTROLLER.value
SAMPLER = f"{CONTROLLER}.sampler"
LOOKAHEADS = {
    "in_order": f"{SAMPLER}.max_lookahead_versions",
    "ready_first": f"{SAMPLER}.max_staleness_versions",
}
"""Sampler that Reinforce-Ada works with -> the key for the versions by which it may run ahead."""
LATE = 3
"""Versions by which a group of ready_first may be older than the lookahead. Then its step waits for it."""
COLOCATED = "policy.generation.colocated.enabled"
CORRECTION = "loss_fn.use_importance_sampling_correction"
PREFIX_CACHE = "policy.generation.vllm_cfg.enable_prefix_caching"
SAVE_PLANE = "checkpointing.save_data_plane"
RESET = f"{CONTROLLER}.recompute_kv_cache_after_weight_updates"
IGNORED = (
    # key, its values without effect, why the others have none
    ("grpo.use_dynamic_sampling", (False,), "it filters no groups"),
    ("grpo.reward_scaling.enabled", (False,), "it scales no rewards"),
    ("grpo.reward_shaping.enabled", (False,), "it shapes no rewards"),
    ("grpo.overlong_filtering", (False,), "it leaves truncated responses in the loss"),
    ("grpo.advantage_clip_low", (None,), "it clips no advantages"),
    ("grpo.advantage_clip_high", (None,), "it clips no advantages"),
    ("grpo.invalid_tool_call_advantage", (None,), "it changes no advantages"),
    ("grpo.malformed_thinking_advantage", (None,), "it changes no advantages"),
    ("grpo.val_period", (0, -1), "it does not validate; evaluate its checkpoints"),
    ("grpo.val_at_start", (False,), "it does not validate"),
    ("grpo.val_at_end", (False,), "it does not validate"),
    ("data.use_multiple_dataloader", (False,), "it reads one data loader"),
    ("on_policy_distillation.enabled", (False,), "it has no teacher"),
)
SHAPED_SINCE_V0_8_0 = (
    "grpo.overlong_filtering", "grpo.advantage_clip_low", "grpo.advantage_clip_high",
    "grpo.invalid_tool_call_advantage", "grpo.malformed_thinking_advantage",
)  # fmt: skip
"""Keys that the controller of v0.8.0 obeys (single_controller_utils/advantage_stage.py at 7b235d3e)."""
IGNORED_OVER_GYM = (
    (f"{GYM_SECTION}.effort_levels", (None,), "it shapes no rewards"),
    *(
        (f"reward_penalties.penalize_{what}", (False,), "it shapes no rewards")
        for what in ("duplicated_reasoning", "empty_final_answer", "unwanted_tokens", "malformed_think_tag")
    ),
)
"""The same for settings of NeMo-Gym, which NeMo-RL's other loops apply to its results."""
FAILURE = f"{CONTROLLER}.rollout_failure"
DEADLINES = {"native": ("generation_timeout_s", "env_timeout_s"), "nemo_gym": ("rollout_timeout_s",)}
"""Rollouts of a kind -> their deadlines below `rollout_failure`. NeMo-RL refuses those of the other kind."""
PLANE = (
    "impl", "backend", "storage_capacity", "num_storage_units", "claim_meta_poll_interval_s", "global_segment_size",
    "local_buffer_size",
)  # fmt: skip
"""Keys of the data plane that NeMo-RL main needs."""
OTHER_SAMPLERS = {
    "windowed": "gives groups no step, whose budget they would share, and throws groups away that are too old, and "
    "those of hard prompts take longest (in recipes/results/async.md the prompts that are left are easier)",
    "weight_fifo": "waits for all groups of a version, as in_order does, and would wait for ever after a prompt is "
    "dropped",
    "custom": "is unknown here",
}


def sampler_name(values: Values) -> str:
    """Return the sampler that puts groups into steps. NeMo-RL's default is in_order."""
    return str(values.get(f"{SAMPLER}.name", "in_order"))


def lookahead_key(values: Values) -> str:
    """Return the key of the versions by which sampling may run ahead of training."""
    return LOOKAHEADS.get(sampler_name(values), LOOKAHEADS["in_order"])


def lookahead(values: Values) -> int:
    """Versions of the weights by which sampling may run ahead of training. NeMo-RL's default is 1."""
    value = values.number(lookahead_key(values))
    return 1 if value is None else int(value)


def controller_needs(values: Values) -> Findings:
    """What the single controller needs. NeMo-RL checks it when it starts, or in its example script."""
    if Loop.of(values) is not Loop.CONTROLLER:
        return
    if values.get("grpo.async_grpo") is not None:
        yield error(
            "grpo.async_grpo",
            f"grpo.async_grpo belongs to the older asynchronous loop, and {CONTROLLER} stands for it; set it to null",
        )
    for key, wanted in (
        ("data_plane.enabled", True),
        ("policy.generation.backend", "vllm"),
        ("policy.generation.vllm_cfg.async_engine", True),
    ):
        if values.get(key, False) != wanted:
            yield error(key, f"{key}={values.get(key)}: {CONTROLLER} needs {wanted}; set it")
    for key in (f"data_plane.{name}" for name in PLANE):
        if values.get(key) is None:
            yield error(
                key,
                f"{key} is missing, and NeMo-RL has no default for it; set it, or take configs/methods/"
                "single-controller.yaml, which has all keys of the data plane",
            )
    prompts = values.integer("grpo.num_prompts_per_step")
    rows = prompts * values.integer("grpo.num_generations_per_prompt")
    batch = values.integer("policy.train_global_batch_size", rows)
    if batch != rows:
        yield error(
            "policy.train_global_batch_size",
            f"policy.train_global_batch_size={batch}: {CONTROLLER} makes one update per step, of all {rows} rows; set "
            f"it to {rows}. For several updates per step of the synchronous loop take fewer prompts per step, and a "
            f"{lookahead_key(values)} of as many versions",
        )
    versions, key = lookahead(values), lookahead_key(values)
    if versions > 0 and values.get(COLOCATED, True):
        yield error(
            COLOCATED,
            f"{key}={versions} draws while the learner trains, so the engine needs GPUs of its own: set "
            f"{COLOCATED}=false and policy.generation.colocated.resources",
        )
    if versions > 0 and not values.get(CORRECTION, False):
        yield warning(CORRECTION, f"{key}={versions} trains on responses of older weights: set {CORRECTION}=true")
    buffered = values.integer(f"{CONTROLLER}.max_buffered_rollouts", 64)
    if buffered < prompts * (versions + 1):
        yield error(
            f"{CONTROLLER}.max_buffered_rollouts",
            f"{CONTROLLER}.max_buffered_rollouts={buffered} holds fewer groups than the {versions + 1} steps that are "
            f"drawn at once: no step would become complete; set it to {prompts * (versions + 1)}",
        )
    metric = values.get("checkpointing.metric_name")
    saves = values.get("checkpointing.enabled", False)  # NeMo-RL compares it where it saves only
    if saves and version.here().shapes_advantages and not values.get(SAVE_PLANE, False):
        yield error(
            SAVE_PLANE, f"{SAVE_PLANE} is not true, and {CONTROLLER} of v0.8.0 saves no checkpoint without it; set it"
        )
    if saves and metric is not None and not str(metric).startswith("train:"):
        yield error(
            "checkpointing.metric_name",
            f"checkpointing.metric_name={metric}: {CONTROLLER} does not validate; set it to null, or to a train: one",
        )


def controller_ignores(values: Values) -> Findings:
    """Settings that the single controller does not read. They would have no effect, and no message says so."""
    if Loop.of(values) is not Loop.CONTROLLER:
        return
    shaped = SHAPED_SINCE_V0_8_0 if version.here().shapes_advantages else ()
    for key, harmless, why in (*IGNORED, *(IGNORED_OVER_GYM if uses_gym(values) else ())):
        value = values.get(key)
        if value is not None and value not in harmless and key not in shaped:
            yield error(
                key,
                f"{key}={value} has no effect with {CONTROLLER}: {why}; set it to {str(harmless[0]).lower()}".replace(
                    "to none", "to null"
                ),
            )


def controller_gym(values: Values) -> Findings:
    """What the single controller needs over NeMo-Gym, and the deadlines that belong to the other kind of rollouts."""
    if Loop.of(values) is not Loop.CONTROLLER:
        return
    over = uses_gym(values)
    kind, other = ("nemo_gym", "native") if over else ("native", "nemo_gym")
    for key in (f"{FAILURE}.{other}.{name}" for name in DEADLINES[other]):
        if values.get(key) is not None:
            yield error(
                key,
                f"{key}={values.get(key)} has no effect with {GYM}={str(over).lower()}, and NeMo-RL refuses it when it "
                f"starts; set it to null, or use those of {FAILURE}.{kind}",
            )
    turns = values.get("grpo.max_rollout_turns", 1)
    if over and turns != 1:
        yield error(
            "grpo.max_rollout_turns",
            f"grpo.max_rollout_turns={turns}: {CONTROLLER} needs 1 with {GYM}=true, because Gym's agents count their "
            "own turns; set it to 1",
        )


def plug_in_needs(values: Values, ada: AdaSettings) -> Findings:
    """What the plug-in of v0.8.0's controller needs: advantages that each group has by itself, on the driver."""
    estimator = "reinforce_ada.advantage.baseline" if ada.advantage.baseline == "shrunk" else "reinforce_ada.estimator"
    if ada.advantage.baseline == "shrunk" or ada.estimator.kind == "value":
        yield error(
            estimator,
            f"{estimator}: an estimator of pass rates learns from whole steps and has a state, which the checkpoints "
            f"of v0.8.0's {CONTROLLER} do not hold; take a preset without one, such as ada_seq_balance",
        )
    if uses_gym(values):
        yield error(
            GYM, f"{GYM}=true: with v0.8.0's {CONTROLLER}, Reinforce-Ada draws native rollouts; set it to false"
        )
    workers = f"{CONTROLLER}.num_advantage_workers"
    if values.get(workers):
        yield error(workers, f"{workers}={values.get(workers)} makes actors with NeMo-RL's own estimator; set it to 0")


def controller_groups(values: Values, ada: AdaSettings) -> Findings:
    """What groups of different size need of the single controller."""
    if Loop.of(values) is not Loop.CONTROLLER:
        return
    if version.here().keeps_prompts:
        yield from plug_in_needs(values, ada)
    sampler = sampler_name(values)
    if sampler not in LOOKAHEADS:
        yield error(
            f"{SAMPLER}.name",
            f"{SAMPLER}.name={sampler} {OTHER_SAMPLERS.get(sampler, OTHER_SAMPLERS['custom'])}; set it to "
            f"{' or '.join(LOOKAHEADS)}",
        )
    budgets = ("max_skipped_prompts", "max_consecutive_dropped_prompts")
    for key in (f"{CONTROLLER}.rollout_failure.{name}" for name in budgets):
        if sampler == "ready_first" and values.number(key):
            yield error(
                key,
                f"{key}={values.get(key)}: NeMo-RL gives up prompts with {SAMPLER}.name=in_order only; set it to 0, or "
                "take in_order",
            )
    prompts = values.integer("grpo.num_prompts_per_step")
    least = values.integer(f"{CONTROLLER}.min_groups_for_streaming_train", 32)
    if least < prompts:
        yield warning(
            f"{CONTROLLER}.min_groups_for_streaming_train",
            f"{CONTROLLER}.min_groups_for_streaming_train={least} has no effect: advantages and metrics are those of a "
            f"whole step, so a step waits for its {prompts} prompts",
        )
    instead = f"{CONTROLLER}.rollout_failure.on_dropped_prompt"
    if values.get(instead, "shrink") != "shrink":
        yield error(
            instead,
            f"{instead}={values.get(instead)} takes spare prompts and groups of later steps, whose budget is another "
            "one; set it to shrink",
        )
    deadline, attempts = f"{FAILURE}.nemo_gym.rollout_timeout_s", f"{FAILURE}.nemo_gym.max_row_attempts"
    if uses_gym(values) and values.get(deadline) is not None:
        yield error(
            deadline,
            f"{deadline}={values.get(deadline)} would end a group whose waves are not all there, and lose them; set it "
            "to null, and bound a group by reinforce_ada.budget.max_group_seconds, which keeps its complete waves",
        )
    if uses_gym(values) and values.number(attempts) not in (None, 3):  # NeMo-RL's default
        yield error(
            attempts,
            f"{attempts}={values.get(attempts)} has no effect: a rollout that fails has no label, and another response "
            "is drawn, up to reinforce_ada.max_failed_share; remove it",
        )
    versions, key = lookahead(values), lookahead_key(values)
    if values.get(PREFIX_CACHE) is not False and (versions > 0 or not values.get(RESET, False)):
        yield warning(
            PREFIX_CACHE,
            f"{PREFIX_CACHE} is not false (NeMo-RL turns it on by itself on a GPU), and a cache cannot be emptied "
            "while responses run: later waves of a prompt start from keys and values of older weights, which the "
            f"importance weights correct and no metric dates; set it to false. With {key}=0 {RESET}=true would do, too",
        )
    in_flight = values.integer(f"{CONTROLLER}.max_inflight_prompts", 32)
    if in_flight < prompts * max(versions, 1):
        yield warning(
            f"{CONTROLLER}.max_inflight_prompts",
            f"{CONTROLLER}.max_inflight_prompts={in_flight} bounds the prompts that are drawn at once, and a prompt "
            f"with many waves keeps its place: {key}={versions} would use {prompts * (versions + 1)}",
        )
    yield warning(
        CONTROLLER,
        "Reinforce-Ada in the single controller has run on a CPU with NeMo-RL's own controller, buffer and data plane, "
        "never on a GPU (recipes/guide/single_controller.md)",
    )
