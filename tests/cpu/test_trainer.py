"""The embedded loop: real Ray, vLLM and Megatron-core on the bandit of conftest.py.

1. A stopped and resumed run gives the metrics and weights of an uninterrupted one, to the bit.
2. Evaluations and saves come at their periods; seeds and sampling settings of the config reach engine and learner.
3. After a refit the engine's log-probabilities are the learner's.
4. Every preset trains; TP 2 trains in the loop; two equal prompts stay two groups.
5. What the checkpoint exports is a model that transformers loads.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from nemo_ada.config.parsing import parse
from nemo_ada.config.presets import load_presets
from nemo_ada.cpu.learner.settings import LearnerConfig
from nemo_ada.cpu.processes.actors import is_alive
from nemo_ada.cpu.settings import LossSettings, OptimizerSettings, RunConfig
from nemo_ada.errors import InvariantError, ProcessLostError, UserError
from nemo_ada.run.files import verify_folder
from nemo_ada.run.folder import read_lines
from nemo_ada.run.job_control import EXIT_DONE, EXIT_STOPPED
from nemo_ada.run.observer import Observer
from tests.lazy import Lazy

pytestmark = pytest.mark.long

embedded, training = Lazy("nemo_ada.cpu.stack"), Lazy("nemo_ada.cpu.trainer")

EIGHT = "grpo.num_generations_per_prompt=8"  # Est shares out responses between 4 and 32
REPLACED = "reinforce_ada={reserve_prompts: 8, preset: ada_seq_lean}"
BALANCED = "reinforce_ada.preset=ada_seq_balance"
AHEAD = "grpo.async_grpo.enabled=true"
TWO_STEPS = ("grpo.max_num_steps=2", "grpo.val_at_start=false", "validation.responses=2")


@pytest.fixture(scope="module")
def trained(make, stack, task):
    """trained(*overrides): the configuration of a run that trained to its end; equal overrides share a run."""
    runs = {}

    def run(*overrides):
        if overrides not in runs:
            config = make(f"trained-{len(runs)}", *overrides)
            assert training.Trainer(config, stack, task).run().exit_code == EXIT_DONE
            runs[overrides] = config
        return runs[overrides]

    return run


def untimed(path):
    return [
        {key: value for key, value in record.items() if "time" not in key and "second" not in key and "util" not in key}
        for record in read_lines(path)
    ]


def weights(run_dir, step):
    folder = run_dir / "checkpoints" / f"step_{step:06d}"
    verify_folder(folder)
    return load_file(folder / "learner" / "model.safetensors")


@pytest.mark.parametrize(
    "chosen",
    [
        [BALANCED],
        pytest.param([REPLACED], marks=pytest.mark.slow),
        pytest.param(["reinforce_ada.preset=ada_est_ema", EIGHT], marks=pytest.mark.slow),
        pytest.param(["reinforce_ada.preset=ada_est_value", EIGHT], marks=pytest.mark.slow),
    ],
    ids=["ada_seq_balance", "replaced", "ada_est_ema", "ada_est_value"],
)
def test_stopping_and_resuming_changes_nothing(make, stack, task, trained, chosen, request):
    whole, parts = trained(*chosen), make(f"parts-{request.node.callspec.id}", *chosen)

    def stop_after_three(record):
        if record["step"] == 3:
            (parts.folder / "STOP").touch()

    assert training.Trainer(parts, stack, task, Observer(on_step=stop_after_three)).run().exit_code == EXIT_STOPPED
    status = json.loads((parts.folder / "status.json").read_text())
    assert (status["state"], status["step"]) == ("stopped", 3)
    (parts.folder / "STOP").unlink()
    with pytest.raises(UserError, match="resume=auto"):
        training.Trainer(parts, stack, task).run()
    resumed = parts.model_copy(update={"resume": "auto"})
    assert training.Trainer(resumed, stack, task).run().exit_code == EXIT_DONE

    assert [r["step"] for r in read_lines(parts.folder / "metrics.jsonl")] == [1, 2, 3, 4]
    assert untimed(parts.folder / "metrics.jsonl") == untimed(whole.folder / "metrics.jsonl")
    assert untimed(parts.folder / "evaluations.jsonl") == untimed(whole.folder / "evaluations.jsonl")
    first, second = weights(whole.folder, 4), weights(parts.folder, 4)
    assert all((first[name] == second[name]).all() for name in first)
    assert saved_sampler(whole)["estimator"] == saved_sampler(parts)["estimator"]


def sampled_metrics(config):
    """Of each step, what sampling says of itself."""
    lines = untimed(config.folder / "metrics.jsonl")
    return [{key: line[key] for key in line if key.startswith("ada/") and key != "ada/response_age"} for line in lines]


def ages(config):
    return [line["ada/response_age"] for line in read_lines(config.folder / "metrics.jsonl")]


def test_sampling_that_may_not_draw_ahead_is_the_synchronous_run(trained):
    waiting = trained(BALANCED, AHEAD, "grpo.async_grpo.max_trajectory_age_steps=0")
    assert sampled_metrics(waiting) == sampled_metrics(trained(BALANCED)) and ages(waiting) == [0, 0, 0, 0]
    first, second = weights(waiting.folder, 4), weights(trained(BALANCED).folder, 4)
    assert all((first[name] == second[name]).all() for name in first)


def test_a_step_that_is_drawn_ahead_has_the_weights_before_the_update(trained):
    rate = "policy.megatron_cfg.optimizer.lr="
    moved, still = f"{rate}0.05", trained(BALANCED, f"{rate}1e-30", *TWO_STEPS)
    ahead, waiting = trained(BALANCED, AHEAD, moved, *TWO_STEPS), trained(BALANCED, moved, *TWO_STEPS)
    assert ages(ahead) == [0, 1] and sampled_metrics(ahead) == sampled_metrics(still)
    assert sampled_metrics(waiting)[1] != sampled_metrics(still)[1]


def test_a_stopped_run_draws_the_step_again_that_it_had_drawn_ahead(make, stack, task, trained):
    whole, parts = trained(BALANCED, AHEAD), make("parts-ahead", BALANCED, AHEAD)

    def stop_after_two(record):
        if record["step"] == 2:
            (parts.folder / "STOP").touch()

    assert training.Trainer(parts, stack, task, Observer(on_step=stop_after_two)).run().exit_code == EXIT_STOPPED
    (parts.folder / "STOP").unlink()
    assert sampled_metrics(parts) == sampled_metrics(whole)[:2]
    assert training.Trainer(parts.model_copy(update={"resume": "auto"}), stack, task).run().exit_code == EXIT_DONE
    assert ages(whole) == [0, 1, 1, 1] and ages(parts) == [0, 1, 0, 1]
    ends = [json.loads((run.folder / "checkpoints/step_000004/state.json").read_text()) for run in (whole, parts)]
    assert ends[0]["position"] == ends[1]["position"] and ends[0]["totals"]["rows"] == ends[1]["totals"]["rows"]


def saved_sampler(config, step=4):
    state = json.loads((config.folder / "checkpoints" / f"step_{step:06d}" / "state.json").read_text())
    return state["sampler"]


@pytest.mark.slow
def test_a_resumed_run_knows_what_its_sampler_had_learned(stack, task, trained):
    config = trained("reinforce_ada={preset: ada_seq_lean, budget: {max_seconds: 600}}", "grpo.max_num_steps=3")
    saved = saved_sampler(config, 3)
    assert saved["latency"]["lengths"]
    training.Trainer(config.model_copy(update={"resume": "auto"}), stack, task).run()
    assert stack.call("sampler_state")["latency"] == saved["latency"]


def test_a_step_dropped_while_it_samples_is_made_again(make, stack, task, trained):
    whole, dropped = trained(BALANCED), make("dropped", BALANCED)

    def drop_next(record):
        if record["step"] == 2:
            (dropped.folder / "DROP").touch()

    assert training.Trainer(dropped, stack, task, Observer(on_step=drop_next)).run().exit_code == EXIT_STOPPED
    assert [r["step"] for r in read_lines(dropped.folder / "metrics.jsonl")] == [1, 2]
    training.Trainer(dropped.model_copy(update={"resume": "auto"}), stack, task).run()
    assert untimed(dropped.folder / "metrics.jsonl") == untimed(whole.folder / "metrics.jsonl")


def test_engine_and_ranks_have_the_priority_of_the_run(stack):
    """Ray would give them the lowest of all; beside other programs they would hardly compute."""
    workers = [child for child in psutil.Process().children(recursive=True) if "ray::" in " ".join(child.cmdline())]
    assert len(workers) >= 3 and {worker.nice() for worker in workers} == {os.nice(0)}


def test_stacks_of_stalled_processes_are_copied_and_empty_ones_are_not(stack, tmp_path):
    folder = tmp_path / "stack" / "stacks"
    folder.mkdir(parents=True)
    for name, text in (("rank0.txt", "File ..."), ("rollout.txt", "")):
        (folder / name).write_text(text)
    type(stack).keep_stacks(SimpleNamespace(_folder=tmp_path / "stack"), tmp_path / "kept")
    assert [(path.name, path.read_text()) for path in (tmp_path / "kept").iterdir()] == [("rank0.txt", "File ...")]


def test_evaluations_and_saves_come_at_their_periods_and_after_the_last_step(make, stack, task):
    few = "validation.max_prompts=3"
    config = make("periods", "grpo.max_num_steps=5", "grpo.val_period=2", "checkpointing.save_period=3", few)
    done = []
    observer = Observer(on_phase=lambda step, phase: done.append((phase, step)))
    training.Trainer(config, stack, task, observer).run()
    assert [step for phase, step in done if phase == "evaluation"] == [0, 2, 4, 5]
    assert [step for phase, step in done if phase == "save"] == [3, 5]
    scores = read_lines(config.folder / "evaluations.jsonl")
    assert [record["step"] for record in scores] == [0, 2, 4, 5]
    names = {"val/accuracy", "val/pass@4", "val/response_length", "val/without_label", "time/evaluation", "samples"}
    assert names <= scores[0].keys() and "total/responses" in scores[0]
    assert len(scores[0]["samples"]) == 3
    assert {path.name for path in (config.folder / "checkpoints").iterdir()} == {"step_000003", "step_000005"}


@pytest.mark.parametrize("preset", sorted(load_presets()))
def test_every_preset_trains(trained, preset):
    more = [EIGHT] if "_est_" in preset else []
    config = trained(f"reinforce_ada.preset={preset}", *TWO_STEPS, *more)
    records = read_lines(config.folder / "metrics.jsonl")
    assert [r["step"] for r in records] == [1, 2]
    assert all(np.isfinite(value).all() for r in records for value in r.values())
    assert all(sum(r["ada/pass_rate_histogram"]) == r["ada/prompts_drawn"] for r in records)
    rows = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    assert all(r["total/rows"] == rows * r["step"] for r in records)


def sampled(trainer, indices, step=1):
    """Rows of one step, with the trainer's processes and no update."""
    return trainer.stack.call("sample", step, indices, 0)


def test_the_seed_decides_the_order_of_prompts_and_the_responses(start):
    seeds = (1, 2)
    trainers = [start(f"grpo.seed={seed}", name=f"seed-{seed}") for seed in seeds]
    first, second = (trainer.order.at(0, 40).tolist() for trainer in trainers)
    assert first != second
    tokens = []
    for seed in (1, 2, 1):
        trainer = start(f"grpo.seed={seed}", name=f"seed-{seed}-of-{len(tokens)}")
        tokens.append(sampled(trainer, list(range(16))).tokens_RT.tolist())
    assert tokens[0] == tokens[2]
    assert tokens[0] != tokens[1]


def test_every_setting_of_loss_and_optimizer_reaches_the_learner(make, task):
    config = make(
        "settings",
        "loss_fn={ratio_clip_min: 0.1, ratio_clip_max: 0.35, ratio_clip_c: 4.0, entropy_coefficient: 0.01}",
        "policy.megatron_cfg.tensor_model_parallel_size=2",
        "policy.megatron_cfg.pipeline_model_parallel_size=2",
        "policy.megatron_cfg.optimizer={lr: 3e-5, weight_decay: 0.2, adam_eps: 1e-6}",
        "policy.megatron_cfg.optimizer={adam_beta1: 0.8, adam_beta2: 0.95}",
        "policy.megatron_cfg.scheduler.lr_warmup_iters=9",
        "policy.data_parallel_size=2",
        "policy.train_micro_batch_size=3",
        "policy.max_grad_norm=0.7",
        "base.seed=4",
        "stall_seconds=77",
    )
    ours = embedded.make_learner_config(config, embedded.choose_model_shape(config, task))
    assert ours.loss == LossSettings(
        ratio_clip_min=0.1, ratio_clip_max=0.35, ratio_clip_c=4.0, entropy_coefficient=0.01
    )
    assert ours.optimizer == OptimizerSettings(
        lr=3e-5, weight_decay=0.2, adam_beta1=0.8, adam_beta2=0.95, adam_eps=1e-6
    )
    assert (ours.warmup_updates, ours.max_grad_norm) == (9, 0.7)
    assert (ours.tensor_parallel, ours.pipeline_parallel, ours.data_parallel, ours.micro_batch_size) == (2, 2, 2, 3)
    assert (ours.seed, ours.call_timeout_s) == (4, 77)


def test_the_learners_defaults_are_those_of_the_yaml(task):
    config = parse(RunConfig, {"task": {"name": "mini_sudoku"}, "reinforce_ada": {"preset": "grpo"}})
    shape = embedded.choose_model_shape(config, task)
    from_yaml = embedded.make_learner_config(config, shape)
    assert from_yaml == replace(LearnerConfig(shape=shape), call_timeout_s=from_yaml.call_timeout_s)


@pytest.mark.parametrize(("rows", "updates"), [("null", 1), ("32", 2), ("8", 8)])
def test_a_warm_up_takes_as_many_training_steps_whatever_the_number_of_updates(make, task, rows, updates):
    config = make(
        f"warm-up-{updates}",
        "grpo.num_prompts_per_step=16",
        "grpo.num_generations_per_prompt=4",
        f"policy.train_global_batch_size={rows}",
        "policy.megatron_cfg.scheduler.lr_warmup_iters=9",
    )
    assert config.updates_per_step == updates
    assert embedded.make_learner_config(config, embedded.choose_model_shape(config, task)).warmup_updates == 9 * updates


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_engine_is_the_learner_after_a_refit(start, temperature):
    """Both compute the policy that was drawn from: logits divided by the temperature."""
    trainer = start(f"policy.generation.temperature={temperature}", name=f"refit-{temperature}")
    data = sampled(trainer, list(range(16)))
    training.train_on(trainer.learner, data, trainer.config, 1)
    trainer.stack.call("refit", trainer.learner.weights())
    fresh = sampled(trainer, list(range(16, 32)), step=2)
    learner = trainer.learner.logprobs(fresh.tokens_RT, fresh.length_R, fresh.prompt_length_R)
    stale = trainer.learner.logprobs(data.tokens_RT, data.length_R, data.prompt_length_R)
    assert np.abs(learner - fresh.old_logprob_RT).max() < 1e-4
    assert np.abs(stale - data.old_logprob_RT).max() > 1e-4  # the update moved the policy


def test_two_equal_prompts_stay_two_groups(start):
    data = sampled(start(name="equal"), [3, 3])
    assert data.prompt_R.tolist() == [0] * 4 + [1] * 4
    assert (data.tokens_RT[0, : data.prompt_length_R[0]] == data.tokens_RT[4, : data.prompt_length_R[4]]).all()
    assert (data.tokens_RT[:4] != data.tokens_RT[4:]).any(), "the two occurrences drew the same responses"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("policy.megatron_cfg.tensor_model_parallel_size=3", "tensor_model_parallel_size=3 does not divide"),
        ("policy.megatron_cfg.pipeline_model_parallel_size=5", "pipeline_model_parallel_size=5 does not divide"),
        ("policy.model.num_attention_heads=8", "attention heads of 8 do not work with vLLM"),
        ("policy.model_name=/nowhere", "no config.json there"),
        ("policy.generation.max_new_tokens=500", None),
        ("reinforce_ada.budget={max_samples: 50}", "cannot hold the first waves: 8 prompts x 8 responses = 64"),
    ],
)
def test_what_cannot_run_is_refused_before_any_process_starts(make, task, override, message):
    config = make("refused", override)
    if message is None:
        training.check_run(config, task)
        return
    with pytest.raises(UserError, match=message):
        training.check_run(config, task)


def test_a_run_that_loses_a_learner_rank_names_it_and_is_interrupted(make, stack, task):
    """Last in the file: a group of learners ends with one of its ranks."""
    config = make("lost", "policy.megatron_cfg.tensor_model_parallel_size=2")
    pids = []

    def lose_a_rank(_record):
        pids.extend(trainer.learner.pids.values())
        os.kill(pids[1], signal.SIGKILL)

    trainer = training.Trainer(config, stack, task, Observer(on_step=lose_a_rank))
    with pytest.raises(ProcessLostError, match=r"rank 1 \(tensor 1, pipeline 0, data 0\) died"):
        trainer.run()
    assert json.loads((config.folder / "status.json").read_text())["state"] == "interrupted"
    assert not any(is_alive(pid) for pid in pids)


def test_a_run_goes_on_with_another_layout_and_smaller_micro_batches(make, stack, task):
    before = make("layout", BALANCED, *TWO_STEPS, "policy.megatron_cfg.tensor_model_parallel_size=2")
    assert training.Trainer(before, stack, task).run().exit_code == EXIT_DONE
    longer = ("grpo.max_num_steps=3", "grpo.val_at_start=false", "validation.responses=4")
    after = make("layout", BALANCED, *longer, "policy.train_micro_batch_size=4", "resume=auto")
    assert training.Trainer(after, stack, task).run().exit_code == EXIT_DONE
    assert [line["step"] for line in read_lines(after.folder / "metrics.jsonl")] == [1, 2, 3]
    changed = read_lines(after.folder / "config_changes.jsonl")[-1]["changed"]
    assert {"policy.train_micro_batch_size", "policy.megatron_cfg.tensor_model_parallel_size"} <= changed.keys()
    other = make("layout", BALANCED, *longer, "loss_fn.ratio_clip_max=0.3", "resume=auto")
    with pytest.raises(UserError, match="ratio_clip_max"):
        training.Trainer(other, stack, task).run()


def test_a_learner_without_memory_names_the_setting_to_lower(make, stack, task, monkeypatch):
    config = make("memory", BALANCED, *TWO_STEPS)

    def no_room(_self):
        raise InvariantError(
            'learner train: rank 0 failed with RuntimeError("DefaultCPUAllocator: can\'t allocate memory")'
        )

    monkeypatch.setattr(training.Trainer, "_start", no_room)
    with pytest.raises(InvariantError, match=r"lower policy\.train_micro_batch_size"):
        training.Trainer(config, stack, task).run()
    assert json.loads((config.folder / "status.json").read_text())["state"] == "failed"


def test_a_folder_of_another_run_is_refused_before_any_work(make, monkeypatch):
    config = make("taken", BALANCED, *TWO_STEPS)
    config.folder.mkdir(parents=True)
    (config.folder / "config.yaml").write_text("grpo: {seed: 99}")

    def work(*_arguments):
        raise AssertionError("the task was read")

    monkeypatch.setattr("nemo_ada.cpu.trainer.build_run_task", work)
    with pytest.raises(UserError, match="another configuration"):
        training.train(config)
