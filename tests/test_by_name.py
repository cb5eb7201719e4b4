"""Code runs only where somebody names it, from the bytes of its source (nemo_ada/by_name.py)."""

from __future__ import annotations

import importlib
import importlib.util
import os
import py_compile
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_ada import by_name
from nemo_ada.errors import UserError
from tests.people import OTHER, needs_two_users


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No test sees the modules of another one, and none changes the import path."""
    before = list(sys.path)
    yield
    for module in by_name.list_modules():
        del sys.modules[module.__name__]
    assert sys.path == before


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_source_runs_and_no_compiled_file_beside_it(tmp_path: Path) -> None:
    """Python takes a `.pyc` with an unchecked hash, and a `.so`, before the source that a person reads."""
    file = write(tmp_path / "mine.py", "def score():\n    return 'evil'\n")
    py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    write(file, "def score():\n    return 'source'\n")
    assert list(tmp_path.rglob("*.pyc"))
    for ending in importlib.machinery.EXTENSION_SUFFIXES:
        (tmp_path / f"mine{ending}").write_text("no library")
    name = by_name.find("key", "mine:score", [tmp_path])
    assert name == f"{file}:score" and by_name.load("key", name)() == "source"
    shutil.rmtree(tmp_path / "__pycache__")
    del sys.modules["mine"]
    assert by_name.load("key", name)() == "source" and not list(tmp_path.rglob("*.pyc")), "nor does it leave one"


def test_a_compiled_file_alone_is_no_module(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.py", "def score(): pass\n")
    py_compile.compile(str(file), cfile=str(tmp_path / "mine.pyc"))
    file.unlink()
    with pytest.raises(UserError, match="there is no module mine"):
        by_name.find("key", "mine:score", [tmp_path])


def test_modules_beside_named_code_and_in_its_package_are_found_by_it_alone(tmp_path: Path) -> None:
    write(tmp_path / "pack" / "__init__.py", "")
    write(tmp_path / "pack" / "parts.py", "VALUE = 1\n")
    write(tmp_path / "pack" / "inside" / "__init__.py", "from ..parts import VALUE\n")
    write(tmp_path / "helper_of_mine.py", "import pack.inside\nVALUE = pack.inside.VALUE + 1\n")
    write(
        tmp_path / "pack" / "rewards.py",
        "from . import parts\nimport helper_of_mine\n\ndef score():\n    import late_of_mine\n"
        "    return parts.VALUE + helper_of_mine.VALUE + late_of_mine.VALUE\n",
    )
    write(tmp_path / "late_of_mine.py", "VALUE = 10\n")
    write(tmp_path / "flash_attn_of_mine.py", "raise SystemExit('a library has found it')\n")
    score = by_name.load("key", by_name.find("key", "pack.rewards:score", [tmp_path]))
    assert score() == 13
    assert importlib.util.find_spec("flash_attn_of_mine") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("flash_attn_of_mine")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pack.none")


def test_what_is_installed_comes_before_what_stands_beside_named_code(tmp_path: Path) -> None:
    write(tmp_path / "mine.py", "import json, yaml\n\ndef score():\n    return json.dumps(1), yaml.__file__\n")
    for name in ("json", "yaml"):
        write(tmp_path / f"{name}.py", "raise SystemExit('not the library')\n")
    text, place = by_name.load("key", by_name.find("key", "mine:score", [tmp_path]))()
    assert text == "1" and not place.startswith(str(tmp_path))
    assert by_name.find("key", "yaml:safe_dump", [tmp_path]) == "yaml:safe_dump"


@pytest.mark.parametrize("name", ["json", "yaml", "my-own", "sndhdr", "this"])
def test_a_file_that_is_named_by_its_path_may_have_the_name_of_a_library(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / f"{name}.py", "def score():\n    return 'mine'\n")
    assert by_name.load("key", f"{file}:score")() == "mine"
    if name.isidentifier():
        assert importlib.util.find_spec(name).origin != str(file)  # type: ignore[union-attr]


def test_two_folders_with_a_module_of_one_name_do_not_mix(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path / folder / "beside.py", f"VALUE = {folder!r}\n")
        write(tmp_path / folder / "mine.py", "import beside\n\ndef score():\n    return beside.VALUE\n")
    for folder in ("a", "b", "a"):
        assert by_name.load("key", by_name.find("key", "mine:score", [tmp_path / folder]))() == folder


def test_a_file_is_opened_once(tmp_path: Path, monkeypatch) -> None:
    """A file that changes while it is loaded gives what was read, not a mixture."""
    file = write(tmp_path / "mine.py", "def score():\n    return 'first'\n")
    read = by_name._read_source

    def then_changed(path: Path, owner: int) -> bytes:
        source = read(path, owner)
        write(path, "def score():\n    return 'second'\n")
        return source

    monkeypatch.setattr(by_name, "_read_source", then_changed)
    assert by_name.load("key", f"{file}:score")() == "first"


def test_a_pipe_is_no_code_and_hangs_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.py")
    with pytest.raises(UserError, match="there is no module mine"):
        by_name.find("key", "mine:score", [tmp_path])
    write(tmp_path / "own.py", "import beside\n")
    os.mkfifo(tmp_path / "beside.py")
    with pytest.raises(UserError, match="No module named 'beside'"):
        by_name.load("key", f"{tmp_path}/own.py:score")


@needs_two_users
def test_named_code_takes_nothing_of_another_user_from_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "mine.py", "import beside\n\ndef score():\n    return 1\n")
    file = write(tmp_path / "beside.py", "")
    os.chown(file, OTHER, OTHER)
    with pytest.raises(UserError, match=rf"beside\.py belongs to user .*{OTHER}"):
        by_name.load("key", f"{tmp_path}/mine.py:score")
    os.chown(tmp_path / "mine.py", OTHER, OTHER)
    assert by_name.load("key", f"{tmp_path}/mine.py:score")() == 1, (
        "whoever names a stranger's file trusts the stranger"
    )


def test_an_error_names_the_file_and_the_line_of_the_user(tmp_path: Path) -> None:
    write(tmp_path / "mine.py", "import beside\n")
    write(tmp_path / "beside.py", "\n\nraise KeyError('x')\n")
    with pytest.raises(UserError, match=r"KeyError: 'x' \(.*beside\.py:3\)"):
        by_name.load("key", f"{tmp_path}/mine.py:score")


def test_code_can_be_pickled_where_it_is_sent(tmp_path: Path) -> None:
    """A dataclass asks sys.modules for its own module."""
    write(tmp_path / "mine.py", "from dataclasses import dataclass\n\n@dataclass\nclass Rule:\n    n: int = 1\n")
    assert by_name.load("key", f"{tmp_path}/mine.py:Rule")().n == 1
    assert [module.__name__ for module in by_name.list_modules()] == ["mine"]
