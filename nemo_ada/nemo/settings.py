"""What the hooks need to know of NeMo-RL's configuration, and the combinations that they refuse.

Every refusal names the key and what would work instead. Nothing here imports nemo_rl.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from nemo_ada.config.ada import AdaSettings, EstimationSampling, SequentialSampling
from nemo_ada.config.presets import SECTION, ada_settings
from nemo_ada.core.sampler import AdaSampler
from nemo_ada.errors import UserError
from nemo_ada.nemo.features import WIDTH
from nemo_ada.nemo.lookup import get, plain

log = logging.getLogger(__name__)

NAME = "reinforce_ada"


@dataclass(frozen=True, slots=True)
class NemoSettings:
    """Values out of NeMo-RL's sections, and ours.

    group: n rows per prompt. prompts: prompts per rollout call. global_batch: rows per optimizer step. longest:
    generated tokens of a response at most, over all of its turns. async_engine: responses are issued one by one.
    token_loss: the loss is a mean over tokens (else over rows). placeholder_rows: rows with zero advantage may leave
    the loss.
    keep_denominator: such rows still count in the loss's denominator. overlong: NeMo-RL masks truncated rows.
    dynamic: NeMo-RL filters groups without signal (grpo.use_dynamic_sampling), so a step may have several draws.
    ahead: groups are drawn ahead of the step, in a collector of their own (grpo.async_grpo.enabled). max_steps: of the
    run.
    """

    ada: AdaSettings
    group: int
    prompts: int
    global_batch: int
    seed: int
    longest: int
    async_engine: bool
    backend: str
    token_loss: bool
    placeholder_rows: bool
    keep_denominator: bool
    overlong: bool
    dynamic: bool
    ahead: bool
    max_steps: int

    @property
    def estimated(self) -> bool:
        """True for the estimation variant, whose groups differ in size."""
        return isinstance(self.ada.sampling, EstimationSampling)

    def sampler(self) -> AdaSampler:
        """The run's sampler."""
        return self.ada.sampler(self.group, self.longest, run_seed=self.seed, features=WIDTH)


def chosen(master_config: Any) -> bool:
    """Whether the configuration asks for Reinforce-Ada: grpo.adv_estimator.name is ours."""
    return bool(get(master_config, "grpo.adv_estimator.name") == NAME)


def uses_async_engine(master_config: Any) -> bool:
    """Whether NeMo-RL runs its asynchronous rollouts: the same three settings that it looks at itself."""
    generation = get(master_config, "policy.generation")
    backend = get(generation, "backend", "")
    switch = {
        "vllm": "vllm_cfg.async_engine",
        "sglang": "use_async_rollouts",
        "megatron": "mcore_generation_config.async_engine",
    }.get(backend)
    return switch is not None and bool(get(generation, switch, False))


def trains_ahead(master_config: Any) -> bool:
    """Whether the configuration asks for NeMo-RL's asynchronous training (async_grpo_train)."""
    return bool(get(master_config, "grpo.async_grpo.enabled", False))


def read(master_config: Any) -> NemoSettings:
    """Check the configuration and take out what the hooks need. Raises UserError."""
    section = get(master_config, SECTION)
    if section is None:
        raise UserError(
            f"grpo.adv_estimator.name={NAME} needs the top-level section {SECTION}:; add for instance "
            f"`{SECTION}: {{preset: ada_seq_balance}}`, or set grpo.adv_estimator.name=grpo"
        )
    ada = ada_settings(plain(section))
    _refuse_other_paths(master_config)
    _check_normalization(master_config)
    async_engine = uses_async_engine(master_config)
    backend = str(get(master_config, "policy.generation.backend", ""))
    _check_engine(ada, async_engine, backend)
    if trains_ahead(master_config):
        check_ahead(master_config)
        _check_prefix_cache(master_config)
        _check_groups(ada)
    placeholder_rows = _placeholders_allowed(master_config, ada)
    multiplier = float(get(master_config, "grpo.batch_multiplier", 1) or 1)
    dynamic = bool(get(master_config, "grpo.use_dynamic_sampling", False))
    if dynamic and isinstance(ada.sampling, EstimationSampling):
        raise UserError(
            f"grpo.use_dynamic_sampling=true filters groups of equal size, and {SECTION}.sampling.kind=estimation "
            "makes groups of different sizes; set grpo.use_dynamic_sampling=false or sampling.kind=sequential"
        )
    group = int(get(master_config, "grpo.num_generations_per_prompt"))
    if dynamic and group == 1:
        raise UserError(
            "grpo.use_dynamic_sampling=true keeps groups whose rewards differ, and groups of "
            "grpo.num_generations_per_prompt=1 never do; set use_dynamic_sampling=false"
        )
    if ada.advantage.baseline == "shrunk":
        _check_reward_scale(master_config)
    prompts = int(int(get(master_config, "grpo.num_prompts_per_step")) * (multiplier if dynamic else 1))
    turns = int(get(master_config, "grpo.max_rollout_turns", 1) or 1)
    room = int(get(master_config, "policy.max_total_sequence_length"))
    longest = min(int(get(master_config, "policy.generation.max_new_tokens", room)) * turns, room)
    settings = NemoSettings(
        ada=ada,
        group=group,
        prompts=prompts,
        global_batch=int(get(master_config, "policy.train_global_batch_size", prompts * group)),
        seed=int(get(master_config, "grpo.seed", 0)),
        longest=longest,
        async_engine=async_engine,
        backend=backend,
        token_loss=bool(get(master_config, "loss_fn.token_level_loss", True)),
        placeholder_rows=placeholder_rows,
        keep_denominator=ada.advantage.denominator == "all_rows",
        overlong=bool(get(master_config, "grpo.overlong_filtering", False)),
        dynamic=dynamic,
        ahead=trains_ahead(master_config),
        max_steps=int(get(master_config, "grpo.max_num_steps", 0)),
    )
    if ada.candidate_prompts % prompts or ada.candidate_prompts == prompts:
        raise UserError(
            f"{SECTION}.candidate_prompts={ada.candidate_prompts} must be a multiple of the {prompts} prompts of a "
            f"batch, {2 * prompts} or more: NeMo-RL's data loader hands out whole batches (0: no choice)"
        )
    ada.check_rows(group)
    ada.plan(group, longest).check_first_waves(prompts, prompts * group if settings.estimated else None)
    if get(master_config, "checkpointing.metric_name") == "train:reward":
        log.warning(
            "checkpointing.metric_name=train:reward ranks checkpoints by the mean reward of the kept rows, which "
            "Reinforce-Ada balances towards 0.5; use train:ada/pass_rate, or a val: metric"
        )
    return settings


def _check_reward_scale(master_config: Any) -> None:
    """Rewards that are compared with pass rates stay 0 or 1."""
    scaling = get(master_config, "grpo.reward_scaling")
    ends = float(get(scaling, "target_min", 0.0)), float(get(scaling, "target_max", 1.0))
    changed = {
        "grpo.reward_scaling": get(scaling, "enabled", False) and ends != (0.0, 1.0),
        "grpo.reward_shaping": get(master_config, "grpo.reward_shaping.enabled", False),
    }
    for key in (key for key, acts in changed.items() if acts):
        raise UserError(
            f"{key}.enabled=true makes rewards other than 0 and 1, and {SECTION}.advantage.baseline=shrunk compares "
            f"them with pass rates; set {key}.enabled=false or baseline: pool"
        )


def _refuse_other_paths(master_config: Any) -> None:
    """Trainers and rollouts that do not run through the functions that the hooks replace."""
    if get(master_config, "data_plane.enabled", False):
        raise UserError(
            "data_plane.enabled=true runs the rollouts in SyncRolloutActor, where Reinforce-Ada's rows and columns do "
            "not arrive; set data_plane.enabled=false (grpo_train)"
        )
    if "single_controller" in type(master_config).__module__:
        raise UserError(
            "examples/run_grpo_single_controller.py draws a fixed number of responses per prompt in a RolloutManager "
            "of its own; train with the trainer of examples/run_grpo.py (nemo-ada train) instead"
        )
    if get(master_config, "env.should_use_nemo_gym", False):
        raise UserError(
            "env.should_use_nemo_gym=true takes rollouts from NeMo-Gym's own collection, one batch at a time; set it "
            "to false and use an environment of NeMo-RL, such as nemo_ada.nemo.environment.AdaMathEnvironment"
        )
    if get(master_config, "policy.router_replay.enabled", False):
        raise UserError(
            "policy.router_replay.enabled=true needs the expert routes of every token of a row; placeholder rows have "
            "none, and NeMo-RL v0.7 drops those of prompts; set it to false"
        )
    if get(master_config, "loss_fn.use_kl_in_reward", False):
        raise UserError(
            "loss_fn.use_kl_in_reward=true is a part of NeMo-RL's own reinforce_plus_plus estimator; set it to false "
            "(loss_fn.reference_policy_kl_penalty adds the penalty to the loss)"
        )


def check_ahead(master_config: Any) -> None:
    """What NeMo-RL's asynchronous training needs, with any estimator. Raises UserError.

    NeMo-RL checks some of it with assertions, late, and some only in its example script.
    """
    key = "grpo.async_grpo.enabled=true"
    backend = str(get(master_config, "policy.generation.backend", ""))
    if backend != "vllm" or not uses_async_engine(master_config):
        raise UserError(
            f"{key} draws responses one by one: set policy.generation.backend=vllm and "
            "policy.generation.vllm_cfg.async_engine=true"
        )
    if get(master_config, "policy.generation.colocated.enabled", True):
        raise UserError(
            f"{key} generates while the learner trains, so the engine needs GPUs of its own: set "
            "policy.generation.colocated.enabled=false and policy.generation.colocated.resources"
        )
    if not get(master_config, "loss_fn.use_importance_sampling_correction", False):
        raise UserError(
            f"{key} trains on responses of older weights: set loss_fn.use_importance_sampling_correction=true"
        )
    if int(get(master_config, "grpo.async_grpo.max_trajectory_age_steps", 0)) < 1:
        raise UserError(f"{key} needs grpo.async_grpo.max_trajectory_age_steps of 1 or more")
    for section, why in (
        ("grpo.use_dynamic_sampling", "its collector hands out whole groups, and a filtered one would leave a gap"),
        ("grpo.reward_scaling.enabled", "its loop scales no rewards"),
        ("grpo.reward_shaping.enabled", "its loop shapes no rewards"),
        ("data.use_multiple_dataloader", "its collector reads one data loader"),
        ("on_policy_distillation.enabled", "teachers' log-probabilities were not tried with adaptive groups"),
    ):
        if get(master_config, section, False):
            raise UserError(f"{section}=true does not work with {key}: {why}; set it to false")


def _check_normalization(master_config: Any) -> None:
    """Refuse settings of NeMo-RL's own estimator, which this one would pass over in silence."""
    instead = {
        "normalize_rewards": f"{SECTION}.advantage.normalize=std divides by the standard deviation",
        "use_leave_one_out_baseline": f"{SECTION}.advantage chooses the baseline",
    }
    for name, ours in instead.items():
        if get(master_config, f"grpo.{name}", False):
            raise UserError(
                f"grpo.{name}=true belongs to NeMo-RL's own estimator and has no effect under "
                f"grpo.adv_estimator.name={NAME}; set it to false ({ours})"
            )


def _check_prefix_cache(master_config: Any) -> None:
    """A refit leaves the prefix cache of an engine on GPUs of its own as it is. So a later wave of a prompt would start
    from keys and values of the weights that drew the first one, and nobody would know its true probabilities."""
    key = "policy.generation.vllm_cfg.enable_prefix_caching"
    if get(master_config, key) is not False:
        raise UserError(
            f"{key} must be false with grpo.async_grpo.enabled=true (NeMo-RL turns it on by itself on a GPU): later "
            "waves of a prompt would start from the cache of older weights; set it to false"
        )


def _check_groups(ada: AdaSettings) -> None:
    """What a group that is drawn by itself, ahead of its step, can do. Raises UserError."""
    key = "grpo.async_grpo.enabled=true"
    if isinstance(ada.sampling, EstimationSampling):
        raise UserError(
            f"{SECTION}.sampling.kind=estimation divides a step's responses among its prompts before the first is "
            f"drawn, and {key} draws every group by itself; use sampling.kind=sequential"
        )
    if ada.sampling.stopping.kind == "issue_order":
        raise UserError(
            f"{SECTION}.sampling.stopping.kind=issue_order aborts requests all the time, which NeMo-RL's engine can "
            f"only do for all groups of the same prompt at once, and {key} runs several; use stopping.kind=wave"
        )
    if ada.budget.mode == "idle":
        raise UserError(
            f"{SECTION}.budget.mode=idle fills the tail of a sampling phase, and with {key} there is no such phase: "
            "the engine never waits for a step's slowest response; use budget.mode=capped"
        )
    if ada.budget.max_seconds is not None:
        raise UserError(
            f"{SECTION}.budget.max_seconds={ada.budget.max_seconds:g} bounds a sampling phase, and with {key} there is "
            "none: sampling runs beside the updates; set it to null, and cap max_samples or max_tokens "
            "(max_group_seconds bounds a single group)"
        )
    if ada.candidate_prompts:
        raise UserError(
            f"{SECTION}.candidate_prompts={ada.candidate_prompts} chooses the prompts of a step when it begins, and "
            f"with {key} groups begin one by one, steps ahead; set it to 0"
        )
    if ada.advantage.keep_fraction < 1.0:
        raise UserError(
            f"{SECTION}.advantage.keep_fraction={ada.advantage.keep_fraction:g} draws rows from the whole step, and "
            f"with {key} the rows without gradient leave before the step is known; set it to 1"
        )


def _check_engine(ada: AdaSettings, async_engine: bool, backend: str) -> None:
    """What the engine must be able to do for these settings."""
    switch = "policy.generation.vllm_cfg.async_engine=true"
    if ada.reserve_prompts:
        raise UserError(
            f"{SECTION}.reserve_prompts={ada.reserve_prompts} needs prompts that NeMo-RL's loop does not hand out; set "
            "it to 0 and use grpo.use_dynamic_sampling=true with grpo.batch_multiplier"
        )
    prefix = isinstance(ada.sampling, SequentialSampling) and ada.sampling.stopping.kind == "issue_order"
    for needed, key in (
        (ada.budget.mode == "idle", "budget.mode=idle"),
        (prefix, "sampling.stopping.kind=issue_order"),
    ):
        if needed and not (async_engine and backend == "vllm"):
            raise UserError(
                f"{SECTION}.{key} stops running responses, which only NeMo-RL's asynchronous vLLM engine allows; set "
                f"policy.generation.backend=vllm and {switch}, or choose "
                f"{SECTION}.{'budget.mode=capped' if 'idle' in key else 'sampling.stopping.kind=wave'}"
            )
    if not async_engine and isinstance(ada.sampling, SequentialSampling) and ada.sampling.scheduler == "continuous":
        log.info(
            "%s.sampling.scheduler=continuous runs as rounds: this engine takes whole batches (%s lifts that). "
            "The pools are the same.",
            SECTION,
            switch,
        )


def _placeholders_allowed(master_config: Any, ada: AdaSettings) -> bool:
    """Whether a row with zero advantage has no gradient, so that it may leave the loss."""
    reasons = []
    if float(get(master_config, "loss_fn.reference_policy_kl_penalty", 0.0)) != 0.0:
        reasons.append("loss_fn.reference_policy_kl_penalty")
    if float(get(master_config, "loss_fn.positive_example_nll_weight", 0.0)) != 0.0:
        reasons.append("loss_fn.positive_example_nll_weight")
    for key in ("invalid_tool_call_advantage", "malformed_thinking_advantage"):
        if get(master_config, f"grpo.{key}") is not None:
            reasons.append(f"grpo.{key}")
    if get(master_config, "policy.draft.enabled", False):
        reasons.append("policy.draft.enabled")
    if get(master_config, "policy.megatron_cfg.enabled", False) and get(
        master_config, "policy.megatron_cfg.mtp_num_layers"
    ):
        reasons.append("policy.megatron_cfg.mtp_num_layers")
    if ada.advantage.denominator == "live_rows" and reasons:
        raise UserError(
            f"{SECTION}.advantage.denominator=live_rows leaves rows without advantage out of the loss, which "
            f"{', '.join(reasons)} give a gradient; set denominator: all_rows"
        )
    clipped = [
        f"grpo.{key}" for key in ("advantage_clip_low", "advantage_clip_high") if get(master_config, f"grpo.{key}")
    ]
    if clipped and ada.advantage.denominator == "all_rows":
        reasons.extend(clipped)  # the rescaling that keeps the denominator would move against a fixed clip
    if reasons:
        log.info("rows without advantage stay in the update: %s", ", ".join(reasons))
    return not reasons
