"""A command that works for hours outlives its terminal, its pipe and a full disk under its log."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.patience import PATIENCE

WORK = """
import os, sys
from pathlib import Path
from nemo_ada.cli.progress import ignore_closed_output
with ignore_closed_output():
    print("first", flush=True)
    sys.stdin.readline()
    for _ in range(1000):
        print("x" * 100)
        print("y" * 100, file=sys.stderr, flush=True)
    Path(sys.argv[1]).write_text("the work was done")
"""


def start(done, stdout, stderr, **options):
    command = [sys.executable, "-c", WORK, str(done)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, **options)


def finished(process, done):
    process.communicate(b"go\n", timeout=PATIENCE)
    return process.returncode, done.read_text() if done.exists() else None


def test_a_pipe_whose_reader_has_gone_does_not_end_the_work(tmp_path):
    reader, writer = os.pipe()
    process = start(tmp_path / "done", writer, writer)
    os.close(writer)
    assert os.read(reader, 5) == b"first"
    os.close(reader)
    assert finished(process, tmp_path / "done") == (0, "the work was done")


@pytest.mark.long
def test_a_closed_terminal_does_not_end_the_work(tmp_path):
    ours, terminal = pty.openpty()
    process = start(tmp_path / "done", terminal, terminal, start_new_session=True)
    os.close(terminal)
    assert os.read(ours, 5) == b"first"
    os.close(ours)
    assert finished(process, tmp_path / "done") == (0, "the work was done")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this machine")
def test_a_full_disk_under_the_log_does_not_end_the_work(tmp_path):
    with open("/dev/full", "wb") as full:
        process = start(tmp_path / "done", full, full)
        assert finished(process, tmp_path / "done") == (0, "the work was done")
