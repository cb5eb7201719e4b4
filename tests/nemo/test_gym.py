"""Reinforce-Ada over NeMo-Gym, in NeMo-RL's own loop with its own rollout function and actor (nemo_support/gym.py).

A script stands for Gym's servers. Nine traps of that path have a test each, numbered as in the issue that names them.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.core.seeds import shuffle_rows
from nemo_ada.errors import FailedResponsesError, ProcessLostError, UserError
from nemo_ada.nemo import StepDroppedError, reinforce_ada
from nemo_ada.nemo.features import WIDTH, compute_request_features
from nemo_ada.nemo.gym import actor as watched
from nemo_ada.nemo.gym.request import compute_prompt_id, write_canonical
from nemo_ada.nemo.rollouts.call import Prompts
from tests.nemo.test_contract import RATES, TableSource, check_decided

pytestmark = pytest.mark.nemo_rl
PROMPTS = ("p11=", "p12=", "p13=", "p14=")
GROUP, LONGEST, SEED = 4, 8, 7  # of nemo_support/harness.py


@pytest.fixture
def gym(harness, monkeypatch):
    """The module nemo_support.gym."""
    import importlib

    monkeypatch.setenv("WANDB_MODE", "offline")
    return importlib.import_module("nemo_support.gym")


@pytest.fixture
def step(gym, tmp_path):
    """step(script, ...): steps of sampling, without the update."""

    def drawn(script, ada="ada_seq_balance", *, rows=None, steps=1, changes=None, stop=None, after=None, call=None,
              **options):  # fmt: skip
        section = {"preset": ada} if isinstance(ada, str) else ada
        parts = gym.parts_of(tmp_path, 8, {"reinforce_ada": section, **(changes or {})})
        parts.generation.prepare_for_generation()
        actor = gym.actor_of(script, **options)
        seen = []
        with reinforce_ada(parts.master_config, checkpointer=parts.checkpointer, stop_check=stop) as ours:
            sampled = watch(ours.sampler)
            estimator = gym.grpo._create_advantage_estimator(parts.master_config)
            for _ in range(steps):
                given = rows or [gym.row(prompt) for prompt in PROMPTS]
                if after is not None:
                    after(actor)
                result = gym.draw(parts, given, actor, **(call or {}))
                seen.append(result)
        facts = gym.ray.get(actor.facts.remote())
        return SimpleNamespace(
            results=seen, result=seen[-1], batch=seen[-1].final_batch, metrics=seen[-1].rollout_metrics,
            sampled=sampled, estimator=estimator, hooks=ours, **facts,
        )  # fmt: skip

    return drawn


def watch(sampler):
    """What the sampler decides, step by step."""
    steps, run_step = [], sampler.run_step

    def watched(*args, **kwargs):
        steps.append(run_step(*args, **kwargs))
        return steps[-1]

    sampler.run_step = watched
    return steps


# -- the traps ---------------------------------------------------------------------------------------------------------


def test_1_prompts_are_known_by_their_requests(gym, step):
    """NeMo-RL gives every prompt the same empty message."""
    Made = gym.Rollout
    rows = [gym.row("p11="), gym.row("p12="), gym.row("p11="), gym.row("p11=", agent="another")]
    batch = gym.batch_of(rows)
    assert {len(log[0]["token_ids"]) for log in batch["message_log"]} == {0}
    ids = [compute_prompt_id(one) for one in batch["extra_env_info"]]
    assert ids[0] == ids[2] and len({*ids}) == 3
    features_PF = compute_request_features([write_canonical(one) for one in batch["extra_env_info"]])
    assert (features_PF[0] == features_PF[2]).all() and (features_PF[0] != features_PF[1]).any()
    done = step(lambda prompt, draw: Made(float(draw % 2), turns=(3,)))
    for log in done.batch["message_log"]:
        assert len(log[0]["token_ids"]) > 0 and log[0]["role"] == "user"
    with pytest.raises(UserError, match="has no responses_create_params"):
        compute_prompt_id({"agent_ref": {"name": "a"}})


def test_1_rows_without_advantage_have_a_token_of_their_prompt(gym, step):
    Made, words = gym.Rollout, gym.tiny_tokenizer()
    done = step(lambda prompt, draw: Made(1.0, turns=(5,)), "grpo")
    first = {prompt: words(prompt)["input_ids"][0] for prompt in PROMPTS}
    short = 0
    for row, log in zip(done.batch["extra_env_info"], done.batch["message_log"], strict=True):
        short += [len(message["token_ids"]) for message in log] == [1, 1]
        assert int(log[0]["token_ids"][0]) == first[row["responses_create_params"]["input"][0]["content"]]
    assert short == done.batch.size - 1, "one row stays whole, for NeMo-RL's metrics"
    assert (done.batch["length"] == 1).sum() == short


def test_2_what_nemo_rl_writes_into_its_rows_stays_in_the_call(gym, step):
    Made = gym.Rollout
    rows = [gym.row(prompt) for prompt in PROMPTS]
    rows[0]["responses_create_params"]["max_output_tokens"] = 3
    done = step(lambda prompt, draw: Made(float(draw == 0)), rows=rows, steps=2)
    for call in done.calls:
        (asked,) = call
        assert asked["_rowidx"] == 0 and asked["responses_create_params"]["temperature"] == 1.0
    for row in done.batch["extra_env_info"]:
        assert "_rowidx" not in row and "temperature" not in row["responses_create_params"]
    one, two = (sampled.result for sampled in done.sampled)
    assert set(done.drawn) == set(PROMPTS) and len(one.uid_P) == len(two.uid_P) == len(PROMPTS)


def test_3_rows_keep_their_identity(gym, step):
    Made = gym.Rollout
    done = step(lambda prompt, draw: Made(float(draw % 2)))
    position_R = (done.batch["ada_uid"] & 0xFFFFFF).tolist()
    asked = [row["responses_create_params"]["input"][0]["content"] for row in done.batch["extra_env_info"]]
    assert asked == [PROMPTS[place] for place in position_R]
    assert [ref["name"] for ref in done.batch["agent_ref"]] == [gym.AGENT] * len(asked)
    assert done.batch.size == GROUP * len(PROMPTS)


def test_4_input_ids_are_those_of_the_kept_rows(gym, step):
    Made, words = gym.Rollout, gym.tiny_tokenizer()
    done = step(lambda prompt, draw: Made(float(draw % 2)))
    asked = [row["responses_create_params"]["input"][0]["content"] for row in done.batch["extra_env_info"]]
    whole_R = (done.batch["length"] > 1).tolist()
    assert any(whole_R) and done.result.input_ids.shape[0] == done.batch.size
    for ids, prompt, whole in zip(done.result.input_ids, asked, whole_R, strict=True):
        expected = words(prompt)["input_ids"] if whole else words(prompt)["input_ids"][:1]
        assert ids[: len(expected)].tolist() == expected


def test_5_a_group_is_a_group_whatever_its_agent_writes_before_the_prompt(gym, step):
    """Each response has another prompt in tokens. NeMo-RL would take them for groups of one."""
    Made = gym.Rollout
    done = step(lambda prompt, draw: Made(float(draw % 2), prefix=(2 + draw % 7,) * (1 + draw % 3)))
    assert len({tuple(ids.tolist()) for ids in done.result.input_ids}) > len(PROMPTS)
    (sampled,) = done.sampled
    for place in range(len(PROMPTS)):
        pool = sampled.result.reward_N[sampled.result.prompt_N == place]
        rows = (done.batch["ada_uid"] & 0xFFFFFF) == place
        assert rows.sum() == GROUP
        np.testing.assert_allclose(done.batch["ada_baseline"][rows].numpy(), pool.mean(), rtol=1e-6)
    assert set(done.batch["total_reward"].tolist()) == {0.0, 1.0}


def test_6_nan_log_probs_cost_one_response(gym, step):
    """NeMo-RL draws the whole call again (v0.7.0), or gives it up (main). So a call has one row."""
    Made = gym.Rollout
    done = step(lambda prompt, draw: Made(float(draw % 2), nan=(prompt == "p11=" and draw == 1)), "grpo", attempts=3)
    assert all(len(call) == 1 for call in done.calls)
    assert done.drawn == {"p11=": GROUP + 1} | dict.fromkeys(PROMPTS[1:], GROUP)
    (sampled,) = done.sampled
    assert (np.bincount(sampled.result.prompt_N) == GROUP).all()
    for log in done.batch["message_log"]:
        assert all(torch.isfinite(turn["generation_logprobs"]).all() for turn in log if turn["role"] == "assistant")


@pytest.mark.parametrize("how", ["raises", "nothing", "no tokens", "no reward", "not finite"])
def test_7_a_failed_rollout_is_drawn_again_and_never_a_zero(gym, step, how):
    done = step(gym.failing_once(how), "grpo")
    assert done.drawn == {"p12=": GROUP + 1} | {prompt: GROUP for prompt in PROMPTS if prompt != "p12="}
    assert done.metrics["ada/pass_rate"] == 1.0, "a failure is no wrong answer"
    assert (done.batch["total_reward"] == 1.0).all()
    assert done.metrics["ada/failed/gym_error"] == 1


def test_7_when_all_fail_the_step_ends_with_the_reason(gym, step):
    with pytest.raises(FailedResponsesError, match="gym_error"):
        step(lambda prompt, draw: ValueError("the sandbox is gone"))


@pytest.mark.parametrize("how", ["die", "restart"])
def test_7_lost_servers_are_a_lost_process(gym, step, how):
    def lose(actor):
        gym.ray.get(actor.die.remote("server math has ended") if how == "die" else actor.restart.remote())

    with pytest.raises(ProcessLostError, match="server math has ended" if how == "die" else "started anew"):
        step(lambda prompt, draw: ValueError("no connection"), after=lose)


def test_7_silence_is_looked_into(gym, step, monkeypatch):
    """Gym asks a dead server for ever, so its rollouts neither end nor fail."""
    Made = gym.Rollout
    monkeypatch.setattr(watched, "SILENT_SECONDS", 0.5)
    with pytest.raises(ProcessLostError, match="server math has ended"):
        step(
            lambda prompt, draw: Made(1.0),
            after=lambda actor: gym.ray.get(actor.die.remote("server math has ended")),
            seconds=30.0,
        )
    done = step(lambda prompt, draw: Made(float(draw % 2)), seconds=1.5)
    assert done.metrics["ada/samples_drawn"] > 0, "slow servers that live are waited for"


def test_7_a_call_that_nemo_rl_refuses_is_an_error_of_the_run(gym, step):
    Made = gym.Rollout
    with pytest.raises(AssertionError, match="Top k"):
        step(lambda prompt, draw: Made(1.0), changes={"policy.generation.top_k": 5})


def test_8_exit_rules_look_at_rewards_before_shaping(gym, step):
    """Effort shaping adds up to the whole reward again for short answers to prompts with the marked words."""
    Made = gym.Rollout
    effort = {"low_string": "p1", "low_weight": 1.0, "low_ub": 10, "low_penalty": 1.0}
    changes = {"env.nemo_gym.effort_levels": effort}
    done = step(lambda prompt, draw: Made(float(draw % 2), turns=(2 + draw % 3,)), "grpo", changes=changes)
    (sampled,) = done.sampled
    assert set(sampled.raw_reward_N.tolist()) == {0.0, 1.0}
    tokens_N = sampled.result.tokens_N
    shaped_N = sampled.raw_reward_N * (2.0 - tokens_N / 10)
    np.testing.assert_allclose(sampled.result.reward_N, shaped_N, rtol=1e-6)
    assert done.metrics["ada/pass_rate"] == 0.5


def test_8_a_threshold_says_which_rewards_are_positive(gym, step):
    Made = gym.Rollout
    ada = {"preset": "ada_seq_balance", "positive_threshold": 0.6}
    done = step(lambda prompt, draw: Made(0.25 * (draw % 4)), ada)
    (sampled,) = done.sampled
    assert set(sampled.raw_reward_N.tolist()) == {0.0, 0.25, 0.5, 0.75}
    assert 0.0 < done.metrics["ada/pass_rate"] < 0.5


def test_9_statistics_are_of_all_responses(gym, step):
    from wandb import Histogram, Table

    Made = gym.Rollout
    done = step(lambda prompt, draw: Made(float(draw % 2), turns=(2,) * (1 + draw % 2)), "grpo")
    responses = GROUP * len(PROMPTS)
    for name, value in {"mean": 1.5, "max": 2, "min": 1, "median": 1.5}.items():
        assert done.metrics[f"turns_per_sample/{name}"] == value
    assert done.metrics["turns_per_sample/stddev"] == pytest.approx(math.sqrt(0.25 * responses / (responses - 1)))
    histogram, table = done.metrics["turns_per_sample/histogram"], done.metrics[f"{gym.AGENT}/full_result"]
    assert isinstance(histogram, Histogram) and sum(histogram.histogram) == responses
    assert isinstance(table, Table) and len(table.data) == responses
    assert done.metrics[f"{gym.AGENT}/reward/mean"] == 0.5
    assert done.metrics["mean_gen_tokens_per_sample"] == 3.0


# -- several turns -----------------------------------------------------------------------------------------------------


def test_tokens_of_a_response_are_those_of_all_its_turns(gym, step):
    Made = gym.Rollout
    done = step(lambda prompt, draw: Made(float(draw % 2), turns=(3, 1, 2)), "grpo")
    (sampled,) = done.sampled
    assert set(sampled.result.tokens_N.tolist()) == {6}
    assert done.metrics["ada/tokens_drawn"] == 6 * GROUP * len(PROMPTS)
    for log, advantage in zip(done.batch["message_log"], done.batch["ada_advantage"].tolist(), strict=True):
        assert advantage == 0 or [turn["role"] for turn in log] == ["user", "assistant"] * 3


def test_caps_latency_and_loss_mask_count_all_turns(gym, step, tmp_path):
    Made = gym.Rollout

    def script(prompt, draw):
        return Made(float(draw % 2), turns=(3, 1, 2))

    done = step(script, {"preset": "grpo", "budget": {"max_tokens": 1100}})
    assert done.metrics["ada/tokens_drawn"] == 6 * done.metrics["ada/samples_drawn"] <= 1100
    latency = done.hooks.sampler.latency
    assert latency.ready and latency.get_length_quantile(0.5) == 6
    (batch,) = gym.run_gym(
        tmp_path / "run", 1, {"reinforce_ada": {"preset": "grpo"}}, hooks=gym.hooks, script=script
    ).batches
    whole_R = (batch["advantages"] != 0).any(dim=1)
    assert whole_R.any() and (batch["token_mask"][whole_R].sum(dim=1) == 6).all()


def test_a_response_that_was_cut_is_told_apart_from_a_finished_one(gym, step):
    Made = gym.Rollout
    done = step(lambda prompt, draw: Made(float(draw % 2), cut=draw % 4 == 1), "grpo")
    assert done.batch["truncated"].sum() == len(PROMPTS)
    assert done.metrics["truncation_rate"] == 0.25
    length = 32 - 4
    done = step(lambda prompt, draw: Made(float(draw % 2), turns=(length,) if draw % 4 == 1 else (2,)), "grpo")
    assert done.batch["truncated"].sum() == len(PROMPTS), "NeMo-RL's own sign: the context is full"


# -- schedulers, budget, endings ---------------------------------------------------------------------------------------


def test_the_end_of_a_job_gives_up_what_still_runs(gym, step):
    """The servers are told, and nobody waits for the rollouts."""
    Made, asked = gym.Rollout, []

    def stop():
        asked.append(1)
        return "drop" if len(asked) > 1 else None

    with pytest.raises(StepDroppedError):
        step(lambda prompt, draw: Made(float(draw % 2)), stop=stop, seconds=20.0)


def test_the_tokenizer_is_built_once_in_the_actor(gym, step):
    Made = gym.Rollout
    done = step(lambda prompt, draw: Made(float(draw % 2)))
    assert len(done.calls) >= GROUP * len(PROMPTS) and done.tokenizers == 1


# -- the sampler on a table --------------------------------------------------------------------------------------------

CONTRACT = ("grpo", "ada_seq_positive", "ada_seq_balance", "ada_seq_lean", "ada_seq_log", "ada_est_ema")


def labelled():
    """A function of label and length of a draw. An inner function goes to the actor as it is."""

    def script(prompt, draw):
        random = np.random.default_rng([int(prompt[1:3]), draw])
        return float(random.random() < RATES[int(prompt[1:3])]), int(random.integers(2, 9))

    return script


@pytest.fixture
def numbered(monkeypatch):
    """Requests carry their draw, because calls may overtake each other on their way to the actor."""
    rows, drawn = Prompts.rows, Counter()

    def with_numbers(prompts, places):
        batch = rows(prompts, places)
        for place, row in zip(places, batch["extra_env_info"], strict=True):
            row["draw"] = drawn[prompts.ids[place]]
            drawn[prompts.ids[place]] += 1
        return batch

    monkeypatch.setattr(Prompts, "rows", with_numbers)


@pytest.mark.usefixtures("numbered")
@pytest.mark.parametrize("ada", CONTRACT)
def test_pools_rows_and_advantages_are_those_of_the_sampler_on_the_same_labels(gym, step, ada):
    """test_contract.py compares the other paths with the same table."""
    section = {"preset": ada, **({"sampling": {"min_responses": 2}} if "_est_" in ada else {})}
    Made, script = gym.Rollout, labelled()

    def did(prompt, draw):
        label, tokens = script(prompt, draw)
        return Made(label, turns=(tokens,))

    ours, drawn = step(did, section, steps=3), dict.fromkeys(PROMPTS, 0)
    table = parse_ada_settings(section).sampler(GROUP, LONGEST, run_seed=SEED, features=WIDTH)
    for number, (found, result) in enumerate(zip(ours.sampled, ours.results, strict=True), start=1):
        expected = table.run_step(number, PROMPTS, TableSource(script, drawn))
        check_decided((found.result, found.rows), (expected.result, expected.rows))
        batch, order_R = result.final_batch, shuffle_rows(found.rows.prompt_R, SEED, number)
        for name in ("advantage", "weight"):
            column_R = getattr(expected.rows, f"{name}_R")[order_R]
            np.testing.assert_array_equal(batch[f"ada_{name}"].numpy(), column_R.astype(np.float32), err_msg=name)
        reward_R = expected.result.reward_N[expected.rows.pool_R[order_R]]
        np.testing.assert_array_equal(batch["total_reward"].numpy(), reward_R)


# -- grpo_train --------------------------------------------------------------------------------------------------------


GROUPS = {"ada_single": 2}  # responses per prompt, where it is not GROUP


@pytest.mark.parametrize("ada", [*CONTRACT, "ada_est_value", *GROUPS])
def test_every_preset_trains(gym, tmp_path, ada):
    section = {"preset": ada, **({"sampling": {"min_responses": 2}} if "_est_" in ada else {})}
    group = GROUPS.get(ada, GROUP)
    sizes = {"grpo.num_generations_per_prompt": group, "policy.train_global_batch_size": group * len(PROMPTS)}
    run = gym.run_gym(tmp_path, 3, {"reinforce_ada": section, **sizes}, hooks=gym.hooks)
    for number in (1, 2, 3):
        metrics = run.metrics[number]
        first_wave = min(group, GROUP) * len(PROMPTS)
        assert math.isfinite(metrics["train/loss"]) and metrics["train/ada/samples_drawn"] >= first_wave
        assert metrics["train/mean_gen_tokens_per_sample"] > 0 and metrics["train/mean_prompt_length"] == 4
    assert run.metrics[2]["validation/ada/without_label"] == 0
    assert 0 <= run.metrics[2]["validation/accuracy"] <= 1
    assert any((batch["advantages"] != 0).any() for batch in run.batches)
    masked_RT = [batch["token_mask"] * batch["sample_mask"].unsqueeze(-1) for batch in run.batches]
    trained = [run.metrics[number]["train/ada/tokens_trained"] for number in (1, 2, 3)]
    for tokens, mask_RT, batch in zip(trained, masked_RT, run.batches, strict=True):
        whole_R = (batch["advantages"] != 0).any(dim=1)
        assert mask_RT[whole_R].sum() <= tokens


def test_a_killed_run_resumes_as_if_nothing_happened(gym, tmp_path):
    """Each draw of a prompt has its label from the weights' step on: the script must not depend on the process."""
    Made = gym.Rollout
    overrides = {"reinforce_ada": {"preset": "ada_est_ema", "sampling": {"min_responses": 2}}}

    def script(prompt, draw):
        return Made(float(int(prompt[1:3]) % 2))

    whole = gym.run_gym(tmp_path / "whole", 4, overrides, hooks=gym.hooks, script=script)
    gym.run_gym(tmp_path / "parts", 2, overrides, hooks=gym.hooks, script=script)
    rest = gym.run_gym(tmp_path / "parts", 4, overrides, hooks=gym.hooks, script=script)
    assert all(torch.equal(whole.weights[name], rest.weights[name]) for name in whole.weights)
    for number in (3, 4):
        for name in ("train/loss", "train/ada/samples_drawn", "train/ada/pass_rate"):
            assert whole.metrics[number][name] == rest.metrics[number][name]


def test_a_failed_rollout_of_a_validation_counts_as_wrong_and_is_counted(gym, tmp_path):
    Made = gym.Rollout

    def script(prompt, draw):
        return ValueError("the sandbox is gone") if prompt == "v11=" else Made(1.0)

    waits = []

    @contextmanager
    def counting(parts):
        with gym.hooks(parts) as ours:
            ours.on_wait = lambda: waits.append(1)
            yield ours

    run = gym.run_gym(tmp_path, 2, {"reinforce_ada": {"preset": "grpo"}}, hooks=counting, script=script)
    assert waits  # the launcher's heartbeat
    assert run.metrics[2]["validation/ada/without_label"] == 1
    assert run.metrics[2]["validation/accuracy"] == 0.75


def test_without_the_section_nemo_rl_trains_its_own(gym, tmp_path):
    run = gym.run_gym(tmp_path, 2, {}, hooks=gym.hooks)
    assert all(len(call) in (4, 16) for call in run.calls) and "train/ada/samples_drawn" not in run.metrics[1]


def test_dapo_filtering_leaves_no_group_without_signal(gym, tmp_path):
    changes = {"reinforce_ada": {"preset": "ada_seq_balance"}, "grpo.use_dynamic_sampling": True}
    run = gym.run_gym(tmp_path, 2, {**changes, "grpo.dynamic_sampling_max_gen_batches": 20}, hooks=gym.hooks)
    assert math.isfinite(run.metrics[2]["train/loss"])


def masked_script(gym):
    """Every fourth rollout is one that its environment masks. The others are right and wrong by turns."""

    def script(prompt, draw):
        masked = {"instance_config": {"mask_sample": draw % 4 == 1}}
        return gym.Rollout(float(draw % 2), facts=masked)

    return script


def test_what_an_environment_masks_has_no_label_and_is_drawn_again(gym, step):
    """Its reward is no verdict: it is neither a wrong answer for the exit rule nor part of the pool's mean."""
    done = step(masked_script(gym), "grpo")  # a quarter is more than max_failed_share
    assert done.metrics["ada/failed/masked"] == done.metrics["ada/samples_failed"] > 0
    assert "mask_sample" not in done.batch
    assert (done.batch["ada_weight"] > 0).all()  # every row has a response, and none of them is masked
    kept = done.batch["total_reward"].sum() / len(done.batch["total_reward"])
    assert done.metrics["ada/pass_rate"] == pytest.approx(float(kept))


def test_a_run_that_does_not_honour_the_mask_takes_the_reward(gym, step):
    if not gym.ON_MAIN:
        pytest.skip("NeMo-RL v0.7.0 has no such setting")
    done = step(masked_script(gym), "grpo", call={"mask_env_flagged_samples": False})
    assert done.metrics["ada/samples_failed"] == 0
