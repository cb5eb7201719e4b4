"""Reinforce-Ada inside the real single controller of NeMo-RL main (nemo_support/controller.py).

1. At age 0 rows, pools and advantages are those of the synchronous path, to the bit. Eight steps with an eighth of the
   prompts are one synchronous step with eight updates.
2. Groups that are drawn ahead may mix versions of the weights. They are counted, and no older than the lookahead.
3. No prompt is lost or trained on twice: not by age, not by a failure of the engine, not by a resume.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from nemo_ada.errors import ProcessLostError
from nemo_ada.nemo.launch.stop_and_save import Progress
from nemo_ada.rules.single_controller import LATE
from nemo_ada.run.folder import read_lines
from nemo_ada.run.job_control import STOP_FILE, JobControl

pytestmark = [pytest.mark.nemo_rl, pytest.mark.timeout(300)]

BALANCE = {"preset": "ada_seq_balance", "sampling": {"wave_size": 4, "max_responses": 16}}
RATES = (0.1, 0.3, 0.5, 0.9)


@pytest.fixture(scope="module")
def single(harness):
    """nemo_support.controller, where this NeMo-RL has a single controller."""
    if importlib.util.find_spec("nemo_rl.algorithms.single_controller") is None:
        pytest.skip("this NeMo-RL has no single controller")
    return importlib.import_module("nemo_support.controller")


@pytest.fixture
def run(single, tmp_path):
    """run(steps, ada, ...): a run in the test's folder, whose weights never change unless `lr` says so."""

    def train(steps, ada=BALANCE, *, versions=0, prompts=4, changes=None, lr=0.0, **options):
        changes = {"policy__optimizer__kwargs__lr": lr} | (changes or {})
        config = single.controller_config(tmp_path / "run", steps, ada, versions=versions, prompts=prompts, **changes)
        return single.run_controller(tmp_path / "run", config, **options)

    return train


def synchronous(harness, single, folder, steps, ada, **changes):
    """A run of NeMo-RL's synchronous loop, with the sampler's steps."""
    hooks, sampled = single.watched()
    overrides = {**harness.OURS, **single.SYNCHRONOUS, "reinforce_ada": ada, **changes}
    return harness.run_grpo(folder, steps, overrides, async_engine=True, hooks=hooks), sampled


ADA = {"balance": BALANCE, "lean": {"preset": "ada_seq_lean"}, "grpo": {"preset": "grpo"}}


@pytest.mark.parametrize(
    "name", ["balance", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lean", "grpo"))]
)
def test_at_age_0_a_step_is_the_synchronous_step(harness, single, run, tmp_path, name):
    expected, sampled = synchronous(harness, single, tmp_path / "synchronous", 3, ADA[name])
    found = run(3, ADA[name])
    single.assert_synchronous(found, expected, sampled)


def test_metrics_of_a_run_that_draws_grpo_s_groups_are_nemo_rl_s_own(harness, single, tmp_path):
    """Every row is in the loss, so every metric of the controller keeps its value."""
    rows = {key.replace(".", "__"): value for key, value in harness.ALL_ROWS.items()}
    plain = {key.replace(".", "__"): value for key, value in harness.NO_DIVISION.items()}
    found = single.run_controller(
        tmp_path / "ours", single.controller_config(tmp_path / "ours", 2, {"preset": "grpo"}, **rows)
    )
    config = single.controller_config(tmp_path / "own", 2, {"preset": "grpo"}, **rows, **plain)
    own = single.run_controller(tmp_path / "own", config, ours=False)
    assert len(own.batches) == 2
    harness.assert_same_metrics(found, own)


def test_eight_steps_are_a_synchronous_step_with_eight_updates(harness, single, run, tmp_path):
    """The synchronous loop shuffles its groups over the updates. So all rows with a gradient are compared together."""
    whole = {"grpo.num_prompts_per_step": 16, "policy.train_global_batch_size": 8}
    ada = BALANCE | {"advantage": {"denominator": "live_rows"}}
    expected, _ = synchronous(harness, single, tmp_path / "synchronous", 1, ada, **whole)
    found = run(8, ada, versions=8, prompts=2, data=MANY)  # a step ahead has no prompt twice
    assert len(found.batches) == 8 and len(expected.batches) == 1 and found.result["train_steps"] == 8

    def live(*batches):
        return sorted(row for batch in batches for row in single.rows_of(batch) if any(row[2]))

    assert live(*found.batches) == live(*expected.batches)


def prompts_of(trained):
    """The prompt ids of each step that was trained on. A step that began twice counts once."""
    return {pools[0].step: [pool.prompt_id for pool in pools] for pools in trained}


def each_prompt_once(trained, steps=4, count=16):
    """Whether these steps have trained on each of `count` prompts once."""
    prompts = prompts_of(trained)
    counts = Counter(prompt for ids in prompts.values() for prompt in ids)
    return sorted(prompts) == list(range(1, steps + 1)) and len(counts) == count and set(counts.values()) == {1}


@pytest.mark.parametrize("versions", [1, 2])
def test_pools_mix_versions_no_older_than_the_lookahead(run, versions):
    def slow():
        time.sleep(0.05)  # waves end while the engine takes new weights

    record = run(4, versions=versions, seconds_per_token=0.03, during_refit=slow, lr=0.01)
    for step in range(1, 5):
        metrics = record.metrics[step]
        assert 0.0 <= metrics["train/ada/response_age"] <= versions
        assert 0.0 <= metrics["train/ada/pools_mixed_versions"] <= 1.0
        assert metrics.get("train/ada/newest_prob_error", 1.0) == pytest.approx(1.0, abs=1e-3)
    for pools in record.pools:
        for pool in pools:
            assert pool.step - versions <= pool.version_N.min() and pool.version_N.max() <= pool.step
    mixed = [pool for pools in record.pools for pool in pools if len(set(pool.version_N.tolist())) > 1]
    assert mixed, "no pool has waves of two versions, so the test shows nothing"


def test_hard_prompts_are_not_lost_by_their_age(run):
    """Their groups draw up to four waves, and every response takes time. Each step still trains on its own prompts."""
    record = run(4, versions=2, seconds_per_token=0.01)
    assert each_prompt_once(record.pools)  # the whole epoch, so its pass rates are the data's
    assert all(record.metrics[step]["train/evicted_stale_prompt_groups"] == 0 for step in (1, 2, 3, 4))
    waves = [int(pool.result.waves_P[0]) for pools in record.pools for pool in pools]
    assert max(waves) > 1


MANY = {f"p{number}=": RATES[number % 4] for number in range(10, 42)}  # no step of a test comes to a second epoch


def ready_first(versions):
    return {"async_rl__sampler": {"name": "ready_first", "max_staleness_versions": versions}}


def trained_once(trained, steps):
    """Whether these steps have trained on four prompts each, and on none twice."""
    prompts = prompts_of(trained)
    ids = [prompt for step in prompts.values() for prompt in step]
    return sorted(prompts) == list(range(1, steps + 1)) and len(ids) == len(set(ids)) == 4 * steps


def test_with_ready_first_slow_groups_come_later_and_none_is_lost(run):
    """Prompt p10= draws slowly. The first step goes on without it, and a later one trains on it."""

    def labels(prompt, draw):
        return prompt != "p10=" and draw % 2 == 0  # p10= needs all its four waves, and the others one

    record = run(6, versions=1, changes=ready_first(1), data=MANY, labels=labels, seconds_per_token=0.03, lr=0.01)
    assert trained_once(record.pools, 6)
    for pools in record.pools:
        for pool in pools:
            assert pool.step - pool.version_N.max() >= 0 and pool.step - pool.version_N.min() <= 1 + LATE
    assert all(record.metrics[step]["train/evicted_stale_prompt_groups"] == 0 for step in range(1, 7))
    late = next(pools[0].step for pools in record.pools if max(pool.result.waves_P[0] for pool in pools) > 1)
    assert late > 1, "the slow group was there in time, so the test shows nothing"


def test_with_ready_first_a_resumed_run_trains_on_no_prompt_twice(run):
    def kill(step):
        if step == 3:
            raise Killed

    pools = []
    slow = {"changes": ready_first(1), "data": MANY, "seconds_per_token": 0.005}
    with pytest.raises(Killed):
        run(6, versions=1, before_train=kill, pools=pools, **slow)
    record = run(6, versions=1, pools=pools, **slow)
    assert record.result["train_steps"] == 6
    assert trained_once(pools, 6)


@pytest.mark.parametrize(("ready", "chosen"), [(True, 2), (False, 0)], ids=["ready", "still drawn"])
def test_with_ready_first_a_step_waits_for_a_group_that_would_become_too_old(single, ready, chosen):
    from nemo_ada.nemo.single_controller.step import ReadyGroups

    async def remove(places, remove_in_dp):
        return len(places)

    metas = [SimpleNamespace(concat=lambda *more: "step") for _ in range(3)]
    buffer = SimpleNamespace(
        start_weight_list=[1, 4, 5], ready_list=[ready, True, True], meta_list=metas, remove=remove
    )
    sampler = ReadyGroups(buffer, max_staleness_versions=1)
    sampler.oldest = 4
    selected = sampler.select(current_train_weight=5, min_prompt_groups=2, max_prompt_groups=2)
    assert asyncio.run(selected)[1] == chosen


class Killed(Exception):
    """The test ends a run here."""


@pytest.mark.parametrize("versions", [0, 2])
def test_a_resumed_run_trains_on_every_prompt_once(run, versions):
    def kill(step):
        if step == 2:
            raise Killed

    pools = []
    with pytest.raises(Killed):
        run(4, versions=versions, before_train=kill, seconds_per_token=0.003, pools=pools)
    record = run(4, versions=versions, seconds_per_token=0.003, pools=pools)
    assert record.result["train_steps"] == 4
    assert [step for step in record.metrics if "train/loss" in record.metrics[step]] == [3, 4]
    assert each_prompt_once(pools)


def test_an_engine_that_fails_costs_no_prompt_and_no_budget(run):
    """NeMo-RL draws the group again. The attempt that failed leaves the budget of the step."""
    broken = iter([True])

    def fails(prompt, draw):
        return prompt == "p12=" and draw == 1 and next(broken, False)

    cap = BALANCE | {"budget": {"max_samples": 24}}
    record = run(4, cap, fails=fails)
    assert next(broken, None) is None
    assert each_prompt_once(record.pools)
    assert all(16 <= record.metrics[step]["train/ada/samples_drawn"] <= 24 for step in (1, 2, 3, 4))


def test_a_prompt_that_fails_for_good_is_given_up_by_nemo_rls_own_budget(run):
    failure = {"max_skipped_prompts": 9, "min_step_batch_fraction": 0.5}
    record = run(4, fails=lambda prompt, draw: prompt == "p12=", changes={"async_rl__rollout_failure": failure})
    sizes = [len(pools) for pools in record.pools]
    assert sorted(sizes) == [3, 4, 4, 4] and record.metrics[1]["train/dropped_prompt_groups"] == 1


def test_an_engine_s_process_that_is_killed_is_a_lost_process_in_the_driver_too(harness, run):
    """NeMo-RL wraps Ray's error twice, and Ray drops the causes of an error that leaves its process."""

    @ray.remote(num_cpus=0)
    class Engine:
        def pid(self):
            return os.getpid()

    engine = Engine.remote()
    os.kill(ray.get(engine.pid.remote()), signal.SIGKILL)

    def dies(prompt, draw):
        ray.get(engine.pid.remote(), timeout=60)
        return False

    now = {"backoff_base_s": 0.01, "max_backoff_s": 0.01, "max_infra_attempts_per_prompt": 2}
    with pytest.raises(ProcessLostError) as found:
        run(1, fails=dies, changes={"async_rl__rollout_failure": now})

    @ray.remote(num_cpus=0)
    def another_process(error):
        raise error

    with pytest.raises(ProcessLostError):
        ray.get(another_process.remote(found.value), timeout=60)


def test_a_step_without_signal_has_one_row_in_the_loss(single, run):
    record = run(1, labels=lambda prompt, draw: True)
    rows = single.rows_of(record.batches[0])
    live = [row for row in rows if row[3] > 0]
    assert len(rows) == 16 and len(live) == 1
    tokens, counted, advantages, _ = live[0]
    assert advantages == [0.0] and sum(counted) > 1 and len(tokens) > sum(counted)


def test_a_verifier_without_a_verdict_gives_no_label(run):
    record = run(1, labels=lambda prompt, draw: "=" if draw == 1 and prompt == "p10=" else draw % 2 == 0)
    assert record.metrics[1]["train/ada/failed/verifier_timeout"] == 1
    assert all(len(pool.result.reward_N) >= 4 for pool in record.pools[0])


def test_a_stop_file_saves_and_ends_and_records_are_written(run, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()

    def stop(step):
        if step == 1:
            (folder / STOP_FILE).touch()

    record = run(4, before_train=stop, run_dir=folder)
    assert record.result["train_steps"] == 2 and "stop file" in record.result["reason"]
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["total/rows"] == 16 * line["step"] and line["ada/samples_drawn"] >= 16 and line["time/step"] > 0
        assert len(line["ada/pass_rate_histogram"]) > 1
    (folder / STOP_FILE).unlink()
    resumed = run(3, run_dir=folder)
    assert resumed.result == {"train_steps": 3, "trainer_version": 3, "reason": None}
    assert [line["step"] for line in read_lines(folder / "metrics.jsonl")] == [1, 2, 3]


def test_the_actor_is_ours_or_nemo_rls_and_starts_in_its_own_process(single, tmp_path):
    from nemo_rl.algorithms.single_controller import SingleControllerActor
    from nemo_rl.algorithms.single_controller_utils.config import MasterConfig

    from nemo_ada.nemo.single_controller.actor import controller_actor

    config = single.controller_config(tmp_path, 1, BALANCE)
    plain = single.controller_config(tmp_path, 1, BALANCE, reinforce_ada=None)
    assert controller_actor(MasterConfig(**plain)) is SingleControllerActor
    actor = controller_actor(MasterConfig(**config))
    here = Path(__file__).parent
    path = os.pathsep.join([*map(str, (here / "nemo_support" / "startup", here.parents[1], here)), *sys.path])
    arguments = SimpleNamespace(rollout_manager=SimpleNamespace(_impl=None))  # not NeMo-RL's native rollouts
    started = actor.options(runtime_env={"env_vars": {"PYTHONPATH": path}}).remote(
        MasterConfig(**config), arguments, None
    )
    with pytest.raises(ray.exceptions.RayActorError, match="UserError"):
        ray.get(started.ping.remote())


@pytest.mark.parametrize("signals", [[], ["SIGTERM"]], ids=["to its end", "a signal"])
def test_the_driver_watches_the_controller_and_passes_a_signal_on(single, tmp_path, monkeypatch, signals):
    from nemo_ada.nemo.launch import controller as launch
    from nemo_ada.nemo.single_controller import actor

    class Controller:
        def __init__(self, master_config, actor_args, setup_timing_metrics, run_dir):
            self.reason = None

        async def run(self):
            for _ in range(600 if signals else 1):
                await asyncio.sleep(0.1)
                if self.reason is not None:
                    return {"train_steps": 2, "reason": self.reason}
            return {"train_steps": 3, "reason": None}

        async def ping(self):
            return {"train_steps": 1}

        async def stop(self, reason):
            self.reason = reason

    monkeypatch.setattr(actor, "controller_actor", lambda config: ray.remote(num_cpus=0)(Controller))
    monkeypatch.setattr(launch, "WATCH_SECONDS", 0.5)
    config = single.controller_config(tmp_path, 3, BALANCE)
    control, progress = JobControl(tmp_path, 3), Progress(0, 0, 0, 0, 1, 4, signals=list(signals))
    parts = {"master_config": config, "actor_args": None, "timings": None}
    stopped = launch.supervised(parts, control, progress)
    assert stopped == bool(signals)
    assert (progress.total_steps, progress.reason) == ((2, "SIGTERM") if signals else (3, None))


def test_single_responses_train_as_soon_as_enough_are_judged(single, run):
    """Preset ada_single with n = 1: a group is one response, and a step has one row of each of its prompts."""
    one = {"grpo__num_generations_per_prompt": 1, "policy__train_global_batch_size": 8}
    record = run(3, {"preset": "ada_single"}, versions=1, prompts=8, changes=one | ready_first(1), data=MANY)
    assert [len(single.rows_of(batch)) for batch in record.batches] == [8] * 3
    assert [pool.result.size_P.tolist() for pools in record.pools for pool in pools] == [[1]] * 24
    assert len({pool.prompt_id for pools in record.pools for pool in pools}) == 24
    live = [row for batch in record.batches for row in single.rows_of(batch) if row[3] > 0]
    assert len(live) == 24 and all(row[2] != [0.0] for row in live)


@pytest.mark.slow
def test_transfer_queue_carries_the_same_rows(single, run, tmp_path, monkeypatch):
    """NeMo-RL's own data plane in place of its reference one. It needs the package transferqueue."""
    pytest.importorskip("transfer_queue")
    from nemo_rl.data_plane import build_data_plane_client
    from nemo_rl.data_plane.adapters import transfer_queue

    # It would install the package for its actors. They run in this interpreter, which has it.
    monkeypatch.setattr(transfer_queue, "_patch_tq_actor_runtime_env", lambda: None)
    expected = run(2)
    config = single.controller_config(tmp_path / "queue", 2, BALANCE, policy__optimizer__kwargs__lr=0.0)
    client = build_data_plane_client(config["data_plane"] | {"storage_capacity": 1000}, bootstrap=True)
    try:
        found = single.run_controller(tmp_path / "queue", config, client=client)
    finally:
        client.close()
    for ours, theirs in zip(found.batches, expected.batches, strict=True):
        assert single.rows_of(ours) == single.rows_of(theirs)
