"""The parts of asynchronous training that need no Ray: prompts, groups, and the step that is made of them.

1. Every prompt of an epoch is handed out once, in an order of the seed; what was not used or not delivered comes again.
2. A step of groups that were drawn by themselves is the synchronous step, in rows and advantages.
3. A group that hangs is given up; a refit waits for responses and not for groups; pools keep the versions they had.
4. What cannot work is refused by its key.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from standin import Batch, Checkpointer, Engine, config, loop_module, prompt_batch, step, weigh

from nemo_ada.core.sampling.groups import GroupPool
from nemo_ada.errors import UserError
from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.asynchronous.groups import GroupRollouts
from nemo_ada.nemo.groups.prompt_queue import REDRAWN, TICKET, Delivered, PromptQueue
from nemo_ada.nemo.groups.step import GROUP, GroupAdvantageEstimator, add_spares
from nemo_ada.nemo.install import install_hooks
from nemo_ada.nemo.rollouts.batches import convert_outcomes
from nemo_ada.nemo.rollouts.call import RolloutCall
from nemo_ada.nemo.rollouts.requests import InFlight

GROUP_SIZE = 4
BALANCE = {"preset": "ada_seq_balance", "sampling": {"wave_size": 4, "max_responses": 16}}
AHEAD = {
    "grpo__async_grpo": {"enabled": True, "max_trajectory_age_steps": 1},
    "policy__generation__colocated": {"enabled": False, "resources": {"gpus_per_node": 1}},
    "policy__generation__vllm_cfg": {"async_engine": True, "enable_prefix_caching": False},
    "loss_fn__use_importance_sampling_correction": True,
}


class Loader:
    """What the queue uses of a data loader."""

    def __init__(self, count):
        self.dataset = list(range(count))
        self.collate_fn = lambda numbers: Batch({"number": torch.tensor(numbers)})


def queue(count=10, size=4, seed=7, delivered=None, state=None):
    return PromptQueue(Loader(count), size=size, seed=seed, delivered=delivered or Delivered(), state=state)


def test_epochs_have_every_prompt_once_in_an_order_of_the_seed():
    numbers = [number for _, batch in zip(range(5), queue(), strict=False) for number in batch["number"].tolist()]
    assert sorted(numbers[:10]) == sorted(numbers[10:]) == list(range(10))
    assert numbers[:10] != numbers[10:]
    again = [number for _, batch in zip(range(5), queue(), strict=False) for number in batch["number"].tolist()]
    assert again == numbers
    in_order = [batch["number"].tolist() for _, batch in zip(range(2), queue(seed=None), strict=False)]
    assert in_order == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("seed", range(5))
def test_after_any_interruption_every_prompt_is_delivered_once(seed):
    random = torch.Generator().manual_seed(seed)
    delivered, state, taken = Delivered(), None, []
    for _ in range(4):
        own = queue(size=3, delivered=delivered, state=state)
        for _, batch in zip(range(4), own, strict=False):
            used = int(torch.randint(0, 4, (1,), generator=random))
            tickets = batch[TICKET].tolist()
            own.put_back(tickets[used:])
            for ticket, number in zip(tickets[:used], batch["number"].tolist(), strict=False):
                if torch.rand(1, generator=random) < 0.7:  # the others are in flight when the run is killed
                    delivered.add([ticket])
                    taken.append((ticket, number))
                    if torch.rand(1, generator=random) < 0.8:  # a checkpoint may come before the queue knows
                        own.done(ticket)
        state = own.state_dict()
    assert len({ticket for ticket, _ in taken}) == len(taken)
    for own in (queue(size=1, delivered=delivered, state=state),):
        for batch in own:
            if len(taken) >= 30 and delivered.low >= 20:
                break
            taken.append((int(batch[TICKET][0]), int(batch["number"][0])))
            delivered.add(batch[TICKET].tolist())
    epochs = [sorted(number for ticket, number in taken if ticket // 10 == epoch) for epoch in (0, 1)]
    assert epochs == [list(range(10))] * 2


def test_prompts_that_were_in_flight_are_marked_when_they_come_again():
    own = queue(seed=None)
    batch = next(iter(own))
    for ticket in (0, 1, 3):
        own.begin(ticket)
    own.done(0)
    again = next(iter(queue(seed=None, state=own.state_dict())))
    assert batch[REDRAWN].tolist() == [False] * 4
    assert (again[TICKET].tolist(), again[REDRAWN].tolist()) == ([1, 2, 3, 4], [True, False, True, False])


def test_tickets_taken_back_are_missing_again():
    tickets = Delivered()
    tickets.add([0, 1, 2, 5])
    assert (tickets.low, tickets.above) == (3, {5})
    tickets.remove([1, 5])
    assert [ticket in tickets for ticket in range(6)] == [True, False, True, False, False, False]
    assert tickets.union(Delivered(2)).low == 3


class Ahead:
    """Groups of one collector over a scripted engine."""

    def __init__(self, engine, prompts=3, ada=BALANCE, **changes):
        self.master = config(GROUP_SIZE, prompts, ada, asynchronous=True, **AHEAD, **changes)
        self.settings = nemo_settings.read(self.master)
        _, rollouts = loop_module(engine)
        self.may_start, self.version, self.failed = threading.Event(), 1, []
        self.may_start.set()
        self.groups = GroupRollouts(
            self.settings,
            rollouts.run_sample_multi_turn_rollout,
            self.may_start,
            lambda: self.version,
            self.failed.append,
        )

    def draw(self, prompt, target=1, too_long=False):
        batch = prompt_batch([prompt])
        if too_long:
            batch["loss_multiplier"][0] = 0.0
        batch[TICKET], batch[REDRAWN] = torch.tensor([prompt]), torch.tensor([False])
        call = RolloutCall(None, None, None, {}, 512, 1)
        return self.groups.draw(call, batch.repeat_interleave(GROUP_SIZE), target).result()[0]

    def finish(self, batches):
        """(batch, advantages, metrics) of the step."""
        add_spares(batches, self.settings.global_batch)
        joined = Batch.from_batches(batches)
        estimator = GroupAdvantageEstimator(self.settings, self.settings.sampler(), lambda sampled: None)
        mask, advantages = weigh(estimator, joined)
        return joined, mask, advantages, estimator.last_metrics


def labels(rates):
    """Draw k of a prompt is right by a fixed table."""
    return lambda prompt, draw: (float((prompt * 7 + draw * 5) % 10 < rates[prompt]), 3 + (prompt + draw) % 5)


@pytest.mark.parametrize("too_long", [(), (1,)], ids=["all", "one too long"])
@pytest.mark.parametrize("advantage", [{}, {"weighting": "objective"}, {"baseline": "shrunk"}], ids=str)
def test_a_step_of_groups_is_the_synchronous_step(tmp_path, advantage, too_long):
    preset = BALANCE if advantage.get("baseline") != "shrunk" else {"preset": "grpo"}  # labels decide no pool's size
    ada, prompts = preset | {"advantage": advantage}, [11, 12, 13]
    script = labels({11: 2, 12: 5, 13: 9})
    loop, rollouts = loop_module(Engine(script))
    settings = config(GROUP_SIZE, 3, ada)
    with install_hooks(settings, Checkpointer(tmp_path), loop, rollouts):
        expected = step(loop, settings, prompts, too_long=too_long)
    ahead = Ahead(Engine(script), ada=ada)
    drawn = [ahead.draw(prompt, too_long=position in too_long) for position, prompt in enumerate(prompts)]
    batch, mask, advantages, metrics = ahead.finish(drawn)
    assert sum(group is not None for group in batch[GROUP]) == 3
    assert not ahead.groups._prompts, "a run sees more prompts than fit into memory"

    def rows(batch, mask, advantages):
        found = []
        for log, one, reward in zip(batch["message_log"], range(batch.size), batch["total_reward"], strict=True):
            live = mask[one] > 0
            tokens = tuple(torch.cat([turn["token_ids"] for turn in log]).tolist()) if live.any() else ()
            found.append((tokens, float(reward), round(float(advantages[one][live].sum()), 5)))
        return sorted(found)

    if not too_long:  # another number of prompts numbers them differently
        assert rows(batch, mask, advantages) == rows(expected.batch, expected.mask_RT, expected.advantages_RT)
    for name in ("samples_drawn", "pass_rate", "waves_mean", "prompts_too_long"):
        assert metrics[f"ada/{name}"] == pytest.approx(expected.metrics[f"ada/{name}"]), name
    assert metrics.get("ada/zero_signal_groups") == pytest.approx(expected.metrics.get("ada/zero_signal_groups"))


def test_a_step_without_any_signal_still_has_one_row_in_the_loss():
    ahead = Ahead(Engine(lambda prompt, draw: (1.0, 5)))
    batch, mask, advantages, _ = ahead.finish([ahead.draw(prompt) for prompt in (11, 12, 13)])
    assert batch["loss_multiplier"].sum() == 1 and advantages.abs().sum() == 0
    assert mask.sum() == 5  # the whole response
    assert all(group is None or group["spare"] is None for group in batch[GROUP])


@pytest.mark.parametrize("error", [0.0, 0.2])
def test_only_responses_of_the_steps_own_weights_are_compared_with_the_learner(error):
    """Keys and values of older weights in the engine's prefix cache would show there and nowhere else."""
    ahead = Ahead(Engine(labels({11: 3, 12: 5, 13: 5})))
    ahead.version = 0
    drawn = [ahead.draw(prompt, target=1) for prompt in (11, 12)]
    ahead.version = 1
    drawn.append(ahead.draw(13, target=1))
    add_spares(drawn, ahead.settings.global_batch)
    joined = Batch.from_batches(drawn)
    estimator = GroupAdvantageEstimator(ahead.settings, ahead.settings.sampler(), lambda sampled: None)
    mask, _ = weigh(estimator, joined)
    engine = torch.full(mask.shape, -1.0)
    learner = engine.clone()
    learner[: 2 * GROUP_SIZE] += 3.0  # older weights
    learner[2 * GROUP_SIZE :] += error
    estimator.compute_advantage(
        rewards=joined["total_reward"], mask=mask, repeated_batch=joined, prev_logprobs=learner,
        generation_logprobs=engine,
    )  # fmt: skip
    assert estimator.last_metrics["ada/newest_prob_error"] == pytest.approx(math.exp(error))


def hanging(engine, prompt, rollouts):
    """A rollout that never ends for one prompt."""
    original = rollouts

    async def rollout(**given):
        if int(given["initial_sample_state"]["message_log"][0]["token_ids"][2]) == prompt:
            await asyncio.sleep(3600)
        return await original(**given)

    return rollout


def test_a_group_that_hangs_is_given_up_and_the_others_are_not_disturbed():
    engine = Engine(labels({11: 5, 12: 5, 13: 5}))
    ahead = Ahead(engine, ada=BALANCE | {"budget": {"max_group_seconds": 0.5, "max_samples": 24}})
    ahead.groups._rollout = hanging(engine, 12, ahead.groups._rollout)
    with ThreadPoolExecutor(3) as pool:
        batches = list(pool.map(ahead.draw, (11, 12, 13)))
    batch, _, _, metrics = ahead.finish(batches)
    assert metrics["ada/groups_given_up"] == 1 and metrics["ada/samples_drawn"] <= 24
    assert batch["ada_weight"].tolist()[GROUP_SIZE : 2 * GROUP_SIZE] == [0.0] * GROUP_SIZE
    assert ahead.groups.running == 0


def test_a_refit_waits_for_responses_and_later_waves_have_the_new_version():
    def script(prompt, draw):
        if draw == 0:
            ahead.may_start.clear()  # a refit begins while the first wave runs
        return float(draw >= 4), 5

    ahead = Ahead(Engine(script), prompts=1)
    with ThreadPoolExecutor(1) as pool:
        drawing = pool.submit(ahead.draw, 11)
        while ahead.may_start.is_set() or ahead.groups.running > 0:
            time.sleep(0.001)
        assert not drawing.done()
        ahead.version = 2
        ahead.may_start.set()
        batch = drawing.result()
    versions = GroupPool.from_dict(batch[GROUP][0]["pool"]).version_N.tolist()
    assert versions == [1] * 4 + [2] * 4
    assert ahead.finish([batch])[3]["ada/pools_mixed_versions"] == 1


def test_an_error_of_the_engine_reaches_the_groups_thread_and_frees_the_budget():
    ahead = Ahead(Engine(labels({11: 5, 12: 5, 13: 5})))

    async def broken(**given):
        raise ValueError("the engine said no")

    ahead.groups._rollout = broken
    with pytest.raises(ValueError, match="said no"):
        ahead.draw(11)
    assert ahead.groups.running == 0 and [str(error) for error in ahead.failed] == ["the engine said no"]


def test_what_finished_before_an_error_is_counted(monkeypatch):
    """A response too many in flight would let a refit wait for ever."""
    ahead = Ahead(Engine(labels({11: 5})), prompts=1)
    whole, take, numbers = ahead.groups._rollout, InFlight.take, itertools.count()
    finished: list[object] = []

    async def broken(**given):
        if next(numbers) >= 2:
            while len(finished) < 2:
                await asyncio.sleep(0)
            raise ValueError("the engine said no")
        finished.append(await whole(**given))
        return finished[-1]

    async def late(responses):
        return (
            await take(responses) if responses.done or len(responses._ended) == GROUP_SIZE else convert_outcomes([], [])
        )

    ahead.groups._rollout = broken
    monkeypatch.setattr(InFlight, "take", late)
    with pytest.raises(ValueError, match="said no"):
        ahead.draw(11)
    assert ahead.groups.running == 0


REFUSED = [
    ({"preset": "ada_est_ema"}, {"grpo__num_generations_per_prompt": 8}, "sampling.kind=estimation"),
    (BALANCE | {"budget": {"max_seconds": 9.0}}, {}, "budget.max_seconds=9"),
    (BALANCE, {"grpo__use_dynamic_sampling": True}, "grpo.use_dynamic_sampling=true"),
    (BALANCE, {"grpo__reward_shaping": {"enabled": True}}, "grpo.reward_shaping.enabled=true"),
    (BALANCE, {"policy__generation__colocated": {"enabled": True}}, "policy.generation.colocated.enabled=false"),
    (BALANCE, {"policy__generation__vllm_cfg": {"async_engine": False}}, "vllm_cfg.async_engine=true"),
    (BALANCE, {"loss_fn__use_importance_sampling_correction": False}, "use_importance_sampling_correction=true"),
    (BALANCE, {"grpo__async_grpo": {"enabled": True, "max_trajectory_age_steps": 0}}, "max_trajectory_age_steps"),
]


@pytest.mark.parametrize(("ada", "changes", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_a_group_by_itself_cannot_do_is_refused_by_its_key(ada, changes, message):
    master = config(GROUP_SIZE, 3, ada, asynchronous=True, **{**AHEAD, **changes})
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        nemo_settings.read(master)


def test_another_nemo_rl_is_named_before_anything_is_touched():
    from nemo_ada.nemo.asynchronous import actors

    with pytest.raises(UserError, match="AsyncTrajectoryCollector"):
        actors._unwrap_actor(SimpleNamespace(), "AsyncTrajectoryCollector")
