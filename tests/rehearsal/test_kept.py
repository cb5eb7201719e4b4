"""Which workers the runs of one driver share."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nemo_ada.rehearsal.standins import kept
from nemo_ada.rehearsal.standins.replacing import Names, Replacements

LOOP = "nemo_rl.algorithms.grpo"


@pytest.fixture
def loop() -> Iterator[ModuleType]:
    """NeMo-RL's module with three classes that only remember what they were made with."""
    module = ModuleType(LOOP)
    for name in ("RayVirtualCluster", "VllmGeneration", "Policy"):
        setattr(module, name, type(name, (SimpleNamespace,), {"shutdown": lambda self: vars(self).update(ended=True)}))
    vars(module)["setup"] = lambda rows: set_up(module, rows)
    yield module
    kept.end_workers()


def apply(module: ModuleType, *groups: Replacements) -> None:
    for change in (change for group in groups for change in group.changes if change.module == LOOP):
        assert change.apply is not None
        change.apply(Names(module, change.names))


def set_up(loop: Any, rows: int) -> tuple[Any, Any, Any]:
    """Make what the set-up of a run makes."""
    config = {"train_global_batch_size": rows, "other": rows}
    return loop.RayVirtualCluster(), loop.VllmGeneration(), loop.Policy(config=config, cfg=dict(config))


def test_with_real_weights_a_run_has_a_learner_of_its_own_and_the_engine_of_the_first(loop: Any) -> None:
    apply(loop, kept.ENGINE)
    assert not kept.has_started()
    first, second = loop.setup(8), loop.setup(16)
    assert first[0] is second[0] and first[1] is second[1]
    assert first[2] is not second[2] and second[2].cfg == {"train_global_batch_size": 16, "other": 16}
    assert kept.has_started() and vars(first[2])["ended"], "one that a failed set-up has left would keep the GPU"
    assert "ended" not in vars(second[2])


def test_a_learner_without_a_complete_set_up_is_no_start(loop: Any) -> None:
    apply(loop, kept.ENGINE)
    loop.Policy(config={}, cfg={})
    assert not kept.has_started()


@pytest.mark.parametrize("order", [(kept.LEARNER, kept.ENGINE), (kept.ENGINE, kept.LEARNER)], ids=["first", "last"])
def test_with_random_weights_all_runs_share_the_learner_which_takes_their_batch_size(loop: Any, order: Any) -> None:
    """The learner's part is registered when the interpreter starts, the engine's by the driver."""
    apply(loop, *order)
    first, second = loop.setup(8), loop.setup(16)
    assert all(one is other for one, other in zip(first, second, strict=True)) and kept.has_started()
    assert first[2].cfg == {"train_global_batch_size": 16, "other": 8}
