"""Rules for Reinforce-Ada inside NeMo-RL: the section `reinforce_ada:` and the settings that it cannot work with.

The hooks apply the same rules when they read the configuration of a run (nemo/settings.py). So they also protect a
script of the user's own that does not go through `nemo-ada train`.
"""

from __future__ import annotations

from collections.abc import Callable

from nemo_ada.config.ada import AdaSettings, EstimationSampling
from nemo_ada.config.presets import SECTION, parse_ada_settings
from nemo_ada.config.values import Values
from nemo_ada.core.sampling.budget import CAPS, SECONDS
from nemo_ada.errors import UserError
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.nemo_config import Loop, RolloutFacts
from nemo_ada.rules.finding import Findings, error, ok, warning
from nemo_ada.rules.gym import SECTION as GYM_SECTION
from nemo_ada.rules.gym import uses_gym
from nemo_ada.rules.single_controller import check_controller_groups

ESTIMATOR = "grpo.adv_estimator.name"
ASYNC, ASYNC_ON = "grpo.async_grpo.enabled", Loop.ASYNC.value
BACKEND, ASYNC_ENGINE = "policy.generation.backend", "policy.generation.vllm_cfg.async_engine"
PREFIX_CACHE = "policy.generation.vllm_cfg.enable_prefix_caching"
FASTEST = 0.002  # seconds of an engine step, at best


def uses_reinforce_ada(values: Values) -> bool:
    """Return whether the config chooses Reinforce-Ada: it has the section `reinforce_ada:`."""
    return values.get(SECTION) is not None


def uses_async_engine(values: Values) -> bool:
    """Return whether responses are issued one by one. Of NeMo-RL's engines, vLLM was tried with that."""
    return values.get(BACKEND, "") == "vllm" and bool(values.get(ASYNC_ENGINE, False))


def find_placeholder_obstacles(values: Values, ada: AdaSettings) -> list[str]:
    """Return the keys that give a gradient to rows without advantage.

    Where there are none, such rows may leave the loss.
    """
    megatron = values.get("policy.megatron_cfg.enabled", False)
    penalty = "loss_fn.reference_policy_kl_penalty"
    obstacles = [penalty] if (values.number(penalty) or 0.0) != 0.0 else []
    for key in ("grpo.invalid_tool_call_advantage", "grpo.malformed_thinking_advantage"):
        if values.get(key) is not None:
            obstacles.append(key)
    if values.get("policy.draft.enabled", False):
        obstacles.append("policy.draft.enabled")
    if megatron and values.get("policy.megatron_cfg.mtp_num_layers"):
        obstacles.append("policy.megatron_cfg.mtp_num_layers")
    if ada.advantage.denominator == "all_rows":
        # Its rescaling would move the advantages against a fixed clip. Of rows that left the loss nobody knows whether
        # NeMo-RL would have masked them.
        fixed = ("grpo.advantage_clip_low", "grpo.advantage_clip_high", "grpo.seq_logprob_error_threshold")
        obstacles.extend(key for key in fixed if values.get(key))
    return obstacles


# -- with any estimator ------------------------------------------------------------------------------------------------


def check_estimator(values: Values) -> Findings:
    """The config chooses Reinforce-Ada by its section, and NeMo-RL's estimator is one that the section can replace."""
    name = values.get(ESTIMATOR, "grpo")
    if name == SECTION:
        yield error(
            ESTIMATOR,
            f"{ESTIMATOR}={name}: the section {SECTION}: alone chooses the method, and NeMo-RL v0.8.0 refuses this "
            "name; set it to grpo",
        )
    elif uses_reinforce_ada(values) and name != "grpo":
        yield error(
            ESTIMATOR,
            f"{ESTIMATOR}={name} and the section {SECTION}: choose two methods; set it to grpo, or remove the section",
        )
    if not uses_reinforce_ada(values):
        yield warning(SECTION, "this section is missing: this would be NeMo-RL's own algorithm")


def check_asynchronous_training(values: Values) -> Findings:
    """What NeMo-RL's asynchronous training needs. NeMo-RL checks some of it late, some only in its example script."""
    if not values.get(ASYNC, False):
        return
    if not uses_async_engine(values):
        yield error(ASYNC_ENGINE, f"{ASYNC_ON} draws responses one by one: set {BACKEND}=vllm and {ASYNC_ENGINE}=true")
    if values.get("policy.generation.colocated.enabled", True):
        yield error(
            "policy.generation.colocated.enabled",
            f"{ASYNC_ON} generates while the learner trains, so the engine needs GPUs of its own: set "
            "policy.generation.colocated.enabled=false and policy.generation.colocated.resources",
        )
    if not values.get("loss_fn.use_importance_sampling_correction", False):
        yield error(
            "loss_fn.use_importance_sampling_correction",
            f"{ASYNC_ON} trains on responses of older weights: set loss_fn.use_importance_sampling_correction=true",
        )
    age = "grpo.async_grpo.max_trajectory_age_steps"
    if (values.number(age) or 0) < 1:
        yield error(age, f"{ASYNC_ON} needs {age} of 1 or more")
    for key, why in (
        ("grpo.use_dynamic_sampling", "its collector hands out whole groups, and a filtered one would leave a gap"),
        ("grpo.reward_scaling.enabled", "its loop scales no rewards"),
        ("grpo.reward_shaping.enabled", "its loop shapes no rewards"),
        ("on_policy_distillation.enabled", "teachers' log-probabilities were not tried with adaptive groups"),
    ):
        if values.get(key, False):
            yield error(key, f"{key}=true does not work with {ASYNC_ON}: {why}; set it to false")


# -- with Reinforce-Ada ------------------------------------------------------------------------------------------------


def check_other_paths(values: Values, ada: AdaSettings) -> Findings:
    """Trainers and rollouts that do not run through the functions that the hooks replace."""
    if Loop.of(values) is Loop.DATA_PLANE:
        yield warning(
            "data_plane.enabled",
            "Reinforce-Ada in the trainer with a data plane has run with NeMo-RL's own loop and rollout actor on a "
            "CPU, never on a GPU; data_plane.enabled=false is the trainer that has",
        )
    if values.get("loss_fn.use_kl_in_reward", False):
        yield error(
            "loss_fn.use_kl_in_reward",
            "loss_fn.use_kl_in_reward=true is a part of NeMo-RL's own reinforce_plus_plus estimator; set it to false "
            "(loss_fn.reference_policy_kl_penalty adds the penalty to the loss)",
        )


def check_other_estimator(values: Values, ada: AdaSettings) -> Findings:
    """Settings of NeMo-RL's own estimator, which would have no effect where ours say something else."""
    advantage = ada.advantage
    instead = {
        "normalize_rewards": (advantage.normalize == "std", f"{SECTION}.advantage.normalize=std"),
        "use_leave_one_out_baseline": (
            advantage.baseline == "leave_one_out", f"{SECTION}.advantage.baseline=leave_one_out",
        ),
    }  # fmt: skip
    for name, (same, ours) in instead.items():
        if values.get(f"grpo.{name}", False) and not same:
            yield error(
                f"grpo.{name}",
                f"grpo.{name}=true belongs to NeMo-RL's own estimator and has no effect with the section {SECTION}:; "
                f"set it to false, or {ours}",
            )


def check_engine_abilities(values: Values, ada: AdaSettings) -> Findings:
    """What the engine must be able to do for the settings of the method."""
    if ada.reserve_prompts:
        yield error(
            f"{SECTION}.reserve_prompts",
            f"{SECTION}.reserve_prompts={ada.reserve_prompts} needs prompts that NeMo-RL's loop does not hand out; set "
            "it to 0 and use grpo.use_dynamic_sampling=true with grpo.batch_multiplier",
        )


def check_prefix_cache(values: Values, ada: AdaSettings) -> Findings:
    """Asynchronous training should not cache prefixes, unless every refit empties the cache.

    A refit does not empty the prefix cache of an engine on GPUs of its own. A later wave of a prompt then starts from
    keys and values of older weights. The engine reports the probabilities of what it did, and the importance weights
    use these. So the update is that of older weights, as with NeMo-RL's updates in flight, but nobody knows how old.
    NeMo-RL can empty the cache where no response runs, so not in flight.
    """
    section = "grpo.async_grpo"
    reset, in_flight = f"{section}.recompute_kv_cache_after_weight_updates", f"{section}.in_flight_weight_updates"
    if not values.get(ASYNC, False) or values.get(PREFIX_CACHE) is False or values.get(BACKEND, "vllm") != "vllm":
        return
    empties = version.find_version().empties_cache
    if empties and values.get(reset, False) and not values.get(in_flight, False):
        return
    instead = f", or {reset}=true and {in_flight}=false" if empties else ""
    yield warning(
        PREFIX_CACHE,
        f"{PREFIX_CACHE} is not false (NeMo-RL turns it on by itself on a GPU), and {ASYNC_ON} does not empty the "
        "cache after a refit: later waves of a prompt start from keys and values of older weights, which the "
        f"importance weights correct and no metric dates; set it to false{instead}",
    )


def check_single_groups(values: Values, ada: AdaSettings) -> Findings:
    """Asynchronous training draws every group by itself, before its step. These settings need the whole step."""
    if not Loop.of(values).draws_ahead:
        return
    loop = Loop.of(values).value
    if isinstance(ada.sampling, EstimationSampling):
        yield error(
            f"{SECTION}.sampling.kind",
            f"{SECTION}.sampling.kind=estimation divides a step's responses among its prompts before the first is "
            f"drawn, and {loop} draws every group by itself; use sampling.kind=sequential",
        )
    if (cap := ada.budget.caps().get(SECONDS)) is not None:
        others = " or ".join(other.name for other in CAPS if other is not SECONDS)
        yield error(
            SECONDS.key,
            f"{SECONDS.key}={cap:g} bounds a sampling phase, and with {loop} there is none: sampling runs beside the "
            f"updates; set it to null, and cap {others} (max_group_seconds bounds a single group)",
        )


def check_live_rows(values: Values, ada: AdaSettings) -> Findings:
    """Rows without advantage leave the loss only where nothing else gives them a gradient."""
    obstacles = find_placeholder_obstacles(values, ada)
    if ada.advantage.denominator == "live_rows" and obstacles:
        yield error(
            f"{SECTION}.advantage.denominator",
            f"{SECTION}.advantage.denominator=live_rows leaves rows without advantage out of the loss, which "
            f"{', '.join(obstacles)} give a gradient; set denominator: all_rows",
        )


def check_dynamic_sampling(values: Values, ada: AdaSettings) -> Findings:
    """NeMo-RL's dynamic sampling filters groups of equal size whose rewards differ."""
    key = "grpo.use_dynamic_sampling"
    if not values.get(key, False):
        return
    if isinstance(ada.sampling, EstimationSampling):
        yield error(
            key,
            f"{key}=true filters groups of equal size, and {SECTION}.sampling.kind=estimation makes groups of "
            f"different sizes; set {key}=false or sampling.kind=sequential",
        )
    if values.integer("grpo.num_generations_per_prompt") == 1:
        yield error(
            key,
            f"{key}=true keeps groups whose rewards differ, and groups of grpo.num_generations_per_prompt=1 never do; "
            "set use_dynamic_sampling=false",
        )
    caps = [f"{cap.name}={value:g}" for cap, value in ada.budget.caps().items()]
    if caps:
        most = RolloutFacts.of(values).max_calls
        yield warning(
            key,
            f"NeMo-RL draws up to {most} batches per step, and {', '.join(caps)} of reinforce_ada.budget bound each of "
            f"them: a step may take {most} times as much",
        )


def compute_reward_range(values: Values) -> tuple[float, float]:
    """Return the smallest and the largest reward of an update, after NeMo-RL's scaling and shaping.

    The environment's own rewards are taken to be between 0 and 1. In the order of the loop: effort levels of NeMo-Gym's
    rollout, then `scale_rewards`, then `apply_reward_shaping` (read in v0.7.0 and main of August 2026).

    Raises:
        UserError: a number is none.
    """

    def number(key: str, default: float) -> float:
        found = values.number(key)
        return default if found is None else found

    low, high, longest = 0.0, 1.0, RolloutFacts.of(values).longest
    effort = f"{GYM_SECTION}.effort_levels"
    weight = number(f"{effort}.low_weight", 0.0)
    if uses_gym(values) and weight > 0 and values.get(f"{effort}.low_string", ""):
        most, least = min(1.0, weight), min(1.0, weight * (1.0 - longest / number(f"{effort}.low_ub", 64_000)))
        low, high = low + number(f"{effort}.low_penalty", 1.0) * min(least, 0.0), high * (1.0 + most)
    scaling, shaping = "grpo.reward_scaling", "grpo.reward_shaping"
    if values.get(f"{scaling}.enabled", False):
        source, target = ([number(f"{scaling}.{of}_{end}", default) for end, default in (("min", 0.0), ("max", 1.0))]
                          for of in ("source", "target"))  # fmt: skip
        width = source[1] - source[0] or 1.0
        shares = [(min(max(one, source[0]), source[1]) - source[0]) / width for one in (low, high)]
        low, high = sorted(target[0] + share * (target[1] - target[0]) for share in shares)
    if values.get(f"{shaping}.enabled", False):
        kept = values.number(f"{shaping}.stop_properly_penalty_coef")
        buffer = number(f"{shaping}.overlong_buffer_length", 0.0)
        if kept is not None:
            low, high = min(low, low * kept), max(high, high * kept)
        elif buffer > 0:
            beyond = longest - (number(f"{shaping}.max_response_length", longest) - buffer)
            low -= max(beyond, 0.0) / buffer * number(f"{shaping}.overlong_buffer_penalty", 0.0)
    return (low, high) if high > low else (low, low + 1.0)


def check_reward_scale(values: Values, ada: AdaSettings) -> Findings:
    """An allocation by pass rates takes the predictions of a shrunk baseline, so its rewards must stay labels."""
    if ada.advantage.baseline != "shrunk" or not isinstance(ada.sampling, EstimationSampling):
        return
    found = compute_reward_range(values)
    if found != (0.0, 1.0):
        yield error(
            f"{SECTION}.advantage.baseline",
            f"{SECTION}.advantage.baseline=shrunk predicts rewards, which NeMo-RL's scaling, shaping or effort levels "
            f"put between {found[0]:g} and {found[1]:g}, and {SECTION}.sampling.kind=estimation draws by the same "
            "predictions as if they were pass rates; set baseline: pool, or take another kind of sampling",
        )


def check_first_waves(values: Values, ada: AdaSettings) -> Findings:
    """The caps can hold the first waves of all prompts, and the rows of a group do not depend on their labels."""
    rollout = RolloutFacts.of(values)
    try:
        ada.check_rows(rollout.group)
        plan = ada.plan(rollout.group, rollout.longest)
        plan.check_first_waves(rollout.prompts, rollout.count_divided_responses(ada))
    except UserError as problem:
        yield error(problem.key or SECTION, str(problem))


def check_seconds_cap(values: Values, ada: AdaSettings) -> Findings:
    """A cap on seconds leaves time for a response of full length."""
    longest, cap = RolloutFacts.of(values).longest, ada.budget.caps().get(SECONDS)
    if cap is not None and cap < FASTEST * longest:
        yield error(
            SECONDS.key,
            f"{cap:g} s end before any response of {longest} tokens can; `nemo-ada plan CONFIG` suggests a cap",
        )


def warn_of_untried(values: Values, ada: AdaSettings) -> Findings:
    """What was tried less than the rest, or is slower than it must be."""
    if not values.get(ASYNC, False):
        return
    yield warning(
        ASYNC,
        "asynchronous training has run with NeMo-RL's own workers on a CPU, never on a GPU "
        "(recipes/guide/async.md); look at the first steps before a long run",
    )
    if not values.get("env.should_log_nemo_gym_responses", False):
        yield warning(
            "env.should_log_nemo_gym_responses",
            "is not true: NeMo-RL writes every training batch to disk, about .5 GB and 25 s of the driver per step",
        )


ADA_RULES: tuple[Callable[[Values, AdaSettings], Findings], ...] = (
    check_other_paths, check_other_estimator, check_engine_abilities, check_prefix_cache, check_single_groups,
    check_live_rows, check_dynamic_sampling, check_reward_scale, check_first_waves, check_seconds_cap, warn_of_untried,
)  # fmt: skip


def describe_objective(values: Values, ada: AdaSettings) -> Findings:
    """What the mean update follows, said and not judged."""
    try:
        yield ok(f"{SECTION}.advantage", ada.describe_objective(int(values.get("grpo.num_generations_per_prompt", 0))))
    except (UserError, TypeError, ValueError):
        return  # another rule names it


def check_reinforce_ada(values: Values) -> Findings:
    """All rules for a config that chooses Reinforce-Ada."""
    if not uses_reinforce_ada(values):
        return
    try:
        ada = parse_ada_settings(values.get(SECTION))
    except UserError as problem:
        yield error(problem.key or SECTION, str(problem))
        return
    for rule in ADA_RULES:
        yield from rule(values, ada)
    yield from describe_objective(values, ada)
    yield from check_controller_groups(values, ada)


METHOD: tuple[Callable[[Values], Findings], ...] = (check_estimator, check_asynchronous_training, check_reinforce_ada)
