"""Two objects of ours in NeMo-RL's own single controller (nemo_ada/nemo/single_controller.py).

1. At age 0 rows, pools and advantages are those of the synchronous path, to the bit.
2. NeMo-RL's own replay buffer and checkpoints bring groups back, with their advantages.
3. What they cannot bring back is refused, and what must end a run ends it.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pickle
from types import SimpleNamespace

import pytest
import torch

from nemo_ada.errors import FailedResponsesError

pytestmark = [pytest.mark.nemo_rl, pytest.mark.timeout(1200)]

WAVES = {"wave_size": 4, "max_responses": 16}
BALANCE = {"preset": "ada_seq_balance", "sampling": WAVES}
LIVE = {"advantage": {"denominator": "live_rows"}}


@pytest.fixture(scope="module")
def single(harness):
    """nemo_support.controller, where this NeMo-RL's controller masks rows."""
    if importlib.util.find_spec("nemo_rl.algorithms.single_controller") is None:
        pytest.skip("this NeMo-RL has no single controller")
    config = importlib.import_module("nemo_rl.algorithms.single_controller_utils.config")
    if not hasattr(config.AdvantageConfig(), "mask_sample_field"):
        pytest.skip("this NeMo-RL's single controller masks no rows (pull request 3766)")
    return importlib.import_module("nemo_support.controller")


@pytest.fixture
def run(single, tmp_path):
    """run(steps, ada, ...): a run in the test's folder, whose weights never change."""

    def train(steps, ada=BALANCE, *, versions=0, changes=None, **options):
        changes = {"policy__optimizer__kwargs__lr": 0.0} | (changes or {})
        config = single.controller_config(tmp_path / "run", steps, ada, versions=versions, **changes)
        return single.run_controller(tmp_path / "run", config, **options)

    return train


@pytest.mark.parametrize(
    ("name", "ada"),
    [
        ("rows that leave", BALANCE | LIVE),
        ("rows that stay", BALANCE),
        ("grpo", {"preset": "grpo"}),
        ("std", {"preset": "ada_seq_balance", "sampling": WAVES, "advantage": {"normalize": "std"}}),
    ],
)
def test_at_age_0_a_step_is_the_synchronous_step(harness, single, run, tmp_path, name, ada):
    """With a penalty no row leaves the synchronous loss, as none does here with `denominator: all_rows`."""
    stay = {} if name == "rows that leave" else harness.ALL_ROWS
    hooks, sampled = single.watched()
    overrides = {**harness.OURS, **single.SYNCHRONOUS, "reinforce_ada": ada, **stay}
    expected = harness.run_grpo(tmp_path / "synchronous", 3, overrides, async_engine=True, hooks=hooks)
    found = run(3, ada, changes={key.replace(".", "__"): value for key, value in stay.items()})
    # The groups of a fourth step may be there before the run ends. A step's pools come in the order of their ends.
    found.pools = [sorted(pools, key=lambda pool: int(pool.result.uid_P[0])) for pools in found.pools[:3]]
    single.assert_same_steps(found, expected, sampled)
    masks = [row[3] for batch in found.batches for row in single.rows_of(batch)]
    assert (0.0 in masks) == (name == "rows that leave"), "NeMo-RL's mask takes rows out, so the test needs some"
    for step, own in enumerate(found.steps[:3], start=1):
        for metric, value in own.metrics.items():
            if f"train/{metric}" in expected.metrics[step] and not any(word in metric for word in single.CLOCKED):
                assert value == pytest.approx(expected.metrics[step][f"train/{metric}"]), metric


class Killed(Exception):
    """The test ends a run here."""


def test_nemo_rls_own_replay_brings_groups_back_with_their_advantages(single, run, monkeypatch):
    from nemo_ada.nemo.single_controller import PluggedRollout

    committed, attempt = {}, [1]
    draw = PluggedRollout.run_rollout

    async def noted(self, sample):
        record = await draw(self, sample)
        for one in record.completions:
            tokens = tuple(torch.cat([message["token_ids"] for message in one.message_log]).tolist())
            committed.setdefault((tokens, one.reward), attempt[0])
        return record

    monkeypatch.setattr(PluggedRollout, "run_rollout", noted)

    def kill(step):
        if step == 2:
            raise Killed

    slow = {"versions": 2, "seconds_per_token": 0.003}
    with pytest.raises(Killed):
        run(4, before_train=kill, **slow)
    attempt[0] = 2
    record = run(4, **slow)
    assert record.result["train_steps"] == 4 and len(record.batches) == 2
    found = []
    for batch in record.batches:
        for tokens, counted, advantages, _ in single.rows_of(batch):
            if any(counted):
                found.append(committed[tuple(tokens), advantages[0]])
    assert 1 in found, "no row was drawn before the kill, so the test shows nothing"


@pytest.mark.parametrize("sampler", ["windowed", "ready_first", "weight_fifo"])
def test_where_a_step_takes_the_groups_that_are_ready_those_that_begin_together_share_a_budget(single, run, sampler):
    """Four groups of at least eight responses share 40. The run is killed once and goes on."""
    ada = BALANCE | {"budget": {"max_samples": 40}}
    async_rl = {
        "sampler": {"name": sampler, "max_staleness_versions": 1},
        "min_groups_for_streaming_train": 1,
        "max_inflight_prompts": 8,
        "max_buffered_rollouts": 8,
    }

    def kill(step):
        if step == 2:
            raise Killed

    slow = {"changes": {"async_rl": async_rl}, "seconds_per_token": 0.002}
    with pytest.raises(Killed):
        run(4, ada, before_train=kill, **slow)
    record = run(4, ada, **slow)
    assert record.result["train_steps"] == 4 and len(record.batches) == 2
    for pools in record.pools:
        assert len(pools) == 4 and sum(int(pool.result.issued_P.sum()) for pool in pools) <= 40
    rows = [row for batch in record.batches for row in single.rows_of(batch)]
    assert any(any(counted) for _, counted, _, _ in rows)


def test_a_step_whose_longest_group_ends_after_the_next_step_has_its_metrics_too(single):
    """A prompt that is too long has no pool, and the step is complete without one."""
    from nemo_ada.nemo.single_controller import WholeSteps

    def finish(pools):
        return SimpleNamespace(metrics={"ada/groups": len(pools)})

    steps = WholeSteps(SimpleNamespace(finish_step=finish), 2)
    added = [steps.add(pool, target) for pool, target in (("a", 0), ("b", 1), ("c", 1), ("d", 0), (None, 2), ("e", 2))]
    assert added == [{}, {}, {"ada/groups": 2}, {"ada/groups": 2}, {}, {"ada/groups": 1}]


def test_a_response_without_a_verdict_gives_no_label(run):
    record = run(1, labels=lambda prompt, draw: "=" if draw == 1 and prompt == "p10=" else draw % 2 == 0)
    assert record.steps[0].metrics["ada/failed/verifier_timeout"] == 1
    assert all(len(pool.result.reward_N) >= 4 for pool in record.pools[0])


def test_a_run_without_labels_ends_and_is_not_drawn_again(run):
    """NeMo-RL would try the prompt again, and a second attempt would see one failure less."""
    with pytest.raises((FailedResponsesError, ExceptionGroup), match=r"no label|TaskGroup"):
        run(2, BALANCE | {"max_failed_share": 0.01}, labels=lambda prompt, draw: "=" if draw == 1 else True)


def test_the_objects_can_be_sent_to_the_actor(single, tmp_path):
    """The driver builds them, and Ray takes them to the controller's process, the estimator to others, too."""
    from nemo_rl.algorithms.single_controller_utils.config import MasterConfig
    from nemo_rl.algorithms.single_controller_utils.setup import SingleControllerActorArgs
    from nemo_rl.experience.rollout_manager import RolloutManager
    from ray import cloudpickle

    from nemo_ada.nemo.single_controller import CommittedAdvantage, plug_in

    manager = RolloutManager(None, {}, 4, 64, policy_generation=object())
    names = [field.name for field in dataclasses.fields(SingleControllerActorArgs)]
    arguments = SingleControllerActorArgs(**dict.fromkeys(names) | {"rollout_manager": manager})
    config = MasterConfig(**single.controller_config(tmp_path, 1, BALANCE))
    given = pickle.loads(cloudpickle.dumps(plug_in(config, arguments)))
    assert given.rollout_manager.groups.settings.group == 4 and manager is arguments.rollout_manager
    rewards, mask = torch.tensor([0.5, -0.25]), torch.ones(2, 3)
    column = CommittedAdvantage().compute_advantage(prompt_ids=None, rewards=rewards, mask=mask, valid_mask=None)
    assert column.tolist() == [[0.5] * 3, [-0.25] * 3]
    plain = MasterConfig(**single.controller_config(tmp_path, 1, BALANCE, reinforce_ada=None))
    assert plug_in(plain, arguments) is arguments
