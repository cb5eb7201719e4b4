"""Several runs of one driver share its workers, because starting them takes longer than a run of a few steps.

All runs share the engine, which gets its weights from the learner. Runs of random weights share the learner, too. With
real weights each run starts with a learner of its own.
"""

from __future__ import annotations

import functools
from typing import Any

from nemo_ada.rehearsal.standins.replacing import Names, Replacements

ENGINE = Replacements("A new engine for each run", "that of the driver's first run")
LEARNER = Replacements("A new learner for each run", "that of the driver's first run")

_KEPT: dict[str, Any] = {}
_SHUT_DOWN: list[Any] = []


@ENGINE.after(
    "nemo_rl.algorithms.grpo",
    "RayVirtualCluster",
    "VllmGeneration",
    "Policy",
    "setup",
    why="An engine starts for more than a minute.",
)
def _keep_engine(names: Names) -> None:
    for name in ("RayVirtualCluster", "VllmGeneration"):
        names.put(name, _create_once(names.get(name)))
    names.put("Policy", _end_the_one_before(names.get("Policy")))
    set_up = names.get("setup")

    @functools.wraps(set_up)
    def setup(*args: Any, **kwargs: Any) -> Any:
        made = set_up(*args, **kwargs)
        _KEPT["set-up"] = True
        return made

    names.put("setup", setup)


@LEARNER.after(
    "nemo_rl.algorithms.grpo", "Policy", why="A run that follows another in the same driver trains on with its learner."
)
def _keep_learner(names: Names) -> None:
    names.put("Policy", _create_once(names.get("Policy")))


def _create_once(create: Any) -> Any:
    """Return a function that creates an object once. A kept learner takes the batch sizes of a later run's config."""

    @functools.wraps(create, updated=())
    def once(*args: Any, **kwargs: Any) -> Any:
        kept = _KEPT.get(create.__name__)
        if kept is None:
            kept = _KEPT[create.__name__] = create(*args, **kwargs)
            return kept
        if create.__name__ == "Policy":
            kept.cfg.update({key: value for key, value in kwargs["config"].items() if key.startswith("train_")})
        return kept

    return once


def _end_the_one_before(create: Any) -> Any:
    """Return a function that creates a learner after it has ended the one before, which a failed set-up may leave."""
    last: list[Any] = []

    @functools.wraps(create, updated=())
    def after_the_last(*args: Any, **kwargs: Any) -> Any:
        if last:
            last.pop().shutdown()
        last.append(create(*args, **kwargs))
        return last[0]

    return after_the_last


@ENGINE.after(
    "nemo_rl.models.generation.vllm.vllm_generation",
    "VllmGeneration.finish_generation",
    "VllmGeneration.prepare_for_generation",
    "VllmGeneration.shutdown",
    why="The set-up of a later run would put a sleeping engine to sleep, and the end of a run would end it.",
)
def _keep_engine_awake(names: Names) -> None:
    finish, prepare = names.get("VllmGeneration.finish_generation"), names.get("VllmGeneration.prepare_for_generation")

    @functools.wraps(finish)
    def finish_generation(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_rehearsal_sleeps", False):
            return True
        self._rehearsal_sleeps = asleep = finish(self, *args, **kwargs)
        return asleep

    @functools.wraps(prepare)
    def prepare_for_generation(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._rehearsal_sleeps = False
        return prepare(self, *args, **kwargs)

    names.put("VllmGeneration.finish_generation", finish_generation)
    names.put("VllmGeneration.prepare_for_generation", prepare_for_generation)
    _end_later(names, "VllmGeneration.shutdown")


@LEARNER.after(
    "nemo_rl.models.policy.lm_policy", "Policy.shutdown", why="The end of a run would end the learner of the next one."
)
def _keep_learner_alive(names: Names) -> None:
    _end_later(names, "Policy.shutdown")


def _end_later(names: Names, dotted: str) -> None:
    """Remember the call of a shutdown for `end_workers`."""
    shut_down = names.get(dotted)

    @functools.wraps(shut_down)
    def later(self: Any, *args: Any, **kwargs: Any) -> bool:
        if not any(part is self for part, _ in _SHUT_DOWN):
            _SHUT_DOWN.append((self, functools.partial(shut_down, self)))
        return True

    names.put(dotted, later)


def has_started() -> bool:
    """Return whether the set-up of a run was complete. Then other runs can follow it."""
    return "set-up" in _KEPT


def end_workers() -> None:
    """End the workers after the last run."""
    for _, shut_down in _SHUT_DOWN:
        shut_down()
    _SHUT_DOWN.clear()
    _KEPT.clear()
