"""The hooks on stand-ins for NeMo-RL's types (standin.py): no NeMo-RL needed.

1. Responses that are not needed any more are cancelled.
2. The batch keeps its shape; rows without advantage cost two tokens and the update does not change.
3. Failures have no label; equal prompts stay two groups; nothing misaligned passes.
4. Names and methods are checked first and restored in any case; unsupported combinations are refused.
"""

from __future__ import annotations

import functools
import json
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from standin import Checkpointer, Engine, config, loop_module, prompt_batch, step

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.nemo.hooks import StepDroppedError
from nemo_ada.nemo.install import install_hooks
from nemo_ada.nemo.launch.checkpoint import save_state_with_checkpoints

PROMPTS = [11, 12, 13, 14, 15, 16]
RATES = {11: 0.1, 12: 0.3, 13: 0.5, 14: 0.9, 15: 0.0, 16: 0.7}
GROUP = 4
NAN, INF = float("nan"), float("inf")

SYNC_AND_ASYNC = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def script(prompt, draw):
    """Label and length of a response, the same in every test."""
    random = np.random.default_rng([prompt, draw])
    return float(random.random() < RATES[prompt]), int(random.integers(2, 30))


class Run:
    """Hooks on stand-ins, with a folder for checkpoints."""

    def __init__(self, folder, settings, engine):
        self.config, self.asynchronous = settings, settings["policy"]["generation"]["vllm_cfg"]["async_engine"]
        self.engine = Engine(**{"script": script, **engine})
        self.loop, self.rollouts = loop_module(self.engine)
        self.checkpointer = Checkpointer(folder)

    def installed(self, **more):
        return install_hooks(self.config, self.checkpointer, self.loop, self.rollouts, **more)

    def step(self, batch=PROMPTS, too_long=()):
        return step(self.loop, self.config, batch, self.asynchronous, too_long)

    def steps(self, *batches, too_long=()):
        with self.installed():
            return [self.step(batch, too_long) for batch in batches or [PROMPTS]]

    def names(self):
        return dict(vars(self.loop)) | {"finalize": vars(self.checkpointer).get("finalize_checkpoint")}


@pytest.fixture
def make(tmp_path):
    """make(settings or preset, ...): a run of six prompts in a folder of its own."""

    def run(ada, prompts=6, *, engine=None, **changes):
        ada = {"preset": ada} if isinstance(ada, str) else ada
        settings = config(8 if "_est_" in ada["preset"] else GROUP, prompts, ada, **changes)
        return Run(Path(tempfile.mkdtemp(dir=tmp_path)), settings, engine or {})

    return run


# -- 1. responses that are stopped -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asynchronous", "ada", "steps"),
    [
        (False, {}, 20 + 5),  # waves of 4 with a barrier: the longest of each
        (True, {}, 20),  # without: prompt 11 needs one wave, prompt 12 two short ones
    ],
    ids=["barrier", "waves"],
)
def test_engine_steps_are_those_of_the_longest_chain(make, asynchronous, ada, steps):
    def two(prompt, draw):
        return float(draw % 4 == 0) if prompt == 11 else float(draw == 7), 20 if prompt == 11 else 5

    run = make(ada | {"preset": "ada_seq_lean"}, 2, asynchronous=asynchronous, engine={"script": two})
    (record,) = run.steps([11, 12])
    assert record.metrics["ada/engine_steps_at_least"] == steps


# -- 2. shape and cost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1000, 15], ids=["whole", "overlong responses masked"])
def test_rows_without_advantage_shrink_to_two_tokens_and_leave_the_update_alone(make, limit):
    """The loss is sum(mask * advantage * g) / sum(mask) per optimizer step, whatever g is."""
    size = GROUP * len(PROMPTS) // 2
    changes = {"policy__train_global_batch_size": size, "grpo__overlong_filtering": True, "engine": {"limit": limit}}
    (short,) = make("grpo", **changes).steps()
    (full,) = make("grpo", loss_fn__reference_policy_kl_penalty=1e-9, **changes).steps()
    assert full.batch["truncated"].any() == (limit == 15)
    dead = full.batch["ada_advantage"] == 0
    assert dead.any() and not dead.all()
    assert short.metrics["ada/tokens_skipped"] == full.mask_RT[dead].sum() > 0
    assert short.metrics["ada/tokens_trained"] + short.metrics["ada/tokens_skipped"] == full.mask_RT.sum()
    assert [len(m["token_ids"]) for m in short.batch["message_log"][int(dead.nonzero()[0])]] == [1, 1]
    for part in (slice(0, size), slice(size, 2 * size)):
        updates = [(r.mask_RT * r.advantages_RT)[part].sum(dim=1) / r.mask_RT[part, 1:].sum() for r in (short, full)]
        torch.testing.assert_close(*updates)


def test_an_update_whose_responses_are_all_cut_keeps_one_without_advantage(make):
    """NeMo-RL takes cut rows out of the loss, and its metrics of an update without any token are 0/0."""
    size = GROUP * len(PROMPTS) // 2
    changes = {"policy__train_global_batch_size": size, "grpo__overlong_filtering": True, "engine": {"limit": 1}}
    (record,) = make("grpo", **changes).steps()
    assert record.metrics["truncation_rate"] == 1.0
    for part in (slice(0, size), slice(size, 2 * size)):
        (kept,) = (record.mask_RT[part].sum(dim=1) > 0).nonzero().flatten().tolist()
        assert not record.advantages_RT[part][kept].any()


def test_right_answers_get_a_positive_advantage_on_every_token_and_wrong_ones_a_negative_one(make):
    (record,) = make("ada_seq_balance").steps()
    live, right = record.batch["ada_advantage"] != 0, record.batch["total_reward"] > 0
    assert (live & right).any() and (live & ~right).any()
    assert (record.advantages_RT[live & right] > 0).all()
    assert (record.advantages_RT[live & ~right] < 0).all()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_update_whose_prompts_are_all_too_long_borrows_a_whole_response(make, asynchronous):
    """A row of an invented response would show as a disagreement of engine and learner."""
    run = make("ada_seq_balance", asynchronous=asynchronous, policy__train_global_batch_size=GROUP)
    (record,) = run.steps(too_long=(0, 4))
    batch = record.batch
    for part in (slice(start, start + GROUP) for start in range(0, batch.size, GROUP)):
        in_loss = (batch["loss_multiplier"][part] > 0).nonzero().flatten().tolist()
        assert in_loss
        log = batch["message_log"][part][in_loss[0]]
        assert len(log) == 3 and len(log[1]["token_ids"]) > 1, "a response, whole"
        assert batch["length"][part][in_loss[0]] == len(log[0]["token_ids"])
    too_long = torch.tensor([int(uid) & 0xFFFFFF in (0, 4) for uid in batch["ada_uid"]])
    assert batch["loss_multiplier"][too_long].sum() == 2 and not record.advantages_RT[too_long].any()


def test_updates_mix_prompts_that_come_in_an_order_and_what_is_too_long_with_the_others(make):
    """NeMo-RL cuts the batch into updates: an order by difficulty would give each update prompts of one kind."""
    run = make("ada_seq_balance", prompts=12)
    orders = []
    with run.installed():
        for _ in range(8):
            record = run.step([*PROMPTS, *PROMPTS], too_long=(9, 10, 11))
            orders.append((record.batch["ada_uid"] & 0xFFFFFF).tolist()[::GROUP])
    assert all(sorted(order) == list(range(12)) for order in orders) and len(set(map(tuple, orders))) == 8
    assert any(set(order[-3:]) != {9, 10, 11} for order in orders)


def test_calls_are_interleaved_by_prompt(make):
    run = make("ada_seq_lean")
    run.steps()
    assert run.engine.calls[0] == PROMPTS * 4
    assert set(run.engine.calls[1]) < set(PROMPTS)


@pytest.mark.parametrize(("scaling", "shaping"), [(True, False), (False, True), (True, True)])
def test_rewards_are_scaled_and_shaped_each_by_its_own_switch_before_the_baseline(make, scaling, shaping):
    switches = {
        "grpo__reward_scaling": {"enabled": scaling, "target_max": 10.0},
        "grpo__reward_shaping": {"enabled": shaping},
    }
    factor, offset = 10.0 if scaling else 1.0, -0.5 if shaping else 0.0
    (scaled,), (plain,) = make("ada_seq_balance", **switches).steps(), make("ada_seq_balance").steps()
    torch.testing.assert_close(scaled.batch["total_reward"], plain.batch["total_reward"] * factor + offset)
    torch.testing.assert_close(scaled.batch["ada_advantage"], plain.batch["ada_advantage"] * factor)
    assert scaled.metrics["ada/pass_rate"] == plain.metrics["ada/pass_rate"], "the threshold looks at the raw reward"


def test_a_shrunk_baseline_follows_scaled_rewards(make):
    """The standin's scaling multiplies by target_max, as NeMo-RL's does from 0 to 1."""
    scale = {"grpo__reward_scaling": {"enabled": True, "target_max": 10.0}}
    (scaled,), (plain,) = make(SHRUNK, **scale).steps(), make(SHRUNK).steps()
    torch.testing.assert_close(scaled.batch["total_reward"], plain.batch["total_reward"] * 10)
    torch.testing.assert_close(scaled.batch["ada_advantage"], plain.batch["ada_advantage"] * 10)
    assert scaled.metrics["ada/explained_variance"] == plain.metrics["ada/explained_variance"]


# -- 3. failures, identity, alignment ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asynchronous", "reward", "cause"),
    [
        (False, NAN, "verifier_timeout"),
        (True, None, "engine_error"),
        *((asynchronous, reward, "reward_not_finite") for asynchronous in (False, True) for reward in (INF, -INF)),
    ],
)
def test_a_failure_is_redrawn_and_never_a_label(make, asynchronous, reward, cause):
    def failing(prompt, draw):
        return (reward, 4) if (prompt, draw) in {(11, 0), (13, 2)} else (1.0, 4)

    (record,) = make("grpo", asynchronous=asynchronous, engine={"script": failing}).steps()
    assert record.metrics[f"ada/failed/{cause}"] == record.metrics["ada/samples_failed"] == 2
    assert record.metrics["ada/pass_rate"] == 1.0
    assert record.metrics["ada/samples_drawn"] == GROUP * 6 + 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [([*range(23)], "24 responses were asked for, 23 came"), ([1, 0, *range(2, 24)], "does not start with the prompt")],
    ids=["one too few", "another prompt's"],
)
def test_responses_that_were_not_asked_for_end_the_run(make, rows, message):
    run = make("grpo")
    original = run.loop.run_multi_turn_rollout

    @functools.wraps(original)
    def rollout(*args, **kwargs):
        final, numbers = original(*args, **kwargs)
        return final.select_indices(rows), numbers

    run.loop.run_multi_turn_rollout = rollout
    with pytest.raises(InvariantError, match=message):
        run.steps()


@pytest.mark.parametrize(("error", "message"), [(RuntimeError, "actor died"), (InvariantError, "does not start with")])
def test_an_error_in_one_of_many_responses_ends_the_run_and_leaves_no_thread(make, error, message):
    run = make("grpo", asynchronous=True)
    original = run.rollouts.run_sample_multi_turn_rollout

    @functools.wraps(original)
    async def rollout(**kwargs):
        state, numbers = await original(**kwargs)
        if kwargs["sample_idx"] == 5:
            if error is RuntimeError:
                raise RuntimeError("the environment's actor died")
            state["message_log"][0] = {**state["message_log"][0], "token_ids": torch.tensor([2, 3, 99])}
        return state, numbers

    run.rollouts.run_sample_multi_turn_rollout = rollout
    with pytest.raises(error, match=message):
        run.steps()
    assert "nemo-ada-rollouts" not in {thread.name for thread in threading.enumerate()}


def test_two_equal_prompts_are_two_groups(make):
    labels = iter([1, 0, 1, 0, 1, 0, 0, 0])  # interleaved: group one 1 1 1 0, group two all 0
    (record,) = make("grpo", 2, engine={"script": lambda prompt, draw: (float(next(labels)), 4)}).steps([11, 11])
    first = record.batch["ada_uid"] & 0xFFFFFF == 0
    assert record.baseline_R[first].tolist() == [0.75] * 4 and record.baseline_R[~first].tolist() == [0.0] * 4
    assert record.batch["ada_uid"].unique().numel() == 2


def test_rewards_in_another_order_are_an_error(make):
    run = make("ada_seq_balance")
    with run.installed():
        record = run.step()
        estimator = run.loop._create_advantage_estimator(run.config)
        rewards = record.batch["total_reward"].roll(1)
        with pytest.raises(InvariantError, match="changed"):
            estimator.compute_advantage(rewards=rewards, mask=record.mask_RT, repeated_batch=record.batch)
        with pytest.raises(InvariantError, match="other rows"):
            run.loop.calculate_baseline_and_std_per_prompt(None, rewards, None)
        with pytest.raises(InvariantError, match="without ada_uid"):
            estimator.compute_advantage(rewards=rewards, mask=record.mask_RT, repeated_batch=prompt_batch([1]))


def test_validation_is_nemo_rls_own_and_counts_answers_without_a_label_as_wrong(make):
    """Of six answers one has no verdict, and the engine fails on two, which the environment gives the reward 1."""
    run = make("ada_seq_balance", engine={"script": lambda prompt, draw: (NAN if prompt == 11 else 1.0, 4)})
    answer = run.engine.answer
    run.engine.answer = lambda log, prompt, draw: 1.0 if prompt in (12, 13) else answer(log, prompt, draw)
    with run.installed():
        run.loop._create_advantage_estimator(run.config)
        scores, _ = run.loop.validate(None, prompt_batch(PROMPTS), None, {}, 0, run.config)
    assert run.engine.calls == [PROMPTS]
    assert scores == {"accuracy": 0.5, "ada/without_label": 3}


@SYNC_AND_ASYNC
@pytest.mark.parametrize("preset", ["ada_seq_balance", "ada_est_ema"])
def test_prompts_that_are_too_long_are_neither_sampled_nor_learned_from(make, preset, asynchronous):
    """NeMo-RL cuts all of them to the same few tokens and gives them loss_multiplier 0."""
    run = make(preset, asynchronous=asynchronous)
    (record,) = run.steps([11, 15, 13, 15, 12, 16], too_long=(1, 3))
    assert 15 not in {prompt for call in run.engine.calls for prompt in call}
    assert record.metrics["ada/prompts_too_long"] == 2 and record.metrics["ada/prompts_drawn"] == 4
    masked = torch.tensor([prompt == 15 for prompt in record.batch["idx"]])
    assert masked.sum() * 3 == record.batch.size and record.batch["ada_uid"][masked].unique().numel() == 2
    assert not record.batch["loss_multiplier"][masked].any() and not record.advantages_RT[masked].any()
    assert record.batch["loss_multiplier"][~masked].any() and record.advantages_RT[~masked].any()
    with pytest.raises(UserError, match=r"all 2 prompts .* data\.max_input_seq_length"):
        run.steps([11, 12], too_long=(0, 1))


@pytest.mark.parametrize("given", [[None, "drop"], ["drain"]], ids=["while_it_samples", "before_it_samples"])
@pytest.mark.parametrize("preset", ["ada_seq_balance", "ada_est_ema"])
def test_a_dropped_step_leaves_no_trace(make, preset, given):
    run = make(preset)
    orders = iter(given)
    with run.installed(stop_check=lambda: next(orders, None)) as hooks:
        before = json.dumps(hooks.state_dict(), default=np.ndarray.tolist)
        with pytest.raises(StepDroppedError):
            run.step()
        assert json.dumps(hooks.state_dict(), default=np.ndarray.tolist) == before


# -- 4. installation ---------------------------------------------------------------------------------------------------


def test_state_is_in_the_checkpoint_and_continues_from_it(make):
    expected = make("ada_est_ema").steps(PROMPTS, PROMPTS, PROMPTS)[2]
    broken = make("ada_est_ema")
    with broken.installed():
        broken.step()
        broken.step()
        folder = broken.checkpointer.save(2)
    assert json.loads((folder / "reinforce_ada.json").read_text())["draws"] == 2
    (continued,) = broken.steps()
    for column in ("ada_uid", "ada_advantage"):
        assert torch.equal(continued.batch[column], expected.batch[column])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.replace('"draws": 0', '"draws": 3'), "does not match its sha256"),
        (lambda text: text.replace('"sha256"', '"sha255"'), "does not match its sha256"),
        (lambda text: text[:-20], "cannot be read"),
    ],
    ids=["a changed digit", "no checksum", "cut off"],
)
def test_a_damaged_state_of_the_sampler_is_never_loaded(make, damage, message):
    run = make("ada_est_ema")
    with run.installed():
        path = run.checkpointer.save(1) / "reinforce_ada.json"
    before = path.read_text()
    path.write_text(damage(before))
    assert path.read_text() != before
    with pytest.raises(UserError, match=message), run.installed():
        pass


def test_a_whole_state_of_another_version_is_not_loaded(make):
    run = make("ada_est_ema")
    with save_state_with_checkpoints(run.checkpointer, lambda: {"version": 1, "draws": 1, "sampler": None}):
        run.checkpointer.save(1)
    with pytest.raises(UserError, match="has version 1"), run.installed():
        pass


def test_a_checkpoint_made_without_us_goes_on_at_its_step(make, caplog):
    run = make("ada_seq_balance")
    run.checkpointer.save(3)
    with run.installed() as hooks:
        assert hooks.rollout_calls == 3
    assert "without Reinforce-Ada" in caplog.text


@pytest.mark.parametrize("name", ["reinforce_ada", "gdpo"])
def test_a_second_method_is_refused(make, name):
    """reinforce_ada was the name that chose the method before the section did."""
    run = make("ada_seq_balance", grpo__adv_estimator={"name": name})
    with pytest.raises(UserError, match=rf"grpo.adv_estimator.name={name}.*set it to grpo"), run.installed():
        pass


def test_active_hooks_are_not_installed_again(make):
    run = make("ada_seq_balance")
    with run.installed():
        inside = run.names()
        with pytest.raises(UserError, match="already active"), run.installed():
            pass
        assert run.names()["validate"] is inside["validate"]


def test_a_changed_signature_is_named_before_anything_is_touched(make):
    def scale_rewards(batch):
        return batch

    run = make("ada_seq_balance")
    scale_rewards.__module__, run.loop.scale_rewards = run.loop.__name__, scale_rewards
    before = run.names()
    with pytest.raises(UserError, match=r"scale_rewards takes \(batch\) first, expected \(repeated_batch, "):
        run.steps()
    assert run.names() == before


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        (
            "calculate_baseline_and_std_per_prompt",
            lambda original: lambda *args, **kwargs: (*original(*args, **kwargs), torch.tensor([1.0, 1.0])),
            r"returns 3 values \(tensor \(2,\), tensor \(2,\), tensor \(2,\)\), expected 2 tensors",
        ),
        ("scale_rewards", lambda original: lambda batch, section: original(batch, section)["total_reward"], "tensor"),
        ("apply_reward_shaping", lambda original: lambda batch, section: (original(batch, section), {}), "2 values"),
        ("scale_rewards", lambda original: lambda batch, section: batch["gone"], "fails on .* \\(KeyError: 'gone'"),
    ],
)
def test_a_changed_result_is_named_before_anything_is_touched(make, name, changed, message):
    run = make("ada_seq_balance", grpo__reward_shaping={"enabled": True})
    original = getattr(run.loop, name)
    setattr(run.loop, name, functools.wraps(original)(changed(original)))
    before = run.names()
    with pytest.raises(UserError, match=f"{name}.*{message}.*contract.py OLD NEW"):
        run.steps()
    assert run.names() == before


BALANCE = {"preset": "ada_seq_balance"}
SHRUNK = {"preset": "grpo", "advantage": {"baseline": "shrunk"}}
REFUSED = [
    (BALANCE, {"grpo__async_grpo": {"enabled": True}}, "policy.generation.vllm_cfg.async_engine=true"),
    (BALANCE, {"loss_fn__use_kl_in_reward": True}, "loss_fn.use_kl_in_reward=true"),
    ({"preset": "ada_est_ema"}, {"grpo__use_dynamic_sampling": True}, "grpo.use_dynamic_sampling=true"),
    (BALANCE | {"reserve_prompts": 4}, {}, "reinforce_ada.reserve_prompts=4"),
    (
        BALANCE | {"advantage": {"denominator": "live_rows"}},
        {"loss_fn__reference_policy_kl_penalty": 0.01},
        "denominator=live_rows",
    ),
    (BALANCE | {"budget": {"max_samples": 10}}, {}, "cannot hold the first waves"),
    (BALANCE | {"widnow": 3}, {}, "unknown key reinforce_ada.widnow"),
    (
        {"preset": "ada_est_ema", "advantage": {"baseline": "shrunk", "weighting": "reference"}},
        {"grpo__reward_scaling": {"enabled": True, "target_min": -1.0}},
        "draws by the same predictions as if they were pass rates",
    ),
]


@pytest.mark.parametrize(("ada", "changes", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_cannot_work_is_refused_by_its_key(make, ada, changes, message):
    run = make(ada, **changes)
    before = run.names()
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        run.steps()
    assert run.names() == before


def test_packed_columns_are_refused(make):
    class PackedTensor(list):
        pass

    run = make("ada_seq_balance", 1)
    batch = prompt_batch([11]).repeat_interleave(GROUP)
    batch["images"] = PackedTensor([0] * GROUP)
    with run.installed():
        run.loop._create_advantage_estimator(run.config)
        with pytest.raises(UserError, match="column images holds packed"):
            run.loop.run_multi_turn_rollout(None, batch, None, {}, 512)


@SYNC_AND_ASYNC
def test_nemo_rl_s_reward_is_what_the_policy_earns(make, asynchronous):
    """The loop merges the rollout's metrics over its own, whose `reward` is that of the kept rows."""
    run = make("ada_seq_balance", asynchronous=asynchronous)
    (record,) = run.steps()
    first = [np.mean([script(prompt, draw)[0] for draw in range(8)]) for prompt in PROMPTS]  # its waves have 8
    assert record.metrics["reward"] == pytest.approx(np.mean(first))
    assert record.metrics["reward"] != pytest.approx(record.metrics["ada/batch_reward"], abs=0.05)


def test_rewards_between_0_and_1_are_a_signal_on_one_side_of_the_threshold(make):
    (record,) = make("grpo", engine={"script": lambda prompt, draw: (0.1 * (draw % 4), 5)}).steps()
    assert record.metrics["ada/zero_signal_groups"] == record.metrics["ada/zero_signal_groups_if_grpo"] == 0.0
    assert record.batch["ada_advantage"].ne(0).any()
