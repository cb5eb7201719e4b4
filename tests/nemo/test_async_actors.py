"""NeMo-RL's own trajectory collector and replay buffer with Reinforce-Ada inside, without Ray and without its imports.

Both files are read from the checkout that NEMO_RL_HOME names. Ray is a stand-in that calls at once; the collector's
threads, targets, ages and refits are NeMo-RL's. test_async_training.py runs the same in real actors, under the real
loop.

1. Each step gets its own complete groups, within its budget, and every prompt of an epoch is trained on once.
2. After a stop at any moment the run goes on: nothing is lost and nothing comes twice, budgets included.
3. An error of a group is raised where the driver asks for groups.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from standin import Batch, Engine, config, loop_module, prompt_batch, weigh

from nemo_ada.core.seeds import SHUFFLE_STREAM
from nemo_ada.errors import UserError
from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.asynchronous import actors
from nemo_ada.nemo.groups.prompt_queue import TICKET
from nemo_ada.nemo.groups.step import GROUP, GroupAdvantageEstimator
from nemo_ada.rules.facts.upstream import BATCH_WORKER, METHODS, ROLLOUTS
from tests.nemo.test_async_groups import AHEAD, BALANCE, GROUP_SIZE, labels

HOME = os.environ.get("NEMO_RL_HOME")
COLLECTORS = Path(str(HOME)) / "nemo_rl" / "algorithms" / "async_utils"
pytestmark = pytest.mark.skipif(HOME is None, reason="NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set")
PROMPTS, STEPS_PER_EPOCH, CAP = 4, 3, 24
RATES = {prompt: (prompt * 3) % 11 for prompt in range(PROMPTS * STEPS_PER_EPOCH)}


class Now:
    """Ray without processes: an actor's calls happen one after the other, results are copies, errors wait for `get`."""

    class Handle:
        def __init__(self, instance: Any) -> None:
            self.instance, self.lock = instance, threading.Lock()

        def __getattr__(self, name: str) -> Any:
            def remote(*args: Any, **kwargs: Any) -> Any:
                try:
                    with self.lock:
                        return pickle.loads(pickle.dumps(getattr(self.instance, name)(*args, **kwargs)))
                except Exception as error:  # noqa: BLE001 - as Ray does, until somebody asks
                    return error

            return SimpleNamespace(remote=remote)

    @staticmethod
    def remote(cls: type) -> Any:
        modified = type(cls.__name__, (cls,), {"__ray_actor_class__": cls})
        return SimpleNamespace(
            __ray_metadata__=SimpleNamespace(modified_class=modified),
            remote=lambda *args, **kwargs: Now.Handle(cls(*args, **kwargs)),
        )

    @staticmethod
    def get(result: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def upstream(monkeypatch):
    """NeMo-RL's two actor classes, plain; what else they import has nothing in it that these tests reach."""
    if BATCH_WORKER in (COLLECTORS / "trajectory_collector.py").read_text(encoding="utf-8"):
        pytest.skip("this collector draws whole batches: test_async_training.py runs it in its own Ray")
    absent = {
        "torchdata.stateful_dataloader": ["StatefulDataLoader"],
        "nemo_rl.algorithms.grpo": ["MasterConfig"],
        "nemo_rl.algorithms.opd": ["resolve_reference_aliases"],
        "nemo_rl.data.interfaces": ["DatumSpec"],
        "nemo_rl.distributed.batched_data_dict": ["BatchedDataDict"],
        "nemo_rl.environments.interfaces": ["EnvironmentInterface"],
        "nemo_rl.models.generation.interfaces": ["GenerationInterface"],
        "nemo_rl.algorithms.async_utils.interfaces": ["ReplayBufferProtocol"],
        "transformers": ["PreTrainedTokenizerBase"],
        ROLLOUTS: ["run_async_multi_turn_rollout", "run_async_nemo_gym_rollout"],
    }
    for name, inside in absent.items():
        module = ModuleType(name)
        vars(module).update({one: type(one, (), {}) for one in inside})
        for parent in (name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1)):
            monkeypatch.setitem(sys.modules, parent, sys.modules.get(parent) or ModuleType(parent))
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["nemo_rl.algorithms.opd"].teacher_seq_pad_multiple = lambda *_: 1
    sys.modules["nemo_rl.algorithms.grpo"]._should_use_nemo_gym = lambda _: False
    monkeypatch.setitem(sys.modules, "ray", Now)
    return load


def load():
    """The two classes, read anew: each collector has a process of its own."""
    made = ModuleType(actors.ACTORS)
    for file, name in (("trajectory_collector", "AsyncTrajectoryCollector"), ("replay_buffer", "ReplayBuffer")):
        spec = importlib.util.spec_from_file_location(f"{actors.ACTORS}.{file}", COLLECTORS / f"{file}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        setattr(made, name, getattr(module, name))
    return {name: actors._unwrap_actor(made, name) for name in METHODS}


class Loader:
    dataset = range(PROMPTS * STEPS_PER_EPOCH)
    collate_fn = staticmethod(prompt_batch)


class MasterConfig(SimpleNamespace):
    """As v0.7.0 has it: sections are attributes, and `model_dump` gives a dictionary."""

    def model_dump(self):
        return vars(self)


class Driver:
    """What async_grpo_train does with the actors."""

    def __init__(self, upstream, engine, step=0, saved=None, ada=None, prompts=PROMPTS, **changes):
        budget = {"budget": {"max_samples": CAP}}
        master = config(GROUP_SIZE, prompts, ada or BALANCE | budget, asynchronous=True, **AHEAD, **changes)
        self.prompts, self.batches = prompts, []
        master["policy"]["make_sequence_length_divisible_by"] = 1
        self.settings, self.step = nemo_settings.read(master), step
        _, rollouts = loop_module(engine)
        sys.modules[ROLLOUTS].run_sample_multi_turn_rollout = rollouts.run_sample_multi_turn_rollout
        sampler = self.settings.sampler()
        self.estimator = GroupAdvantageEstimator(self.settings, sampler, lambda sampled: None)
        classes = upstream()
        queue, buffered = pickle.loads(saved) if saved else (None, None)
        sizes = self.settings.global_batch, self.settings.seed
        self.buffer = actors.make_buffer_class(classes["ReplayBuffer"], *sizes).remote(max_size=2 * prompts)
        if buffered is not None:
            self.ask(self.buffer.load_state_dict, buffered, num_prompts_per_step=prompts,
                     current_training_step=step, max_age_steps=1)  # fmt: skip
        self.collector = actors.make_collector_class(classes["AsyncTrajectoryCollector"], queue).remote(
            policy_generation=None, tokenizer=None, task_to_env={}, master_config=MasterConfig(**master),
            replay_buffer=self.buffer, start_step=step,
        )  # fmt: skip
        self.ask(self.collector.start_collection, Loader())

    @staticmethod
    def ask(method, *args, **kwargs):
        return Now.get(method.remote(*args, **kwargs))

    def take(self):
        """One step: its groups, advantages, refit. The tickets of the prompts, and the metrics."""
        ended = time.monotonic() + 600  # far above what a busy machine takes
        while (sampled := self.ask(self.buffer.sample, self.prompts, self.step, 1)) is None:
            assert time.monotonic() < ended, "the step never came"
            time.sleep(0.01)
        batch = Batch.from_batches([one["batch"] for one in sampled["trajectories"]])
        _, advantages_RT = weigh(self.estimator, batch)
        self.batches.append((batch, advantages_RT))
        self.step += 1
        self.ask(self.collector.prepare_for_refit)
        self.ask(self.collector.set_weight_version, self.step)
        self.ask(self.collector.resume_after_refit)
        assert {group["pool"]["step"] for group in batch[GROUP] if group} == {self.step - 1}
        return batch[TICKET].tolist()[::GROUP_SIZE], self.estimator.last_metrics

    def save(self, between=0.0):
        """A checkpoint, in NeMo-RL's order of calls; groups may be delivered between the two."""
        queue = self.ask(self.collector.get_dataloader_state)
        time.sleep(between)
        return pickle.dumps((queue, self.ask(self.buffer.state_dict)))

    def kill(self):
        """Its groups can deliver nothing any more; its threads end."""
        self.buffer.instance.fail(RuntimeError("killed"))
        collector = self.collector.instance
        collector.running = False
        collector._generation_limit_cleared.set()
        for thread in (collector.collection_thread, *collector._inflight_threads):
            thread.join(30)


def test_updates_have_prompts_of_every_difficulty_whatever_was_finished_first(upstream, monkeypatch):
    """Easy prompts, whose responses are short, are finished first; NeMo-RL takes groups in that order."""
    prompts, updates, steps = 16, 4, 8
    easy = {prompt: 10 if prompt % 2 else 5 for prompt in range(prompts * steps)}
    monkeypatch.setattr(Loader, "dataset", range(prompts * steps))

    def script(prompt, draw):
        return labels(easy)(prompt, draw)[0], 1 if easy[prompt] == 10 else 8

    rows = GROUP_SIZE * prompts // updates
    driver = Driver(
        upstream, Engine(script, seconds_per_token=0.003), prompts=prompts, ada=BALANCE,
        policy__train_global_batch_size=rows,
    )  # fmt: skip
    for _ in range(steps):
        driver.take()
    driver.kill()
    live = [0] * updates
    for step, (batch, advantages_RT) in enumerate(driver.batches, 1):
        numbers = np.array([group["number"] for group in batch[GROUP] if group is not None])
        place = np.random.default_rng([driver.settings.seed, step, SHUFFLE_STREAM]).permutation(prompts)
        assert numbers.tolist() == place.tolist()
        for update in range(updates):
            live[update] += int(advantages_RT[update * rows : (update + 1) * rows].any(dim=1).sum())
    assert min(live) > 0, live  # 64 groups by chance: one in 20 million leaves an update none


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.03, 0.08])
def test_a_run_that_is_stopped_at_any_moment_goes_on_with_every_prompt_once(upstream, seconds):
    engine = Engine(labels(RATES), seconds_per_token=0.002)
    first = Driver(upstream, engine)
    taken = [first.take() for _ in range(2)]
    time.sleep(seconds)
    saved = first.save(between=seconds / 2)
    first.kill()
    again = Driver(upstream, engine, step=2, saved=saved)
    taken += [again.take() for _ in range(4)]
    again.kill()
    tickets = [ticket for tickets, _ in taken for ticket in tickets]
    assert sorted(tickets) == list(range(2 * PROMPTS * STEPS_PER_EPOCH))
    assert all(metrics["ada/samples_drawn"] <= CAP for _, metrics in taken)


def test_a_step_that_is_taken_while_the_collector_looks_for_one_is_not_drawn_again(upstream):
    """What the collector asked first is old when it asks what the buffer has of the step: none any more."""
    driver = Driver(upstream, Engine(labels(RATES)))
    driver.take()
    driver.kill()
    collector, buffer = driver.collector.instance, driver.buffer
    collector._generating_targets.clear()
    first = [-1]

    class Late:
        get_last_target_weight_already_generated = SimpleNamespace(
            remote=lambda: first.pop() if first else buffer.get_last_target_weight_already_generated.remote()
        )

        def __getattr__(self, name):
            return getattr(buffer, name)

    collector.replay_buffer = Late()
    assert collector._get_next_target_for_generation(0) is None and not first
    assert not collector._generating_targets


@pytest.mark.parametrize("shuffle", [True, False])
def test_prompts_come_in_the_datas_order_only_where_it_is_not_shuffled(upstream, shuffle, monkeypatch):
    handed = []
    monkeypatch.setattr(Loader, "collate_fn", staticmethod(lambda rows: handed.extend(rows) or prompt_batch(rows)))
    driver = Driver(upstream, Engine(labels(RATES)), data__shuffle=shuffle)
    for _ in range(STEPS_PER_EPOCH):
        driver.take()
    driver.kill()
    first = handed[: PROMPTS * STEPS_PER_EPOCH]
    assert sorted(first) == list(Loader.dataset) and (first != sorted(first)) == shuffle


def test_a_collector_that_starts_after_the_first_update_leaves_no_step_out(upstream, monkeypatch):
    """A resumed run trains at once on what the buffer holds, and the first prompts may come after that."""
    engine = Engine(labels(RATES))
    first = Driver(upstream, engine)
    first.take()
    while not first.ask(first.buffer.has_complete_batch, 1, PROMPTS, 1):
        time.sleep(0.01)
    saved = first.save()
    first.kill()
    updated = threading.Event()
    monkeypatch.setattr(Loader, "collate_fn", staticmethod(lambda numbers: updated.wait() and prompt_batch(numbers)))
    again = Driver(upstream, engine, step=1, saved=saved)
    again.take()
    updated.set()
    assert len(again.take()[0]) == PROMPTS
    again.kill()


def test_an_error_of_a_group_is_raised_where_the_driver_asks_for_groups(upstream):
    def broken(prompt, draw):
        raise ValueError("the engine said no")

    driver = Driver(upstream, Engine(broken))
    with pytest.raises(ValueError, match="said no"):
        driver.take()
    driver.collector.instance._groups.running += 1  # a response that never ends does not hold the error back
    driver.ask(driver.collector.wait_for_pending_generations)
    driver.kill()


def test_a_group_that_does_not_reach_the_buffer_ends_the_run_and_counts_as_in_flight(upstream, monkeypatch):
    """NeMo-RL prints the error of `add`; the prompt is not trained on, so a resumed run must draw it again."""
    driver = Driver(upstream, Engine(labels(RATES), seconds_per_token=0.002))
    buffer, lost = driver.buffer.instance, []
    add = buffer.add

    def broken(trajectory, *args):
        ticket = int(trajectory["batch"][TICKET][0])
        if ticket == 5:
            lost.append(ticket)
            raise OSError("the object store is full")
        return add(trajectory, *args)

    monkeypatch.setattr(buffer, "add", broken)
    with pytest.raises(RuntimeError, match="did not reach the replay buffer"):
        [driver.take() for _ in range(STEPS_PER_EPOCH)]
    queue = driver.collector.instance.dataloader
    driver.kill()
    state = queue.state_dict()
    assert lost and state["low"] <= 5 and 5 not in state["above"] and 5 in state["started"]


def test_a_collector_that_cannot_start_ends_the_run_with_its_error(upstream, monkeypatch):
    monkeypatch.setattr(Loader, "dataset", range(0))
    monkeypatch.setattr(Driver, "ask", staticmethod(lambda method, *args, **kwargs: method.remote(*args, **kwargs)))
    driver = Driver(upstream, Engine(labels(RATES)))  # nobody looks at what start_collection returns, as in NeMo-RL
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"data\.train: the data set has no prompt"):
        Now.get(driver.buffer.size.remote())


def test_a_prompt_that_cannot_be_read_ends_the_run_with_its_error(upstream, monkeypatch):
    def unreadable(numbers):
        raise KeyError("problem")

    monkeypatch.setattr(Loader, "collate_fn", staticmethod(unreadable))
    driver = Driver(upstream, Engine(labels(RATES)))
    with pytest.raises(KeyError, match="problem"):
        driver.take()
    driver.kill()
