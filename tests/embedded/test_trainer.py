"""The whole embedded stack: real Ray, vLLM and Megatron-core on a tiny model.

1. A stopped and resumed run gives the metrics and weights of an uninterrupted one, to the bit.
2. After a refit the engine's log-probabilities are the learner's.
3. `fixed(n)` gives the update of a plain GRPO written here.
4. Every preset trains; TP 2 trains in the loop; two equal prompts stay two groups.
5. What the checkpoint exports is a model that transformers loads.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from nemo_ada.config.load import load_run
from nemo_ada.config.presets import presets
from nemo_ada.embedded.learner.batch import TrainBatch
from nemo_ada.embedded.learner.update import train_on
from nemo_ada.embedded.rollout import StepData
from nemo_ada.embedded.stack import Stack, learner_config
from nemo_ada.embedded.trainer import Trainer, check_run
from nemo_ada.errors import UserError
from nemo_ada.run.files import verify_folder
from nemo_ada.run.folder import read_lines
from nemo_ada.run.job_control import EXIT_DONE, EXIT_STOPPED
from nemo_ada.run.observer import Observer
from nemo_ada.tasks.registry import build_task

JSONL = Path(__file__).resolve().parents[2] / "configs" / "cpu" / "jsonl.yaml"


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """make(name, overrides...): the configuration of a tiny run on "which digit is the largest?"."""
    root = tmp_path_factory.mktemp("runs")
    lines = [json.dumps({"prompt": f"{n:03d}=", "answer": max(f"{n:03d}")}) for n in range(1000)]
    (root / "digits.jsonl").write_text("\n".join(lines))

    def config(name, *overrides):
        return load_run(
            JSONL,
            [
                f"task.path={root}/digits.jsonl",
                "base.steps=40",
                f"base.cache_dir={root}/cache",
                f"run_dir={root}/{name}",
                "grpo.num_prompts_per_step=16",
                "grpo.max_num_steps=4",
                "grpo.val_period=2",
                "checkpointing.save_period=2",
                "policy.model.hidden_size=64",
                "policy.model.ffn_hidden_size=128",
                "policy.model.num_attention_heads=2",
                *overrides,
            ],
        )

    return config


@pytest.fixture(scope="module")
def task(make):
    config = make("task")
    return build_task(config.task, Path(config.base.cache_dir))


@pytest.fixture(scope="module")
def stack(make):
    with Stack(make("stack")) as running:
        yield running


def untimed(path):
    return [
        {key: value for key, value in record.items() if "time" not in key and "second" not in key and "util" not in key}
        for record in read_lines(path)
    ]


def weights(run_dir, step):
    folder = run_dir / "checkpoints" / f"step_{step:06d}"
    verify_folder(folder)
    return load_file(folder / "learner" / "model.safetensors")


EIGHT = "grpo.num_generations_per_prompt=8"  # Est shares out responses between 4 and 32
CHOSEN = "reinforce_ada={preset: grpo, candidate_prompts: 40, reserve_prompts: 4, estimator: {kind: value}}"
REFILLED = "reinforce_ada={reserve_prompts: 8, sampling: {stopping: {kind: issue_order, window: 2, max_window: 6}}}"


@pytest.mark.parametrize(
    "chosen",
    [
        ["reinforce_ada.preset=ada_seq_balance"],
        pytest.param([REFILLED], marks=pytest.mark.slow),
        pytest.param(["reinforce_ada.preset=ada_est_ema", EIGHT], marks=pytest.mark.slow),
        pytest.param(["reinforce_ada.preset=ada_est_value", EIGHT], marks=pytest.mark.slow),
        [CHOSEN],
    ],
    ids=["ada_seq_balance", "refilled_issue_order", "ada_est_ema", "ada_est_value", "chosen_prompts"],
)
def test_stopping_and_resuming_changes_nothing(make, stack, task, chosen, request):
    name = request.node.callspec.id
    whole, parts = make(f"whole-{name}", *chosen), make(f"parts-{name}", *chosen)
    assert Trainer(whole, stack, task).run().exit_code == EXIT_DONE

    def stop_after_three(record):
        if record["step"] == 3:
            (parts.folder / "STOP").touch()

    assert Trainer(parts, stack, task, Observer(on_step=stop_after_three)).run().exit_code == EXIT_STOPPED
    status = json.loads((parts.folder / "status.json").read_text())
    assert (status["state"], status["step"]) == ("stopped", 3)
    (parts.folder / "STOP").unlink()
    with pytest.raises(UserError, match="resume=auto"):
        Trainer(parts, stack, task).run()
    resumed = parts.model_copy(update={"resume": "auto"})
    assert Trainer(resumed, stack, task).run().exit_code == EXIT_DONE

    assert [r["step"] for r in read_lines(parts.folder / "metrics.jsonl")] == [1, 2, 3, 4]
    assert untimed(parts.folder / "metrics.jsonl") == untimed(whole.folder / "metrics.jsonl")
    assert untimed(parts.folder / "evaluations.jsonl") == untimed(whole.folder / "evaluations.jsonl")
    first, second = weights(whole.folder, 4), weights(parts.folder, 4)
    assert all((first[name] == second[name]).all() for name in first)
    assert saved_sampler(whole)["estimator"] == saved_sampler(parts)["estimator"]


def saved_sampler(config, step=4):
    state = json.loads((config.folder / "checkpoints" / f"step_{step:06d}" / "state.json").read_text())
    return state["sampler"]


@pytest.mark.slow
def test_a_resumed_run_knows_what_its_sampler_had_learned(make, stack, task):
    config = make("idle-state", "reinforce_ada.preset=ada_seq_idle", "grpo.max_num_steps=3")
    Trainer(config, stack, task).run()
    saved = saved_sampler(config, 3)
    assert saved["latency"]["lengths"]
    resumed = Trainer(config.model_copy(update={"resume": "auto"}), stack, task)
    resumed.run()
    restored = stack.call("sampler_state")
    assert restored["latency"] == saved["latency"]


def test_a_step_dropped_while_it_samples_is_made_again(make, stack, task):
    whole, dropped = make("whole2"), make("dropped")
    Trainer(whole, stack, task).run()

    def drop_next(record):
        if record["step"] == 2:
            (dropped.folder / "DROP").touch()

    assert Trainer(dropped, stack, task, Observer(on_step=drop_next)).run().exit_code == EXIT_STOPPED
    assert [r["step"] for r in read_lines(dropped.folder / "metrics.jsonl")] == [1, 2]
    Trainer(dropped.model_copy(update={"resume": "auto"}), stack, task).run()
    assert untimed(dropped.folder / "metrics.jsonl") == untimed(whole.folder / "metrics.jsonl")


@pytest.mark.parametrize("preset", sorted(presets()))
def test_every_preset_trains(make, stack, task, preset):
    more = [EIGHT] if "_est_" in preset else []
    config = make(f"preset-{preset}", f"reinforce_ada.preset={preset}", "grpo.max_num_steps=2", *more)
    assert Trainer(config, stack, task).run().exit_code == EXIT_DONE
    records = read_lines(config.folder / "metrics.jsonl")
    assert [r["step"] for r in records] == [1, 2]
    assert all(np.isfinite(value).all() for r in records for value in r.values())
    assert all(sum(r["ada/pass_rate_histogram"]) == r["ada/prompts_drawn"] for r in records)
    rows = 16 * config.grpo.num_generations_per_prompt
    assert all(r["total/rows"] == rows * r["step"] for r in records)


def sampled(trainer, indices, step=1):
    """Rows of one step, with the trainer's processes and no update."""
    return trainer.stack.call("sample", step, indices, 0)


@pytest.fixture
def started(make, stack, task, request):
    """A trainer whose model and engine are up."""
    config = make(f"started-{request.node.name}", "reinforce_ada.preset=grpo", "grpo.val_at_start=false")
    trainer = Trainer(config, stack, task)
    trainer.run_dir.open(config.model_dump(mode="json"), resume=False)
    trainer._start()
    return trainer


def plain_grpo(data: StepData, n: int) -> TrainBatch:
    """GRPO without std normalisation, from rewards alone: reward minus the mean of each n consecutive rows."""
    reward = data.advantage_R.reshape(-1, n)
    labels = (reward - reward.min(axis=1, keepdims=True) > 1e-6).astype(np.float64)  # 0/1, up to all-equal groups
    advantage = (labels - labels.sum(axis=1, keepdims=True) / n).astype(np.float32).ravel()
    return TrainBatch(
        data.tokens_RT,
        data.length_R,
        data.prompt_length_R,
        advantage,
        np.ones(len(advantage), np.float32),
        data.old_logprob_RT,
        float((data.length_R - data.prompt_length_R).sum()),
    )


def test_fixed_n_is_plain_grpo(started, make):
    data = sampled(started, list(range(16)))
    config = learner_config(started.config, check_run(started.config, started.task))
    before = started.learner

    ours = train_on(started.learner, data, started.config, 1)
    ours_weights = started.stack.fetch(before.weights())
    learner = started.stack.learner(config, _base_folder(started))
    theirs = learner.train(plain_grpo(data, 4))
    their_weights = started.stack.fetch(learner.weights())
    assert ours["grad_norm"] > 0
    assert ours["trained_rows"] < 64  # rows without advantage were left out of ours, not of theirs
    assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-6)
    for name, tensor in their_weights.items():
        np.testing.assert_allclose(ours_weights[name].numpy(), tensor.numpy(), atol=1e-7, err_msg=name)


def _base_folder(trainer):
    from nemo_ada.embedded.base import base_folder

    return base_folder(trainer.config, trainer.task)


def test_the_engine_is_the_learner_after_a_refit(started):
    trainer = started
    data = sampled(trainer, list(range(16)))
    train_on(trainer.learner, data, trainer.config, 1)
    trainer.stack.call("refit", trainer.learner.weights())
    fresh = sampled(trainer, list(range(16, 32)), step=2)
    learner = trainer.learner.logprobs(fresh.tokens_RT, fresh.length_R, fresh.prompt_length_R)
    stale = trainer.learner.logprobs(data.tokens_RT, data.length_R, data.prompt_length_R)
    assert np.abs(learner - fresh.old_logprob_RT).max() < 1e-4
    assert np.abs(stale - data.old_logprob_RT).max() > 1e-4  # the update moved the policy


def test_two_equal_prompts_stay_two_groups(started):
    data = sampled(started, [3, 3])
    assert data.prompt_R.tolist() == [0] * 4 + [1] * 4
    assert (data.tokens_RT[0, : data.prompt_length_R[0]] == data.tokens_RT[4, : data.prompt_length_R[4]]).all()
    assert (data.tokens_RT[:4] != data.tokens_RT[4:]).any(), "the two occurrences drew the same responses"


def test_tensor_parallel_training_follows_the_single_rank(make, stack, task):
    one = make("tp1", "reinforce_ada.preset=ada_seq_lean", "grpo.max_num_steps=2")
    two = make(
        "tp2",
        "reinforce_ada.preset=ada_seq_lean",
        "grpo.max_num_steps=2",
        "policy.megatron_cfg.tensor_model_parallel_size=2",
    )
    for config in (one, two):
        assert Trainer(config, stack, task).run().exit_code == EXIT_DONE
    first, second = (read_lines(config.folder / "metrics.jsonl")[0] for config in (one, two))
    assert first["train/grad_norm"] == pytest.approx(second["train/grad_norm"], rel=1e-5)
    assert first["ada/samples_drawn"] == second["ada/samples_drawn"]


def test_the_exported_model_loads_in_transformers(make, stack, task):
    config = make("export", "reinforce_ada.preset=grpo", "grpo.max_num_steps=1")
    Trainer(config, stack, task).run()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = config.folder / "checkpoints" / "step_000001" / "hf"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompt = task.splits().heldout[0].text
    assert tokenizer(prompt, add_special_tokens=False)["input_ids"] == task.tokenizer.encode(prompt)
    assert model.config.num_hidden_layers == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("policy.megatron_cfg.tensor_model_parallel_size=3", "tensor_model_parallel_size=3 does not divide"),
        ("policy.megatron_cfg.pipeline_model_parallel_size=5", "pipeline_model_parallel_size=5 does not divide"),
        ("policy.model.num_attention_heads=8", "attention heads of 8 do not work with vLLM"),
        ("policy.model_name=/nowhere", "no config.json there"),
        ("policy.generation.max_new_tokens=500", None),
        ("reinforce_ada.budget={max_samples: 100}", "cannot hold the first waves: 16 prompts x 8 responses = 128"),
    ],
)
def test_what_cannot_run_is_refused_before_any_process_starts(make, task, override, message):
    config = make("refused", override)
    if message is None:
        check_run(config, task)
        return
    with pytest.raises(UserError, match=message):
        check_run(config, task)


def test_a_step_draws_for_some_of_its_candidates_and_uses_all_up(make, stack, task):
    trainer = Trainer(make("chosen", CHOSEN, "grpo.max_num_steps=2"), stack, task)
    assert trainer.run().exit_code == EXIT_DONE
    assert trainer.position == 2 * 40
    for record in read_lines(trainer.config.folder / "metrics.jsonl"):
        assert record["ada/prompts_drawn"] - record["ada/groups_replaced"] == 16
        assert record["total/rows"] == 64 * record["step"]
        assert 0 < record["ada/expected_signal_groups"] < 1


def test_a_choice_among_prompts_that_the_estimator_cannot_know_is_refused(make, task):
    count = len(task.splits().train)
    once = make("lottery", "reinforce_ada.candidate_prompts=40", f"grpo.max_num_steps={count // 40}")
    with pytest.raises(UserError, match=r"lottery; set reinforce_ada\.estimator\.kind=value"):
        check_run(once, task)
    check_run(make("again", "reinforce_ada.candidate_prompts=40", f"grpo.max_num_steps={count // 40 + 1}"), task)


def test_more_candidates_than_prompts_are_refused(make, task):
    with pytest.raises(UserError, match=r"candidate_prompts=9999 is more than the \d+ training prompts; lower it to"):
        check_run(make("too-many", "reinforce_ada.candidate_prompts=9999"), task)
