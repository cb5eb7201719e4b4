r"""What an answer is, before anything is computed: an amount, a list, a region of the real line, a ratio, a time, text.

`readings` gives the ways in which a tidy text can be read; (1,2) is a pair and an open interval. `agrees` says whether
an answer says the same as a reference: two readings of one type, item by item. Only the amounts inside that are no plain
numbers go to math-verify, by way of an `Algebra`. So no type is lost on the way: an order, a multiplicity, an end of an
interval, a unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

from nemo_ada.verify.latex import closing, compact, plain, split
from nemo_ada.verify.numbers import TOLERANCE, Number, based, close, number
from nemo_ada.verify.units import Unit, clock, date, unit

MAX_DEPTH = 6  # brackets in brackets that are read as lists
_ROUNDED = Fraction(1, 100)  # 1/3 = 0.333 is no contradiction


class Algebra(Protocol):
    """What is asked about the expressions inside an answer."""

    def equal(self, reference: str, answer: str) -> bool:
        """Whether two expressions, equations or inequalities say the same."""
        ...

    def value(self, text: str) -> Fraction | None:
        """The value of a real expression without variables. None for anything else."""
        ...


@dataclass(frozen=True, slots=True)
class Amount:
    """A number or an expression. `unit` is None where none is written."""

    text: str
    number: Number | None = None
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """Words, in one spelling."""

    words: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The letter of a choice, and what it stands for where that is written: (C) 13."""

    letter: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Items:
    """Several answers.

    Attributes:
        kind: "list" (no brackets), "set" or "tuple". Only a tuple has an order.
        items: the answers.
        joined: "or" or "and" where a list has such a word.
    """

    kind: str
    items: tuple[str, ...]
    joined: str = ""


@dataclass(frozen=True, slots=True)
class Equation:
    """A name and its values: x = 3, AB = 5; or sides of a computation, without a name: 40 + 2 = 42."""

    text: str
    name: str
    sides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Order:
    r"""Sides with <, \le or \ne between them. Those with > are turned round."""

    text: str
    sides: tuple[str, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class End:
    """One end of a piece of the real line. Without end its value is None and its text `-` or `+`."""

    text: str
    value: Fraction | None
    closed: bool

    @property
    def infinite(self) -> bool:
        return self.text in ("-", "+")


Piece = tuple[End, End]


@dataclass(frozen=True, slots=True)
class Region:
    """Pieces of the real line from left to right, apart from each other, and the variable where one is named."""

    pieces: tuple[Piece, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """2:3, in order."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """A time of day or a date, as numbers."""

    fields: tuple[int | str, ...]


Reading = Amount | Text | Choice | Items | Equation | Order | Region | Ratio | Moment

_COMMA = re.compile(
    r"(?<![{\\])[,;](?!\})|\\text\{\s*,?\s*(?:and|or|;)\s*,?\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\\\|\\(?:iff)(?![a-z])"
)
_EQUALS = re.compile(r"(?<![<>!\\])=+|\\approx(?![a-z])|\\equiv(?![a-z])")
_RELATION = re.compile(r"\\(?:le|ge|ne)(?![a-zA-Z])|[<>]")
_COLON = re.compile(r":|\\text\{\s*to\s*\}|(?<=\d )to(?= \d)")
_UNION = re.compile(r"\\(?:cup|bigcup)(?![a-z])| U ")
_MINUS = re.compile(r"\\setminus(?![a-z])|(?<=\})\s*-\s*(?=\\\{)")
_MEMBER = re.compile(r"\s*(?P<name>[A-Za-z]|\\[a-z]+|\([^()]*\))\s*\\in(?![a-zA-Z])\s*(?P<rest>.+)", re.DOTALL)
_SUCH_THAT = re.compile(r"\\mid(?![a-z])|\||:")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-z])")
_VARIABLE = re.compile(
    r"[A-Za-z](?:_(?:\w|\{\w+\}))?|\\(?:alpha|beta|gamma|theta|phi|lambda|mu|omega|rho|varphi|delta|varepsilon|epsilon)"
)
_CALL = re.compile(r"(?P<head>[A-Za-z]+)\s*\((?P<arguments>[^()]*)\)")
_OPTION = re.compile(
    r"(?:\\text\s*\{)?\s*(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s*(?:is\s)?:?\s*)?"
    r"(?:\(\s*(?:\\text\s*\{)?\s*(?P<round>[A-Za-z])\s*\}?\s*\)|(?P<dotted>[A-J])(?:[).]|:(?= ))|(?P<bare>[A-Z])(?=\s*\}?\s*$))\s*\}?\s*[:.]?\s*(?P<rest>.*)",
    re.DOTALL,
)
_PREFIX = re.compile(
    r"(?:(?:\\approx(?![a-z])|\\text\s*\{\s*(?:about|approximately|approx\.?)\s*\}|[Aa]bout |[Aa]pproximately )\s*|(?:\\text\s*\{\s*)?(?:[Tt]he )?(?:[Ff]inal |[Cc]orrect )?[Aa]nswer(?: is|\s*:)\s*:?\s*\}?\s*)"
)
_UNIT_AT_END = re.compile(
    r"^(?P<value>.*?[\w)}\].])(?P<blank>\s*)(?P<unit>(?:\\text\s*\{[^{}]*\}|\\\$|[°%€£₹¥¢])(?:[^0-9\\]|\^\{?-?\d\}?|\\text\s*\{[^{}]*\}|\\\$|\\cdot)*)$",
    re.DOTALL,
)
_WORD_UNIT = re.compile(
    r"^(?P<value>.*?[\d)}\]i])(?P<blank>\s*)(?P<unit>\(?[a-zA-Z][a-zA-Z. /]*(?:\^\{?\d\}?)?\)?)$", re.DOTALL
)
_ORDINAL = re.compile(r"(?P<number>-?\d+)\s*(?:\^\s*)?\{?\s*(?:\\text\s*\{\s*)?(?:st|nd|rd|th)\s*\}?\s*\}?")
_MONEY = re.compile(r"(?P<sign>-?)\s*(?P<unit>\\\$|[€£₹¥])\s*(?P<value>.+)", re.DOTALL)
_COMPOUND = re.compile(
    r"(?P<value>\d[\d.,]*)\s*(?P<unit>\\text\s*\{\s*[a-zA-Z]+(?: and)?\s*\}|[a-zA-Z]{1,8}|\\\$|°)[\s,]*(?:\\text\s*\{\s*and\s*\}|and)?\s*"
)
_WORDS = re.compile(r"[^\W\d_][\w'.!?-]*(?: [\w'.!?-]+)*")
_LABEL = re.compile(r"(?:[A-Za-z:'|\s()\[\],{}/°]|\\[a-zA-Z]+|_\{?\w+\}?|\(\s*-?\d+\s*\)|_\d|\^\{?\*\}?)+")
_FUNCTION = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_ALL_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_FIGURE = re.compile(r"\\(?:triangle|angle|odot|square|parallelogram)\s*[A-Z]{1,6}")
_UNREAD = re.compile(r"\\(?:ne|le|ge|in|mid|cup|cap)(?![a-z])|[<>]")


@lru_cache(maxsize=4096)  # all responses of a prompt share their reference
def readings(text: str, depth: int = 0) -> tuple[Reading, ...]:
    """Return the ways to read a tidy text. The last one is always an amount or words."""
    if depth <= MAX_DEPTH and text.startswith("{") and closing(text, 0) == len(text) - 1:
        return readings(text[1:-1].strip(), depth + 1)
    if depth == 0 and (prefix := _PREFIX.match(text)) is not None:
        text = text[prefix.end() :]
    plainly = number(text)
    if plainly is not None:
        amount = Amount(text, plainly)
        return (amount, *_listed(text)) if "," in text and "{,}" not in text else (amount,)
    if depth > MAX_DEPTH:
        return (Amount(text),)
    inner = _ALL_TEXT.fullmatch(text)
    if inner is not None and re.search(r"[\d,;]|\b(?:and|or)\b|^\(", inner[1]):
        return (*readings(inner[1], depth + 1), Text(plain(text)))
    found: list[Reading] = [*_moments(text), *_options(text)]
    if found and (
        isinstance(found[0], Choice)
        and found[0].meaning
        or isinstance(found[0], Moment)
        and found[0].fields[0] == "date"
    ):
        return tuple(found)
    if (measured := _measured(text)) is not None:
        found.append(measured)
        if measured.unit is not None and ("\\text" in text or not text[-1:].isalpha()):
            return tuple(found)
    structure = _structure(text, depth)
    found += structure
    if not structure:
        found += _words(text)
    if not any(isinstance(reading, Text) for reading in found) and not structure:
        found.append(Amount(text))
    return tuple(found)


def agrees(reference: str, answer: str, algebra: Algebra, depth: int = 0) -> bool:
    """Return whether a tidy answer says the same as a tidy reference."""
    if compact(reference) == compact(answer):
        return True
    ours = readings(answer, depth)
    for wanted in readings(reference, depth):
        for given in ours:
            if _same(wanted, given, algebra, depth):
                return True
    words = plain(reference)
    return len(words) > 1 and words.isascii() is False and words == plain(answer)


def _same(wanted: Reading, given: Reading, algebra: Algebra, depth: int) -> bool:
    """Whether two readings say the same. Readings of types that do not fit each other do not."""

    def same(reference: str, answer: str) -> bool:
        return agrees(reference, answer, algebra, depth + 1)

    match wanted, given:
        case Amount(), Amount():
            return _same_amount(wanted, given, algebra)
        case Text(), Text():
            return wanted.words == given.words
        case Text(), Amount() | Choice():
            return wanted.words == plain(given.text if isinstance(given, Amount) else given.letter)
        case Amount(), Text():
            return plain(wanted.text) == given.words
        case (Text(), Items()) | (Items(), Text()):
            letters = "".join(plain(item) for item in (given if isinstance(given, Items) else wanted).items)  # type: ignore[union-attr]
            words = wanted.words if isinstance(wanted, Text) else given.words  # type: ignore[union-attr]
            return letters == words and list(letters) == sorted(set(letters))
        case Choice(), Choice():
            meant = not (wanted.meaning and given.meaning) or same(wanted.meaning, given.meaning)
            return wanted.letter == given.letter and meant
        case Choice(), Amount():
            return (not wanted.meaning and given.text.upper() == wanted.letter) or (
                bool(wanted.meaning) and same(wanted.meaning, given.text)
            )
        case Amount(), Choice() if not given.meaning:
            return wanted.text.upper() == given.letter
        case Choice(), _ if wanted.meaning:
            return any(_same(reading, given, algebra, depth + 1) for reading in readings(wanted.meaning, depth + 1))
        case _, Choice() if given.meaning:
            return any(_same(wanted, reading, algebra, depth + 1) for reading in readings(given.meaning, depth + 1))
        case Equation(), Equation():
            return _same_equation(wanted, given, algebra, same)
        case Equation(), _ if wanted.name:
            return any(
                _same(reading, given, algebra, depth + 1)
                for side in wanted.sides
                for reading in readings(side, depth + 1)
            )
        case _, Equation() if not isinstance(wanted, Equation):
            right = any(
                _same(wanted, reading, algebra, depth + 1)
                for side in given.sides
                for reading in readings(side, depth + 1)
            )
            return right and (bool(given.name) or _numeric(given, algebra)) and _consistent(given, algebra)
        case Items(), Items() if _same_items(wanted, given, same):
            return True
        case Items(), _ if len(wanted.items) == 1:
            return any(_same(reading, given, algebra, depth + 1) for reading in readings(wanted.items[0], depth + 1))
        case _, Items() if len(given.items) == 1:
            return any(_same(wanted, reading, algebra, depth + 1) for reading in readings(given.items[0], depth + 1))
        case Order(), Order() if wanted.signs == given.signs and all(map(same, wanted.sides, given.sides)):
            return True
        case Order(), Order() | Equation():
            regions = _region_of(wanted, algebra), (_region_of(given, algebra) if isinstance(given, Order) else None)
            if regions[0] is not None and regions[1] is not None:
                return _same_region(regions[0], regions[1], same)
            return algebra.equal(wanted.text, given.text)
        case Ratio(), Ratio():
            return _same_ratio(wanted, given, same)
        case Ratio(), Amount() if len(wanted.parts) == 2:
            return same(_quotient(wanted), given.text)
        case Amount(), Ratio() if len(given.parts) == 2:
            return same(wanted.text, _quotient(given))
        case Moment(), Moment():
            return _same_moment(wanted, given)
    if isinstance(wanted, Region | Order | Items) and isinstance(given, Region | Order | Items):
        regions = tuple(_as_region(reading, algebra) for reading in (wanted, given))
        return regions[0] is not None and regions[1] is not None and _same_region(regions[0], regions[1], same)
    return False


# Amounts


def _measured(text: str) -> Amount | None:
    r"""An amount with its unit: 12 \text{ cm}, \$5, 28%, 90°, 5 ft 6 in. None where there is no unit."""
    if (match := _ORDINAL.fullmatch(text)) is not None:
        return Amount(match["number"], number(match["number"]))
    if (match := _MONEY.fullmatch(text)) is not None and not match["value"].startswith(("\\$", "-", "+")):
        inner = readings(match["sign"] + match["value"], MAX_DEPTH)[0]
        if isinstance(inner, Amount) and (inner.unit is None or not inner.unit.known):
            return replace(inner, unit=unit(match["unit"]))
    for pattern in (_UNIT_AT_END, _WORD_UNIT):
        match = pattern.match(text)
        if match is None:
            continue
        value = match["value"].strip()
        measure = unit(match["unit"], spaced=bool(match["blank"]))
        read = number(value)
        if measure is None or (pattern is _WORD_UNIT and read is None and len(match["unit"]) < 2):
            continue
        if read is None and _compound(text) is not None:
            return _compound(text)
        if measure.angle and _FUNCTION.search(value):  # sin 30°
            return None
        if read is None and (
            _COMMA_OUTSIDE(value)
            or _UNREAD.search(value)
            or "=" in value
            or not (re.search(r"\d|\\pi|\\sqrt", value) or (measure.known and "\\text" in match["unit"]))
        ):
            continue
        return Amount(value, read, measure)
    return _compound(text)


def _COMMA_OUTSIDE(text: str) -> bool:  # noqa: N802
    return len(split(text, _COMMA)[0]) > 1


def _compound(text: str) -> Amount | None:
    """5 ft 6 in: pieces of one dimension, added."""
    at, count, total, base, last = 0, 0, Fraction(0), None, None
    while at < len(text):
        match = _COMPOUND.match(text, at)
        if match is None:
            return None
        measure, read = unit(match["unit"]), number(match["value"].rstrip(","))
        if measure is None or read is None or not measure.known or (base is not None and measure.dimension != base):
            return None
        if last is not None and measure.factor >= last:  # 60°, 60° is a list
            return None
        base, last, total = measure.dimension, measure.factor, total + read.value * measure.factor
        at, count = match.end(), count + 1
    if count < 2 or base is None:
        return None
    kind = "integer" if total.denominator == 1 else "quotient"
    return Amount(f"\\frac{{{total.numerator}}}{{{total.denominator}}}", Number(total, kind), Unit(base))


def _same_amount(wanted: Amount, given: Amount, algebra: Algebra) -> bool:
    ours, theirs = wanted.unit, given.unit
    if ours is not None and theirs is not None:
        if not ours.fits(theirs):
            return False
        scale = theirs.factor / ours.factor if ours.dimension == theirs.dimension else Fraction(1)
        return _same_value(wanted, _scaled(given, scale), algebra)
    if _same_value(wanted, given, algebra):
        return True
    part = ours or theirs
    if part is not None and part.percent:
        hundredth = Fraction(1, 100)
        return (
            _same_value(_scaled(wanted, hundredth), given, algebra)
            if ours
            else _same_value(wanted, _scaled(given, hundredth), algebra)
        )
    if part is not None and part.angle and "pi" in wanted.text + given.text:
        wanted, given = (_radians(amount) for amount in (wanted, given))
        return _same_value(wanted, given, algebra)
    return False


def _radians(amount: Amount) -> Amount:
    return Amount(f"({amount.text})\\cdot\\frac{{\\pi}}{{180}}") if amount.unit is not None else amount


def _scaled(amount: Amount, scale: Fraction) -> Amount:
    if scale == 1:
        return amount
    text = f"({amount.text})\\cdot\\frac{{{scale.numerator}}}{{{scale.denominator}}}"
    if amount.number is None:
        return Amount(text)
    value = amount.number.value * scale
    kind = amount.number.kind
    return Amount(
        text, Number(value, "integer" if value.denominator == 1 else "decimal" if kind == "decimal" else "quotient")
    )


def _same_value(wanted: Amount, given: Amount, algebra: Algebra) -> bool:
    if wanted.number is not None and given.number is not None:
        return wanted.number.equals(given.number)
    bases = based(wanted.text), based(given.text)
    if None not in bases:
        return bases[0] == bases[1]
    return algebra.equal(wanted.text, given.text)


# Words, choices, times


def _words(text: str) -> list[Reading]:
    r"""Words: inside \text{}, or bare ones that are no product of letters."""
    bare = " ".join(re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).split())
    if _FIGURE.fullmatch(bare):
        return [Text(plain(text))]
    if not _WORDS.fullmatch(bare):
        return []
    words = bare.split()
    worded = bare != text and any(len(word) > 1 for word in words)
    capitals = bare.isupper() and len(bare) > 1 and bare.isalpha()
    if worded or capitals or not bare.isascii() or any(len(word) > 3 and word.isalpha() for word in words):
        return [Text(plain(text))]
    return []


def _options(text: str) -> list[Reading]:
    """(C), C. 13, a bare capital letter."""
    match = _OPTION.fullmatch(text)
    if match is None:
        return []
    letter, rest = (match["round"] or match["dotted"] or match["bare"]), match["rest"].strip()
    if rest and (
        rest[0] in "(^_+*=/<>!-,:;" or rest.startswith(("\\cdot", "\\cup", "\\times", "\\le", "\\ge", "\\ne"))
    ):
        return []
    if rest and not letter.isupper():
        return []
    return [Choice(letter.upper(), rest)]


def _moments(text: str) -> list[Reading]:
    """A time of day, a date."""
    if len(text) > 60 or not (text[:1].isalnum() or text.startswith("\\text")):
        return []
    when, day = clock(text), date(text)
    if day is not None:
        return [Moment(("date", *day))]
    return [] if when is None else [Moment(("clock", *when))]


def _same_moment(wanted: Moment, given: Moment) -> bool:
    if wanted.fields[0] != given.fields[0]:
        return False
    if wanted.fields[0] == "date":
        ours, theirs = wanted.fields[1:], given.fields[1:]
        yearless = ours[0] == theirs[0] == 0 and 0 in (ours[1], theirs[1])
        return ours[2:] == theirs[2:] if yearless else ours == theirs
    (ours_s, ours_half), (theirs_s, theirs_half) = wanted.fields[1:3], given.fields[1:3]
    if ours_half == theirs_half:
        return ours_s == theirs_s
    return int(ours_s) % 43200 == int(theirs_s) % 43200


# Lists, equations, orders, regions, ratios


def _structure(text: str, depth: int) -> list[Reading]:
    """What brackets and separators make of a text. Nothing where it is one expression or words."""
    found: list[Reading] = []
    if (pair := _french(text)) is not None:
        return [pair]
    member = _MEMBER.fullmatch(text)
    if (listed := _listed(text)) and (member is None or _french(member["rest"].strip()) is None):
        return listed
    if member is not None:
        return [
            replace(reading, name=member["name"].strip()) if isinstance(reading, Region) else reading
            for reading in readings(member["rest"].strip(), depth + 1)
        ]
    sides, _ = split(text, _EQUALS)
    if len(sides) > 1:
        return [_equation(text, sides)] if all(sides) else [Amount(text)]
    sides, signs = split(text, _RELATION)
    if len(sides) > 1:
        return (
            [_order(text, sides, signs)]
            if all(sides) and (order := _order(text, sides, signs)) is not None
            else [Amount(text)]
        )
    if not text.startswith("\\{") and (pair_texts := _both_signs(text)) is not None:
        return [Items("list", pair_texts)]
    if (region := _region(text)) is not None:
        found.append(region)
    found += _bracketed(text)
    if re.match(r"[A-Z]\(", text):  # a point with its name: A(3,-1)
        found += _bracketed(text[1:])
    parts, _ = split(text, _COLON)
    if len(parts) > 1 and all(parts) and not found:
        found.append(Ratio(tuple(parts)))
    return found


def _listed(text: str) -> list[Reading]:
    parts, between = split(text, _COMMA)
    parts = [both for part in parts if part for both in (_both_signs(part) or (part,))]
    joined = next((word for word in ("or", "and") if word in " ".join(between)), "")
    return [Items("list", tuple(parts), joined)] if between and len(parts) > 1 else []


def _both_signs(text: str) -> tuple[str, str] | None:
    r"""1 \pm \sqrt2 is two answers."""
    if not _PLUS_MINUS.search(text):
        return None
    signs = ("+", "-")
    return tuple(  # type: ignore[return-value]
        re.sub(r"^\s*\+", "", _PLUS_MINUS.sub(lambda match, k=k: signs[k if match[1] == "pm" else 1 - k], text)).strip()
        for k in (0, 1)
    )


def _bracketed(text: str) -> list[Reading]:
    r"""\{1,2\} is a set; (1,2), [1,2] and \langle 1,2\rangle are tuples, and so are a column and a row."""
    for start, end, kind in (
        ("\\{", "\\}", "set"),
        ("(", ")", "tuple"),
        ("[", "]", "tuple"),
        ("\\langle", "\\rangle", "tuple"),
    ):
        if text.startswith(start) and text.endswith(end) and closing(text, 0) == len(text) - len(end):
            inner = text[len(start) : -len(end)].strip()
            if kind == "set" and len(condition := split(inner, _SUCH_THAT)[0]) == 2 and all(condition):
                return _such_that(*condition)
            parts = [part for part in split(inner, _COMMA)[0] if part]
            if kind == "set":
                parts = [both for part in parts for both in (_both_signs(part) or (part,))]
                return [Items("set", tuple({compact(part): part for part in parts}.values()))]
            few = 2 if start == "[" else 1  # [1,2] is an interval
            return [Items(kind, tuple(parts))] if len(parts) > few or (len(parts) == 1 and number(parts[0])) else []
    vector = re.fullmatch(r"\\begin\{([pb]?matrix)\}(.*)\\end\{\1\}", text, re.DOTALL)
    if vector:
        rows = [row.strip() for row in vector[2].split("\\\\") if row.strip()]
        cells = [[cell.strip() for cell in row.split("&")] for row in rows]
        if len(rows) == 1 or all(len(row) == 1 for row in cells):
            return [Items("tuple", tuple(cell for row in cells for cell in row))]
        if all(len(row) == len(cells[0]) for row in cells):
            return [Items("tuple", tuple("\\begin{matrix}" + " & ".join(row) + "\\end{matrix}" for row in cells))]
    row = re.fullmatch(r"\\begin\{matrix\}(.*)\\end\{matrix\}", text, re.DOTALL)
    return [Items("tuple", tuple(cell.strip() for cell in row[1].split("&")))] if row else []


def _such_that(member: str, condition: str) -> list[Reading]:
    r"""\{x \mid x > 2\} is what its condition says."""
    name = member.partition("\\in")[0].strip()
    if not _VARIABLE.fullmatch(name):
        return []
    return [replace(r, name=name) if isinstance(r, Region) else r for r in readings(condition, MAX_DEPTH - 1)]


def _equation(text: str, sides: list[str]) -> Reading:
    names, values = (_tuple_of(sides[0]), _tuple_of(sides[-1])) if len(sides) == 2 else ((), ())
    if len(names) == len(values) > 1 and all(map(_is_label, names)):  # (x,y) = (1,2)
        return Items("list", tuple(f"{name} = {value}" for name, value in zip(names, values, strict=True)))
    if _is_label(sides[0]):
        expanded = [
            both
            for side in sides[1:]
            for both in ([side] if _both_signs(side) is None else [",".join(_both_signs(side) or ())])
        ]
        return Equation(text, sides[0], tuple(expanded))
    if len(sides) == 2 and _VARIABLE.fullmatch(sides[1]):
        return Equation(text, sides[1], (sides[0],))
    return Equation(text, "", tuple(sides))


def _tuple_of(text: str) -> tuple[str, ...]:
    if not (text.startswith("(") and closing(text, 0) == len(text) - 1):
        return ()
    return tuple(split(text[1:-1], _COMMA)[0])


def _is_label(text: str) -> bool:
    """Whether the left side of an equation is a name: x, f(2), AB, Area, a:b. Not where it is a sum or a number."""
    return (
        _LABEL.fullmatch(text) is not None
        and re.search(r"[A-Za-z]", text) is not None
        and not re.search(r"\\(?:pi|infty|sqrt|cdot|times|sin|cos|tan|log|ln)(?![a-z])", text)
    )


def _same_equation(wanted: Equation, given: Equation, algebra: Algebra, same: Callable[[str, str], bool]) -> bool:
    if wanted.name and given.name and not _different(wanted.name, given.name):
        if any(same(side, other) for side in wanted.sides for other in given.sides[-1:]) and _consistent(
            given, algebra
        ):
            return True
        if compact(wanted.name) == compact(given.name):
            return False
    if not wanted.name and not given.name and _numeric(wanted, algebra):
        return same(wanted.sides[-1], given.sides[-1]) and _consistent(given, algebra)
    letters = [
        re.search(r"[A-Za-z]", re.sub(r"\\[a-zA-Z]+", "", " ".join(equation.sides))) for equation in (wanted, given)
    ]
    if wanted.name and given.name and not all(letters):
        return False
    return algebra.equal(wanted.text, given.text)


def _different(ours: str, theirs: str) -> bool:
    """Whether two names cannot mean the same: x and y, P(A) and P(B). A word may stand for any letter."""
    ours, theirs = compact(ours), compact(theirs)
    if ours == theirs:
        return False
    calls = _CALL.fullmatch(ours), _CALL.fullmatch(theirs)
    if calls[0] is not None and calls[1] is not None:
        return calls[0]["head"] != calls[1]["head"] or calls[0]["arguments"] != calls[1]["arguments"]
    return (_VARIABLE.fullmatch(ours) is not None and _VARIABLE.fullmatch(theirs) is not None) or "," in ours + theirs


def _numeric(equation: Equation, algebra: Algebra) -> bool:
    """Whether the sides of a computation are all numbers."""
    return all(_value(side, algebra) is not None for side in equation.sides)


def _consistent(equation: Equation, algebra: Algebra) -> bool:
    """Whether the sides that are numbers are all equal: 41 = 42 is no answer. A rounded side may be off by 1 %."""
    if len(equation.sides) < 2:
        return True
    values = [value for side in equation.sides if (value := _value(side, algebra)) is not None]
    rounded = "." in equation.text or "\\approx" in equation.text
    return all(close(values[0], value, _ROUNDED if rounded else TOLERANCE) for value in values[1:])


def _value(text: str, algebra: Algebra) -> Fraction | None:
    read = number(text)
    if read is not None:
        return read.value
    measured = _measured(text)
    if measured is not None and measured.number is not None:
        return measured.number.value
    return None if "," in text else algebra.value(text)


def _same_items(wanted: Items, given: Items, same: Callable[[str, str], bool]) -> bool:
    """Whether lists hold the same answers as often. A tuple keeps their order, and a set is no tuple."""
    if len(wanted.items) != len(given.items) or {wanted.kind, given.kind} == {"set", "tuple"}:
        return False
    named = [_names(items) for items in (wanted, given)]
    ordered = "tuple" in (wanted.kind, given.kind) or (bool(named[0]) != bool(named[1]))
    if ordered:
        return all(map(same, wanted.items, given.items))
    left = list(given.items)
    for item in wanted.items:
        place = next((i for i, other in enumerate(left) if compact(item) == compact(other)), None)
        if place is None:
            place = next((i for i, other in enumerate(left) if same(item, other)), None)
        if place is None:
            return False
        del left[place]
    return True


def _names(items: Items) -> bool:
    """Whether every item has another name: x = 1, y = 2."""
    sides = [split(item, _EQUALS)[0] for item in items.items]
    names = {compact(side[0]) for side in sides if len(side) > 1}
    return len(names) == len(items.items) > 1


def _order(text: str, sides: list[str], signs: list[str]) -> Order | None:
    turned = [{">": "<", "\\ge": "\\le"}.get(sign, sign) for sign in signs]
    up, down = (any(sign in signs for sign in of) for of in ((("<", "\\le")), ((">", "\\ge"))))
    if up and down:
        return None
    if down:
        sides, turned = sides[::-1], turned[::-1]
    if turned == ["\\ne"] and not _VARIABLE.fullmatch(sides[0]):
        sides = sides[::-1]
    return Order(text, tuple(sides), tuple(turned))


def _french(text: str) -> Region | None:
    """]2,5[ is an open interval."""
    match = re.fullmatch(r"([\](\[])([^\[\]()]+)([\[)\]])", text)
    if match is None or not (match[1] == "]" or match[3] == "["):
        return None
    parts = split(match[2], re.compile("[,;]"))[0]
    if len(parts) != 2:
        return None
    low, high = _end(parts[0], match[1] == "["), _end(parts[1], match[3] == "]")
    return Region(((low, high),))


def _relation_in(text: str) -> Order | None:
    sides, signs = split(text, _RELATION)
    return _order(text, sides, signs) if len(sides) > 1 and all(sides) else None


def _as_region(reading: Reading, algebra: Algebra) -> Region | None:
    match reading:
        case Region():
            return _ordered(reading, algebra)
        case Order():
            return _region_of(reading, algebra)
        case Items(kind="list"):
            return _combined(reading, algebra)
    return None


def _combined(items: Items, algebra: Algebra) -> Region | None:
    """x > 1 and x < 3; x < 1 or x > 3. After a comma it is what both allow, and where that is nothing, either."""
    texts = list(items.items)
    if "\\ne" in texts[0]:  # x \ne 1, 2
        name = split(texts[0], _RELATION)[0][0]
        texts = [text if _RELATION.search(text) or "\\in" in text else f"{name}\\ne {text}" for text in texts]
    known = []
    for text in texts:
        order = _relation_in(text)
        member = _MEMBER.fullmatch(text)
        region = (
            _region_of(order, algebra) if order is not None else _region(member["rest"]) if member is not None else None
        )
        if region is not None:
            known.append(region if order is not None else replace(_ordered(region, algebra), name=member["name"]))  # type: ignore[index]
    if len(known) != len(items.items) or len({region.name for region in known}) != 1:
        return None
    met = known[0].pieces
    for region in known[1:]:
        met = _intersection(met, region.pieces)
    if items.joined == "and" or (items.joined != "or" and met):
        return Region(met, known[0].name)
    return Region(_union(piece for region in known for piece in region.pieces), known[0].name)


def _region(text: str) -> Region | None:
    r"""Intervals, unions of them, \mathbb{R}, and any of these without a finite set."""
    wholes, _ = split(text, _MINUS)
    if len(wholes) > 2:
        return None
    pieces = _pieces(wholes[0])
    if pieces is None:
        return None
    if len(wholes) == 2:
        without = _pieces(wholes[1])
        if without is None:
            return None
        return Region((*pieces, (End("without", None, True), End("without", None, True)), *without))
    return Region(pieces)


def _pieces(text: str) -> tuple[Piece, ...] | None:
    pieces: list[Piece] = []
    parts, unions = split(text, _UNION)
    for part in parts:
        part = part.strip()
        if part in ("\\mathbb{R}", "\\text{R}", "\\text{all real numbers}", "\\text{all reals}"):
            pieces.append((End("-", None, False), End("+", None, False)))
            continue
        ends = (
            split(part[1:-1], re.compile("(?<![{])[,;](?!})"))[0]
            if part[:1] in ("(", "[") and part[-1:] in (")", "]")
            else []
        )
        if len(ends) == 2 and all(ends) and closing(part, 0) == len(part) - 1:
            pieces.append((_end(ends[0], part[0] == "["), _end(ends[1], part[-1] == "]")))
        elif (
            part.startswith("\\{")
            and part.endswith("\\}")
            and (unions or part != text or True)
            and not _SUCH_THAT.search(part)
        ):
            points = [point for point in split(part[2:-2], _COMMA)[0] if point]
            pieces += [(_end(point, True), _end(point, True)) for point in points]
            if not unions and not points:
                return None
        else:
            return None
    if len(parts) == 1 and text.startswith("\\{"):
        return tuple(pieces) if pieces else None
    return tuple(pieces)


def _end(text: str, closed: bool) -> End:
    bare = compact(text)
    if bare in ("\\infty", "+\\infty"):
        return End("+", None, False)
    if bare == "-\\infty":
        return End("-", None, False)
    return End(text, None, closed)


def _region_of(order: Order, algebra: Algebra) -> Region | None:
    """The values of the one variable that an order leaves. None where it is about something else."""
    variables = [i for i, side in enumerate(order.sides) if _VARIABLE.fullmatch(side) or _CALL.fullmatch(side)]
    if len(variables) > 1:  # e < x < 3
        variables = [i for i in variables if order.sides[i] != "e"]
    if len(order.sides) == 3 and 1 in variables:
        variables = [1]
    if len(variables) != 1 or len(order.sides) > 3 or (len(order.sides) == 3 and variables != [1]):
        return None
    place = variables[0]
    name = order.sides[place]
    if order.signs == ("\\ne",):
        points = _both_signs(order.sides[1 - place]) or (order.sides[1 - place],)
        ends = [End(point, value, False) for point in points if (value := _value(point, algebra)) is not None]
        if len(ends) != len(points):
            return None
        pieces: tuple[Piece, ...] = ((End("-", None, False), End("+", None, False)),)
        for end in ends:
            pieces = _intersection(pieces, ((End("-", None, False), end), (end, End("+", None, False))))
        return Region(pieces, name)
    if "\\ne" in order.signs:
        return None
    low, high = End("-", None, False), End("+", None, False)
    if place > 0:
        low = _bound(order.sides[place - 1], order.signs[place - 1] == "\\le", algebra)
    if place < len(order.sides) - 1:
        high = _bound(order.sides[place + 1], order.signs[place] == "\\le", algebra)
    if (low.value is None and not low.infinite) or (high.value is None and not high.infinite):
        return None
    return Region(((low, high),), name)


def _bound(text: str, closed: bool, algebra: Algebra) -> End:
    end = _end(text, closed)
    return end if end.infinite else replace(end, value=_value(text, algebra))


def _ordered(region: Region, algebra: Algebra) -> Region:
    """The region with the values of its ends, in order, and joined where pieces touch. As it is where a value is none."""
    pieces: list[Piece] = []
    without: list[Piece] | None = None
    for piece in region.pieces:
        if piece[0].text == "without":
            without = []
            continue
        valued = tuple(end if end.infinite else replace(end, value=_value(end.text, algebra)) for end in piece)
        if any(end.value is None and not end.infinite for end in valued):
            return region
        (pieces if without is None else without).append((valued[0], valued[1]))
    joined = _union(pieces)
    for low, high in without or ():
        outside = (
            (End("-", None, False), replace(low, closed=not low.closed)),
            (replace(high, closed=not high.closed), End("+", None, False)),
        )
        joined = _intersection(joined, outside)
    return replace(region, pieces=joined)


def _low(end: End) -> tuple[int, Fraction, bool]:
    return (
        (0, Fraction(0), False)
        if end.text == "-"
        else (2, Fraction(0), False)
        if end.text == "+"
        else (1, end.value or Fraction(0), not end.closed)
    )


def _high(end: End) -> tuple[int, Fraction, bool]:
    return (
        (0, Fraction(0), False)
        if end.text == "-"
        else (2, Fraction(0), False)
        if end.text == "+"
        else (1, end.value or Fraction(0), end.closed)
    )


def _union(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    joined: list[Piece] = []
    for low, high in sorted(pieces, key=lambda piece: (_low(piece[0]), _high(piece[1]))):
        if joined and _touches(joined[-1][1], low):
            joined[-1] = (joined[-1][0], max(joined[-1][1], high, key=_high))
        else:
            joined.append((low, high))
    return tuple(joined)


def _touches(high: End, low: End) -> bool:
    """Whether nothing lies between the end of one piece and the beginning of the next."""
    if high.text == "+" or low.text == "-":
        return True
    assert high.value is not None and low.value is not None  # noqa: S101 - both have values, or `_ordered` would not join
    return low.value < high.value or (low.value == high.value and (low.closed or high.closed))


def _intersection(first: Sequence[Piece], second: Sequence[Piece]) -> tuple[Piece, ...]:
    met = []
    for a in first:
        for b in second:
            low, high = max(a[0], b[0], key=_low), min(a[1], b[1], key=_high)
            inside = (
                low.infinite
                or high.infinite
                or low.value < high.value
                or (low.value == high.value and low.closed and high.closed)
            )  # type: ignore[operator]
            if inside and not (low.text == "+" or high.text == "-"):
                met.append((low, high))
    return tuple(met)


def _same_region(wanted: Region, given: Region, same: Callable[[str, str], bool]) -> bool:
    if len(wanted.pieces) != len(given.pieces) or (
        wanted.name and given.name and compact(wanted.name) != compact(given.name)
    ):
        return False
    ends = [
        (ours, theirs)
        for a, b in zip(wanted.pieces, given.pieces, strict=True)
        for ours, theirs in zip(a, b, strict=True)
    ]
    return all(
        ours.closed == theirs.closed
        and ours.infinite == theirs.infinite
        and (ours.text == theirs.text or (not ours.infinite and same(ours.text, theirs.text)))
        for ours, theirs in ends
    )


def _same_ratio(wanted: Ratio, given: Ratio, same: Callable[[str, str], bool]) -> bool:
    if len(wanted.parts) != len(given.parts):
        return False
    numbers = [[read.value for part in ratio.parts if (read := number(part)) is not None] for ratio in (wanted, given)]
    if len(numbers[0]) == len(numbers[1]) == len(wanted.parts):
        return all(a * d == b * c for (a, b), (c, d) in pairwise(zip(*numbers, strict=True)))
    return all(map(same, wanted.parts, given.parts))


def _quotient(ratio: Ratio) -> str:
    return f"\\frac{{{ratio.parts[0]}}}{{{ratio.parts[1]}}}"
