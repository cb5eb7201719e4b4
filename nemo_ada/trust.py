"""What a command finds by itself is data, and it is ours. This is the one place that says so.

A command finds files that nobody named: the settings of a site, the held-out problems above a model, checkpoints of a
run that goes on, what an export copies. Another user may have put them there. So a file is opened first, and what was
opened is looked at, because a name can stand for another file a moment later. Then its content is used as it was read:

* Its owner is the user, root, or the owner of this program, whose settings stand beside it.
* Nobody else may write it, nor the folder that it is in. A group counts as the user where it has no other member, as on
  systems with a private group for each user. In a folder such as /tmp, whose sticky bit keeps strangers from replacing
  a file, the owner of the file is enough, and that of the link where its name is one. A whole folder, such as a run's,
  may not be of this kind: strangers can add files to it.

Owners alone would not help against a download, which belongs to its user. So nothing that was found is code:
`by_name.py` has the rule for that. And no library finds anything: `run/standing.py`.

`python -m nemo_ada.trust read FILE` prints a file for a shell script, which must not open it a second time. It ends
with exit code 2 and one sentence where the file may not be used. The batch scripts call it on the host. So this module
imports nothing but the standard library and errors.py, and nothing in both is newer than Python 3.6.
"""

import errno
import grp
import io
import os
import pwd
import stat
import sys

from nemo_ada.errors import UserError

MAX_BYTES = 256 << 20  # of a found file
ACL = "system.posix_acl_access"  # where it is set, the mode's group bits are what all named users may have
NAMED_SITE = "NEMO_ADA_SITE"  # the variable that names a site.env


def open_found(path: "os.PathLike[str] | str", works: str = "", *, links: bool = True) -> io.BufferedReader:
    """Open a file that was found, and look at what was opened.

    Args:
        path: the file.
        works: what a user can do instead, for the message.
        links: whether the name may be that of a link. Its owner is looked at, too: in a folder such as /tmp it can lead
            to any file of the user's.

    Raises:
        UserError: the file is not ours, or others may write it. It is no file, such as a pipe.
        OSError: the file cannot be opened.
    """
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    _refuse_strangers_links(folder, works)
    inside, follow = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), False
    try:
        named = os.stat(name, dir_fd=inside, follow_symlinks=False)
        follow = links and stat.S_ISLNK(named.st_mode)
        problem = _add_prefix("it is a link", _judge_owner(named)) if follow else ""
        if problem:
            raise make_refusal(path, problem, works)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        file = os.fdopen(os.open(name, flags, dir_fd=inside), "rb")
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            problem = "it is a pipe, a device or a folder, not a file"
        problem = (
            problem
            or _find_fault(file.fileno())
            or _add_prefix(f"its folder {folder}", _find_fault(inside, sticky=True))
        )
    except OSError as error:
        error.filename = os.fspath(path)
        if error.errno == errno.ENXIO:
            raise make_refusal(path, "it is a socket, not a file", works) from None
        if error.errno == errno.ELOOP and not follow:
            if links:
                raise make_refusal(path, "it became a link while it was opened", works) from None
            raise UserError(f"{path} is a link, and what it leads to may be any file of yours; copy the file") from None
        raise
    finally:
        os.close(inside)
    if problem:
        file.close()
        raise make_refusal(path, problem, works)
    return file


def read_found(path: "os.PathLike[str] | str", works: str = "", most: int = MAX_BYTES, *, links: bool = True) -> bytes:
    """Read a file that was found. Raises UserError as `open_found` does, and for more than `most` bytes."""
    with open_found(path, works, links=links) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise UserError(f"{path} has more than {most:,} bytes, which is no file of this kind")
    return data


def read_beside(path: "os.PathLike[str] | str", owner: int, most: int = MAX_BYTES) -> bytes:
    """Read code that named code imports, or that was named itself.

    Args:
        path: the file.
        owner: who owns what was named. Whoever names a stranger's file trusts the stranger.
        most: bytes that it may have.

    Raises:
        UserError: it is somebody else's, or everybody may write it, or it is no file.
        OSError: it cannot be opened.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as source:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is a pipe or a device, not a file")
        if status.st_uid not in _list_owners() | {owner}:
            raise UserError(
                f"{path} belongs to {_describe_user(status.st_uid)}, and the named code to {_describe_user(owner)}"
            )
        if status.st_mode & stat.S_IWOTH:
            raise UserError(f"every user may write {path} (chmod o-w would close it)")
        text = source.read(most + 1)
    if len(text) > most:
        raise UserError(f"{path} has more than {most:,} bytes")
    return text


def check_tree(top: "os.PathLike[str] | str", works: str = "", *, links: bool = True, deep: bool = True) -> None:
    """Look at a folder and everything below it. Afterwards nobody else can change any of it.

    Args:
        top: the folder.
        works: what a user can do instead, for the message.
        links: whether links may be in it. What they lead to is looked at, too.
        deep: whether folders in it are looked at. Else only itself and its files are.

    Raises:
        UserError: something in it is not ours, or others may write it, or it is no file and no folder.
        OSError: a folder cannot be opened.
    """
    _refuse_strangers_links(top, works)
    waiting, seen = [os.fspath(top)], set()
    while waiting:
        place = waiting.pop()
        try:
            inside = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
        except OSError:
            if not links and os.path.islink(place):
                raise UserError(f"{place} is a link, and what it leads to may be any file of yours; copy it") from None
            raise
        try:
            status = os.fstat(inside)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            problem = _find_fault(inside)
            if problem:
                raise make_refusal(place, problem, works)
            for name in sorted(os.listdir(inside)):
                entry = os.path.join(place, name)
                below = os.stat(name, dir_fd=inside, follow_symlinks=False)
                if stat.S_ISLNK(below.st_mode):
                    if not links:
                        raise UserError(
                            f"{entry} is a link, and what it leads to may be any file of yours; copy the file"
                        )
                    try:
                        below = os.stat(name, dir_fd=inside)
                    except OSError:
                        continue  # it leads nowhere: whoever reads it says so
                if stat.S_ISDIR(below.st_mode):
                    waiting += [entry] if deep else []
                elif not stat.S_ISREG(below.st_mode):
                    raise make_refusal(entry, "it is a pipe or a device, not a file", works)
                problem = "" if stat.S_ISDIR(below.st_mode) else _judge_status(below, entry)
                if problem:
                    raise make_refusal(entry, problem, works)
        finally:
            os.close(inside)


def check_folder(path: "os.PathLike[str] | str", works: str = "") -> None:
    """Look at a folder itself, but not at what is in it. Raises UserError and OSError as `check_tree` does."""
    _refuse_strangers_links(path, works)
    inside = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        problem = _find_fault(inside)
    finally:
        os.close(inside)
    if problem:
        raise make_refusal(path, problem, works)


def make_refusal(path: object, problem: str, works: str = "") -> UserError:
    """Return the error for something that was found and is not ours."""
    return UserError(f"{path} is not used: {problem}" + (f"; {works}" if works else ""))


def is_closed_to_others(gid: int) -> bool:
    """Return whether this group has no member but the user, root and the owner of this program."""
    ours = _list_owners()
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid in ours  # a container without names: a private group has the number of its user
    people = pwd.getpwall()
    ids = {one.pw_name: one.pw_uid for one in people}
    members = {ids.get(name, -1) for name in group.gr_mem} | {one.pw_uid for one in people if one.pw_gid == gid}
    if members - ours:
        return False
    # A directory service may list nobody. Then only a private group's name shows whose it is.
    return group.gr_name in {_name_user(uid) for uid in ours} or bool(members)


def _refuse_strangers_links(folder: "os.PathLike[str] | str", works: str) -> None:
    """Refuse a path through somebody else's link in a folder such as /tmp, where anyone can make one.

    Linux does so itself where its setting fs.protected_symlinks is 1. Raises UserError.
    """
    place = os.path.abspath(os.fspath(folder))
    while place != os.path.dirname(place):
        above = os.path.dirname(place)
        try:
            status, holder = os.lstat(place), os.stat(above)
        except OSError:  # whoever opens it says so
            return
        shared = stat.S_ISVTX | stat.S_IWOTH
        if stat.S_ISLNK(status.st_mode) and holder.st_mode & shared == shared:
            problem = _add_prefix(f"{place} is a link", _judge_owner(status))
            if problem:
                raise make_refusal(folder, problem, works)
        place = above


def _list_owners() -> "set[int]":
    """Return the ids of those whose files are used: the user, root and the owner of this program."""
    return {os.geteuid(), 0, os.stat(__file__).st_uid}


def _find_fault(descriptor: int, *, sticky: bool = False) -> str:
    """Return why what was opened is not used. Empty where it is, as with `sticky` in a folder that has this bit."""
    status = os.fstat(descriptor)
    if sticky and status.st_mode & stat.S_ISVTX:  # strangers replace nothing in it
        return _judge_owner(status)
    return _judge_status(status, descriptor)


def _judge_owner(status: os.stat_result) -> str:
    if status.st_uid in _list_owners():
        return ""
    return f"it belongs to {_describe_user(status.st_uid)}, and this process is {_describe_user(os.geteuid())}"


def _judge_status(status: os.stat_result, place: "int | str") -> str:
    problem = _judge_owner(status)
    if problem:
        return problem
    if status.st_mode & stat.S_IWOTH:
        return "every user may write it (chmod o-w would close it)"
    if status.st_mode & stat.S_IWGRP and not (is_closed_to_others(status.st_gid) and not _has_acl(place)):
        return (
            f"the group {_name_group(status.st_gid)} may write it, which has other members (chmod g-w would close it)"
        )
    return ""


def _has_acl(place: "int | str") -> bool:
    """Return whether users are named that may do what the group's bits say."""
    try:
        return bool(os.getxattr(place, ACL))
    except OSError:
        return False


def _add_prefix(what: str, problem: str) -> str:
    return f"{what}: {problem}" if problem else ""


def _name_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _describe_user(uid: int) -> str:
    name = _name_user(uid)
    return f"user {uid}" if name == str(uid) else f"user {name} ({uid})"


def _name_group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def main(words: "list[str]") -> int:
    """Print the file of `read FILE`, and return the exit code."""
    if len(words) != 2 or words[0] != "read":
        sys.stderr.write("usage: python -m nemo_ada.trust read FILE\n")
        return 2
    try:
        # A file that the user's environment names was not found, so it may be anybody's.
        named = os.environ.get(NAMED_SITE) == words[1]
        if named:
            with open(words[1], "rb") as file:
                text = file.read(MAX_BYTES)
        else:
            text = read_found(words[1], "take ownership of it, or copy it and name the copy")
    except (OSError, UserError) as error:
        why = f"{words[1]} cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        sys.stderr.write(f"error: {why}\n")
        return 2
    sys.stdout.buffer.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
