"""Rules for the single controller of NeMo-RL main: what it needs, and settings that it would ignore.

A config that has the section `async_rl` is one for the single controller.
"""

from __future__ import annotations

from nemo_ada.cluster.nemo_config import Values
from nemo_ada.rules.finding import Findings, error, warning

CONTROLLER = "async_rl"
SAMPLER = f"{CONTROLLER}.sampler"
LOOKAHEAD = f"{SAMPLER}.max_lookahead_versions"
COLOCATED = "policy.generation.colocated.enabled"
CORRECTION = "loss_fn.use_importance_sampling_correction"
PREFIX_CACHE = "policy.generation.vllm_cfg.enable_prefix_caching"
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
OTHER_SAMPLERS = {
    "windowed": "throws groups away that are too old, and groups of hard prompts take longest",
    "weight_fifo": "trains on groups in the order in which they are finished, so easy prompts come first, and a group "
    "has no step whose budget it could share",
    "ready_first": "trains on groups in the order in which they are finished, so easy prompts come first, and a group "
    "has no step whose budget it could share",
    "custom": "is unknown here",
}


def uses_single_controller(values: Values) -> bool:
    """Whether the config is one for the single controller."""
    return values.get(CONTROLLER) is not None


def lookahead(values: Values) -> int:
    """Versions of the weights by which sampling may run ahead of training. NeMo-RL's default is 1."""
    return int(values.number(LOOKAHEAD) if values.get(LOOKAHEAD) is not None else 1)  # type: ignore[arg-type]


def controller_needs(values: Values) -> Findings:
    """What the single controller needs. NeMo-RL checks it when it starts, or in its example script."""
    if not uses_single_controller(values):
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
    prompts = values.integer("grpo.num_prompts_per_step")
    rows = prompts * values.integer("grpo.num_generations_per_prompt")
    batch = values.integer("policy.train_global_batch_size", rows)
    if batch != rows:
        yield error(
            "policy.train_global_batch_size",
            f"policy.train_global_batch_size={batch}: {CONTROLLER} makes one update per step, of all {rows} rows; set "
            f"it to {rows}. For several updates per step of the synchronous loop take fewer prompts per step, and a "
            f"{LOOKAHEAD} of as many versions",
        )
    versions = lookahead(values)
    if versions > 0 and values.get(COLOCATED, True):
        yield error(
            COLOCATED,
            f"{LOOKAHEAD}={versions} draws while the learner trains, so the engine needs GPUs of its own: set "
            f"{COLOCATED}=false and policy.generation.colocated.resources",
        )
    if versions > 0 and not values.get(CORRECTION, False):
        yield error(CORRECTION, f"{LOOKAHEAD}={versions} trains on responses of older weights: set {CORRECTION}=true")
    buffered = values.integer(f"{CONTROLLER}.max_buffered_rollouts", 64)
    if buffered < prompts * (versions + 1):
        yield error(
            f"{CONTROLLER}.max_buffered_rollouts",
            f"{CONTROLLER}.max_buffered_rollouts={buffered} holds fewer groups than the {versions + 1} steps that are "
            f"drawn at once: no step would become complete; set it to {prompts * (versions + 1)}",
        )
    metric = values.get("checkpointing.metric_name")
    if metric is not None and not str(metric).startswith("train:"):
        yield error(
            "checkpointing.metric_name",
            f"checkpointing.metric_name={metric}: {CONTROLLER} does not validate; set it to null, or to a train: one",
        )


def controller_ignores(values: Values) -> Findings:
    """Settings that the single controller does not read. They would have no effect, and no message says so."""
    if not uses_single_controller(values):
        return
    for key, harmless, why in IGNORED:
        value = values.get(key)
        if value is not None and value not in harmless:
            yield error(
                key,
                f"{key}={value} has no effect with {CONTROLLER}: {why}; set it to {str(harmless[0]).lower()}".replace(
                    "to none", "to null"
                ),
            )


def controller_groups(values: Values) -> Findings:
    """What groups of different size need of the single controller."""
    if not uses_single_controller(values):
        return
    sampler = str(values.get(f"{SAMPLER}.name", "in_order"))
    if sampler != "in_order":
        yield error(
            f"{SAMPLER}.name",
            f"{SAMPLER}.name={sampler} {OTHER_SAMPLERS.get(sampler, OTHER_SAMPLERS['custom'])}; set it to in_order",
        )
    prompts = values.integer("grpo.num_prompts_per_step")
    least = values.integer(f"{CONTROLLER}.min_groups_for_streaming_train", 32)
    if least != prompts:
        yield error(
            f"{CONTROLLER}.min_groups_for_streaming_train",
            f"{CONTROLLER}.min_groups_for_streaming_train={least}: advantages and metrics are those of a whole step; "
            f"set it to {prompts}, the prompts of a step",
        )
    instead = f"{CONTROLLER}.rollout_failure.on_dropped_prompt"
    if values.get(instead, "shrink") != "shrink":
        yield error(
            instead,
            f"{instead}={values.get(instead)} takes spare prompts and groups of later steps, whose budget is another "
            "one; set it to shrink",
        )
    versions = lookahead(values)
    if values.get(PREFIX_CACHE) is not False and (versions > 0 or not values.get(RESET, False)):
        yield error(
            PREFIX_CACHE,
            f"{PREFIX_CACHE} must be false with {CONTROLLER} (NeMo-RL turns it on by itself on a GPU): later waves of "
            "a prompt would start from the cache of older weights, and a cache cannot be emptied while responses run; "
            f"set it to false. With {LOOKAHEAD}=0 {RESET}=true would do, too",
        )
    in_flight = values.integer(f"{CONTROLLER}.max_inflight_prompts", 32)
    if in_flight < prompts * max(versions, 1):
        yield warning(
            f"{CONTROLLER}.max_inflight_prompts",
            f"{CONTROLLER}.max_inflight_prompts={in_flight} bounds the prompts that are drawn at once, and a prompt "
            f"with many waves keeps its place: {LOOKAHEAD}={versions} would use {prompts * (versions + 1)}",
        )
    yield warning(
        CONTROLLER,
        "Reinforce-Ada in the single controller has run on a CPU with NeMo-RL's own controller, buffer and data plane, "
        "never on a GPU (recipes/guide/single_controller.md)",
    )
