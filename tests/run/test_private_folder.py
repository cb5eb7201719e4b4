"""A private folder is ours alone, and only what is certainly an abandoned one of ours is deleted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.run.files import MARKER, new_folder, private_folder
from tests.people import OTHER, as_other, needs_two_users

HOLD = """
import sys
from pathlib import Path
from nemo_ada.run.files import private_folder
with private_folder() as folder:
    (folder / "tmp").mkdir()
    (folder / "tmp" / "kernel.so").write_text("compiled")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files, with a short path and open to all users as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    shutil.rmtree(folder)


def held() -> tuple[subprocess.Popen[str], Path]:
    """A process that holds a private folder, and the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def abandoned() -> Path:
    """The private folder of a process that was killed."""
    process, folder = held()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert folder.is_dir()
    return folder


def test_a_folder_is_ours_alone_and_gone_at_its_end(temporary):
    with private_folder() as folder:
        status = folder.lstat()
        assert (status.st_uid, status.st_mode & 0o7777, folder.parent) == (os.getuid(), 0o700, temporary)
    assert list(temporary.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(temporary):
    dead = abandoned()
    process, alive = held()
    try:
        with private_folder():
            assert not dead.exists()
            assert (alive / "tmp" / "kernel.so").read_text() == "compiled"
    finally:
        process.communicate("")
    assert list(temporary.iterdir()) == []


def users_notes(folder: Path) -> None:
    """A user's folder with a file `lock`."""
    folder.mkdir()
    (folder / "lock").write_text("the key is under the mat")


def finished_run(folder: Path) -> None:
    """What a finished run leaves."""
    (folder / "checkpoints" / "step_000002").mkdir(parents=True)
    for name in ("config.yaml", "lock", "metrics.jsonl", "checkpoints/step_000002/state.json"):
        (folder / name).write_text("x")


@pytest.mark.parametrize("name", ["ada-first", "nemo-ada-first", "nemo-ada-notes"])
@pytest.mark.parametrize("fill", [users_notes, finished_run])
def test_what_a_user_keeps_beside_our_folders_stays(temporary, fill, name):
    fill(temporary / name)
    before = sorted(path.relative_to(temporary) for path in temporary.rglob("*"))
    with private_folder():
        pass
    assert sorted(path.relative_to(temporary) for path in temporary.rglob("*")) == before


def add_a_file(folder: Path) -> None:
    (folder / "thesis.tex").write_text("x")


def open_to_others(folder: Path) -> None:
    folder.chmod(0o755)


def lose_the_marker(folder: Path) -> None:
    (folder / MARKER).unlink()


def another_marker(folder: Path) -> None:
    (folder / MARKER).write_text("not ours")


def marker_by_link(folder: Path) -> None:
    (folder / MARKER).rename(folder.parent / "elsewhere")
    (folder / MARKER).symlink_to(folder.parent / "elsewhere")


def of_another_boot(folder: Path) -> None:
    marker = json.loads((folder / MARKER).read_text())
    (folder / MARKER).write_text(json.dumps(marker | {"boot": "00000000-0000-0000-0000-000000000000"}))


@pytest.mark.parametrize(
    "change", [add_a_file, open_to_others, lose_the_marker, another_marker, marker_by_link, of_another_boot]
)
def test_an_abandoned_folder_that_is_not_certainly_ours_stays(temporary, change):
    folder = abandoned()
    change(folder)
    with private_folder():
        pass
    assert (folder / "tmp" / "kernel.so").exists()


@needs_two_users
def test_a_folder_that_another_user_made_like_ours_stays(temporary):
    folder = abandoned()
    os.chown(folder, OTHER, OTHER)
    with private_folder():
        pass
    assert (folder / "tmp" / "kernel.so").exists()


def test_a_link_with_the_name_of_our_folders_is_not_followed(temporary, tmp_path):
    folder = abandoned()
    folder.rename(tmp_path / "mine")
    folder.symlink_to(tmp_path / "mine")
    with private_folder():
        pass
    assert (tmp_path / "mine" / "tmp" / "kernel.so").exists()


@needs_two_users
def test_another_user_can_neither_read_nor_change_what_is_inside(temporary):
    with private_folder() as folder:
        (folder / "open").mkdir()
        (folder / "open").chmod(0o777)  # as Ray does with its own folder
        attempts = ('ls "$1"', 'ls "$1/open"', 'touch "$1/open/planted"', 'mv "$1/open" "$1/away"', 'mv "$1" "$1.away"')
        assert [as_other(attempt, folder).returncode == 0 for attempt in attempts] == [False] * len(attempts)
        assert list((folder / "open").iterdir()) == []


def test_a_temporary_folder_with_a_long_path_is_left_out(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with private_folder(longest=40) as folder:
        assert len(str(folder)) <= 40
    with pytest.raises(UserError, match="TMPDIR"), private_folder(longest=5):
        pass


def test_a_temporary_folder_that_does_not_exist_is_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "away"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with private_folder() as folder:
        assert folder.is_dir() and not (tmp_path / "away").exists()
    assert f"not in TMPDIR={tmp_path / 'away'}" in caplog.text
    with pytest.raises(UserError, match=r"TMPDIR=.*away cannot be used: No such file"):
        new_folder("try-")


@needs_two_users
@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o1777, OTHER), (0o755, OTHER)])
def test_a_place_where_another_user_can_take_our_name_is_left_out(temporary, mode, owner):
    temporary.chmod(mode)
    os.chown(temporary, owner, owner)
    with private_folder() as folder:
        assert folder.parent != temporary
