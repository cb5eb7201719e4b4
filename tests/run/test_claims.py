"""Shared folders: nothing of another command or user is overwritten, and no name that somebody planted is followed."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from nemo_ada.errors import UserError
from nemo_ada.lab.whatif.answer import read_log
from nemo_ada.run import json_lines
from nemo_ada.run.files import (
    append,
    claim_folder,
    create_file,
    lock_file,
    private_folder,
    remove,
    remove_leftovers,
    text_of,
    write_atomically,
    write_folder,
    write_result,
)
from nemo_ada.run.json_lines import read_records
from nemo_ada.run.yaml_file import read_yaml
from tests.people import OTHER, as_other, needs_two_users


@pytest.fixture
def secret(tmp_path):
    """A file of the user's, to which somebody makes links."""
    path = tmp_path / "mine"
    path.write_text("mine")
    path.chmod(0o600)
    return path


@pytest.fixture
def shared():
    """A folder that another user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


WRITERS = {
    "append": lambda path: append(path, "line\n"),
    "new_file": lambda path: create_file(path).close(),
    "lock_file": lambda path: lock_file(path, "it"),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_planted_link_is_an_error_and_its_target_stays(secret, tmp_path, write):
    (tmp_path / "planted").symlink_to(secret)
    with pytest.raises((OSError, UserError)):
        write(tmp_path / "planted")
    assert secret.read_text() == "mine"


def test_a_file_that_replaces_a_link_leaves_the_links_target_alone(secret, tmp_path):
    (tmp_path / "report.json").symlink_to(secret)
    write_atomically(tmp_path / "report.json", "{}")
    assert secret.read_text() == "mine" and (tmp_path / "report.json").read_text() == "{}"


@needs_two_users
@pytest.mark.parametrize("sticky", [True, False])
def test_links_with_the_old_temporary_names_do_not_harm_a_shared_folder(secret, shared, sticky):
    shared.chmod(0o1777 if sticky else 0o777)
    names = f".status.json.{os.getpid()}.tmp", f".metrics.jsonl.{os.getpid()}.tmp"
    for name in names:
        assert as_other('ln -s "$1" "$2"', secret, shared / name).returncode == 0
    write_atomically(shared / "status.json", "ours")
    assert (shared / "status.json").read_text() == "ours" and secret.read_text() == "mine"


def test_deleting_a_link_leaves_its_target(secret, tmp_path):
    (tmp_path / "folder").mkdir()
    for name in ("a", "folder/b"):
        (tmp_path / name).symlink_to(secret)
    (tmp_path / "to_folder").symlink_to(tmp_path / "folder")
    remove(tmp_path / "to_folder")
    assert (tmp_path / "folder").is_dir()
    remove(tmp_path / "a")
    remove(tmp_path / "folder")
    assert secret.read_text() == "mine" and not (tmp_path / "folder").exists()


def test_only_our_own_leftovers_are_removed(tmp_path):
    kept = [".notes.tmp", ".cache.old", ".x.partial", "a.tmp"]
    for name in [*kept, f".status.json.{'0f' * 16}.tmp"]:
        (tmp_path / name).write_text("x")
    (tmp_path / f".step_1.node.{'0f' * 16}.partial").mkdir()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_replaced_file_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", "1")
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
        (tmp_path / "a").chmod(0o600)
        write_atomically(tmp_path / "a", "2")
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_the_files_of_a_folder_can_be_read_by_whom_the_umask_allows(tmp_path):
    def fill(folder):
        (folder / "model.safetensors").write_text("x")
        (folder / "model.safetensors").chmod(0o600)  # as safetensors does

    before = os.umask(0o022)
    try:
        write_folder(tmp_path / "step", fill)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "step").iterdir()}
    assert modes == {0o644}


def test_a_claimed_folder_is_new_empty_or_of_the_same_command(tmp_path):
    claim_folder(tmp_path / "new", "rehearse", "--keep").close()
    (tmp_path / "new" / "report.md").write_text("old")
    claim_folder(tmp_path / "new", "rehearse", "--keep").close()
    with pytest.raises(UserError, match=r"report\.md"):
        claim_folder(tmp_path / "new", "rehearse --gpu", "--keep")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "data").mkdir()
    with pytest.raises(UserError, match="data"):
        claim_folder(tmp_path / "thesis", "rehearse", "--keep")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["data"]


def test_a_start_that_was_killed_while_it_claimed_is_no_stranger(tmp_path):
    (tmp_path / ".nemo-ada").touch()
    claim_folder(tmp_path, "rehearse --gpu", "--keep").close()
    (tmp_path / "report.md").write_text("x")
    claim_folder(tmp_path, "rehearse --gpu", "--keep").close()


def test_a_planted_pipe_does_not_stop_a_run(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match="metrics"):
        append(tmp_path / "metrics.jsonl", "line\n")


def test_two_processes_do_not_share_a_claimed_folder(tmp_path):
    with claim_folder(tmp_path / "a", "rehearse --gpu", "--keep"), pytest.raises(UserError, match="in use"):
        claim_folder(tmp_path / "a", "rehearse --gpu", "--keep")


@needs_two_users
def test_a_marker_that_another_user_planted_is_not_ours(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".nemo-ada").write_text("rehearse --gpu, process 1 on x\n")
    (tmp_path / "a" / "data").write_text("of somebody")
    os.chown(tmp_path / "a" / ".nemo-ada", OTHER, OTHER)
    with pytest.raises(UserError, match="data"):
        claim_folder(tmp_path / "a", "rehearse --gpu", "--keep")


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize("written", [False, True])
def test_a_few_lines_of_yaml_cannot_stand_for_billions_of_values(tmp_path, written):
    (tmp_path / "config.yaml").write_text(BOMB)
    assert len(BOMB) < 1000
    with pytest.raises(UserError, match=r"config\.yaml"):
        read_yaml(tmp_path / "config.yaml", written=written)


def test_what_a_program_wrote_keeps_its_texts(tmp_path):
    (tmp_path / "a.yaml").write_text("name: 1e-6\n")
    assert read_yaml(tmp_path / "a.yaml", written=True) == {"name": "1e-6"}
    assert read_yaml(tmp_path / "a.yaml") == {"name": 1e-6}


def test_a_line_without_an_end_is_left_out_and_the_next_one_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "MAX_LINE", 100)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"b": "' + "x" * 1000 + '"}\n{"c": 3}\n')
    damaged: dict[int, str] = {}
    assert list(read_records(tmp_path / "a.jsonl", on_damage=damaged.__setitem__)) == [(1, {"a": 1}), (3, {"c": 3})]
    assert list(damaged) == [2]


def test_a_compressed_line_without_an_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "MAX_LINE", 1000)
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(b"x" * 10_000_000)
    with pytest.raises(UserError, match="line 1"):
        read_log([tmp_path / "a.jsonl.gz"])


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="bytes"):
        text_of(tmp_path / "large", 1000)


def test_two_private_folders_of_a_process_do_not_disturb_each_other():
    with private_folder() as first:
        (first / "tmp").mkdir()
        with private_folder() as second:
            assert first != second and (first / "tmp").is_dir()
        assert (first / "tmp").is_dir()


def test_a_file_that_a_user_named_replaces_only_what_a_command_of_ours_wrote(tmp_path):
    for number in range(2):
        text = json.dumps({"made_by": "nemo-ada contract", "number": number})
        write_result(tmp_path / "new" / "page.json", text, "--out")
        assert (tmp_path / "new" / "page.json").read_text() == text


PAGE = '<!doctype html>\n<html lang="en"><head><meta name="generator" content="nemo-ada report">'


@pytest.mark.parametrize(
    "text",
    ["years", "# Notes\nI tried nemo-ada report and made_by: nemo-ada", f"my notes about\n{PAGE}", f"<!-- x -->{PAGE}",
     '{"notes": 1, "made_by": "nemo-ada"}', "<svg><text>nemo-ada</text></svg>", "/Creator (nemo-ada)",
     "<!doctype html>\n<html><head><title>nemo-ada</title>"],
)  # fmt: skip
def test_a_word_of_ours_somewhere_in_a_users_file_makes_it_not_ours(tmp_path, text):
    (tmp_path / "notes.md").write_text(text)
    with pytest.raises(UserError, match=r"--out=.*notes\.md"):
        write_result(tmp_path / "notes.md", PAGE, "--out")
    assert (tmp_path / "notes.md").read_text() == text


@pytest.mark.parametrize(("kind", "maker"), [("png", "Software")])
def test_a_figure_of_ours_is_replaced_and_one_of_the_user_is_not(tmp_path, kind, maker):
    path = tmp_path / f"figure.{kind}"
    for metadata in ({maker: "nemo-ada"}, {}):
        drawn = io.BytesIO()
        Figure().savefig(drawn, format=kind, metadata=metadata)
        path.write_bytes(drawn.getvalue())
        if metadata:
            write_result(path, drawn.getvalue(), "--png")
            continue
        with pytest.raises(UserError, match="--png"):
            write_result(path, drawn.getvalue(), "--png")
