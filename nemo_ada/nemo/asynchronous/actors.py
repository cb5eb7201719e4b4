"""Reinforce-Ada in the two Ray actors of NeMo-RL's async_grpo_train, the trajectory collector and the replay buffer.

The loop imports both classes when it starts. Within `replace_actors` it gets our subclasses. NeMo-RL's own bookkeeping
of a group's target and age, of refits and of the buffer stays. These things change:

- `collector`: GroupRollouts draws a group. For that we replace, in the actor's process, the function that a group's
  thread calls for a rollout. A refit without in-flight updates waits for the responses in flight, and not for whole
  groups. Prompts come from a PromptQueue. An error ends the run, because the buffer's next call raises it. We always
  start groups for the step that the trainer waits for. NeMo-RL does not, and it deadlocks after a resume whose buffer
  is one step behind.
- `buffer`: The buffer keeps the tickets of delivered groups in its state. It raises the collector's error in the
  driver. NeMo-RL's collector would print the error, and its loop would wait for ever. The buffer knows the collector's
  actor and checks that it lives. Groups come out in a seeded order (training_batch.py).

Ray sends both classes by value. The module of this file must be importable in the actors' environment.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nemo_ada.config.values import Values
from nemo_ada.errors import InvariantError, ProcessLostError, UserError
from nemo_ada.nemo import settings as nemo_settings
from nemo_ada.nemo.asynchronous.groups import GroupRollouts
from nemo_ada.nemo.groups.prompt_queue import TICKET, Delivered, PromptQueue, read_saved_queue
from nemo_ada.nemo.groups.step import GROUP, add_spares, sort_groups
from nemo_ada.nemo.gym.step import GymRollout, make_result
from nemo_ada.nemo.patch_points import replace_names
from nemo_ada.nemo.rollouts.call import RolloutCall
from nemo_ada.rules.facts.upstream import (
    ACTORS,
    ADVICE,
    ASYNC_ROLLOUT,
    BATCH_WORKER,
    GYM_ROLLOUT,
    METHODS,
    ROLLOUTS,
    SAMPLE_ROLLOUT,
    list_methods,
)

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
TASK_INDEX = "_ng_task_index"  # where main of NeMo-RL numbers a prompt over NeMo-Gym, in its row
START_SECONDS = 60.0  # longest wait for the start of a collector's thread


@contextmanager
def replace_actors(master_config: Any, checkpointer: Any) -> Iterator[None]:
    """Within the block async_grpo_train starts our actors.

    Args:
        master_config: NeMo-RL's configuration.
        checkpointer: NeMo-RL's checkpointer. A resumed run reads the queue's state from its newest checkpoint.

    Raises:
        UserError: NeMo-RL is not as expected, or the newest checkpoint is not one of asynchronous Reinforce-Ada.
    """
    module, classes = importlib.import_module(ACTORS), check_actors()
    settings, saved = nemo_settings.read(master_config), read_saved_queue(checkpointer.get_latest_checkpoint_path())
    actors = {
        "AsyncTrajectoryCollector": Watched(make_collector_class(classes["AsyncTrajectoryCollector"], saved)),
        "ReplayBuffer": make_buffer_class(classes["ReplayBuffer"], settings.global_batch, settings.seed),
    }
    with replace_names(module, actors):
        yield


def check_actors() -> dict[str, type]:
    """Return NeMo-RL's two plain classes by name. Raises UserError when NeMo-RL is not as expected."""
    module = importlib.import_module(ACTORS)
    SAMPLE_ROLLOUT.check(importlib.import_module(ROLLOUTS))
    return {name: _unwrap_actor(module, name) for name in METHODS}


def _unwrap_actor(module: Any, name: str) -> type:
    """Return the plain class behind a Ray actor class, after a check of its methods."""
    metadata = getattr(getattr(module, name, None), "__ray_metadata__", None)
    plain = getattr(getattr(metadata, "modified_class", None), "__ray_actor_class__", None)
    if plain is None or not plain.__module__.startswith(ACTORS):
        raise UserError(f"{ACTORS}.{name} is no actor class of NeMo-RL's own, or reinforce_ada is active: {ADVICE}")
    for method, expected in list_methods(name, of_batches=hasattr(plain, BATCH_WORKER)).items():
        function = getattr(plain, method, None)
        found = () if function is None else tuple(inspect.signature(function).parameters)[: len(expected)]
        if found != expected:
            raise UserError(f"{name}.{method} takes ({', '.join(found)}), expected ({', '.join(expected)}): {ADVICE}")
    return plain  # type: ignore[no-any-return]


class Watched:
    """The collector's Ray actor class. It names each actor that it starts to the buffer that the actor fills."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def options(self, **options: Any) -> Watched:
        """Return the class with these options, as Ray's actor classes do."""
        return Watched(self._actor.options(**options))

    def remote(self, *, replay_buffer: Any, **arguments: Any) -> Any:
        """Start the actor, as Ray's actor classes do, and name it to its buffer."""
        collector = self._actor.remote(replay_buffer=replay_buffer, **arguments)
        replay_buffer.watch.remote(collector)
        return collector


class CountedSemaphore(threading.Semaphore):
    """A semaphore that counts how often it was acquired. The collector acquires it once per group that it starts."""

    acquired = 0

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        """Acquire the semaphore and count that."""
        got = super().acquire(*args, **kwargs)
        self.acquired += int(got)
        return got


def make_collector_class(base: Any, saved: Mapping[str, Any] | None) -> Any:
    """Build a Ray actor class from NeMo-RL's collector.

    Args:
        base: NeMo-RL's plain class. If it draws a whole batch per thread, `PerBatch` is used, and otherwise `PerGroup`.
        saved: the queue's state of the run that is resumed.
    """
    import ray

    kind = PerBatch if hasattr(base, BATCH_WORKER) else PerGroup
    return ray.remote(type("AdaTrajectoryCollector", (kind, base), {"saved": saved, "ray": ray}))


if TYPE_CHECKING:
    Upstream = Any  # NeMo-RL's collector
else:
    Upstream = object


class Collector(Upstream):
    """The part that both kinds of collectors share. NeMo-RL's collector is the next class in the order of inheritance.

    Attributes:
        saved: the queue's state of the run that is resumed. None for a new run.
    """

    saved: Mapping[str, Any] | None
    ray: Any  # the module, which is imported where an actor is made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._failed = False
        try:
            self._prepare()
        except BaseException as error:
            self._fail(error)
            raise

    def _prepare(self) -> None:
        self._settings = nemo_settings.read(self.master_config)
        rollouts, gym = importlib.import_module(ROLLOUTS), self._settings.gym
        rollout = getattr(rollouts, (GYM_ROLLOUT if gym else SAMPLE_ROLLOUT).name)
        gate = self._refit_pause_cleared
        self._groups = GroupRollouts(self._settings, rollout, gate, self.get_weight_version, self._fail)
        if gym:  # NeMo-RL's collector looks the name up for every group or batch
            setattr(rollouts, GYM_ROLLOUT.name, self._gym_rollout)

    def start_collection(self, dataloader: Any) -> None:
        """Start to collect prompts from our queue over the data loader."""
        try:
            self._start(dataloader)
        except BaseException as error:  # the loop never reads the result of this call
            self._fail(error)
            raise

    def _start(self, dataloader: Any) -> None:
        delivered, groups = self.ray.get(self.replay_buffer.delivered.remote())
        for target, group in groups:
            self._groups.restore(target, group)
        values = Values(self.master_config)
        queue = PromptQueue(
            dataloader,
            size=int(values.get("grpo.num_prompts_per_step")),
            seed=self._settings.seed if values.get("data.shuffle", True) else None,
            delivered=delivered,
            state=self.saved,
        )
        super().start_collection(queue)

    def _collection_loop(self) -> None:
        super()._collection_loop()  # it returns only after an error, because the queue has no end
        self._fail(self.dataloader.error or RuntimeError("the collector of prompts stopped; its log has the error"))

    def _calculate_target_weights(self, generation_weight_version: int) -> list[int]:
        """Return the steps for which groups may be started now. NeMo-RL returns only steps that need more groups."""
        age = int(Values(self.master_config).get("grpo.async_grpo.max_trajectory_age_steps"))
        return list(range(generation_weight_version, generation_weight_version + age + 1))

    def _get_next_target_for_generation(self, generation_weight_version: int) -> int | None:
        """Return a step that needs more groups, after it was reserved, or None.

        NeMo-RL asks the buffer which step was taken last, and then what it has of a step. One that the loop takes in
        between seems to have no group, and would be drawn again. So the buffer is asked once more after that.
        """
        target: int | None = super()._get_next_target_for_generation(generation_weight_version)
        taken = self.ray.get(self.replay_buffer.get_last_target_weight_already_generated.remote())
        if target is None or target > taken:
            return target
        with self._generation_check_lock:
            self._generating_targets.discard(target)
        return None

    def _hand_over(self, ticket: int) -> None:
        """Check that the buffer has the group of this prompt, and mark its ticket as done.

        NeMo-RL only prints an error that happens on the way to the buffer. Without this check, a resumed run would
        count the prompt as delivered.
        """
        if self.ray.get(self.replay_buffer.holds.remote(ticket)):
            self.dataloader.done(ticket)
        elif self.running:
            self._fail(RuntimeError("a group did not reach the replay buffer; the collector's log has the error"))

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        log.error("a prompt group failed", exc_info=error)
        self.ray.get(self.replay_buffer.fail.remote(_make_sendable(error)))

    def wait_for_pending_generations(self) -> None:
        """Wait for the responses in flight. Their groups may draw further waves with the new weights.

        After an error this does not wait. The next call of the buffer raises the error in the loop.
        """
        while self._groups.running > 0 and not self._failed:
            time.sleep(POLL_SECONDS)

    def get_dataloader_state(self) -> dict[str, Any]:
        """Return the queue's state, for a checkpoint."""
        return dict(self.dataloader.state_dict())

    def get_checkpoint_dataloader_state(self, frontier_ordinal: int) -> dict[str, Any]:
        """Return the queue's state of this moment, in the form of v0.8.0 (pull request 3599).

        There the collector numbers prompts as its loader yields them, saves an older state of the loader, and leaves
        out prompts by that number after a resume. Our queue skips by ticket, and its numbers differ. So the state says
        that it has none of that numbering, as NeMo-RL also says of data without numbers. The ordinal is not used.
        """
        return {"dataloader_state": self.get_dataloader_state(), "base_ordinal": None, "frontier_aligned": False}


class PerGroup(Collector):
    """For a collector with one thread per group (v0.7.0)."""

    def _prepare(self) -> None:
        super()._prepare()
        self._inflight_sema: Any = CountedSemaphore(self._inflight_sema._value)
        self._here = threading.local()
        # Its worker looks the rollout function up in its module for every group, so ours stands there, in this process.
        worker: Any = super()._run_prompt_group_worker
        worker.__func__.__globals__[ASYNC_ROLLOUT.name] = self._rollout

    def _process_batch(self, batch: Any) -> None:
        # NeMo-RL starts as many groups of a batch as its step still needs and drops the rest without a word.
        before = self._inflight_sema.acquired
        super()._process_batch(batch)
        started = self._inflight_sema.acquired - before
        self.dataloader.put_back(batch[TICKET].tolist()[started:])

    def _run_prompt_group_worker(
        self, repeated_batch: Any, generation_weight_version: int, target_weight_version: int, prompt_idx: int
    ) -> None:
        self._here.target, self._here.drawn = target_weight_version, False
        self.dataloader.begin(int(repeated_batch[TICKET][0]))
        super()._run_prompt_group_worker(repeated_batch, generation_weight_version, target_weight_version, prompt_idx)
        if self._here.drawn:
            self._hand_over(int(repeated_batch[TICKET][0]))

    def _rollout(self, **given: Any) -> tuple[Any, dict[str, float]]:
        """Draw a group. This replaces `run_async_multi_turn_rollout`."""
        batch = given.pop("input_batch")
        drawn = self._groups.draw(RolloutCall.of(self._rollout, given), batch, self._here.target).result()
        self._here.drawn = True
        return drawn

    def _gym_rollout(self, **given: Any) -> Any:
        """Draw a group over NeMo-Gym. This replaces `run_async_nemo_gym_rollout`."""
        return make_result(*self._rollout(**given), given["tokenizer"])


class PerBatch(Collector):
    """For a collector with one thread per batch of prompts, which passes on each group (pull request 3000)."""

    def _prepare(self) -> None:
        super()._prepare()
        self._here = threading.local()
        self._begun: dict[int, threading.Event] = {}

    def _process_batch(self, batch: Any) -> None:
        """Start the groups of a batch that a step still needs, and return the other prompts to the queue."""
        started: list[int] = []
        original = batch.slice

        def sliced(first: int, last: int) -> Any:
            if first == 0:  # v0.8.0 slices the prompts that it does not start, too
                started[:] = batch[TICKET].tolist()[:last]
            return original(first, last)

        batch.slice = sliced
        begun = threading.Event()
        self._begun = dict.fromkeys(batch[TICKET].tolist(), begun)
        super()._process_batch(batch)
        if started and not begun.wait(START_SECONDS):  # the thread did not start, and NeMo-RL has printed the reason
            started = []
        self.dataloader.put_back(batch[TICKET].tolist()[len(started) :])
        if not started:
            time.sleep(POLL_SECONDS)  # v0.8.0 waits only for prompts that its own method returns

    async def _run_rollout_batch_worker(self, **given: Any) -> None:
        batch, size = given["repeated_batch"], given["num_generations"]
        tickets = batch[TICKET].tolist()[::size]
        self._here.target = given["target_weight_version"]
        for ticket in tickets:
            self.dataloader.begin(int(ticket))
        self._begun[tickets[0]].set()
        await super()._run_rollout_batch_worker(**given)

    async def _iter_rollout_groups(
        self, repeated_batch: Any, num_generations: int, use_nemo_gym: bool, task_index_to_group_index: dict[int, int]
    ) -> AsyncGenerator[Any, None]:
        """Yield each group as soon as it has enough responses."""
        if use_nemo_gym:  # NeMo-RL's method knows the arguments, and calls `_gym_rollout`
            async for group in super()._iter_rollout_groups(
                repeated_batch, num_generations, use_nemo_gym, task_index_to_group_index
            ):
                yield group
            return
        result, values = importlib.import_module(ROLLOUTS).RolloutGroupResult, Values(self.master_config)
        call = RolloutCall(
            self._refuse,
            policy_generation=self.policy_generation,
            tokenizer=self.tokenizer,
            task_to_env=self.task_to_env,
            max_seq_len=values.get("policy.max_total_sequence_length"),
            max_rollout_turns=values.get("grpo.max_rollout_turns"),
            rest={"deduplicate_multimodal_data": bool(values.get("grpo.deduplicate_multimodal_data", False))},
        )
        async for index, batch, metrics in self._draw_groups(call, repeated_batch, num_generations):
            yield result(group_index=index, final_batch=batch, rollout_metrics=metrics)

    async def _gym_rollout(
        self, *, input_batch: Any, num_generations: int, **given: Any
    ) -> AsyncGenerator[GymRollout, None]:
        """Yield each group over NeMo-Gym. This replaces `run_async_nemo_gym_rollout`."""
        call = RolloutCall.of(self._refuse, given)
        async for _, batch, metrics in self._draw_groups(call, input_batch, num_generations):
            result = make_result(batch, metrics, given["tokenizer"])
            yield replace(result, task_index=batch["extra_env_info"][0].get(TASK_INDEX))

    async def _draw_groups(
        self, call: RolloutCall, repeated_batch: Any, num_generations: int
    ) -> AsyncGenerator[tuple[int, Any, dict[str, Any]], None]:
        """Yield the number, the rows and the metrics of each group, in the order of completion."""
        target = self._here.target  # the thread of this event loop belongs to one batch

        async def draw(index: int) -> tuple[int, Any, dict[str, Any]]:
            batch = repeated_batch.slice(index * num_generations, (index + 1) * num_generations)
            return index, *await asyncio.wrap_future(self._groups.draw(call, batch, target))

        groups = range(repeated_batch.size // num_generations)
        for one in asyncio.as_completed(map(draw, groups)):  # NeMo-RL limits the responses in flight in its engine
            yield await one

    async def _enqueue_rollout_group(self, **given: Any) -> None:
        ticket = int(given["rollout_result"].final_batch[TICKET][0])
        await super()._enqueue_rollout_group(**given)
        await asyncio.to_thread(self._hand_over, ticket)

    @staticmethod
    def _refuse(**_: Any) -> Any:
        raise InvariantError("the group's own rollout was asked for a whole batch")


def make_buffer_class(base: Any, rows: int, seed: int) -> Any:
    """Build a Ray actor class from NeMo-RL's buffer.

    Args:
        base: NeMo-RL's plain class.
        rows: rows of an optimizer step.
        seed: seed of the order of groups.
    """
    import ray

    return ray.remote(type("AdaReplayBuffer", (Buffer, base), {"rows": rows, "seed": seed, "ray": ray}))


class Buffer(Upstream):
    """Our part of the replay buffer. NeMo-RL's buffer is the next class in the order of inheritance."""

    rows: int
    seed: int
    ray: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._error: Exception | None = None
        self._delivered = Delivered()
        self._collector: Any = None
        self._answer: Any = None  # Ray's reference to the collector's next answer

    def watch(self, collector: Any) -> None:
        """Learn which actor fills this buffer."""
        self._collector = collector

    def holds(self, ticket: int) -> bool:
        """Return whether the group of this prompt was delivered."""
        return ticket in self._delivered

    def fail(self, error: Exception) -> None:
        """Keep the collector's first error. The next call of the driver raises it."""
        self._error = self._error or error

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._collector is None:
            return
        self._answer = self._answer or self._collector.get_weight_version.remote()
        answered, _ = self.ray.wait([self._answer], timeout=0)  # a busy collector answers in a later check
        if answered:
            answer, self._answer = self._answer, None
            try:
                self.ray.get(answer)
            except self.ray.exceptions.RayActorError as error:
                raise ProcessLostError(f"the collector of prompts is lost: {str(error).strip()}") from error

    def delivered(self) -> tuple[Delivered, list[tuple[int, dict[str, Any]]]]:
        """Return the tickets of all groups so far, and step and description of the groups that wait here."""
        groups = [trajectory["batch"][GROUP][0] for trajectory in self.trajectories]
        return self._delivered, list(zip(self.target_weight_versions, groups, strict=True))

    def add(self, trajectory: dict[str, Any], weight_version: int, target_weight_version: int) -> str:
        """Add a group. Returns NeMo-RL's status."""
        self._check()
        status = super().add(trajectory, weight_version, target_weight_version)
        if status == "success":
            self._delivered.add(_list_tickets([trajectory]))
        return str(status)

    def size(self) -> int:
        """Return the number of groups that wait."""
        self._check()
        return int(super().size())

    def has_complete_batch(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether all groups of a step are here."""
        self._check()
        return bool(super().has_complete_batch(*args, **kwargs))

    def sample(self, num_prompt_groups: int, current_weight_version: int, max_age_steps: int) -> dict[str, Any] | None:
        """Return the groups of a step in a seeded order.

        NeMo-RL returns them in the order of completion. Then easy prompts would be in the first update and hard
        ones in the last.
        """
        self._check()
        sampled = super().sample(num_prompt_groups, current_weight_version, max_age_steps)
        if sampled is not None:
            sampled["trajectories"] = sort_groups(sampled["trajectories"], self.seed, current_weight_version)
            add_spares([trajectory["batch"] for trajectory in sampled["trajectories"]], self.rows)
        return sampled

    def state_dict(self) -> dict[str, Any]:
        """Return NeMo-RL's state with the tickets of delivered groups."""
        return {**super().state_dict(), "delivered": self._delivered.as_dict()}

    def load_state_dict(self, state: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Continue from a checkpoint. NeMo-RL may drop groups that are too old."""
        super().load_state_dict(state, *args, **kwargs)
        self._delivered = Delivered.of(state.get("delivered"))
        left = set(_list_tickets(self.trajectories))
        self._delivered.remove(ticket for ticket in _list_tickets(state["trajectories"]) if ticket not in left)


def _list_tickets(trajectories: Any) -> list[int]:
    return [int(trajectory["batch"][TICKET][0]) for trajectory in trajectories]


def _make_sendable(error: BaseException) -> Exception:
    """Return the error itself if its class is known to survive a copy, and an error with its text otherwise."""
    known = type(error).__module__.partition(".")[0] in ("nemo_ada", "builtins", "ray")
    return error if known and isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
