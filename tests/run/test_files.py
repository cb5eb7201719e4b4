"""Files are old or new, never in between; step folders are complete or absent, and damage is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from nemo_ada.errors import UserError
from nemo_ada.run.files import verify_folder, write_atomically, write_folder


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    write_atomically(path, "old")

    def full(_fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_a_folder_whose_filling_fails_does_not_appear(tmp_path):
    def fill(folder):
        (folder / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "step", fill)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_replaced_whole_and_damage_is_named(tmp_path):
    folder = tmp_path / "step"
    write_folder(folder, lambda f: (f / "old").write_text("1"))
    write_folder(folder, lambda f: (f / "new").write_text("2"))
    assert sorted(p.name for p in folder.iterdir()) == ["manifest.json", "new"]
    verify_folder(folder)
    (folder / "new").write_text("3")
    with pytest.raises(UserError, match="new"):
        verify_folder(folder)


def test_a_pipe_or_device_is_written_to_and_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        write_atomically(pipe, "text")
        assert read.result() == "text"
    assert pipe.is_fifo()


WRITER = """
import sys
from pathlib import Path
from nemo_ada.run.files import write_folder

def fill(folder):
    (folder / "name").write_text(sys.argv[2])
    print("filling", flush=True)
    sys.stdin.readline()

write_folder(Path(sys.argv[1]), fill, replace=False)
"""


def writer(folder, name):
    """Another process that is in the middle of writing this folder. A line on its standard input lets it go on."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "filling\n"
    return process


def test_two_processes_that_write_one_folder_leave_the_first_that_finished(tmp_path):
    folder = tmp_path / "cache" / "base"
    first, second = writer(folder, "first"), writer(folder, "second")
    for process in (second, first):
        process.communicate("\n")
        assert process.returncode == 0
        verify_folder(folder, needs=["name"])
        assert (folder / "name").read_text() == "second"
    assert [path.name for path in folder.parent.iterdir()] == ["base"]
