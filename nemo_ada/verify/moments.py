"""Times of day and dates, and whether two are one: 9:55 p.m. and 21:55, 12/25 and December 25."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_ada.verify.units import clock, date

_MONTHS = 12
_HALF_DAY_S = 12 * 3600


@dataclass(frozen=True, slots=True)
class Moment:
    """A time of day ("clock") or a date, as numbers."""

    kind: str
    fields: tuple[int, ...]


def read_moment(text: str) -> Moment | None:
    """Return the time that a tidy text is. None for another text."""
    if len(text) > 60 or not (text[:1].isalnum() or text.startswith("\\text")):
        return None
    if (day := date(text)) is not None:
        return Moment("date", day)
    return None if (when := clock(text)) is None else Moment("clock", when)


def same_moment(wanted: Moment, given: Moment) -> bool:
    """Return whether two times are one. A time without its half of the day, and a date without its year, fit any."""
    if wanted.kind != given.kind:
        return False
    if wanted.kind == "clock":
        (ours, ours_sure), (theirs, theirs_sure) = wanted.fields, given.fields
        return ours == theirs if ours_sure == theirs_sure else ours % _HALF_DAY_S == theirs % _HALF_DAY_S
    written, ours_year, *ours_day = wanted.fields
    other, theirs_year, *theirs_day = given.fields
    if written != other and max(day := ours_day if written else theirs_day) > _MONTHS:  # 12/25 is December 25
        ours_day, theirs_day, written = (
            ([*sorted(day)], theirs_day, other) if written else (ours_day, [*sorted(day)], other)
        )
    fits = ours_year == theirs_year or (written == 0 and 0 in (ours_year, theirs_year))
    return written == other and ours_day == theirs_day and fits
