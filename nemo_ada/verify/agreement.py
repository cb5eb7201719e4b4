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

from nemo_ada.verify.amounts import RESIDUE, Amount, hundredth, measured, radians, same_residue, scaled
from nemo_ada.verify.latex import compact, plain
from nemo_ada.verify.moments import Moment, same_moment
from nemo_ada.verify.naming import different, lettered, letters, same_argument, with_argument
from nemo_ada.verify.numbers import Number, based, close, number, written_digits
from nemo_ada.verify.parts import in_cycles, pair_by_name
from nemo_ada.verify.reading import (
    CALL,
    VARIABLE,
    Equation,
    Items,
    Order,
    Ratio,
    Reading,
    are_roots,
    both_signs,
    end,
    excluded,
    facts,
    in_order_of_names,
    member,
    names,
    order,
    readings,
    region,
    written_sides,
)
from nemo_ada.verify.regions import LEFT, LINE, RIGHT, End, Region, shared, union
from nemo_ada.verify.units import Unit
from nemo_ada.verify.words import Choice, Text, elaborates, meaning, read_head

_ROUNDED = Fraction(1, 100)  # 1/3 = 0.333 is no contradiction
_OPTION = re.compile("[A-J]")
_ANGLE = re.compile(r"[xytzuw]|\\(?:theta|phi|varphi|alpha|beta)")
# 1 + 3 + \ldots + 99, 1 \cdot 2 \cdot 3 \ldots n: its value is not read, so that any value may follow it.
_LONG_SUM = re.compile(
    r"\d(?:[\d\s+\-*/^{}()!kn]|\\(?:cdot|times|frac|left|right)(?![a-z]))*\\ldots"
    r"(?:[\d\s+\-*/^{}()!kn]|\\(?:cdot|times|frac|left|right)(?![a-z]))*"
)
_SUM = re.compile(  # of letters, or a function of one, as a problem asks for: m + n, x^2 + y^2, \\cos\\theta
    r"\d*[a-z](?:\^\d)?(?:\s*[+*-]?\s*\d*[a-z](?:\^\d)?){1,8}|\\(?:sin|cos|tan|cot|sec|csc)\s*\{?\(?\s*(?:\\[a-z]+|[A-Za-z])\s*\)?\}?"
)
_INTEGERS_NAMED = re.compile(
    r"^(?:all )?(?:the )?(?:integers|whole numbers) (?=from\b)|(?<=^\\text\{)(?:all )?(?:the )?integers (?=from\b)"
)


class Algebra(Protocol):
    """What is asked about the expressions inside an answer."""

    def equal(self, reference: str, answer: str) -> bool:
        """Return whether two expressions, equations or inequalities say the same."""
        ...

    def same_progression(self, reference: str, answer: str) -> bool:
        """Return whether two expressions have the same values for all integers n: 1 + 2n and 2n - 3."""
        ...

    def value(self, text: str) -> Fraction | None:
        """Return the value of a real expression without variables. None for anything else."""
        ...

    def solution(self, text: str) -> tuple[str, list[tuple[Fraction | None, bool, Fraction | None, bool]]] | None:
        r"""Return what solves an inequality in one variable, such as |x - 1| < 2. None for anything else.

        It is the variable, and the pieces: left end (None is no end), whether it belongs to it, right end, the same.
        """
        ...


class Agreement:
    """Compares answers with references. It asks `algebra` about expressions."""

    def __init__(self, algebra: Algebra) -> None:
        self._algebra = algebra

    def says(self, reference: str, answer: str, depth: int = 0) -> bool:
        """Return whether a tidy answer says the same as a tidy reference. `depth` counts the brackets around both."""
        if compact(reference) == compact(answer):
            return True
        wanted = readings(reference, depth)
        if self._any(wanted, readings(answer, depth), depth):
            return True
        if depth == 0 and isinstance(wanted[0], Text) and (said := read_head(answer)) is not None:
            return any(isinstance(one, Text) and one.words == said.words for one in wanted)
        matrices = "matrix}" in reference and "matrix}" in answer  # 2 times a matrix
        return matrices and "=" not in reference + answer and self._algebra.equal(reference, answer)

    def same_integers(self, reference: str, answer: str, least: int) -> bool:
        r"""Return whether a list of integers, and an inequality or an interval for them, say the same: 5 \le n \le 9.

        Args:
            reference: a tidy text.
            answer: a tidy text.
            least: the least integer that was asked for.
        """
        found = [self._integers(text, least) for text in (reference, answer)]
        return found[0] is not None and found[0] == found[1]

    def _integers(self, text: str, least: int) -> set[int] | None:
        for reading in readings(_INTEGERS_NAMED.sub("", text)):
            if isinstance(reading, Items) and reading.kind in ("list", "set"):
                read = [number(item) for item in reading.items]
                if len(read) > 1 and all(one is not None and one.value.denominator == 1 for one in read):
                    return {int(one.value) for one in read if one is not None}
            region_of = self._region(reading)
            if region_of is not None and not region_of.without:
                return region_of.integers(least)
        return None

    def _any(self, wanted: Iterable[Reading], given: Iterable[Reading], depth: int) -> bool:
        given = tuple(given)
        return any(self._same(one, other, depth) for one in wanted for other in given)

    def _all(self, wanted: Iterable[str], given: Iterable[str], depth: int) -> bool:
        return all(self.says(one, other, depth + 1) for one, other in zip(wanted, given, strict=True))

    def _same(self, wanted: Reading, given: Reading, depth: int) -> bool:
        """Return whether two readings say the same. Readings of types that do not fit each other do not."""
        deeper = depth + 1
        if isinstance(wanted, Amount) and isinstance(given, Amount):
            return self._same_amount(wanted, given)
        if (worded := self._same_words(wanted, given, deeper)) is not None:
            return worded
        match wanted, given:
            case Equation(), Equation():
                return self._same_equation(wanted, given, deeper)
            case Equation(), Order():
                return False
            case Order(), Equation():
                return False
            case Equation(), _:
                if isinstance(given, Amount) and given.number is not None and RESIDUE.fullmatch(wanted.claim):
                    return False  # all x with x \equiv 3 \pmod{7} are more than 3
                right = self._claims(wanted) and self._any(readings(wanted.claim, deeper), [given], deeper)
                if not right and isinstance(given, Amount):
                    return self._same_solutions(wanted, given.text)
                return right and self._consistent(wanted, deeper)
            case Amount(number=Number()), Equation(name="", sides=(sum_of_letters, claim)) if _SUM.fullmatch(
                sum_of_letters
            ):
                return self.says(wanted.text, claim, deeper)  # m + n = 73
            case _, Equation():
                if not self._claims(given):
                    return (
                        isinstance(wanted, Amount)
                        and self._is_identity(given)
                        and self.says(wanted.text, given.claim, deeper)
                    )
                given = with_argument(wanted, given)
                right = self._any([wanted], readings(given.claim, deeper), deeper)
                return right and self._consistent(given, deeper)
            case Items(), Items() if self._same_items(wanted, given, depth) or self._same_parts(wanted, given, depth):
                return True
            case Amount(), Items(joined="at", items=(value, _)):  # 4 at x = 3
                return self._any([wanted], readings(value, deeper), deeper)
            case (Order() as ranked, Items(kind="list", items=items)) | (
                Items(kind="list", items=items),
                Order() as ranked,
            ):
                if all(VARIABLE.fullmatch(item) for item in items):  # B > A > C is B, A, C
                    return [*map(compact, written_sides(ranked))] == [*map(compact, items)]
            case Items(items=(item, *others)), _ if self._repeats(wanted, item, others, deeper):
                return self._any(readings(item, deeper), [given], deeper)
            case _, Items(items=(item, *others)) if self._repeats(given, item, others, deeper):
                return self._any([wanted], readings(item, deeper), deeper)
            case Order(), Order() if wanted.signs == given.signs and self._same_sides(wanted, given, depth):
                return True
            case Ratio(), Ratio():
                return self._same_ratio(wanted, given, depth)
            case Ratio(parts=(above, below)), Amount(text):
                return self.says(f"\\frac{{{above}}}{{{below}}}", text, deeper)
            case Amount(text), Ratio(parts=(above, below)):
                return self.says(text, f"\\frac{{{above}}}{{{below}}}", deeper)
            case (Amount(number=Number(value, "integer"), unit=None), Moment("clock", (seconds, _))) | (
                Moment("clock", (seconds, _)),
                Amount(number=Number(value, "integer"), unit=None),
            ):
                return value == (seconds / 3600 % 12 or 12)  # 8:00 AM and 8:00 PM are 8
            case Moment(), Moment():
                return same_moment(wanted, given)
        known = facts(wanted)
        if len(known) > 1 and known == facts(given):  # a < c and c < b
            return True
        regions = self._region(wanted), self._region(given)
        if regions[0] is not None and regions[1] is not None:
            return regions[0].same(regions[1], lambda one, other: self.says(one, other, deeper))
        return isinstance(wanted, Order) and isinstance(given, Order) and self._algebra.equal(wanted.text, given.text)

    def _same_words(self, wanted: Reading, given: Reading, deeper: int) -> bool | None:
        """Return whether words or choices say the same. None where neither side is one, or only with what it equals."""
        match wanted, given:
            case Text(), Text():
                exact = wanted.letters and given.letters
                same = wanted.words == given.words or elaborates(wanted, given)
                return same and (not exact or wanted.letters == given.letters)
            case (Text() as said, Amount(text)) | (Amount(text), Text() as said):
                mixed = text.isalpha() and not (text.isupper() or text.islower())  # Aa is not AA
                exact = said.shown if mixed else said.letters
                return said.words == meaning(text) and (not exact or exact == text)
            case (Text(words), Items(items=items)) | (Items(items=items), Text(words)):  # the choices ABD
                named = [plain(item) for item in items]
                return "".join(named) == words and named == sorted(set(named))
            case Text("true" | "false" as said_word), Choice(letter, ""):
                return letter == said_word[0].upper()
            case Choice(), Choice():
                both = wanted.meaning and given.meaning
                return wanted.letter == given.letter and (not both or self.says(wanted.meaning, given.meaning, deeper))
            case (Choice(letter, ""), Amount(text)) | (Amount(text), Choice(letter, "")):
                return text.upper() == letter <= "J" or text == letter
            case Choice(), _:
                return self._any(readings(wanted.meaning, deeper), [given], deeper) if wanted.meaning else False
            case _, Choice():
                return self._any([wanted], readings(given.meaning, deeper), deeper) if given.meaning else False
        return None

    # Amounts

    def _same_amount(self, wanted: Amount, given: Amount) -> bool:
        ours, theirs = wanted.unit, given.unit
        if ours is not None and theirs is not None:
            scale = theirs.factor / ours.factor if ours.powers == theirs.powers else Fraction(1)
            if ours.angle != theirs.angle and (("rad", 1),) in (ours.dimension, theirs.dimension):
                return self._same_value(*map(radians, (wanted, given)))
            return ours.fits(theirs) and self._same_value(wanted, scaled(given, scale))
        if (ours or theirs or Unit(())).turned:  # a loss of 7 is not 7
            return False
        if self._same_value(wanted, given):
            return True
        lone = ours or theirs
        if lone is None:
            return False
        if lone.percent:
            return self._same_value(hundredth(wanted), hundredth(given))
        if lone.angle and None in (wanted.number, given.number):
            return self._same_value(radians(wanted), radians(given))
        return False

    def _same_value(self, wanted: Amount, given: Amount) -> bool:
        if wanted.number is not None and given.number is not None:
            return wanted.number.equals(given.number)
        if (same := same_residue(wanted, given)) is not None:
            return same
        for one, other in ((wanted.text, given.text), (given.text, wanted.text if wanted.number is None else "")):
            if (digits := written_digits(one)) is not None and digits.upper() == other.upper():
                return True  # 2F for 2F_{16}
        ours, theirs = based(wanted.text), based(given.text)  # 204_5 is 54, and whoever asks for base 5 means 204
        if theirs is not None:
            plain_one = None if wanted.number is None or given.text.startswith("0") else wanted.number.value
            return theirs == (ours if ours is not None else plain_one)
        if ours is not None and given.number is not None:
            return given.number.value in (ours, Fraction(re.findall(r"\d+", wanted.text)[0]))
        return compact(wanted.text) == compact(given.text) or self._algebra.equal(wanted.text, given.text)

    def _value(self, text: str) -> Fraction | None:
        read = number(text)
        if read is None and (amount := measured(text)) is not None:
            read = amount.number
        if read is not None:
            return read.value
        return None if "," in text else self._algebra.value(text)

    # Equations

    def _same_equation(self, wanted: Equation, given: Equation, depth: int) -> bool:
        if wanted.name and given.name:
            given = same_argument(wanted.name, given)
            if not different(wanted.name, given.name):
                if self.says(wanted.claim, given.claim, depth):
                    return self._consistent(wanted, depth) and self._consistent(given, depth)
                if self._same_solutions(wanted, given.claim):
                    return True
            if compact(wanted.name) == compact(given.name) or not (lettered(wanted) and lettered(given)):
                return False  # x = 1 is not y = 1
        elif self._claims(wanted) and self._claims(given):
            right = self.says(wanted.claim, given.claim, depth)
            return right and self._consistent(wanted, depth) and self._consistent(given, depth)
        return len(wanted.sides) < 3 and len(given.sides) < 3 and self._algebra.equal(wanted.text, given.text)

    def _same_solutions(self, wanted: Equation, claim: str) -> bool:
        r"""Return whether an answer has all solutions of an angle: x = 5\pi/4 - n\pi for x = \pi/4 + n\pi."""
        angle = _ANGLE.fullmatch(wanted.name) and ("\\pi" in wanted.claim or "°" in wanted.claim)
        return bool(angle) and self._algebra.same_progression(wanted.claim, claim)

    @staticmethod
    def _claims(equation: Equation) -> bool:
        """Return whether a chain says what something is: x = 3, 40 + 2 = 42. An equation in x and y does not."""
        sides = equation.sides if len(equation.sides) < 3 else (equation.claim,)  # cos t = 3/5 = 0.6
        known = bool(equation.name) or _LONG_SUM.fullmatch(equation.sides[0]) is not None
        return known or not letters(" ".join(sides))

    def _is_identity(self, equation: Equation) -> bool:
        """Return whether the sides of an equation are one expression: (x + 1)^2 = x^2 + 2x + 1 claims its last one."""
        sides = equation.sides
        same = len(sides) > 1 and not equation.rounded and letters(sides[-1]) <= letters(sides[0])
        return same and all(self._algebra.equal(one, other) for one, other in pairwise(sides))

    def _consistent(self, equation: Equation, depth: int) -> bool:
        r"""Return whether the sides of a chain can all be true: 41 = 42, x = A = B and 500 = 495 say nothing.

        A rounded side may be off by 1 %. A formula may get its numbers: A = \pi r^2 = 9\pi.
        """
        sides = equation.sides
        if any(isinstance(one, Text) for one in readings(equation.claim, depth)) and (
            "\\text" in equation.name or any(isinstance(one, Text) for one in readings(equation.name, depth))
        ):
            return False  # yes = no
        if _OPTION.fullmatch(equation.name) and _OPTION.fullmatch(equation.claim):  # A = C
            return False
        if "\\equiv" in equation.text and RESIDUE.fullmatch(sides[-1]):  # 2^{2024} \equiv 4 \pmod 7
            return True
        exact = len(sides) - equation.rounded
        return all(
            self._follows(one, other, equation.claim, place >= exact, depth + 1)
            for place, (one, other) in enumerate(pairwise(sides), 1)
        )

    def _follows(self, one: str, other: str, claim: str, about: bool, depth: int) -> bool:
        values = self._value(one), self._value(other)
        decimals = [number(side) for side in (one, other)]
        rounds = any(read is not None and read.kind == "decimal" for read in decimals) and None in (  # 1/3 = 0.333
            read if read is None or read.kind != "quotient" else None for read in decimals
        )
        if values[0] is not None and values[1] is not None and (about or rounds or values[0] == values[1]):
            return close(values[0], values[1], _ROUNDED)
        named = VARIABLE.fullmatch(one) or VARIABLE.fullmatch(other)  # x = y = 3
        if (named and not letters(claim)) or _LONG_SUM.fullmatch(one):
            return True
        formula = "\\text" not in one and letters(other) < letters(one)
        return formula or self.says(one, other, depth)

    # Lists and ratios

    def _same_items(self, wanted: Items, given: Items, depth: int) -> bool:
        """Return whether lists hold the same answers as often. A tuple keeps their order, and a set is no tuple."""
        if len(given.items) > len(wanted.items) and not names(wanted) and (solutions := in_cycles(given.items)):
            given = Items("list", solutions)
        kinds = {wanted.kind, given.kind}
        ordered = kinds & {"tuple", "row", "column"}
        if (
            len(wanted.items) != len(given.items)
            or (len(kinds) > 1 and (ordered or "cases" in kinds) and kinds & {"set", "cases"})
            or kinds == {"row", "column"}
        ):
            return False
        if given.joined == "or" != wanted.joined and all(
            isinstance(readings(item, depth + 1)[0], Text | Choice) for item in given.items
        ):
            return False  # A or C is neither A nor both
        if names(wanted) and names(given) and pair_by_name(wanted.items, given.items):
            return False
        if {wanted.joined, given.joined} == {"and", "or"} and order(wanted.items[0]) is not None:
            return False
        if ordered or (names(wanted) != names(given) and not (are_roots(wanted) or are_roots(given))):
            return self._all(in_order_of_names(wanted), in_order_of_names(given), depth)
        left = list(given.items)
        for item in wanted.items:
            equal = [other for other in left if compact(item) == compact(other)]
            found = equal[0] if equal else next((other for other in left if self.says(item, other, depth + 1)), None)
            if found is None:
                return False
            left.remove(found)
        return True

    def _same_parts(self, wanted: Items, given: Items, depth: int) -> bool:
        """Return whether parts with names in words say the same: quotient x + 1, remainder 2."""
        if "or" in (wanted.joined, given.joined) or "set" in (wanted.kind, given.kind):
            return False
        pairs = pair_by_name(wanted.items, given.items)
        return bool(pairs) and all(self.says(one, other, depth + 1) for one, other in pairs)

    def _repeats(self, items: Items, first: str, others: list[str], depth: int) -> bool:
        r"""Return whether a list has one answer: only one item, or the same in several forms, 0.5 or \frac12."""
        return not others or (items.joined == "or" and all(self.says(first, other, depth) for other in others))

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
        if not variables and len(given.sides) == 2:
            return self._solved(given.text)
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

    def _solved(self, text: str) -> Region | None:
        if (solution := self._algebra.solution(text)) is None:
            return None
        pieces = [
            (LEFT if low is None else End(str(low), low, left), RIGHT if high is None else End(str(high), high, right))
            for low, left, high, right in solution[1]
        ]
        return Region(tuple(union(pieces)), name=solution[0])

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
        if items.joined.startswith("\\"):
            return self._joined(items)
        regions = []
        for text in excluded(items):
            given = order(text) or member(text) or (region(text) if items.joined else None)
            if given is None or (part := self._region(given)) is None:
                return None
            regions.append(part)
        if len({part.name for part in regions}) != 1:
            return None
        if items.joined and any(region(text) is not None for text in items.items):  # (-\\infty, 2) and (3, \\infty)
            return Region(union(piece for part in regions for piece in part.pieces))
        met = regions[0].pieces
        for part in regions[1:]:
            met = shared(met, part.pieces)
        both = items.joined == "and" or (items.joined != "or" and met)
        pieces = met if both else union(piece for part in regions for piece in part.pieces)
        return Region(pieces, name=regions[0].name)

    def _joined(self, items: Items) -> Region | None:
        r"""Return the union, the intersection or the difference of sets that a sign joins."""
        found = [next(filter(None, map(self._region, readings(text, 1))), None) for text in items.items]
        regions = [part.simple(self._value) for part in found if part is not None]
        if len(regions) < len(items.items) or len({part.name for part in regions} - {""}) > 1:
            return None
        first, *others = regions
        rest = union(piece for part in others for piece in part.pieces)
        if items.joined == "\\setminus":
            return Region(first.pieces, rest, first.name).simple(self._value)
        met = first.pieces
        for part in others:
            met = shared(met, part.pieces)
        return Region(met if items.joined == "\\cap" else union((*first.pieces, *rest)))
