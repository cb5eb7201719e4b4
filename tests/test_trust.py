"""What is found is data, and ours: who owns what was opened, and who may change it (nemo_ada/trust.py)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from nemo_ada import trust
from nemo_ada.cli.main import USERS_PATHS
from nemo_ada.errors import UserError
from nemo_ada.run.files import open_to_read
from tests.people import OTHER, needs_two_users


def found(folder: Path, text: str = "ours") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "heldout.yaml").write_text(text)
    return folder / "heldout.yaml"


def read(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "nemo_ada.trust", "read", str(path)]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def test_a_file_of_the_user_is_read_and_printed_as_it_is(tmp_path: Path) -> None:
    path = found(tmp_path / "mine", "a=1\n")
    assert trust.read_found(path) == b"a=1\n"
    done = read(path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a=1\n", "")


@needs_two_users
@pytest.mark.parametrize("what", ["file", "folder", "both"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, what: str) -> None:
    path = found(tmp_path / "theirs")
    for place in (path, path.parent) if what == "both" else (path if what == "file" else path.parent,):
        os.chown(place, OTHER, OTHER)
    done = read(path)
    assert done.returncode == 2 and f"({OTHER})" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not done.stdout


@pytest.mark.parametrize(("file", "folder"), [(0o646, 0o755), (0o644, 0o757), (0o666, 0o777)])
def test_what_others_may_write_is_refused(tmp_path: Path, file: int, folder: int) -> None:
    path = found(tmp_path / "open")
    path.chmod(file)
    path.parent.chmod(folder)
    with pytest.raises(UserError, match=r"every user may write it \(chmod o-w"):
        trust.read_found(path)


def test_in_a_folder_with_a_sticky_bit_the_owner_of_the_file_is_enough(tmp_path: Path) -> None:
    path = found(tmp_path / "sticky")
    path.parent.chmod(0o1777)
    assert trust.read_found(path) == b"ours"


@needs_two_users
def test_a_private_group_may_write_and_one_with_members_may_not(tmp_path: Path, monkeypatch) -> None:
    """As with umask 002. Group 0 is root's own; `daemon` gets a member."""
    path = found(tmp_path / "group")
    for place in (path, path.parent):
        place.chmod(place.stat().st_mode | 0o020)
    assert trust.read_found(path) == b"ours"
    os.chown(path, 0, 1)
    with pytest.raises(UserError, match="the group daemon may write it, which has other members"):
        trust.read_found(path)


@needs_two_users
def test_users_that_an_acl_names_are_others(tmp_path: Path, monkeypatch) -> None:
    path = found(tmp_path / "acl")
    path.chmod(0o664)
    monkeypatch.setattr(os, "getxattr", lambda _place, name: b"named users" if name == trust.ACL else b"")
    with pytest.raises(UserError, match="may write it"):
        trust.read_found(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_is_no_file_and_hangs_nothing(tmp_path: Path, make) -> None:
    make(tmp_path / "heldout.yaml")
    said = read(tmp_path / "heldout.yaml").stderr
    assert "not a file" in said or "Is a directory" in said


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    done = read(tmp_path / "none")
    assert done.returncode == 2 and done.stderr == f"error: {tmp_path}/none cannot be read: No such file or directory\n"


def test_a_link_is_followed_only_where_that_is_allowed(tmp_path: Path) -> None:
    target = found(tmp_path / "mine")
    link = tmp_path / "link"
    link.symlink_to(target)
    assert trust.read_found(link) == b"ours"
    with pytest.raises(UserError, match="is a link"):
        trust.read_found(link, links=False)


@needs_two_users
def test_what_a_link_leads_to_is_looked_at(tmp_path: Path) -> None:
    target = found(tmp_path / "theirs")
    os.chown(target, OTHER, OTHER)
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(UserError, match=f"({OTHER})"):
        trust.read_found(tmp_path / "link")


@needs_two_users
def test_a_link_of_another_user_in_a_sticky_folder_leads_to_nothing(tmp_path: Path) -> None:
    """Its target is the user's own file, so only the link shows who has chosen it."""
    target = found(tmp_path / "mine")
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    link = tmp_path / "sticky" / "heldout.yaml"
    link.symlink_to(target)
    assert trust.read_found(link) == b"ours"
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(UserError, match=rf"it is a link: it belongs to .*\({OTHER}\)"):
        trust.read_found(link)


@needs_two_users
def test_a_folder_that_another_users_link_in_a_sticky_folder_names_is_refused(tmp_path: Path) -> None:
    """All of it is the user's own, so only the link shows who has chosen it."""
    target = found(tmp_path / "mine")
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    link = tmp_path / "sticky" / "run"
    link.symlink_to(target.parent)
    trust.read_found(link / target.name)
    trust.check_tree(link)
    trust.check_folder(link)
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    for look in (
        lambda: trust.read_found(link / target.name),
        lambda: trust.check_tree(link),
        lambda: trust.check_folder(link),
    ):
        with pytest.raises(UserError, match=rf"sticky/run is a link: it belongs to .*\({OTHER}\)"):
            look()
    (tmp_path / "sticky").chmod(0o755)  # nobody else could have made it there
    trust.check_tree(link)


SWAP = """
import os, sys
name, target = sys.argv[1:]
os.umask(0o022)
while True:
    os.symlink(target, name + ".a")
    os.rename(name + ".a", name)
    os.close(os.open(name + ".b", os.O_CREAT | os.O_WRONLY))
    os.rename(name + ".b", name)
"""


@needs_two_users
def test_a_name_that_another_user_swaps_while_it_is_read_never_gives_the_users_own_file(tmp_path: Path) -> None:
    """Now a link to what only the user may read, and now a file of the other's: each look alone sees a good one."""
    target = found(tmp_path / "mine")
    target.chmod(0o600)
    with tempfile.TemporaryDirectory(dir="/tmp") as sticky:
        os.chmod(sticky, 0o1777)
        name = Path(sticky) / "heldout.yaml"
        command = [shutil.which("python3", path="/usr/bin:/usr/local/bin") or "python3", "-c", SWAP, name, target]
        swaps = subprocess.Popen(command, user=OTHER, group=OTHER, extra_groups=[], cwd="/")
        try:
            said = set()
            for _ in range(20_000):
                try:
                    said.add(str(trust.read_found(name)))
                except UserError as refusal:
                    said.add(str(refusal).partition(":")[2].partition(" (")[0])
                except FileNotFoundError:
                    time.sleep(0.001)  # it has not begun
            assert swaps.poll() is None
        finally:
            swaps.kill()
            swaps.wait()
    assert "b'ours'" not in said and len(said) >= 2, said


def test_a_whole_folder_with_a_sticky_bit_is_refused_because_strangers_can_add_to_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o1777)
    for look in (trust.check_tree, trust.check_folder):
        with pytest.raises(UserError, match="every user may write it"):
            look(tmp_path / "run")


def test_a_socket_is_no_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("model.safetensors")
    with pytest.raises(UserError, match="it is a socket"):
        trust.read_found(tmp_path / "model.safetensors")
    with pytest.raises(OSError, match=r"model\.safetensors") as caught:
        open_to_read(tmp_path / "model.safetensors")
    assert caught.value.errno in USERS_PATHS


@needs_two_users
def test_a_file_that_the_environment_names_may_be_anybodys(tmp_path: Path) -> None:
    path = found(tmp_path / "admin", "RUN_ROOT=/runs\n")
    os.chown(path, OTHER, OTHER)
    assert read(path, NEMO_ADA_SITE=str(path)).stdout == "RUN_ROOT=/runs\n"
    assert read(path).returncode == 2


@needs_two_users
@pytest.mark.parametrize("place", ["run", "run/checkpoints", "run/checkpoints/step_2/weights"])
def test_a_whole_folder_is_looked_at(tmp_path: Path, place: str) -> None:
    saved = tmp_path / "run" / "checkpoints" / "step_2"
    saved.mkdir(parents=True)
    (saved / "weights").write_text("w")
    trust.check_tree(tmp_path / "run")
    os.chown(tmp_path / place, OTHER, OTHER)
    with pytest.raises(UserError, match=f"{tmp_path / place} is not used: it belongs to"):
        trust.check_tree(tmp_path / "run")


def test_links_and_loops_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "again").symlink_to(tmp_path / "run")
    trust.check_tree(tmp_path / "run")
    with pytest.raises(UserError, match="again is a link"):
        trust.check_tree(tmp_path / "run", links=False)
    (tmp_path / "run" / "again").unlink()
    os.mkfifo(tmp_path / "run" / "pipe")
    with pytest.raises(UserError, match="pipe"):
        trust.check_tree(tmp_path / "run")
