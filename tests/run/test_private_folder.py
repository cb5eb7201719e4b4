"""A private folder is ours alone, and gone at its end."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.run.files import make_folder, private_folder
from nemo_ada.standing import stand_in
from tests.people import OTHER, as_other, needs_two_users


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files, with a short path and open to all users as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_is_ours_alone_and_gone_at_its_end(temporary):
    with private_folder() as folder:
        status = folder.lstat()
        assert (status.st_uid, status.st_mode & 0o7777, folder.parent) == (os.getuid(), 0o700, temporary)
    assert list(temporary.iterdir()) == []


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


def test_within_a_command_the_users_temporary_folder_comes_before_others(temporary, caplog):
    with private_folder() as outer, stand_in(outer):
        with private_folder() as inner:
            assert inner.parent == outer / "t" and len(inner.name) == 8, (
                "a short name, because the place says whose it is"
            )
        with private_folder(longest=len(str(outer))) as inner:  # as for Ray's sockets
            assert inner.parent == temporary
        assert make_folder("try-").parent == temporary
    assert not caplog.text and [path.name[:4] for path in temporary.iterdir()] == ["try-"]


def test_a_temporary_folder_that_does_not_exist_is_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "away"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with private_folder() as folder:
        assert folder.is_dir() and not (tmp_path / "away").exists()
    assert f"not in TMPDIR={tmp_path / 'away'}" in caplog.text
    with pytest.raises(UserError, match=r"TMPDIR=.*away cannot be used: No such file"):
        make_folder("try-")


@needs_two_users
@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o1777, OTHER), (0o755, OTHER)])
def test_a_place_where_another_user_can_take_our_name_is_left_out(temporary, mode, owner):
    temporary.chmod(mode)
    os.chown(temporary, owner, owner)
    with private_folder() as folder:
        assert folder.parent != temporary
