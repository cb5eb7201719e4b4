"""Rules for NeMo-RL's single controller: what it needs, settings that it would ignore, and what our plug-in needs.

A config that has the section `async_rl` is one for the single controller.
"""

from __future__ import annotations

from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.values import Values
from nemo_ada.rules.data import uses_media
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.finding import Findings, error, warning
from nemo_ada.rules.gym import GYM, uses_gym

CONTROLLER = Loop.CONTROLLER.value
SAMPLER = f"{CONTROLLER}.sampler"
LOOKAHEAD = f"{SAMPLER}.max_lookahead_versions"
STALENESS = f"{SAMPLER}.max_staleness_versions"
IN_ORDER, WINDOWED = "in_order", "windowed"
READY_FIRST = "ready_first"
SAMPLERS = {
    IN_ORDER: "",
    READY_FIRST: "and hard prompts come later, under weights that are further away",
    "weight_fifo": "of the oldest weights first",
    WINDOWED: "and throws away those that are older than its window: hard prompts, which draw longest",
}
"""Sampler -> what it does to groups of different size."""
STREAMING = f"{CONTROLLER}.min_groups_for_streaming_train"
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
    ("grpo.val_period", (0, -1), "it does not validate; evaluate its checkpoints"),
    ("grpo.val_at_start", (False,), "it does not validate"),
    ("grpo.val_at_end", (False,), "it does not validate"),
    ("data.use_multiple_dataloader", (False,), "it reads one data loader"),
    ("on_policy_distillation.enabled", (False,), "it has no teacher"),
)


def read_lookahead(values: Values) -> int:
    """Versions of the weights by which sampling may run ahead of training. NeMo-RL's default is 1."""
    value = values.number(choose_lookahead_key(values))
    return 1 if value is None else int(value)


def choose_lookahead_key(values: Values) -> str:
    """Return the key of `read_lookahead`, which has another name in every sampler but `in_order`."""
    return LOOKAHEAD if read_sampler(values) == IN_ORDER else STALENESS


def read_sampler(values: Values) -> str:
    """Return the name of the sampler, which says which groups a step trains on. NeMo-RL's default is `in_order`."""
    return str(values.get(f"{SAMPLER}.name", IN_ORDER))


def check_controller_needs(values: Values) -> Findings:
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
    if uses_media(values):
        yield error(
            CONTROLLER,
            f"{CONTROLLER}: NeMo-RL's script for the single controller passes no processor of images; take the "
            "synchronous loop",
        )
    metric = values.get("checkpointing.metric_name")
    saves = values.get("checkpointing.enabled", False)  # NeMo-RL compares it where it saves only
    if saves and not values.get(SAVE_PLANE, False):
        yield error(SAVE_PLANE, f"{SAVE_PLANE} is not true, and {CONTROLLER} saves no checkpoint without it; set it")
    if saves and metric is not None and not str(metric).startswith("train:"):
        yield error(
            "checkpointing.metric_name",
            f"checkpointing.metric_name={metric}: {CONTROLLER} does not validate; set it to null, or to a train: one",
        )


def check_controller_sizes(values: Values) -> Findings:
    """How many groups a step of the single controller has, and how many are drawn ahead. NeMo-RL checks it, too."""
    if Loop.of(values) is not Loop.CONTROLLER:
        return
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
    versions, ahead = read_lookahead(values), choose_lookahead_key(values)
    if versions > 0 and values.get(COLOCATED, True):
        yield error(
            COLOCATED,
            f"{ahead}={versions} draws while the learner trains, so the engine needs GPUs of its own: set "
            f"{COLOCATED}=false and policy.generation.colocated.resources",
        )
    if not values.get(CORRECTION, False):
        if read_sampler(values) == READY_FIRST:
            yield error(CORRECTION, f"{SAMPLER}.name={READY_FIRST} needs it: set {CORRECTION}=true")
        elif versions > 0:
            yield warning(CORRECTION, f"{ahead}={versions} trains on responses of older weights: set {CORRECTION}=true")
    streaming = values.integer(STREAMING, 32)
    if streaming > prompts:
        yield error(
            STREAMING,
            f"{STREAMING}={streaming} is more than the {prompts} groups of a step: no update would begin; set it to "
            f"{prompts}, or lower",
        )
    buffered = values.integer(f"{CONTROLLER}.max_buffered_rollouts", 64)
    if read_sampler(values) != WINDOWED and buffered < prompts * (versions + 1):
        yield error(
            f"{CONTROLLER}.max_buffered_rollouts",
            f"{CONTROLLER}.max_buffered_rollouts={buffered} holds fewer groups than the {versions + 1} steps that are "
            f"drawn at once: no step would become complete; set it to {prompts * (versions + 1)}",
        )


def check_ignored_settings(values: Values) -> Findings:
    """Settings that the single controller does not read. They would have no effect, and no message says so."""
    if Loop.of(values) is not Loop.CONTROLLER:
        return
    for key, harmless, why in IGNORED:
        value = values.get(key)
        if value is not None and value not in harmless:
            yield error(
                key, f"{key}={value} has no effect with {CONTROLLER}: {why}; set it to {str(harmless[0]).lower()}"
            )


def check_controller_groups(values: Values, ada: AdaSettings) -> Findings:
    """What our plug-in needs of the single controller: advantages that each group has by itself, on the driver."""
    if Loop.of(values) is not Loop.CONTROLLER:
        return
    if version.find_checkout() is not None and not version.find_version().masks_rows:
        yield error(
            CONTROLLER,
            f"{CONTROLLER}: Reinforce-Ada plugs into the single controller of v0.8.0, and NEMO_RL_HOME is older; take "
            f"configs/methods/async.yaml and remove {CONTROLLER}, or a newer NeMo-RL",
        )
    estimator = "reinforce_ada.advantage.baseline" if ada.advantage.baseline == "shrunk" else "reinforce_ada.estimator"
    if ada.advantage.baseline == "shrunk" or ada.estimator.needs_features:
        yield error(
            estimator,
            f"{estimator}: an estimator of pass rates learns from whole steps and has a state, which the checkpoints "
            f"of {CONTROLLER} do not hold; take a preset without one, such as ada_seq_balance",
        )
    if uses_gym(values):
        yield error(GYM, f"{GYM}=true: with {CONTROLLER} Reinforce-Ada draws native rollouts; set it to false")
    workers = f"{CONTROLLER}.num_advantage_workers"
    if values.get(workers):
        yield error(workers, f"{workers}={values.get(workers)} makes actors with NeMo-RL's own estimator; set it to 0")
    name, prompts = read_sampler(values), values.integer("grpo.num_prompts_per_step")
    if name not in SAMPLERS:
        yield error(
            f"{SAMPLER}.name",
            f"{SAMPLER}.name={name}: Reinforce-Ada's groups were tried with {', '.join(SAMPLERS)} only; set it to one "
            f"of these, such as {IN_ORDER}",
        )
    elif name != IN_ORDER:
        yield warning(
            f"{SAMPLER}.name",
            f"{SAMPLER}.name={name}: a step takes the groups that are ready, which are those of easy prompts, "
            f"{SAMPLERS[name]}. A budget is that of {prompts} groups that begin one after another, not that of a step. "
            f"{IN_ORDER} has neither effect",
        )
    versions = read_lookahead(values)
    if values.get(PREFIX_CACHE) is not False and (versions > 0 or not values.get(RESET, False)):
        yield warning(
            PREFIX_CACHE,
            f"{PREFIX_CACHE} is not false (NeMo-RL turns it on by itself on a GPU), and a cache cannot be emptied "
            "while responses run: later waves of a prompt start from keys and values of older weights, which the "
            f"importance weights correct and no metric dates; set it to false. With {LOOKAHEAD}=0 {RESET}=true would "
            "do, too",
        )
    yield warning(
        CONTROLLER,
        "Reinforce-Ada in the single controller has run on a CPU with NeMo-RL's own controller and buffer, never on a "
        "GPU (recipes/guide/single_controller.md)",
    )
