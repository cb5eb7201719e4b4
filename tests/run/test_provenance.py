"""The commit that a run's numbers are from."""

from __future__ import annotations

import subprocess

from nemo_ada.run.provenance import find_commit


def test_the_commit_is_that_of_the_own_checkout_and_says_when_files_differ(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    (tmp_path / "provenance.py").write_text("1")
    assert find_commit(tmp_path) is None
    git("init", "-q")
    assert find_commit(tmp_path) is None, "installed into someone else's repository"
    git("add", "provenance.py")
    git("commit", "-q", "-m", "x")
    head = git("rev-parse", "HEAD")
    assert find_commit(tmp_path) == head
    (tmp_path / "provenance.py").write_text("2")
    assert find_commit(tmp_path) == f"{head}-dirty"


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_commit(tmp_path) is None
