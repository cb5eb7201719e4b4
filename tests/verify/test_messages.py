"""What the verifier's server reads from a worker: lines of JSON up to a length, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from nemo_ada.verify.messages import Channel, SpoiledError

LONGEST = 5000


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours, LONGEST), theirs


def test_messages_arrive_whole_in_whatever_pieces_they_were_sent(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    got = []
    for part in (b"[1", b', "\\ud800"]\n[2]', b"\n", b"null\n[3"):
        other.sendall(part)
        got += channel.receive()
    assert got == [[1, "\ud800"], [2], None]
    other.close()
    with pytest.raises(EOFError):
        channel.receive()


@pytest.mark.parametrize(
    "text",
    [b"x" * 500, b"[" * LONGEST, b"9" * LONGEST, b"\x80\x04K*.", b"\xff", b'{"a":', b""],
    ids=["letters", "nested", "digits", "pickle", "no UTF-8", "half", "empty"],
)
def test_a_line_that_is_no_message_is_spoiled(ends: tuple[Channel, socket.socket], text: bytes) -> None:
    channel, other = ends
    other.sendall(text + b"\n")
    with pytest.raises(SpoiledError):
        channel.receive()


@pytest.mark.parametrize("end", [b"", b"\n", b"\n[1]\n"])
def test_a_line_that_is_too_long_is_spoiled_before_it_ends(ends: tuple[Channel, socket.socket], end: bytes) -> None:
    channel, other = ends
    other.sendall(b"[" + b" " * (LONGEST - 1))
    assert channel.receive() == []
    other.sendall(b"]" + end)
    with pytest.raises(SpoiledError, match="longer than 5000"):
        channel.receive()


def test_sending_never_waits_and_keeps_what_the_other_side_does_not_take(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    text = "x" * (4 << 20)
    channel.send(text)
    assert channel.unsent
    taken = b""
    while channel.unsent or not taken.endswith(b"\n"):
        taken += other.recv(1 << 20)
        channel.flush()
    assert taken == f'"{text}"\n'.encode()
