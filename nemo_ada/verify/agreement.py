r"""Whether an answer says the same as a reference: two readings of one type, part by part.

Only the amounts inside that are no plain numbers go to an `Algebra`, such as math-verify. So nothing is lost on the
way: an order, a multiplicity, an end of an interval, a unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

from nemo_ada.verify.latex import compact, plain
from nemo_ada.verify.numbers import TOLERANCE, Number, based, close, number
from nemo_ada.verify.reading import (
    CALL,
    VARIABLE,
    Amount,
    Choice,
    Equation,
    Items,
    Moment,
    Order,
    Ratio,
    Reading,
    Text,
    both_signs,
    end,
    excluded,
    measured,
    member,
    names,
    order,
    readings,
)
from nemo_ada.verify.regions import LEFT, LINE, RIGHT, End, Region, shared, union

_ROUNDED = Fraction(1, 100)  # 1/3 = 0.333 is no contradiction
_HALF_DAY_S = 12 * 3600


class Algebra(Protocol):
    """What is asked about the expressions inside an answer."""

    def equal(self, reference: str, answer: str) -> bool:
        """Return whether two expressions, equations or inequalities say the same."""
        ...

    def value(self, text: str) -> Fraction | None:
        """Return the value of a real expression without variables. None for anything else."""
        ...


class Agreement:
    """Compares answers with references. It asks `algebra` about expressions."""

    def __init__(self, algebra: Algebra) -> None:
        self._algebra = algebra

    def says(self, reference: str, answer: str, depth: int = 0) -> bool:
        """Return whether a tidy answer says the same as a tidy reference. `depth` counts the brackets around both."""
        if compact(reference) == compact(answer):
            return True
        return self._any(readings(reference, depth), readings(answer, depth), depth)

    def _any(self, wanted: Iterable[Reading], given: Iterable[Reading], depth: int) -> bool:
        given = tuple(given)
        return any(self._same(one, other, depth) for one in wanted for other in given)

    def _all(self, wanted: Iterable[str], given: Iterable[str], depth: int) -> bool:
        return all(self.says(one, other, depth + 1) for one, other in zip(wanted, given, strict=True))

    def _same(self, wanted: Reading, given: Reading, depth: int) -> bool:
        """Return whether two readings say the same. Readings of types that do not fit each other do not."""
        deeper = depth + 1
        match wanted, given:
            case Amount(), Amount():
                return self._same_amount(wanted, given)
            case Text(), Text():
                return wanted.words == given.words
            case (Text(words), Amount(text)) | (Amount(text), Text(words)):
                return words == plain(text)
            case (Text(words), Items(items=items)) | (Items(items=items), Text(words)):  # the choices ABD
                letters = [plain(item) for item in items]
                return "".join(letters) == words and letters == sorted(set(letters))
            case Choice(), Choice():
                both = wanted.meaning and given.meaning
                return wanted.letter == given.letter and (not both or self.says(wanted.meaning, given.meaning, deeper))
            case (Choice(letter, ""), Amount(text)) | (Amount(text), Choice(letter, "")):
                return text.upper() == letter
            case Choice(), _:
                return self._any(readings(wanted.meaning, deeper), [given], deeper) if wanted.meaning else False
            case _, Choice():
                return self._any([wanted], readings(given.meaning, deeper), deeper) if given.meaning else False
            case Equation(), Equation():
                return self._same_equation(wanted, given, deeper)
            case Equation(), Order():
                return False
            case Equation(), _:
                return bool(wanted.name) and self._any(_sides(wanted, deeper), [given], deeper)
            case Order(), Equation():
                return False
            case _, Equation():
                right = self._any([wanted], _sides(given, deeper), deeper)
                return right and (bool(given.name) or self._numeric(given)) and self._consistent(given)
            case Items(), Items() if self._same_items(wanted, given, depth):
                return True
            case Items(items=(item,)), _:
                return self._any(readings(item, deeper), [given], deeper)
            case _, Items(items=(item,)):
                return self._any([wanted], readings(item, deeper), deeper)
            case Order(), Order() if wanted.signs == given.signs and self._same_sides(wanted, given, depth):
                return True
            case Ratio(), Ratio():
                return self._same_ratio(wanted, given, depth)
            case Ratio(parts=(above, below)), Amount(text):
                return self.says(f"\\frac{{{above}}}{{{below}}}", text, deeper)
            case Amount(text), Ratio(parts=(above, below)):
                return self.says(text, f"\\frac{{{above}}}{{{below}}}", deeper)
            case Moment(), Moment():
                return _same_moment(wanted, given)
        regions = self._region(wanted), self._region(given)
        if regions[0] is not None and regions[1] is not None:
            return regions[0].same(regions[1], lambda one, other: self.says(one, other, deeper))
        return isinstance(wanted, Order) and isinstance(given, Order) and self._algebra.equal(wanted.text, given.text)

    # Amounts

    def _same_amount(self, wanted: Amount, given: Amount) -> bool:
        ours, theirs = wanted.unit, given.unit
        if ours is not None and theirs is not None:
            scale = theirs.factor / ours.factor if ours.dimension == theirs.dimension else Fraction(1)
            return ours.fits(theirs) and self._same_value(wanted, _scaled(given, scale))
        if self._same_value(wanted, given):
            return True
        lone = ours or theirs
        if lone is None:
            return False
        if lone.percent:
            return self._same_value(_hundredth(wanted), _hundredth(given))
        if lone.angle and "pi" in wanted.text + given.text:
            return self._same_value(_radians(wanted), _radians(given))
        return False

    def _same_value(self, wanted: Amount, given: Amount) -> bool:
        if wanted.number is not None and given.number is not None:
            return wanted.number.equals(given.number)
        bases = based(wanted.text), based(given.text)
        return bases[0] == bases[1] if None not in bases else self._algebra.equal(wanted.text, given.text)

    def _value(self, text: str) -> Fraction | None:
        read = number(text)
        if read is None and (amount := measured(text)) is not None:
            read = amount.number
        if read is not None:
            return read.value
        return None if "," in text else self._algebra.value(text)

    # Equations

    def _same_equation(self, wanted: Equation, given: Equation, depth: int) -> bool:
        if wanted.name and given.name and not _different(wanted.name, given.name):
            last = given.sides[-1]
            if any(self.says(side, last, depth) for side in wanted.sides) and self._consistent(given):
                return True
            if compact(wanted.name) == compact(given.name):
                return False
        if not wanted.name and not given.name and self._numeric(wanted):
            return self.says(wanted.sides[-1], given.sides[-1], depth) and self._consistent(given)
        if wanted.name and given.name and not (_lettered(wanted) and _lettered(given)):  # x = 1 is not y = 1
            return False
        return self._algebra.equal(wanted.text, given.text)

    def _numeric(self, equation: Equation) -> bool:
        """Return whether the sides of a computation are all numbers."""
        return all(self._value(side) is not None for side in equation.sides)

    def _consistent(self, equation: Equation) -> bool:
        """Return whether the sides that are numbers are all equal: 41 = 42 is no answer.

        A rounded side may be off by 1 %.
        """
        if len(equation.sides) < 2:
            return True
        values = [value for side in equation.sides if (value := self._value(side)) is not None]
        rounded = "." in equation.text or "\\approx" in equation.text
        return all(close(values[0], value, _ROUNDED if rounded else TOLERANCE) for value in values[1:])

    # Lists and ratios

    def _same_items(self, wanted: Items, given: Items, depth: int) -> bool:
        """Return whether lists hold the same answers as often. A tuple keeps their order, and a set is no tuple."""
        kinds = {wanted.kind, given.kind}
        if len(wanted.items) != len(given.items) or kinds == {"set", "tuple"}:
            return False
        if {wanted.joined, given.joined} == {"and", "or"} and order(wanted.items[0]) is not None:
            return False
        if "tuple" in kinds or names(wanted) != names(given):
            return self._all(wanted.items, given.items, depth)
        left = list(given.items)
        for item in wanted.items:
            equal = [other for other in left if compact(item) == compact(other)]
            found = equal[0] if equal else next((other for other in left if self.says(item, other, depth + 1)), None)
            if found is None:
                return False
            left.remove(found)
        return True

    def _same_sides(self, wanted: Order, given: Order, depth: int) -> bool:
        return self._all(wanted.sides, given.sides, depth)

    def _same_ratio(self, wanted: Ratio, given: Ratio, depth: int) -> bool:
        if len(wanted.parts) != len(given.parts):
            return False
        ours, theirs = ([number(part) for part in ratio.parts] for ratio in (wanted, given))
        pairs = [(a.value, b.value) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
        if len(pairs) == len(wanted.parts):
            return all(a * d == b * c for (a, b), (c, d) in pairwise(pairs))
        return self._all(wanted.parts, given.parts, depth)

    # Regions

    def _region(self, reading: Reading) -> Region | None:
        """Return the region that a reading is, simplified. None where it is none."""
        match reading:
            case Region():
                return reading.simple(self._value)
            case Order():
                return self._allowed(reading)
            case Items(kind="list"):
                return self._combined(reading)
        return None

    def _allowed(self, given: Order) -> Region | None:
        """Return the values that an order leaves to its one variable. None where it is about something else."""
        variables = [i for i, side in enumerate(given.sides) if VARIABLE.fullmatch(side) or CALL.fullmatch(side)]
        if len(variables) > 1:  # e < x < 3
            variables = [i for i in variables if given.sides[i] != "e"]
        if len(given.sides) == 3 and 1 in variables:
            variables = [1]
        if len(variables) != 1 or len(given.sides) > 3 or (len(given.sides) == 3 and variables != [1]):
            return None
        place = variables[0]
        name = given.sides[place]
        if "\\ne" in given.signs:
            return self._all_but(given.sides[1 - place], name) if len(given.signs) == 1 else None
        low, high = LEFT, RIGHT
        if place > 0:
            low = self._end(given.sides[place - 1], given.signs[place - 1] == "\\le")
        if place < len(given.sides) - 1:
            high = self._end(given.sides[place + 1], given.signs[place] == "\\le")
        known = all(one.infinite or one.value is not None for one in (low, high))
        return Region(((low, high),), name=name) if known else None

    def _all_but(self, points: str, name: str) -> Region | None:
        ends = [self._end(point, True) for point in both_signs(points) or (points,)]
        if any(one.value is None for one in ends):
            return None
        return Region((LINE,), tuple((one, one) for one in ends), name).simple(self._value)

    def _end(self, text: str, closed: bool) -> End:
        one = end(text, closed)
        return one if one.infinite else End(text, self._value(text), closed)

    def _combined(self, items: Items) -> Region | None:
        """Return the region of `x > 1 and x < 3`.

        After a comma it is what both allow, and where that is nothing, either.
        """
        regions = []
        for text in excluded(items):
            given = order(text) or member(text)
            if given is None or (part := self._region(given)) is None:
                return None
            regions.append(part)
        if len({part.name for part in regions}) != 1:
            return None
        met = regions[0].pieces
        for part in regions[1:]:
            met = shared(met, part.pieces)
        both = items.joined == "and" or (items.joined != "or" and met)
        pieces = met if both else union(piece for part in regions for piece in part.pieces)
        return Region(pieces, name=regions[0].name)


def _sides(equation: Equation, depth: int) -> list[Reading]:
    return [reading for side in equation.sides for reading in readings(side, depth)]


def _scaled(amount: Amount, scale: Fraction) -> Amount:
    if scale == 1:
        return amount
    text = f"({amount.text})\\cdot\\frac{{{scale.numerator}}}{{{scale.denominator}}}"
    if amount.number is None:
        return Amount(text)
    value, kind = amount.number.value * scale, amount.number.kind
    if kind != "decimal":
        kind = "integer" if value.denominator == 1 else "quotient"
    return Amount(text, Number(value, kind))


def _hundredth(amount: Amount) -> Amount:
    return _scaled(amount, Fraction(1, 100)) if amount.unit is not None else amount


def _radians(amount: Amount) -> Amount:
    return Amount(f"({amount.text})\\cdot\\frac{{\\pi}}{{180}}") if amount.unit is not None else amount


def _lettered(equation: Equation) -> bool:
    """Return whether variables occur in the values of an equation."""
    return re.search(r"(?<![\\a-zA-Z])[a-zA-Z]", " ".join(equation.sides)) is not None


def _different(ours: str, theirs: str) -> bool:
    """Return whether two names cannot mean the same: x and y, P(A) and P(B). A word may stand for any letter."""
    ours, theirs = compact(ours), compact(theirs)
    if ours == theirs:
        return False
    if CALL.fullmatch(ours) and CALL.fullmatch(theirs):
        return True
    return bool(VARIABLE.fullmatch(ours) and VARIABLE.fullmatch(theirs)) or "," in ours + theirs


def _same_moment(wanted: Moment, given: Moment) -> bool:
    """Return whether two times are one. A time without its half of the day, and a date without its year, fit any."""
    if wanted.kind != given.kind:
        return False
    if wanted.kind == "clock":
        (ours, ours_sure), (theirs, theirs_sure) = wanted.fields, given.fields
        return ours == theirs if ours_sure == theirs_sure else ours % _HALF_DAY_S == theirs % _HALF_DAY_S
    written, ours_year, *ours_day = wanted.fields
    other, theirs_year, *theirs_day = given.fields
    fits = ours_year == theirs_year or (written == 0 and 0 in (ours_year, theirs_year))
    return written == other and ours_day == theirs_day and fits
