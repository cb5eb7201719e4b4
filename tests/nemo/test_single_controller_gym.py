"""Reinforce-Ada over NeMo-Gym inside the real single controller of NeMo-RL main (nemo_support/controller.py).

A script stands for Gym's servers. NeMo-RL's own actor, rollout class, controller and buffer run.

1. At age 0 rows, pools and advantages are those of synchronous training over Gym, to the bit.
2. A rollout that fails has no label and is drawn again. One that hangs is given up with its group.
3. No prompt is lost or trained on twice, also over a resume.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections import Counter
from types import SimpleNamespace

import pytest
import ray

from nemo_ada.errors import FailedResponsesError, ProcessLostError
from nemo_ada.nemo.gym.request import prompt_id
from nemo_ada.nemo.launch.stop_and_save import Progress
from nemo_ada.nemo.rollouts.call import Prompts
from nemo_ada.run.job_control import JobControl

pytestmark = [pytest.mark.nemo_rl, pytest.mark.timeout(300)]

BALANCE = {"preset": "ada_seq_balance", "sampling": {"wave_size": 4, "max_responses": 16}}


@pytest.fixture(scope="module")
def single(harness):
    """nemo_support.controller, where this NeMo-RL has a single controller."""
    if importlib.util.find_spec("nemo_rl.algorithms.single_controller") is None:
        pytest.skip("this NeMo-RL has no single controller")
    return importlib.import_module("nemo_support.controller")


@pytest.fixture
def gym(single, monkeypatch):
    """The module nemo_support.gym."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    return importlib.import_module("nemo_support.gym")


@pytest.fixture
def run(single, gym, tmp_path):
    """run(script, steps, ...): a run over Gym in the test's folder, whose weights never change."""

    def train(script, steps, ada=BALANCE, *, versions=0, folder="run", seconds=0.0, **options):
        given = {key.replace(".", "__"): value for key, value in gym.SETTINGS.items()}
        given |= {"policy__optimizer__kwargs__lr": 0.0}
        config = single.controller_config(tmp_path / folder, steps, ada, versions=versions, **given)
        actor = gym.actor_of(script, seconds=seconds)
        record = single.run_controller(tmp_path / folder, config, gym=actor, **options)
        vars(record).update(ray.get(actor.facts.remote()))
        return record

    return train


@pytest.fixture
def numbered(monkeypatch, single):
    """Requests carry their draw, on both paths, because calls may overtake each other on their way to the actor."""
    from nemo_rl.experience.rollout_manager import AsyncNemoGymRolloutImpl

    rows, stream, drawn = Prompts.rows, AsyncNemoGymRolloutImpl._stream_rows, Counter()

    def next_draw(row):
        prompt = row["responses_create_params"]["input"][0]["content"]
        drawn[prompt] += 1
        return drawn[prompt] - 1

    def with_numbers(prompts, places):
        batch = rows(prompts, places)
        for row in batch["extra_env_info"]:
            row["draw"] = next_draw(row)
        return batch

    async def with_number(self, actor, pending, *rest):
        return await stream(self, actor, [{**row, "draw": next_draw(row)} for row in pending], *rest)

    monkeypatch.setattr(Prompts, "rows", with_numbers)
    monkeypatch.setattr(AsyncNemoGymRolloutImpl, "_stream_rows", with_number)
    return drawn


def synchronous(gym, single, folder, script, steps, ada, **changes):
    """A run of NeMo-RL's synchronous loop over Gym, with the sampler's steps."""
    hooks, sampled = single.watched()
    overrides = {**single.SYNCHRONOUS, "reinforce_ada": ada, **changes}
    return gym.run_gym(folder, steps, overrides, script=script, hooks=hooks), sampled


ADA = {
    "balance": BALANCE,
    "lean": {"preset": "ada_seq_lean"},
    "grpo": {"preset": "grpo"},
    "value": {
        "preset": "grpo",
        "estimator": {"kind": "value"},
        "advantage": {"baseline": "shrunk"},
    },
}


@pytest.mark.parametrize(
    "name", ["balance", "value", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lean", "grpo"))]
)
def test_at_age_0_a_step_is_the_synchronous_step_over_gym(single, gym, run, numbered, tmp_path, name):
    script = gym.seeded()
    expected, sampled = synchronous(gym, single, tmp_path / "synchronous", script, 3, ADA[name])
    numbered.clear()
    found = run(script, 3, ADA[name])
    assert found.drawn.items() >= expected.drawn.items() and all(len(call) == 1 for call in found.calls)
    single.assert_synchronous(found, expected, sampled)


def test_prompts_are_known_by_their_requests_and_answers_by_all_their_turns(single, gym, run):
    Made, words = gym.Rollout, gym.tiny_tokenizer()
    record = run(lambda prompt, draw: Made(float(draw % 2), turns=(3, 1, 2)), 1)
    pools = record.pools[0]
    assert {pool.prompt_id for pool in pools} == {prompt_id(gym.row(f"p{number}=")) for number in (10, 11, 12, 13)}
    assert {tokens for pool in pools for tokens in pool.result.tokens_N.tolist()} == {6}
    prompts = [words(f"p{number}=")["input_ids"] for number in (10, 11, 12, 13)]
    for tokens, counted, _, _ in single.rows_of(record.batches[0]):
        if any(counted):
            assert sum(counted) == 6 and tokens[:4] in prompts and counted[:4] == [False] * 4


@pytest.mark.parametrize("how", ["raises", "nothing", "no tokens", "no reward", "not finite", "nan log-probs"])
def test_a_failed_rollout_is_drawn_again_and_never_a_zero(gym, run, how):
    record = run(gym.failing_once(how), 1, {"preset": "grpo"})
    assert [record.drawn[f"p{number}="] for number in (10, 11, 12, 13)] == [4, 4, 5, 4]
    assert record.metrics[1]["train/ada/failed/gym_error"] == 1
    assert record.metrics[1]["train/ada/pass_rate"] == 1.0, "a failure is no wrong answer"
    assert all(pool.result.reward_N.tolist() == [1.0] * 4 for pool in record.pools[0])


def test_when_all_fail_the_run_ends_with_the_reason(gym, run):
    with pytest.raises(FailedResponsesError, match="gym_error"):
        run(lambda prompt, draw: ValueError("the sandbox is gone"), 1)


def kill_servers(gym):
    def kill(controller):
        ray.get(gym._actor().die.remote("server math has ended"))

    return kill


def test_lost_servers_are_a_lost_process(gym, run):
    with pytest.raises(ProcessLostError, match="server math has ended"):
        run(lambda prompt, draw: ValueError("no connection"), 1, each=kill_servers(gym))


def test_silence_is_looked_into(gym, run, monkeypatch):
    """Gym asks a dead server for ever, so its rollouts neither end nor fail."""
    from nemo_ada.nemo.gym import actor

    Made = gym.Rollout
    monkeypatch.setattr(actor, "SILENT_SECONDS", 0.5)
    with pytest.raises(ProcessLostError, match="server math has ended"):
        run(lambda prompt, draw: Made(1.0), 1, each=kill_servers(gym), seconds=60.0)
    done = run(lambda prompt, draw: Made(float(draw % 2)), 1, seconds=1.5)
    assert done.result["train_steps"] == 1, "slow servers that live are waited for"


def test_a_rollout_that_hangs_is_given_up_with_its_group(gym, run):
    Made = gym.Rollout

    def script(prompt, draw):
        if prompt == "p11=":
            return Made(0.0, seconds=600.0 if draw >= 4 else 0.0)
        return Made(float(draw % 2))

    record = run(script, 1, BALANCE | {"budget": {"max_group_seconds": 5.0}})
    assert record.metrics[1]["train/ada/groups_given_up"] == 1
    slow = next(pool for pool in record.pools[0] if pool.given_up)
    assert slow.result.size_P.tolist() == [4] and record.drawn["p11="] == 8, "its complete wave is kept"


def test_exit_rules_look_at_gyms_reward(gym, run):
    Made = gym.Rollout
    ada = {"preset": "ada_seq_balance", "positive_threshold": 0.6}
    record = run(lambda prompt, draw: Made(0.25 * (draw % 4)), 1, ada)
    rewards = {reward for pool in record.pools[0] for reward in pool.result.reward_N.tolist()}
    assert rewards == {0.0, 0.25, 0.5, 0.75}
    assert 0.0 < record.metrics[1]["train/ada/pass_rate"] < 0.5


def test_a_turn_that_was_cut_is_told_apart_and_metrics_are_of_all_responses(gym, run):
    Made, groups = gym.Rollout, []

    def keep(controller):
        rollout = controller._ada.manager.run_rollout

        async def kept(sample):
            groups.append(await rollout(sample))
            return groups[-1]

        controller._ada.manager.run_rollout = kept

    run(lambda prompt, draw: Made(float(draw % 2), cut=draw % 4 == 1), 1, {"preset": "grpo"}, each=keep)
    assert len(groups) >= 4, "a group of the next step may end before the run does"
    for group in groups:
        assert sorted(one.truncated for one in group.completions) == [False, False, False, True]
        metrics = group.rollout_metrics
        assert metrics["truncation_rate"] == 0.25 and metrics[f"{gym.AGENT}/reward/mean"] == 0.5
        assert metrics["timing/rollout/await_results"] >= 0


def test_what_an_environment_masks_stays_out_of_the_loss(single, gym, run):
    """Its reward still counts."""
    Made = gym.Rollout

    def script(prompt, draw):
        return Made(float(draw % 2), facts={"instance_config": {"mask_sample": draw % 4 == 1}})

    record = run(script, 1, {"preset": "grpo"})
    live = [row for row in single.rows_of(record.batches[0]) if row[3] > 0]
    assert len(live) == 12 and record.metrics[1]["train/ada/pass_rate"] == 0.5

    def masked(prompt, draw):
        return Made(float(draw % 2), facts={"instance_config": {"mask_sample": True}})

    record = run(masked, 1, {"preset": "grpo"}, folder="masked")
    live = [row for row in single.rows_of(record.batches[0]) if row[3] > 0]
    assert len(live) == 1 and live[0][2] == [0.0], "NeMo-RL's update needs a row, and its advantage is 0"


class Killed(Exception):
    """The test ends a run here."""


@pytest.mark.parametrize("versions", [0, 2])
def test_a_resumed_run_trains_on_every_prompt_once(gym, run, versions):
    Made, labels = gym.Rollout, gym.seeded()

    def slow(prompt, draw):
        return Made(labels(prompt, draw).reward, seconds=0.02)

    def kill(step):
        if step == 2:
            raise Killed

    pools = []
    with pytest.raises(Killed):
        run(slow, 4, versions=versions, before_train=kill, pools=pools)
    record = run(slow, 4, versions=versions, pools=pools)
    assert record.result["train_steps"] == 4
    prompts = {step[0].step: [pool.prompt_id for pool in step] for step in pools}
    counts = Counter(prompt for ids in prompts.values() for prompt in ids)
    assert sorted(prompts) == [1, 2, 3, 4] and len(counts) == 16 and set(counts.values()) == {1}
    for step in pools:
        for pool in step:
            assert pool.step - versions <= pool.version_N.min() and pool.version_N.max() <= pool.step
    assert all(math.isfinite(record.metrics[step]["train/loss"]) for step in (3, 4))


def test_an_unknown_class_of_rollouts_is_refused(single, tmp_path):
    from nemo_rl.algorithms.single_controller_utils.config import MasterConfig

    from nemo_ada.errors import UserError
    from nemo_ada.nemo.single_controller.actor import Parts

    config = MasterConfig(**single.controller_config(tmp_path, 1, BALANCE))
    arguments = SimpleNamespace(rollout_manager=SimpleNamespace(_impl=object()))
    with pytest.raises(UserError, match="draws with object"):
        Parts(config, arguments)


def test_the_driver_knows_a_lost_process_and_ends_gyms_servers(single, gym, tmp_path, monkeypatch):
    """The controller is another process, whose error the launcher must know: a chain of jobs then starts again."""
    from nemo_ada.nemo.launch import controller as launch
    from nemo_ada.nemo.single_controller import actor

    class Controller:
        def __init__(self, master_config, actor_args, setup_timing_metrics, run_dir):
            self.reason = None

        async def run(self):
            raise ProcessLostError("NeMo-Gym is lost: a server has ended")

        async def ping(self):
            return {"train_steps": 0}

    class Servers:
        def __init__(self):
            self.ended = False

        def shutdown(self):
            self.ended = True

        def has_ended(self):
            return self.ended

    monkeypatch.setattr(actor, "controller_actor", lambda config: ray.remote(num_cpus=0)(Controller))
    monkeypatch.setattr(launch, "WATCH_SECONDS", 0.5)
    config = single.controller_config(tmp_path, 3, BALANCE)
    servers = ray.remote(num_cpus=0)(Servers).remote()
    parts = {"master_config": config, "actor_args": None, "timings": None, "environments": {"nemo_gym": servers}}
    with pytest.raises(ProcessLostError, match="a server has ended"):
        launch.supervised(parts, JobControl(tmp_path, 3), Progress(0, 0, 0, 0, 1, 4, signals=[]))
    launch.end_environments(parts["environments"])
    assert ray.get(servers.has_ended.remote())


def test_the_set_up_is_configured_for_gym_after_nemo_rl_has_filled_in_its_stops(single, gym, tmp_path, monkeypatch):
    """NeMo-RL's set-up fills in the end token as a stop, and its rollouts over Gym refuse stops."""
    import nemo_rl.algorithms.single_controller_utils as utilities
    import nemo_rl.algorithms.utils as utils
    from nemo_rl.algorithms.single_controller_utils.config import MasterConfig

    from nemo_ada.nemo.launch import controller as launch

    built = SimpleNamespace(save_state=None, gen_handle=None, trainer_handle=None, env_handles={})
    monkeypatch.setattr(utils, "get_tokenizer", lambda section: gym.tiny_tokenizer())
    monkeypatch.setattr(utilities, "setup_single_controller", lambda config, tokenizer: (built, None))
    given = {key.replace(".", "__"): value for key, value in gym.SETTINGS.items()}
    for changes, stops in ((given, None), ({}, [gym.tiny_tokenizer().eos_token_id])):
        config = single.controller_config(tmp_path, 1, BALANCE, policy__generation__stop_token_ids=None, **changes)
        parts = launch.set_up(MasterConfig(**config))
        assert parts["master_config"].policy["generation"]["stop_token_ids"] == stops
