"""What the bench's rivals do with the rows of a step, on a real engine and a real learner."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nemo_ada.cpu.learner.update import train_on
from tests.lazy import Lazy

pytestmark = pytest.mark.long

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes" / "benchmarks"))
rivals, ray = Lazy("rivals"), Lazy("ray")

PROMPTS = 16


@pytest.fixture
def trainer(start, request):
    return start(
        f"grpo.num_prompts_per_step={PROMPTS}",
        "policy.train_global_batch_size=32",
        "policy.megatron_cfg.optimizer.lr=0.002",
        "logger.gradient_cosine=true",
        name=request.node.name.split("[")[0],
    )


def draw(trainer, step):
    features = trainer._features(np.arange(PROMPTS))
    return trainer.stack.call("sample", step, list(range(PROMPTS)), 0, features)


def weights(trainer):
    return {name: tensor.numpy().copy() for name, tensor in ray.get(trainer.learner.weights()).items()}


def same(left, right):
    return all(np.array_equal(left[name], right[name]) for name in left)


def with_a_dead_half(data):
    return replace(data, advantage_R=np.where(data.prompt_R < PROMPTS // 2, 0, data.advantage_R).astype(np.float32))


def test_dead_groups_give_way_to_stored_ones_with_weight_one_while_the_policy_is_the_same(trainer, monkeypatch):
    monkeypatch.setattr("rivals.train_on", lambda _learner, _data, _config, _step: {})
    popo, data = rivals.Replay(), draw(trainer, 1)
    popo.update(trainer, data, 1)
    stored = len(popo._groups)
    assert 0 < stored == (rivals.strengths(data) > 0).sum()
    second = with_a_dead_half(draw(trainer, 2))
    dead = int((rivals.strengths(second) == 0).sum())
    mixed = popo.mixed(trainer, second, 2)
    replaced = min(dead, stored)
    assert (rivals.strengths(mixed) == 0).sum() == dead - replaced and len(popo._groups) == stored - replaced
    assert len(mixed.length_R) == len(second.length_R) and (np.diff(mixed.prompt_R) >= 0).all()
    old = ~np.isin(mixed.advantage_R, second.advantage_R)
    np.testing.assert_allclose(mixed.weight_R, 1.0, atol=1e-3)
    assert np.isfinite(mixed.old_logprob_RT[old]).all()
    popo.update(trainer, with_a_dead_half(draw(trainer, 12)), 12)
    assert {step for _, step, _ in popo._groups} == {12}, "groups of the first step are too old"


def test_a_replayed_row_of_an_older_policy_has_the_ratio_of_the_policies_as_weight(trainer):
    popo, data = rivals.Replay(cap=1e9), draw(trainer, 1)
    columns = data.columns(np.arange(8))
    for _ in range(4):
        train_on(trainer.learner, data, trainer.config, 1)
    corrected = popo.corrected(trainer, columns)
    now = trainer.learner.logprobs(columns["tokens_RT"], columns["length_R"], columns["prompt_length_R"])
    for r in range(8):
        response = slice(columns["prompt_length_R"][r], columns["length_R"][r])
        moved = (now[r, response] - columns["old_logprob_RT"][r, response]).sum()
        assert corrected["weight_R"][r] == pytest.approx(np.exp(moved), rel=1e-4)
    assert np.abs(corrected["weight_R"] - 1).max() > 0.01
    assert rivals.Replay(cap=0.5).corrected(trainer, columns)["weight_R"].max() == 0.5


def test_the_weakest_third_gives_way_only_to_stronger_rows(trainer, monkeypatch):
    monkeypatch.setattr("rivals.train_on", lambda _learner, _data, _config, _step: {})
    replay, data = rivals.Replay(weakest=0.3334), draw(trainer, 1)
    replay.update(trainer, data, 1)
    second = with_a_dead_half(draw(trainer, 2))
    before, after = rivals.strengths(second), rivals.strengths(replay.mixed(trainer, second, 2))
    assert (before != after).sum() == int(0.3334 * PROMPTS)
    assert (after >= before).all()


def closed_gate():
    """A gate that lets no update of a second pass through."""
    gate = rivals.Gated(threshold=-1e9, window=2)
    gate._rise.extend([0.0, 1.0])
    return gate


def test_an_open_gate_takes_all_passes_and_a_closed_one_leaves_the_first(trainer):
    data = draw(trainer, 1)
    start = weights(trainer)
    closed = closed_gate().update(trainer, data, 1)
    ended = weights(trainer)
    assert closed["updates"] == 2 and not same(start, ended)
    opened = rivals.Gated(threshold=1e9, window=2, passes=3).update(trainer, data, 1)
    assert opened["updates"] == 6 and opened["trained_rows"] == 3 * closed["trained_rows"]


def test_a_closed_gate_undoes_its_update_to_the_bit(trainer, tmp_path):
    data = draw(trainer, 1)
    trainer.learner.save(tmp_path / "state")
    train_on(trainer.learner, data, trainer.config, 1)
    once = weights(trainer)
    trainer.learner.load(tmp_path / "state")
    closed_gate().update(trainer, data, 1)
    assert same(once, weights(trainer))


def test_averaged_weights_are_the_moving_average_of_the_steps(trainer):
    polyak, data = rivals.Averaged(decay=0.75), draw(trainer, 1)
    assert polyak.evaluated_weights() is None
    seen = []
    for step in (1, 2):
        polyak.update(trainer, data, step)
        seen.append(weights(trainer))
    for name, tensor in polyak.evaluated_weights().items():
        np.testing.assert_allclose(tensor, 0.75 * seen[0][name] + 0.25 * seen[1][name], atol=1e-6)
    assert same(seen[1], weights(trainer)), "the learner's own weights stay"


def test_tokens_after_the_one_that_decides_the_reward_have_a_smaller_advantage(trainer, monkeypatch):
    kept = []
    monkeypatch.setattr("rivals.train_on", lambda _learner, data, _config, _step: kept.append(data) or {})
    prefixes = rivals.Prefixes()
    for step in range(1, 21):
        data = draw(trainer, step)
        answer_R = data.tokens_RT[np.arange(len(data.length_R)), data.prompt_length_R]
        reward_R = answer_R == np.median(answer_R)
        prefixes.update(trainer, replace(data, advantage_R=reward_R - 0.5), step)
    errors = {"answer": [], "end": []}
    for data in kept[10:]:
        answered = np.flatnonzero(data.length_R - data.prompt_length_R > 1)
        for name, at in (("answer", data.prompt_length_R[answered]), ("end", data.length_R[answered] - 1)):
            errors[name] += (data.advantage_R[answered, at] ** 2).tolist()
    assert np.mean(errors["end"]) < 0.85 * np.mean(errors["answer"])
    assert np.abs(kept[-1].advantage_R).max() <= 1


def test_a_free_baseline_is_the_mean_of_the_other_rewards_and_one_row_of_a_prompt_is_trained_on(trainer, monkeypatch):
    seen = []
    monkeypatch.setattr("rivals.train_on", lambda _learner, data, _config, _step: seen.append(data))
    data = draw(trainer, 1)
    group = len(data.prompt_R) // PROMPTS
    free = rivals.FreeBaseline(others=group - 1)
    free.update(trainer, data, 1)
    (kept,) = seen
    first_R = np.arange(len(data.prompt_R)) % group == 0
    assert (kept.weight_R[first_R] == data.weight_R[first_R]).all() and not kept.weight_R[~first_R].any()
    centred_PG = data.advantage_R.reshape(PROMPTS, group)
    assert np.ptp(centred_PG, axis=1).max() > 0.9, "a group with both labels"
    others_P = centred_PG[:, 1:].mean(axis=1)  # rewards less the group's mean
    np.testing.assert_allclose(kept.advantage_R[first_R], centred_PG[:, 0] - others_P, atol=1e-6)
    assert free.counted(group * 128.0) == 128.0
    with pytest.raises(Exception, match=f"rows; {group + 1} are needed"):
        rivals.FreeBaseline(others=group).update(trainer, data, 1)
