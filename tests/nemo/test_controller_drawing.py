"""Groups that are drawn in one event loop over a scripted engine. It needs no NeMo-RL.

1. A group draws waves until its session has enough. A refit delays the next wave, whose responses have the new version.
2. An error cancels the other responses and undoes the group's budget.
3. What the single controller, or a group by itself, cannot do is refused by its key.

test_async_groups.py gives up a group that hangs.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from standin import config, prompt_batch

from nemo_ada.core.sampling.budget import Budget, StepLedger
from nemo_ada.core.sampling.source import Requests
from nemo_ada.errors import UserError
from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.groups.drawing import Drawing, Groups
from nemo_ada.nemo.groups.step import GROUP
from nemo_ada.nemo.rollouts.call import Prompts
from nemo_ada.nemo.rollouts.response import Response
from nemo_ada.rules.facts import version

BALANCE = {"preset": "ada_seq_balance", "sampling": {"wave_size": 4, "max_responses": 16}}
CONTROLLER = {
    "grpo__async_grpo": None,
    "data_plane": {
        "enabled": True,
        "impl": "transfer_queue",
        "backend": "simple",
        "storage_capacity": 1000,
        "num_storage_units": 1,
        "claim_meta_poll_interval_s": 0.5,
        "global_segment_size": 1,
        "local_buffer_size": 1,
    },
    "async_rl": {
        "sampler": {"name": "in_order", "max_lookahead_versions": 1},
        "min_groups_for_streaming_train": 3,
        "max_inflight_prompts": 6,
        "max_buffered_rollouts": 6,
    },
    "policy__generation__colocated": {"enabled": False, "resources": {"gpus_per_node": 1}},
    "policy__generation__vllm_cfg": {"async_engine": True, "enable_prefix_caching": False},
    "loss_fn__use_importance_sampling_correction": True,
}


@pytest.fixture(autouse=True)
def no_nemo_rl(monkeypatch):
    """v0.7.0, which may be here, has a single controller that the plug-in does not fit."""
    monkeypatch.setattr(version, "find_checkout", lambda: None)


def settings_of(ada=BALANCE, **changes):
    return nemo_settings.read(config(4, 3, ada, asynchronous=True, **{**CONTROLLER, **changes}))


class Engine(Groups):
    """The gate and the version of the weights."""

    version = 0

    def __init__(self, settings=None):
        settings = settings or settings_of()
        super().__init__(settings, settings.sampler(), lambda: self.version)
        self.gate = asyncio.Event()
        self.gate.set()


def answer(reward, tokens=5):
    return Response([], [], float(reward), False, tokens), {}


def test_waves_go_on_until_the_session_has_enough_and_later_ones_have_the_new_version():
    async def scenario():
        sampler, engine = settings_of().sampler(), Engine()
        begun = []

        async def respond(index, _):
            begun.append(index)
            if index == 0:
                engine.gate.clear()  # a refit begins while the first wave runs
            await asyncio.sleep(0)
            return answer(index >= 4)

        drawing, session = Drawing(respond, engine), sampler.group_session(1, sampler.step_ledger(1).start())
        running = asyncio.ensure_future(drawing.run(session))
        while len(begun) < 4 or session.state.in_flight != 4 or not session.state.table.n > 4:
            await asyncio.sleep(0)
        assert begun == [0, 1, 2, 3], "the second wave waits for the refit"
        engine.version = 7
        engine.gate.set()
        return await running, drawing

    result, drawing = asyncio.run(scenario())
    assert (int(result.pos_P[0]), int(result.neg_P[0])) == (4, 4)
    assert [drawing.versions[row] for row in result.response_id_N.tolist()] == [0] * 4 + [7] * 4


@pytest.mark.parametrize("fails", [False, True])
def test_a_response_that_ended_before_it_was_dropped_counts_with_its_tokens_and_its_error_is_raised(fails):
    async def respond(index, _):
        if index == 1:
            await asyncio.Event().wait()  # it runs until it is cancelled
        if fails:
            raise ValueError("the engine said no")
        return answer(1, tokens=9)

    async def scenario():
        drawing = Drawing(respond, Engine())
        two = np.arange(2)
        await drawing.submit(Requests(two, np.zeros(2, np.int64), two, np.zeros(2, np.int64), two))
        await asyncio.sleep(0)
        tokens = await drawing.abort(two)
        return tokens.tolist(), len(drawing.responses)

    if fails:
        with pytest.raises(ValueError, match="said no"):
            asyncio.run(scenario())
    else:
        assert asyncio.run(scenario()) == ([9, 0], 0), "the other one has no pace to be estimated from"


def test_a_group_that_was_drawn_and_not_delivered_is_undone_when_it_is_drawn_again():
    """A group that failed keeps its number, too, and the seeds depend on it. Its other responses are cancelled."""
    settings, cancelled = settings_of(BALANCE | {"budget": {"max_samples": 24}}), []
    engine, broken, answered = Engine(settings), [True], [{"role": "assistant", "token_ids": torch.ones(5)}]

    async def respond(response_id, _):
        if broken[0] and response_id == 3:
            raise ValueError("the engine said no")
        try:
            await (asyncio.sleep(3600) if broken[0] else asyncio.sleep(0))
        except asyncio.CancelledError:
            cancelled.append(response_id)
            raise
        return Response(prompt_batch([11])["message_log"][0], answered, float(response_id % 2), False, 5), {}

    def draw(ticket):
        prompts = Prompts(prompt_batch([11]), 1, whole=False)
        return engine.draw_group(prompts, respond, 0, ticket=ticket, redrawn=False)

    async def scenario():
        with pytest.raises(ValueError, match="said no"):
            await draw(7)
        assert engine.ledger(0).use.samples == engine.running == 0 and sorted(cancelled) == [0, 1, 2]
        broken[0] = False
        numbers = []
        for ticket in (7, 7, 8):  # ticket 7 is drawn again, although it was whole
            _, _, batch = await draw(ticket)
            numbers.append(batch[GROUP][0]["number"])
        return numbers, engine.ledger(0).use.samples

    assert asyncio.run(scenario()) == ([0, 0, 1], 8)


REFUSED = [
    ({"async_rl": {"max_buffered_rollouts": 5}}, "async_rl.max_buffered_rollouts"),
    ({"grpo__async_grpo": {"enabled": False}}, "grpo.async_grpo"),
    ({"grpo__use_dynamic_sampling": True}, "grpo.use_dynamic_sampling"),
    ({"grpo__reward_scaling": {"enabled": True}}, "grpo.reward_scaling.enabled"),
    ({"grpo__reward_shaping": {"enabled": True}}, "grpo.reward_shaping.enabled"),
    ({"grpo__val_period": 10}, "grpo.val_period"),
    ({"policy__train_global_batch_size": 4}, "policy.train_global_batch_size"),
    ({"policy__generation__colocated": {"enabled": True}}, "policy.generation.colocated.enabled"),
    ({"data_plane": {"enabled": False}}, "data_plane.enabled"),
    (
        {"checkpointing": {"enabled": True, "save_data_plane": True, "metric_name": "val:accuracy"}},
        "checkpointing.metric_name",
    ),
    ({"checkpointing": {"enabled": True}}, "checkpointing.save_data_plane"),
]


@pytest.mark.parametrize(("changes", "key"), REFUSED, ids=[f"{row[1]}-{number}" for number, row in enumerate(REFUSED)])
def test_what_the_single_controller_cannot_do_is_refused_by_its_key(changes, key):
    merged = {**CONTROLLER, **changes}
    if "async_rl" in changes:
        merged["async_rl"] = {**CONTROLLER["async_rl"], **changes["async_rl"]}
    with pytest.raises(UserError) as refused:
        nemo_settings.read(config(4, 3, BALANCE, asynchronous=True, **merged))
    assert refused.value.key == key


ADA_REFUSED = [
    ({"preset": "ada_est_ema"}, "sampling.kind"),
    (BALANCE | {"budget": {"max_seconds": 9.0}}, "budget.max_seconds"),
]


@pytest.mark.parametrize(("ada", "key"), ADA_REFUSED, ids=[row[1] for row in ADA_REFUSED])
def test_what_a_group_by_itself_cannot_do_is_refused_by_its_key(ada, key):
    group = {"grpo__num_generations_per_prompt": 8, "policy__train_global_batch_size": 24}
    with pytest.raises(UserError) as refused:
        settings_of(ada, **group)
    assert refused.value.key == f"reinforce_ada.{key}"


def test_with_no_version_ahead_engine_and_learner_may_share_gpus_and_the_cache_may_be_emptied():
    async_rl = {**CONTROLLER["async_rl"], "sampler": {"name": "in_order", "max_lookahead_versions": 0},
                "recompute_kv_cache_after_weight_updates": True}  # fmt: skip
    settings = settings_of(
        async_rl=async_rl,
        policy__generation__colocated={"enabled": True},
        policy__generation__vllm_cfg={"async_engine": True},
        loss_fn__use_importance_sampling_correction=False,
    )
    assert settings.loop.draws_ahead and settings.prompts == 3


def test_seeds_of_a_group_depend_on_its_step_and_place_only():
    sampler = settings_of().sampler()
    ledger = sampler.step_ledger(3)
    numbers = [ledger.start().number for _ in range(3)]
    seeds = [
        sampler.group_session(2, StepLedger(Budget(), groups=9, first=4, most=16).start(number), uid=number + 3)
        .next_requests(0.0)
        .seed_N.tolist()
        for number in numbers
    ]
    assert len({seed for row in seeds for seed in row}) == 12
    again = sampler.group_session(2, StepLedger(Budget(), groups=1, first=4, most=16).start(), uid=4).next_requests(0.0)
    assert np.array_equal(again.seed_N, seeds[1])
