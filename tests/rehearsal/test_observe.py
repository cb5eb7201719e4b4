"""What the processes of a rehearsal note."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from nemo_ada.rehearsal import observe


@pytest.mark.parametrize(("single", "phases"), [(True, 1), (False, 3)], ids=["single controller", "older loop"])
def test_the_many_looks_of_the_single_controller_are_one_phase(
    single: bool, phases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Timer:
        @contextmanager
        def time(self, label: str) -> Iterator[None]:
            yield

    events = tmp_path / "events.jsonl"
    monkeypatch.setenv(observe.FILE, str(events))
    if single:
        monkeypatch.setitem(sys.modules, observe.CONTROLLER, ModuleType(observe.CONTROLLER))
    else:
        monkeypatch.delitem(sys.modules, observe.CONTROLLER, raising=False)
    module = ModuleType("timer")
    module.Timer = Timer  # type: ignore[attr-defined]
    observe._observe_timer(module)
    for label in ("exposed_generation", "exposed_generation", "exposed_generation", "policy_training"):
        with module.Timer().time(label):
            pass
    noted = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    ended = [line["phase"] for line in noted if line["event"] == "end"]
    assert ended == ["generate"] * phases + ["update"]
