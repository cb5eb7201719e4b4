"""NeMo-RL's own single controller on a CPU, in this process.

Real: the controller with its pumps, the rollout manager and its rollouts, the replay buffer, the sampler, the
checkpoint manager, the loss, and NeMo-RL's reference data plane. Tiny: the policy, the engine, the data
set, as in harness.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from nemo_rl.algorithms.async_utils.replay_buffer import TQReplayBuffer
from nemo_rl.algorithms.grpo import _create_advantage_estimator, _get_grpo_save_state
from nemo_rl.algorithms.loss import ClippedPGLossFn
from nemo_rl.algorithms.metric_utils import SetupTimingMetrics
from nemo_rl.algorithms.single_controller import SingleControllerActor
from nemo_rl.algorithms.single_controller_utils.config import MasterConfig
from nemo_rl.algorithms.single_controller_utils.setup import SingleControllerActorArgs, _build_retry_policy
from nemo_rl.algorithms.utils import set_seed
from nemo_rl.data_plane.adapters.noop import NoOpDataPlaneClient
from nemo_rl.data_plane.column_io import read_columns, write_columns
from nemo_rl.experience.rollout_manager import RolloutManager, RolloutTimeouts
from nemo_rl.utils.checkpoint import CheckpointManager

from nemo_ada.core.sampling.result import join_results
from nemo_ada.nemo import reinforce_ada
from nemo_ada.nemo.single_controller import plug_in
from nemo_support.environment import environment
from nemo_support.harness import OURS, TASK, TRAIN_PROMPTS, MetricRecorder, TinyPrompts, loader, make_config
from nemo_support.tiny_generation import Labels, TinyGeneration, WeightChannel, seeded_labels
from nemo_support.tiny_model import tiny_model, tiny_tokenizer
from nemo_support.tiny_policy import TinyPolicy

PLAIN: Any = SingleControllerActor.__ray_metadata__.modified_class.__ray_actor_class__
PARTITION = "rollout_data"
PROMPTS = 4
SETTINGS: dict[str, Any] = {
    **OURS,
    "grpo.async_grpo": None,
    "grpo.val_period": 0,
    "grpo.val_at_start": False,
    "grpo.val_at_end": False,
    "data.shuffle": False,
    "data_plane.enabled": True,
    "checkpointing.metric_name": None,
    "checkpointing.save_data_plane": True,
    "loss_fn.use_importance_sampling_correction": True,
    "policy.generation.vllm_cfg.enable_prefix_caching": False,
    "policy.generation.colocated.enabled": False,
    "policy.generation.colocated.resources.gpus_per_node": 1,
    "logger.tensorboard_enabled": False,
    "policy.generation.max_new_tokens": 4,
}
SYNCHRONOUS: dict[str, Any] = {
    "policy.optimizer.kwargs.lr": 0.0,
    "policy.generation.max_new_tokens": 4,
    "data.shuffle": False,
    "grpo.val_period": 0,
    "grpo.val_at_start": False,
}
"""Settings of a synchronous run that a run of the controller is compared with."""


def watched() -> tuple[Callable[[Any], Any], list[Any]]:
    """The argument `hooks` of a synchronous run, and the list that gets the sampler's steps of that run."""
    sampled: list[Any] = []

    @contextmanager
    def hooks(parts: Any) -> Iterator[Any]:
        with reinforce_ada(parts.master_config, checkpointer=parts.checkpointer) as own:
            step = own.sampler.run_step

            def noted(*args: Any, **kwargs: Any) -> Any:
                sampled.append(step(*args, **kwargs))
                return sampled[-1]

            own.sampler.run_step = noted
            yield own

    return hooks, sampled


def controller_config(
    folder: Path, steps: int, ada: Mapping[str, Any], *, versions: int = 0, prompts: int = PROMPTS, **changes: Any
) -> dict[str, Any]:
    """A config for the single controller; `changes` by dotted key with __ for the dots."""
    group = changes.get("grpo__num_generations_per_prompt", 4)
    async_rl = {
        "sampler": {"name": "in_order", "max_lookahead_versions": versions},
        "min_groups_for_streaming_train": prompts,
        "max_inflight_prompts": prompts * (versions + 1),
        "max_buffered_rollouts": prompts * (versions + 1),
    }
    overrides = {
        **SETTINGS,
        "reinforce_ada": dict(ada),
        "grpo.num_prompts_per_step": prompts,
        "policy.train_global_batch_size": prompts * group,
        "async_rl": async_rl,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return make_config(folder, steps, overrides, async_engine=True)


class Trainer:
    """A TinyPolicy behind the calls that the controller makes of NeMo-RL's TQPolicy."""

    def __init__(self, policy: TinyPolicy, client: Any, before_train: Callable[[int], None]) -> None:
        self.policy, self._client, self._before_train = policy, client, before_train
        self.steps = 0
        self._penalised: tuple[str, ...] = ()

    def prepare_for_lp_inference(self, keep_train_buffers: bool = False) -> None:
        self.policy.finish_training()

    def prepare_for_training(self) -> None:
        self.policy.prepare_for_training()

    def _read(self, meta: Any, *more: str) -> Any:
        fields = ["input_ids", "input_lengths", "token_mask", "sample_mask", *more]
        return read_columns(self._client, meta, fields)

    def get_logprobs_from_meta(self, meta: Any) -> None:
        logprobs = self.policy.get_logprobs(self._read(meta))["logprobs"]
        write_columns(self._client, meta, {"prev_logprobs": logprobs})

    def get_reference_policy_logprobs_from_meta(self, meta: Any) -> None:
        logprobs = self.policy.get_reference_policy_logprobs(self._read(meta))["reference_logprobs"]
        write_columns(self._client, meta, {"reference_policy_logprobs": logprobs})
        self._penalised = ("reference_policy_logprobs",)

    def begin_train_step(self, loss_fn: Any) -> None:
        self._before_train(self.steps)
        self._loss_fn, self._parts = loss_fn, []

    def train_microbatches_from_meta(self, meta: Any) -> None:
        more = ("generation_logprobs", "prev_logprobs", "advantages", "total_reward", *self._penalised)
        self._parts.append(self._read(meta, *more))

    def finish_train_step(self) -> dict[str, Any]:
        batch = type(self._parts[0]).from_batches(self._parts)
        self.steps += 1
        return self.policy.train(batch, self._loss_fn, gbs=batch.size)

    def save_checkpoint(self, **arguments: Any) -> None:
        self.policy.save_checkpoint(**arguments)

    def finalize_async_save(self) -> None:
        """Nothing is written in the background."""


class Refits:
    """NeMo-RL's weight synchronizer.

    The engine goes on counting the draws of a prompt, because groups go on over a refit.
    """

    def __init__(self, policy: TinyPolicy, generation: TinyGeneration) -> None:
        self._policy, self._generation = policy, generation

    def sync_weights(self, kv_scales: Any = None) -> None:
        self._policy.broadcast_weights_for_collective()
        drawn = Counter(self._generation._drawn)
        self._generation._refit()
        self._generation._drawn.update(drawn)

    def shutdown(self) -> None:
        """Nothing runs."""


def run_controller(
    folder: Path,
    config: dict[str, Any],
    *,
    labels: Labels | None = None,
    data: Mapping[str, float] = TRAIN_PROMPTS,
    seconds_per_token: float = 0.0,
    before_train: Callable[[int], None] = lambda step: None,
) -> SimpleNamespace:
    """Run NeMo-RL's own controller with our two objects to its end, from the newest checkpoint in `folder`."""
    master = MasterConfig(**config)
    grpo = config["grpo"]
    set_seed(grpo["seed"])
    checkpointer = CheckpointManager(config["checkpointing"])
    newest = checkpointer.get_latest_checkpoint_path()
    weights_path, optimizer_path = checkpointer.get_resume_paths(newest)
    tokenizer, channel = tiny_tokenizer(), WeightChannel()
    order = {"shuffle": config["data"]["shuffle"], "drop_last": True}
    train = loader(TinyPrompts(list(data), tokenizer), grpo["num_prompts_per_step"], **order)
    if newest is not None:  # as setup_single_controller does
        train.load_state_dict(torch.load(Path(newest) / "train_dataloader.pt"))
    policy = TinyPolicy(
        config["policy"], tiny_model(len(tokenizer), seed=1), tokenizer, channel, weights_path=weights_path,
        optimizer_path=optimizer_path, data_parallel=1,
    )  # fmt: skip
    generation = TinyGeneration(
        config["policy"]["generation"], tiny_model(len(tokenizer), seed=2), tokenizer, channel,
        max_length=config["policy"]["max_total_sequence_length"], labels=labels or seeded_labels(dict(data)),
        seconds_per_token=seconds_per_token,
    )  # fmt: skip
    client = NoOpDataPlaneClient()
    client.register_partition(PARTITION, [], 0, ["train"])
    trainer = Trainer(policy, client, before_train)
    pad = int(tokenizer.pad_token_id)
    buffer = TQReplayBuffer(client, partition_id=PARTITION, pad_value_dict={"token_ids": pad, "input_ids": pad})
    environments = {TASK: environment("train")}
    generation_config = {**config["policy"]["generation"], "stop_token_ids": None, "stop_strings": None}
    native = master.async_rl.rollout_failure.native
    arguments = SingleControllerActorArgs(
        gen_handle=generation,
        trainer_handle=trainer,
        env_handles=environments,
        train_cluster=None,
        inference_cluster=None,
        dp_client=client,
        dataloader=train,
        weight_synchronizer=Refits(policy, generation),
        advantage_estimator=_create_advantage_estimator(master),
        loss_fn=ClippedPGLossFn(master.loss_fn),
        rollout_manager=RolloutManager(
            tokenizer=tokenizer,
            task_to_env=environments,
            num_generations_per_prompt=grpo["num_generations_per_prompt"],
            max_seq_len=config["policy"]["max_total_sequence_length"],
            max_rollout_turns=1,
            policy_generation=generation,
            generation_config=generation_config,
            use_nemo_gym=False,
            tq_buffer=buffer,
            timeouts=RolloutTimeouts(generation_s=native.generation_timeout_s, env_s=native.env_timeout_s),
            retry_policy=_build_retry_policy(master),
        ),
        tq_buffer=buffer,
        partition_id=PARTITION,
        save_state=_get_grpo_save_state(checkpointer.load_training_info(newest)),
        last_checkpoint_path=newest,
    )
    recorder = MetricRecorder()
    trained: list[Any] = []
    steps: list[Any] = []

    async def run() -> Any:
        given = plug_in(master, arguments)
        controller = PLAIN(master, given, SetupTimingMetrics())
        controller._logger.loggers.append(recorder)
        sampler = given.rollout_manager.groups.sampler
        finish = sampler.finish_step

        def noted(pools: Any, *rows: Any) -> Any:
            trained.append(pools)
            steps.append(finish(pools, *rows))
            return steps[-1]

        sampler.finish_step = noted
        return await controller.run()

    result = asyncio.run(run())
    return SimpleNamespace(
        result=result,
        metrics=recorder.metrics,
        batches=policy.batches,
        pools=trained,
        steps=steps,
    )


def rows_of(batch: Mapping[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    """The rows of a training batch in a fixed order: tokens, whether they count, advantage to the bit."""
    rows = []
    for row, length in enumerate(batch["input_lengths"].tolist()):
        counted = (batch["token_mask"][row, :length] * batch["sample_mask"][row]) > 0
        values = batch["advantages"][row, :length][counted].unique().tolist()
        tokens = batch["input_ids"][row, :length].tolist()
        rows.append((tokens, counted.tolist(), values, float(batch["sample_mask"][row])))
    return sorted(rows)


CLOCKED = ("seconds", "utilisation", "engine_steps", "rollout_calls", "estimated", "too_long")
"""Parts of the names of metrics that a clock decides, or how the engine is called."""


def columns_of(result: Any) -> dict[str, list[Any]]:
    """The columns of a SamplingResult without the numbers that a session gives its responses."""
    names = [field.name for field in dataclasses.fields(result) if field.name.endswith(("_N", "_P"))]
    return {name: getattr(result, name).tolist() for name in names if name != "response_id_N"}


def assert_same_steps(found: Any, expected: Any, sampled: Sequence[Any]) -> None:
    """Compare rows and pools of a run of the controller with those of a synchronous run.

    Args:
        found: the run of the controller.
        expected: the synchronous run.
        sampled: the sampler's steps of the synchronous run (`watched`).
    """
    assert len(found.batches) == len(expected.batches) == len(sampled) > 0
    for ours, theirs in zip(found.batches, expected.batches, strict=True):
        assert rows_of(ours) == rows_of(theirs)
    for pools, step in zip(found.pools, sampled, strict=True):
        assert columns_of(join_results([pool.result for pool in pools])) == columns_of(step.result)
