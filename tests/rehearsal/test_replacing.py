"""The mechanism behind the stand-ins: hooks after an import, declared names, names that upstream dropped."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nemo_ada.rehearsal.standins.replacing import Names, Replacements, call_when_imported


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module `upstream_library` that nobody has imported."""
    name = "upstream_library"
    (tmp_path / f"{name}.py").write_text(
        "import sys\nSEEN = getattr(sys, 'rehearsal_flag', None)\n"
        "def size():\n    return 8\nclass Worker:\n    def start(self):\n        return 'gpu'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def test_a_name_is_replaced_when_its_module_is_imported(upstream: str) -> None:
    replacements = Replacements("library", "a stand-in")

    @replacements.after(upstream, "size", "Worker.start", why="A reason.")
    def apply(names: Names) -> None:
        original = names.put("size", lambda: 1)
        assert original() == 8
        names.answer(("Worker.start",), "cpu")

    replacements.install()
    assert upstream not in sys.modules
    module = importlib.import_module(upstream)
    assert module.size() == 1
    assert module.Worker().start() == "cpu"


def test_looking_for_a_module_is_not_importing_it(upstream: str) -> None:
    seen: list[str] = []
    call_when_imported(upstream, lambda module: seen.append(module.__name__))
    assert importlib.util.find_spec(upstream) is not None
    assert seen == []
    importlib.import_module(upstream)
    assert seen == [upstream]


def test_a_module_that_is_there_is_changed_at_once(upstream: str) -> None:
    importlib.import_module(upstream)
    seen: list[str] = []
    call_when_imported(upstream, lambda module: seen.append(module.__name__))
    assert seen == [upstream]


def test_a_block_holds_while_a_module_is_imported(upstream: str) -> None:
    replacements = Replacements("library", "a stand-in")

    @replacements.during(upstream, why="A reason.")
    @contextmanager
    def around() -> Iterator[None]:
        sys.rehearsal_flag = "on"  # type: ignore[attr-defined]
        yield
        del sys.rehearsal_flag  # type: ignore[attr-defined]

    replacements.install()
    assert importlib.import_module(upstream).SEEN == "on"
    assert not hasattr(sys, "rehearsal_flag")


def test_a_name_that_upstream_dropped_fails_by_name(upstream: str) -> None:
    module = importlib.import_module(upstream)
    names = Names(module, ("Worker.stop",))
    with pytest.raises(AttributeError, match=f"{upstream}.Worker.stop does not exist"):
        names.put("Worker.stop", None)


def test_a_name_without_a_reason_cannot_be_replaced(upstream: str) -> None:
    module = importlib.import_module(upstream)
    with pytest.raises(KeyError, match="not declared"):
        Names(module, ()).put("size", None)
