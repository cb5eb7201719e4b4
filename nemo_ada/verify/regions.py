"""Pieces of the real line: intervals, their unions, what two of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor

from nemo_ada.verify.latex import compact


@dataclass(frozen=True, slots=True)
class End:
    """One end of a piece.

    Attributes:
        text: as written; `-` or `+` where the piece has no end on that side.
        value: its value. None where it is not known, and where there is no end.
        closed: whether the piece holds it.
    """

    text: str
    value: Fraction | None
    closed: bool

    @property
    def infinite(self) -> bool:
        """Whether the piece has no end here."""
        return self.text in ("-", "+")

    @property
    def _place(self) -> tuple[int, Fraction]:
        side = {"-": -1, "+": 1}.get(self.text, 0)
        return side, (self.value or Fraction(0)) if side == 0 else Fraction(0)

    @property
    def as_low(self) -> tuple[int, Fraction, bool]:
        """Sorts the left ends of pieces: a closed one begins before an open one."""
        return (*self._place, not self.closed)

    @property
    def as_high(self) -> tuple[int, Fraction, bool]:
        """Sorts the right ends of pieces: a closed one ends behind an open one."""
        return (*self._place, self.closed)


MAX_INTEGERS = 1000  # of a region that are listed
Piece = tuple[End, End]
LEFT, RIGHT = End("-", None, False), End("+", None, False)
LINE: Piece = (LEFT, RIGHT)


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the real line.

    Attributes:
        pieces: its pieces.
        without: pieces that are taken out of them.
        name: the variable that lies in it, where one is named.
    """

    pieces: tuple[Piece, ...]
    without: tuple[Piece, ...] = ()
    name: str = ""

    def simple(self, value: Callable[[str], Fraction | None]) -> Region:
        """Return the region in order, joined where pieces touch.

        As it is where an end has no value, such as a letter.
        """
        known = [self._known(pieces, value) for pieces in (self.pieces, self.without)]
        if known[0] is None or known[1] is None:
            return self
        pieces = union(known[0])
        for low, high in known[1]:
            left, right = replace(low, closed=not low.closed), replace(high, closed=not high.closed)
            pieces = shared(pieces, ((LEFT, left), (right, RIGHT)))
        return Region(pieces, (), self.name)

    def integers(self, least: int) -> set[int] | None:
        """Return its integers from `least` on. None where they are more than 1,000, or where an end is unknown."""
        found: set[int] = set()
        for low, high in self.pieces:
            if high.value is None or (low.value is None and not low.infinite):
                return None
            first = (
                least
                if low.value is None
                else max(least, ceil(low.value) + (low.value == int(low.value) and not low.closed))
            )
            last = floor(high.value) - (high.value == int(high.value) and not high.closed)
            if last - first > MAX_INTEGERS:
                return None
            found.update(range(first, last + 1))
        return found

    @staticmethod
    def _known(pieces: Iterable[Piece], value: Callable[[str], Fraction | None]) -> list[Piece] | None:
        known = []
        for low, high in pieces:
            ends = [
                end if end.infinite or end.value is not None else replace(end, value=value(end.text))
                for end in (low, high)
            ]
            if any(end.value is None and not end.infinite for end in ends):
                return None
            known.append((ends[0], ends[1]))
        return known

    def same(self, other: Region, equal: Callable[[str, str], bool]) -> bool:
        """Return whether two simple regions are one. `equal` compares the texts of ends, this region's first."""
        named = self.name and other.name and compact(self.name) != compact(other.name)
        if named or len(self.pieces) != len(other.pieces) or len(self.without) != len(other.without):
            return False
        both = zip((*self.pieces, *self.without), (*other.pieces, *other.without), strict=True)
        return all(_same_end(a, b, equal) for ours, theirs in both for a, b in zip(ours, theirs, strict=True))


def _same_end(ours: End, theirs: End, equal: Callable[[str, str], bool]) -> bool:
    if ours.closed != theirs.closed or ours.infinite != theirs.infinite:
        return False
    return ours.text == theirs.text or (not ours.infinite and equal(ours.text, theirs.text))


def union(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Pieces from left to right, joined where they overlap or touch. Their ends have values."""
    joined: list[Piece] = []
    for low, high in sorted(pieces, key=lambda piece: (piece[0].as_low, piece[1].as_high)):
        if joined and _touch(joined[-1][1], low):
            joined[-1] = (joined[-1][0], max(joined[-1][1], high, key=lambda end: end.as_high))
        else:
            joined.append((low, high))
    return tuple(joined)


def shared(first: Sequence[Piece], second: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return what lies in both. The ends have values."""
    met = []
    for a in first:
        for b in second:
            low, high = max(a[0], b[0], key=lambda end: end.as_low), min(a[1], b[1], key=lambda end: end.as_high)
            if _before(low, high):
                met.append((low, high))
    return tuple(met)


def _touch(high: End, low: End) -> bool:
    """Return whether nothing lies between the end of one piece and the beginning of the next."""
    if high.value is None or low.value is None:
        return True
    return low.value < high.value or (low.value == high.value and (low.closed or high.closed))


def _before(low: End, high: End) -> bool:
    """Return whether something lies between two ends."""
    if low.value is None or high.value is None:
        return low.text != "+" and high.text != "-"
    return low.value < high.value or (low.value == high.value and low.closed and high.closed)
