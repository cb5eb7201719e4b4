"""recipes/upstream/release_tree.py merges what merges cleanly, says what does not, and leaves its source as it is."""

from __future__ import annotations

import subprocess

import pytest
import release_tree
from release_tree import PullRequest, TreeError, make

LOOP, EXAMPLE = "nemo_rl/loop.py", "examples/run.py"


def git(folder, *words):
    settings = ("-c", "user.name=somebody", "-c", "user.email=somebody")
    return subprocess.run(["git", "-C", folder, *settings, *words], check=True, capture_output=True, text=True).stdout


def change(source, branch, base, **files):
    """A commit on a branch that begins at `base`. Keys are paths with two underscores for a slash."""
    git(source, "checkout", "--quiet", "-B", branch, base)
    for name, text in files.items():
        path = source / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(source, "add", "--all")
    git(source, "commit", "--quiet", "--message", branch)
    return git(source, "rev-parse", "HEAD").strip()


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A repository with four pull requests on its main."""
    folder = tmp_path / "source"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "nemo_rl").mkdir()
    (folder / "examples").mkdir()
    (folder / LOOP).write_text("a\nb\nc\n")
    (folder / EXAMPLE).write_text("import a\n\nmain()\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "main")
    base = git(folder, "rev-parse", "HEAD").strip()
    first = change(
        folder, "first", base, nemo_rl__loop_py="A\nb\nc\n", examples__run_py="import a\nimport b\n\nmain()\n"
    )
    second = change(folder, "second", base, examples__run_py="import a\nimport c\n\nmain()\n", nemo_rl__new_py="new\n")
    third = change(folder, "third", base, nemo_rl__loop_py="X\nb\nc\n")
    git(folder, "checkout", "--quiet", "main")
    monkeypatch.setattr(release_tree, "BASE", base)
    requests = tuple(PullRequest(n, head, head, "what") for n, head in enumerate((first, second, third), start=1))
    monkeypatch.setattr(release_tree, "PULL_REQUESTS", (*requests, PullRequest(4, "f" * 40, "f" * 40, "not there")))
    return folder


def test_what_merges_is_in_the_tree_and_the_rest_is_named(source, tmp_path):
    before = git(source, "for-each-ref"), git(source, "status", "--porcelain")
    commit, outcomes, missing = make(str(source), tmp_path / "out")
    assert [(one.request.number, one.state) for one in outcomes] == [
        (1, "merged"), (2, "merged"), (3, "left out"), (4, "left out"),
    ]  # fmt: skip
    assert outcomes[1].why == f"both sides' lines in {EXAMPLE}" and LOOP in outcomes[2].why and missing == []
    assert (tmp_path / "out" / LOOP).read_text() == "A\nb\nc\n"
    assert (tmp_path / "out" / EXAMPLE).read_text() == "import a\nimport b\nimport c\n\nmain()\n"
    assert (tmp_path / "out" / "nemo_rl" / "new.py").exists()
    assert git(tmp_path / "out", "status", "--porcelain") == ""
    assert (git(source, "for-each-ref"), git(source, "status", "--porcelain")) == before
    assert make(str(source), tmp_path / "again")[0] == commit, "the same source makes the same commit"


def test_one_pull_request_alone_is_the_tree_in_which_it_was_tried(source, tmp_path):
    make(str(source), tmp_path / "out", alone=3)
    assert (tmp_path / "out" / LOOP).read_text() == "X\nb\nc\n"


def test_a_folder_that_holds_something_a_source_without_main_and_a_number_that_is_unknown_are_one_clear_line(
    source, tmp_path, monkeypatch
):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    with pytest.raises(TreeError, match="is not empty"):
        make(str(source), tmp_path / "full")
    assert (tmp_path / "full" / "mine").read_text() == "mine"
    with pytest.raises(TreeError, match="choices are 1, 2"):
        make(str(source), tmp_path / "none", alone=9)
    monkeypatch.setattr(release_tree, "BASE", "e" * 40)
    with pytest.raises(TreeError, match="git fetch"):
        make(str(source), tmp_path / "lacking")


def test_files_that_a_copy_lacks_are_named_and_the_others_are_there(source, tmp_path):
    blob = git(source, "rev-parse", f"main:{EXAMPLE}").strip()
    (source / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    _, _, missing = make(str(source), tmp_path / "out", alone=3)
    assert missing == [EXAMPLE] and (tmp_path / "out" / LOOP).exists()
