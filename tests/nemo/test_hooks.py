"""The hooks on stand-ins for NeMo-RL's types (standin.py): no NeMo-RL needed.

1. Responses that are not needed any more are cancelled; idle waves end with the first ones.
2. The batch keeps its shape; rows without advantage cost two tokens and the update does not change.
3. Failures have no label; equal prompts stay two groups; nothing misaligned passes.
4. Names and methods are checked first and restored in any case; unsupported combinations are refused.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from standin import Checkpointer, Engine, StepRecord, config, loop_module, prompt_batch, step

from nemo_ada.errors import FailedResponsesError, InvariantError, UserError
from nemo_ada.nemo.hooks import StepDroppedError
from nemo_ada.nemo.install import installed, reinforce_ada

PROMPTS = [11, 12, 13, 14, 15, 16]
RATES = {11: 0.1, 12: 0.3, 13: 0.5, 14: 0.9, 15: 0.0, 16: 0.7}
GROUP = 4
ISSUE_ORDER = {
    "preset": "ada_seq_balance",
    "sampling": {"kind": "sequential", "stopping": {"kind": "issue_order", "window": 3}},
}


def script(prompt: int, draw: int) -> tuple[float, int]:
    """Label and length of a response, the same in every test."""
    random = np.random.default_rng([prompt, draw])
    return float(random.random() < RATES[prompt]), int(random.integers(2, 30))


class Run:
    """Hooks on stand-ins, with a folder for checkpoints."""

    def __init__(self, folder: Path, settings: dict[str, Any], **engine: Any) -> None:
        self.config = settings
        self.engine = Engine(**{"script": script, **engine})
        self.loop, self.rollouts = loop_module(self.engine)
        self.checkpointer = Checkpointer(folder)

    def installed(self, **more: Any) -> Any:
        return installed(self.config, self.checkpointer, self.loop, self.rollouts, **more)

    def steps(self, *batches: list[int], asynchronous: bool = False, too_long: Sequence[int] = ()) -> list[StepRecord]:
        with self.installed():
            return [step(self.loop, self.config, batch, asynchronous, too_long) for batch in batches]


# -- 1. responses that are stopped -------------------------------------------------------------------------------------


def test_issue_order_cancels_what_it_drops(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, len(PROMPTS), ISSUE_ORDER, asynchronous=True), seconds_per_token=0.001)
    (record,) = run.steps(PROMPTS, asynchronous=True)
    assert record.metrics["ada/samples_dropped"] > 0
    assert len(run.engine.finished) < len(run.engine.calls), "dropped responses were cancelled while they ran"


def test_idle_extra_waves_end_with_the_first_ones(tmp_path: Path) -> None:
    def one_long(prompt: int, draw: int) -> tuple[float, int]:
        return script(prompt, draw)[0], 60 if prompt == 16 and draw % GROUP == 0 else 3

    run = Run(
        tmp_path,
        config(GROUP, len(PROMPTS), {"preset": "ada_seq_idle"}, asynchronous=True),
        script=one_long,
        seconds_per_token=0.004,
    )
    first, second = run.steps(PROMPTS, PROMPTS, asynchronous=True)
    assert first.metrics["ada/samples_drawn"] == GROUP * len(PROMPTS), "the latency model knows nothing yet"
    assert second.metrics["ada/samples_drawn"] > GROUP * len(PROMPTS)
    # every fourth draw for prompt 16 is long: its seven more waves, one after the other, would take eight times as long
    assert second.metrics["ada/sampling_seconds"] < 4 * 60 * 0.004


@pytest.mark.parametrize(
    ("asynchronous", "ada", "steps"),
    [
        (False, {"preset": "ada_seq_lean"}, 20 + 5),  # waves of 4 with a barrier: the longest of each
        (True, {"preset": "ada_seq_lean"}, 20),  # without: prompt 11 needs one wave, prompt 12 two short ones
        (True, ISSUE_ORDER | {"preset": "ada_seq_lean"}, 20),
    ],
    ids=["barrier", "waves", "window"],
)
def test_engine_steps_are_those_of_the_longest_chain(
    tmp_path: Path, asynchronous: bool, ada: dict[str, Any], steps: int
) -> None:
    def two(prompt: int, draw: int) -> tuple[float, int]:
        return float(draw % 4 == 0) if prompt == 11 else float(draw == 7), 20 if prompt == 11 else 5

    run = Run(tmp_path, config(GROUP, 2, ada, asynchronous=asynchronous), script=two)
    (record,) = run.steps([11, 12], asynchronous=asynchronous)
    assert record.metrics["ada/engine_steps_at_least"] == steps


# -- 2. shape and cost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1000, 15], ids=["whole", "overlong responses masked"])
def test_rows_without_advantage_shrink_to_two_tokens_and_leave_the_update_alone(tmp_path: Path, limit: int) -> None:
    """The loss is sum(mask * advantage * g) / sum(mask) per optimizer step, whatever g is."""
    size = GROUP * len(PROMPTS) // 2
    changes = {"policy__train_global_batch_size": size, "grpo__overlong_filtering": True}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    short_rows = config(GROUP, len(PROMPTS), {"preset": "grpo"}, **changes)
    (short,) = Run(tmp_path / "a", short_rows, limit=limit).steps(PROMPTS)
    kept = config(GROUP, len(PROMPTS), {"preset": "grpo"}, loss_fn__reference_policy_kl_penalty=1e-9, **changes)
    (full,) = Run(tmp_path / "b", kept, limit=limit).steps(PROMPTS)
    assert full.batch["truncated"].any() == (limit == 15)
    dead = full.batch["ada_advantage"] == 0
    assert dead.any() and not dead.all()
    assert short.metrics["ada/tokens_skipped"] == full.mask_RT[dead].sum() > 0
    assert short.metrics["ada/tokens_trained"] + short.metrics["ada/tokens_skipped"] == full.mask_RT.sum()
    assert [len(m["token_ids"]) for m in short.batch["message_log"][int(dead.nonzero()[0])]] == [1, 1]
    for start in range(0, 2 * size, size):
        part = slice(start, start + size)

        def update(record: StepRecord, part: slice = part) -> torch.Tensor:
            return (record.mask_RT * record.advantages_RT)[part].sum(dim=1) / record.mask_RT[part, 1:].sum()

        torch.testing.assert_close(update(short), update(full))


def test_an_update_without_any_live_row_keeps_one_harmless_row(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, 2, {"preset": "ada_seq_lean"}), script=lambda prompt, draw: (1.0, 5))
    (record,) = run.steps([11, 12])
    assert record.batch["loss_multiplier"].tolist() == [1.0, *[0.0] * 7]
    assert not record.advantages_RT.any()


def test_est_trains_on_every_response_and_logs_its_own_baselines(tmp_path: Path) -> None:
    run = Run(tmp_path, config(8, len(PROMPTS), {"preset": "ada_est_ema"}))
    first, second = run.steps(PROMPTS, PROMPTS)
    sizes = np.bincount(second.batch["ada_uid"].numpy() & 0xFFFFFF)
    assert sizes.sum() == 8 * len(PROMPTS) and sizes.min() >= 4 and sizes.max() > sizes.min()
    for uid in second.batch["ada_uid"].unique():
        group = second.batch["ada_uid"] == uid
        mean = second.batch["total_reward"][group].mean()
        torch.testing.assert_close(second.baseline_R[group], torch.full((int(group.sum()),), float(mean)))
    assert set(first.batch["ada_uid"].tolist()).isdisjoint(second.batch["ada_uid"].tolist())


def test_calls_are_interleaved_by_prompt(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, len(PROMPTS), {"preset": "ada_seq_lean"}))
    run.steps(PROMPTS)
    assert run.engine.calls[0] == PROMPTS * 4
    assert set(run.engine.calls[1]) < set(PROMPTS)


@pytest.mark.parametrize(("scaling", "shaping"), [(True, False), (False, True), (True, True)])
def test_rewards_are_scaled_and_shaped_each_by_its_own_switch_before_the_baseline(
    tmp_path: Path, scaling: bool, shaping: bool
) -> None:
    settings = config(
        GROUP,
        len(PROMPTS),
        {"preset": "ada_seq_balance"},
        grpo__reward_scaling={"enabled": scaling, "target_max": 10.0},
        grpo__reward_shaping={"enabled": shaping},
    )
    factor, offset = 10.0 if scaling else 1.0, -0.5 if shaping else 0.0
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (scaled,) = Run(tmp_path / "a", settings).steps(PROMPTS)
    (plain,) = Run(tmp_path / "b", config(GROUP, len(PROMPTS), {"preset": "ada_seq_balance"})).steps(PROMPTS)
    torch.testing.assert_close(scaled.batch["total_reward"], plain.batch["total_reward"] * factor + offset)
    torch.testing.assert_close(scaled.batch["ada_advantage"], plain.batch["ada_advantage"] * factor)
    assert scaled.metrics["ada/pass_rate"] == plain.metrics["ada/pass_rate"], "the threshold looks at the raw reward"


# -- 3. failures, identity, alignment ----------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_failure_is_redrawn_and_never_a_label(tmp_path: Path, asynchronous: bool) -> None:
    failure = None if asynchronous else float("nan")

    def failing(prompt: int, draw: int) -> tuple[Any, int]:
        return (failure, 4) if (prompt, draw) in {(11, 0), (13, 2)} else (1.0, 4)

    run = Run(tmp_path, config(GROUP, 6, {"preset": "grpo"}, asynchronous=asynchronous), script=failing)
    (record,) = run.steps(PROMPTS, asynchronous=asynchronous)
    assert record.metrics["ada/samples_failed"] == 2
    assert record.metrics["ada/failed/engine_error" if asynchronous else "ada/failed/verifier_timeout"] == 2
    assert record.metrics["ada/pass_rate"] == 1.0
    assert record.metrics["ada/samples_drawn"] == GROUP * 6 + 2


def test_too_many_failures_end_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "grpo"}), script=lambda prompt, draw: (float("nan"), 4))
    with pytest.raises(FailedResponsesError, match="verifier_timeout"):
        run.steps(PROMPTS)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("reward", [float("inf"), -float("inf")])
def test_an_infinite_reward_is_no_label(tmp_path: Path, asynchronous: bool, reward: float) -> None:
    run = Run(
        tmp_path,
        config(GROUP, 6, {"preset": "grpo"}, asynchronous=asynchronous),
        script=lambda prompt, draw: (reward if (prompt, draw) == (12, 1) else 1.0, 4),
    )
    (record,) = run.steps(PROMPTS, asynchronous=asynchronous)
    assert record.metrics["ada/failed/reward_not_finite"] == record.metrics["ada/samples_failed"] == 1
    assert record.metrics["ada/pass_rate"] == 1.0


CORRUPTED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "one too few": (lambda final: final.select_indices(range(final.size - 1)), "24 responses were asked for, 23 came"),
    "one too many": (lambda final: final.select_indices([*range(final.size), 0]), "24 responses were asked for, 25"),
    "another prompt's": (lambda final: final.select_indices([1, 0, *range(2, final.size)]), "does not start with the"),
    "one response for all": (lambda final: final.select_indices([0] * final.size), "does not start with the prompt"),
}


@pytest.mark.parametrize("name", CORRUPTED)
def test_responses_that_were_not_asked_for_end_the_run(tmp_path: Path, name: str) -> None:
    corrupt, message = CORRUPTED[name]
    run = Run(tmp_path, config(GROUP, 6, {"preset": "grpo"}))
    original = run.loop.run_multi_turn_rollout

    @functools.wraps(original)
    def rollout(*args: Any, **kwargs: Any) -> Any:
        final, numbers = original(*args, **kwargs)
        return corrupt(final), numbers

    run.loop.run_multi_turn_rollout = rollout
    with pytest.raises(InvariantError, match=message):
        run.steps(PROMPTS)


def test_an_environment_that_raises_ends_the_run_and_leaves_no_thread(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "grpo"}, asynchronous=True))
    original = run.rollouts.run_sample_multi_turn_rollout

    @functools.wraps(original)
    async def rollout(**kwargs: Any) -> Any:
        if kwargs["sample_idx"] == 5:
            raise RuntimeError("the environment's actor died")
        return await original(**kwargs)

    run.rollouts.run_sample_multi_turn_rollout = rollout
    with pytest.raises(RuntimeError, match="actor died"):
        run.steps(PROMPTS, asynchronous=True)
    assert "nemo-ada-rollouts" not in {thread.name for thread in threading.enumerate()}


def test_another_prompts_response_ends_the_run_on_the_asynchronous_engine(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "grpo"}, asynchronous=True))
    original = run.rollouts.run_sample_multi_turn_rollout

    @functools.wraps(original)
    async def rollout(**kwargs: Any) -> Any:
        state, numbers = await original(**kwargs)
        state["message_log"][0] = {**state["message_log"][0], "token_ids": torch.tensor([2, 3, 99])}
        return state, numbers

    run.rollouts.run_sample_multi_turn_rollout = rollout
    with pytest.raises(InvariantError, match="does not start with the prompt"):
        run.steps(PROMPTS, asynchronous=True)


def test_two_equal_prompts_are_two_groups(tmp_path: Path) -> None:
    labels = iter([1, 0, 1, 0, 1, 0, 0, 0])  # interleaved: group one 1 1 1 0, group two all 0
    run = Run(tmp_path, config(GROUP, 2, {"preset": "grpo"}), script=lambda prompt, draw: (float(next(labels)), 4))
    (record,) = run.steps([11, 11])
    assert record.baseline_R.tolist() == [0.75] * 4 + [0.0] * 4


def test_rewards_in_another_order_are_an_error(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "ada_seq_balance"}))
    with run.installed():
        record = step(run.loop, run.config, PROMPTS)
        estimator = run.loop._create_advantage_estimator(run.config)
        rewards = record.batch["total_reward"].roll(1)
        with pytest.raises(InvariantError, match="changed"):
            estimator.compute_advantage(rewards=rewards, mask=record.mask_RT, repeated_batch=record.batch)
        with pytest.raises(InvariantError, match="other rows"):
            run.loop.calculate_baseline_and_std_per_prompt(None, rewards, None)
        with pytest.raises(InvariantError, match="without ada_uid"):
            estimator.compute_advantage(rewards=rewards, mask=record.mask_RT, repeated_batch=prompt_batch([1]))


def test_validation_gets_nemo_rls_own_rollout(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "ada_seq_balance"}), script=lambda prompt, draw: (float("nan"), 4))
    with run.installed():
        run.loop._create_advantage_estimator(run.config)
        scores, _ = run.loop.validate(None, prompt_batch(PROMPTS), None, {}, 0, run.config)
    assert run.engine.calls == [PROMPTS]
    assert scores == {"accuracy": 0.0, "ada/without_label": len(PROMPTS)}
    assert "6 of 6 validation answers have no label" in caplog.text


def test_validation_answers_that_the_engine_failed_on_are_counted_and_wrong(tmp_path: Path) -> None:
    """NeMo-RL gives such an answer the reward that its environment made up, here 1."""
    run = Run(tmp_path, config(GROUP, 6, {"preset": "ada_seq_balance"}), script=lambda prompt, draw: (1.0, 4))
    answer = run.engine.answer

    def unanswered(log: list[dict[str, Any]], prompt: int, draw: int) -> float:
        return 1.0 if prompt == 12 else answer(log, prompt, draw)

    run.engine.answer = unanswered  # type: ignore[method-assign]
    with run.installed():
        run.loop._create_advantage_estimator(run.config)
        scores, _ = run.loop.validate(None, prompt_batch(PROMPTS), None, {}, 0, run.config)
    assert scores["ada/without_label"] == 1
    assert scores["accuracy"] == pytest.approx(5 / 6)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("preset", ["ada_seq_balance", "ada_est_ema"])
def test_prompts_that_are_too_long_are_neither_sampled_nor_learned_from(
    tmp_path: Path, preset: str, asynchronous: bool
) -> None:
    """NeMo-RL cuts all of them to the same few tokens and gives them loss_multiplier 0."""
    group = 8 if preset == "ada_est_ema" else GROUP
    run = Run(tmp_path, config(group, 6, {"preset": preset}, asynchronous=asynchronous))
    (record,) = run.steps([11, 15, 13, 15, 12, 16], asynchronous=asynchronous, too_long=(1, 3))
    assert 15 not in {prompt for call in run.engine.calls for prompt in call}
    assert record.metrics["ada/prompts_too_long"] == 2 and record.metrics["ada/prompts_drawn"] == 4
    assert record.batch.size == 6 * group
    masked = torch.tensor([prompt == 15 for prompt in record.batch["idx"]])
    assert masked.sum() == 2 * group and record.batch["ada_uid"][masked].unique().numel() == 2
    assert not record.batch["loss_multiplier"][masked].any() and not record.advantages_RT[masked].any()
    assert record.batch["loss_multiplier"][~masked].any() and record.advantages_RT[~masked].any()


def test_a_batch_of_nothing_but_too_long_prompts_is_the_users_error(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, 2, {"preset": "ada_seq_balance"}))
    with pytest.raises(UserError, match=r"all 2 prompts .* data\.max_input_seq_length"):
        run.steps([11, 12], too_long=(0, 1))


@pytest.mark.parametrize("given", [[None, "drop"], ["drain"]], ids=["while_it_samples", "before_it_samples"])
@pytest.mark.parametrize("preset", ["grpo", "ada_seq_balance", "ada_est_ema"])
def test_a_dropped_step_leaves_no_trace(tmp_path: Path, preset: str, given: list[str | None]) -> None:
    run = Run(tmp_path, config(8 if preset == "ada_est_ema" else GROUP, 6, {"preset": preset}))
    orders = iter(given)
    with run.installed(stop_check=lambda: next(orders, None)) as hooks:
        before = json.dumps(hooks.state_dict(), default=np.ndarray.tolist)
        with pytest.raises(StepDroppedError):
            step(run.loop, run.config, PROMPTS)
        assert json.dumps(hooks.state_dict(), default=np.ndarray.tolist) == before


# -- 4. installation ---------------------------------------------------------------------------------------------------


def test_state_is_in_the_checkpoint_and_continues_from_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    settings = config(8, 6, {"preset": "ada_est_ema"})
    straight = Run(tmp_path / "a", settings)
    expected = straight.steps(PROMPTS, PROMPTS, PROMPTS)[2]
    broken = Run(tmp_path / "b", settings)
    with broken.installed():
        step(broken.loop, broken.config, PROMPTS)
        step(broken.loop, broken.config, PROMPTS)
        folder = broken.checkpointer.save(2)
    assert json.loads((folder / "reinforce_ada.json").read_text())["draws"] == 2
    assert "finalize_checkpoint" not in vars(broken.checkpointer)
    (continued,) = broken.steps(PROMPTS)
    assert torch.equal(continued.batch["ada_uid"], expected.batch["ada_uid"])
    assert torch.equal(continued.batch["ada_advantage"], expected.batch["ada_advantage"])


DAMAGED: dict[str, tuple[Callable[[str], str], str]] = {
    "another version": (lambda text: text.replace('"version": 2', '"version": 1'), "has version 1"),
    "a changed digit": (lambda text: text.replace('"draws": 1', '"draws": 3'), "does not match its sha256"),
    "no checksum": (lambda text: text.replace('"sha256"', '"sha255"'), "does not match its sha256"),
    "cut off": (lambda text: text[:-20], "cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_state_of_the_sampler_is_never_loaded(tmp_path: Path, name: str) -> None:
    damage, message = DAMAGED[name]
    run = Run(tmp_path, config(8, 6, {"preset": "ada_est_ema"}))
    with run.installed():
        step(run.loop, run.config, PROMPTS)
        path = run.checkpointer.save(1) / "reinforce_ada.json"
    before = path.read_text()
    path.write_text(damage(before))
    assert path.read_text() != before
    with pytest.raises(UserError, match=message), run.installed():
        pass


def test_a_checkpoint_made_without_us_goes_on_at_its_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "ada_seq_balance"}))
    run.checkpointer.save(3)
    with run.installed() as hooks:
        assert hooks.draws == 3
    assert "without Reinforce-Ada" in caplog.text


def names(run: Run) -> dict[str, Any]:
    return dict(vars(run.loop)) | {"finalize": vars(run.checkpointer).get("finalize_checkpoint")}


def test_everything_is_restored_after_success(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "ada_seq_balance"}))
    before = names(run)
    with run.installed():
        assert all(vars(run.loop)[name] is not before[name] for name in ("validate", "scale_rewards"))
    assert names(run) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_everything_is_restored_after_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "ada_seq_balance"}))
    before = names(run)
    with pytest.raises(error), run.installed():
        raise error
    assert names(run) == before


def test_another_estimator_changes_and_imports_nothing() -> None:
    settings = config(GROUP, 6, {"preset": "nonsense"}, grpo__adv_estimator={"name": "grpo"})
    with reinforce_ada(settings, checkpointer=None) as hooks:
        assert hooks is None


def test_hooks_do_nothing_for_a_loop_that_asks_for_another_estimator(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "ada_seq_balance"}))
    other = config(GROUP, 6, {}, grpo__adv_estimator={"name": "grpo"})
    with run.installed() as hooks:
        assert run.loop._create_advantage_estimator(other) == "NeMo-RL's"
        batch = prompt_batch(PROMPTS)
        final, metrics = run.loop.run_multi_turn_rollout(None, batch, None, {}, 512)
        assert metrics == {"mean_gen_tokens_per_sample": 1.0} and "ada_uid" not in final
        assert run.loop.apply_reward_shaping({"total_reward": 1.0}, {}) == {"total_reward": 0.5}
        assert hooks.draws == 0


def test_active_hooks_are_not_installed_again(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "ada_seq_balance"}))
    with run.installed():
        inside = names(run)
        with pytest.raises(UserError, match="already active"), run.installed():
            pass
        assert names(run)["validate"] is inside["validate"]


def test_a_changed_signature_is_named_before_anything_is_touched(tmp_path: Path) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "ada_seq_balance"}))

    def scale_rewards(batch: Any) -> Any:
        return batch

    scale_rewards.__module__ = run.loop.__name__
    run.loop.scale_rewards = scale_rewards
    before = names(run)
    with pytest.raises(UserError, match=r"scale_rewards takes \(batch\) first, expected \(repeated_batch, "):
        run.steps(PROMPTS)
    assert names(run) == before


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"preset": "ada_seq_balance"}, {"data_plane": {"enabled": True}}, "data_plane.enabled=true"),
    ({"preset": "ada_seq_balance"}, {"env__should_use_nemo_gym": True}, "env.should_use_nemo_gym=true"),
    ({"preset": "ada_seq_balance"}, {"grpo__async_grpo": {"enabled": True}}, "grpo.async_grpo.enabled=true"),
    ({"preset": "ada_seq_balance"}, {"loss_fn__use_kl_in_reward": True}, "loss_fn.use_kl_in_reward=true"),
    ({"preset": "ada_seq_balance"}, {"policy__router_replay": {"enabled": True}}, "policy.router_replay.enabled=true"),
    ({"preset": "ada_est_ema"}, {"grpo__use_dynamic_sampling": True}, "grpo.use_dynamic_sampling=true"),
    ({"preset": "ada_seq_idle"}, {}, "reinforce_ada.budget.mode=idle"),
    (ISSUE_ORDER, {}, "reinforce_ada.sampling.stopping.kind=issue_order"),
    ({"preset": "ada_seq_balance", "reserve_prompts": 4}, {}, "reinforce_ada.reserve_prompts=4"),
    ({"preset": "ada_seq_balance", "candidate_prompts": 64}, {}, "reinforce_ada.candidate_prompts=64"),
    (
        {"preset": "ada_seq_balance", "advantage": {"denominator": "live_rows"}},
        {"loss_fn__reference_policy_kl_penalty": 0.01},
        "denominator=live_rows",
    ),
    ({"preset": "ada_seq_balance", "budget": {"max_samples": 10}}, {}, "cannot hold the first waves"),
    ({"preset": "ada_seq_balance", "widnow": 3}, {}, "unknown key reinforce_ada.widnow"),
]


@pytest.mark.parametrize(("ada", "changes", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_cannot_work_is_refused_by_its_key(
    tmp_path: Path, ada: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    run = Run(tmp_path, config(8 if "est" in ada["preset"] else GROUP, 6, ada, **changes))
    before = names(run)
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        run.steps(PROMPTS)
    assert names(run) == before


def test_packed_columns_are_refused(tmp_path: Path) -> None:
    class PackedTensor(list):
        pass

    run = Run(tmp_path, config(GROUP, 1, {"preset": "ada_seq_balance"}))
    batch = prompt_batch([11]).repeat_interleave(GROUP)
    batch["images"] = PackedTensor([0] * GROUP)
    with run.installed():
        run.loop._create_advantage_estimator(run.config)
        with pytest.raises(UserError, match="column images holds packed"):
            run.loop.run_multi_turn_rollout(None, batch, None, {}, 512)


def test_ranking_checkpoints_by_the_kept_rows_reward_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, config(GROUP, 6, {"preset": "grpo"}, checkpointing__metric_name="train:reward"))
    with caplog.at_level(logging.WARNING), run.installed():
        pass
    assert "train:ada/pass_rate" in caplog.text
