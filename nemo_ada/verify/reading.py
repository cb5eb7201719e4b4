r"""What an answer is, before anything is computed: an amount, a list, a region of the real line, a ratio, a time, text.

`readings` gives the ways in which a tidy text can be read; (1,2) is a pair and an open interval. `agreement` compares
them. The parts of an answer stay texts, which are read when they are compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from nemo_ada.verify.amounts import AND_OR, COMMA, Amount, measured, said, sized
from nemo_ada.verify.latex import closing, compact, split
from nemo_ada.verify.moments import Moment, read_moment
from nemo_ada.verify.numbers import CHOSEN, number
from nemo_ada.verify.parts import MAX_LISTED, components, continued, named_parts, remainder, rows_in_brackets, sides_by
from nemo_ada.verify.regions import LEFT, LINE, RIGHT, End, Piece, Region
from nemo_ada.verify.sentences import ALL_TEXT, without_wording
from nemo_ada.verify.words import NOTHING, REALS, Choice, Text, meaning, read_option, read_words

MAX_DEPTH = 6  # brackets in brackets that are read as lists


@dataclass(frozen=True, slots=True)
class Items:
    r"""Several answers.

    Attributes:
        kind: "list" (no brackets), "set", "cases" (the branches of a function) or "tuple"; a tuple that is written as a
            matrix is a "row" or a "column". Only tuples have an order.
        items: the answers.
        joined: "or" or "and" where a list has such a word; the sign where sets are joined by one, as \cup.
    """

    kind: str
    items: tuple[str, ...]
    joined: str = ""


@dataclass(frozen=True, slots=True)
class Equation:
    """A chain: x = 3, AB = 6 - 1 = 5, 40 + 2 = 42, 2x + y = 3.

    Attributes:
        text: the whole.
        name: what has the value, where that is a name.
        sides: the others, in order.
        rounded: how many of the last ones stand behind a sign for "about".
    """

    text: str
    name: str
    sides: tuple[str, ...]
    rounded: int = 0

    @property
    def claim(self) -> str:
        """The one side that the chain arrives at: its last exact one."""
        return self.sides[max(len(self.sides) - self.rounded, 1) - 1]


@dataclass(frozen=True, slots=True)
class Order:
    r"""Sides with <, \le or \ne between them. Those with > are turned round."""

    text: str
    sides: tuple[str, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """2:3, in order."""

    parts: tuple[str, ...]


Reading = Amount | Text | Choice | Items | Equation | Order | Region | Ratio | Moment

_WIDE_COMMA = re.compile(rf";|, |{AND_OR}")
_THOUSANDS = re.compile(r"(?<![\d,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,]\d)")
_EQUALS = re.compile(r"(?:(?<![<>!\\])|(?<=\d!))=+|\\(?:approx|equiv)(?![a-z])")
_IMPLIES = re.compile(r"\\(?:[Rr]ightarrow|[Ll]ongrightarrow|implies|therefore|leadsto)(?![a-zA-Z])|=>|⇒|→")
_RELATION = re.compile(r"\\(?:le|ge|ne)(?![a-zA-Z])|[<>]")
_COLON = re.compile(r":|\\text\{\s*(?:(?:is )?to|out of|in)\s*\}|(?<=\d )(?:(?:is )?to|out of|in)(?= \d)")
_SET_OPERATION = re.compile(r"\\(?:big)?(?:cup|cap)(?![a-z])| U |\\setminus(?![a-z])")
_UNION = re.compile(r"\\(?:big)?cup(?![a-z])| U ")
_MINUS = re.compile(r"\\setminus(?![a-z])|(?<=\})\s*-\s*(?=\\\{)")
_BETWEEN = re.compile(r"(?<!\{)[,;](?!\})")
_MEMBER = re.compile(r"\s*(?P<name>[A-Za-z]|\\[a-z]+|\([^()]*\))\s*\\in(?![a-zA-Z])\s*(?P<rest>.+)", re.DOTALL)
_SUCH_THAT = re.compile(r"\\mid(?![a-z])|\||:")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-z])")
_GREEK = r"\\(?:alpha|beta|gamma|theta|phi|lambda|mu|omega|rho|varphi|delta|varepsilon|epsilon)(?![a-z])"
VARIABLE = re.compile(rf"(?:[A-Za-z]|{_GREEK})(?:_(?:\w|\{{\w+\}}))?")
_POINT = re.compile(r"[A-Z](?:(?=\()|\s+(?=\(.*,))")
CALL = re.compile(r"(?P<head>[A-Za-z]+)\s*\((?P<arguments>[^()]*)\)")
_REVERSED = re.compile(r"([\](\[])([^\[\]()]*)([\[)\]])")
_COLUMN = re.compile(r"\\begin\{([pb]?matrix)\}(.*)\\end\{\1\}", re.DOTALL)
_COMMA_DECIMAL = re.compile(r"-?(?:0,\d+|\d+,\d\d?)")
_IN_TEXT = re.compile(r"[\d,;&]|\b(?:and|or)\b|^\(")  # what makes more of words than words
_EXCEPT = re.compile(
    r"(?:\\text\s*\{)?\s*[Aa]ll(?: reals?)?(?: numbers?| values?(?: of)?)?\s*\}?\s*(?:[a-z]\s)?\s*[a-z]?\s*"
    r"(?:\\text\s*\{)?\s*except(?: for)?\s*\}?\s*(?:[a-z]\s*=)?\s*([^}]+)\}?"
)
_LABEL = re.compile(
    r"(?:[a-z]\^\{-1\}(?=\()|[A-Z]\^(?:\{-1\}|\{?(?:T|t|\\top)\}?)"
    r"|[A-Za-z:'|\s()\[\],{}/°]|\\[a-zA-Z]+|_\{[^{}]*\}|_\w|\([^()]*\)|_\d|\^\{?\*\}?)+"
)
_NO_LABEL = re.compile(r"\\(?:emptyset|pi|infty|sqrt|cdot|times|sin|cos|tan|log|ln)(?![a-z])")
_LETTER = re.compile("[A-Za-z]")
_INDEX = re.compile(r"_(?:\\[a-z]+|\{(?:[^{}]|\{[^{}]*\})*\}|\w)")
_TEXT_OF = re.compile(r"\\text\s*\{([^{}]*)\}")
_AT = re.compile(r"(?P<value>[^=]*[\w})])\s*(?:\\text\s*\{\s*,?\s*at\s*\}|\bat\b)\s*(?P<where>[a-z]\s*=[^=]+)")
_INTEGERS_IN = re.compile(r"(?P<name>[a-z])\s*\\in\s*\\mathbb\s*\{?(?P<which>[ZN])\}?")
_VECTOR = re.compile(
    r"(?<=[\w}\-)])\s*(?:\\cdot\s*)?(?:\(.*,|\\langle|\[.*,|\\begin\{[pb]?matrix)|\)\s*/|^\\frac\s*\{\s*\(.*,"
)


_ANY_INTEGER = re.compile(r"[kmn]\s*\\in\s*(?:\\mathbb\s*\{?Z\}?|Z)")
_PARITY = re.compile(r"(?P<name>[a-z])\s*\\equiv\s*(?P<rest>[01])\s*\\pmod\{2\}")


@lru_cache(maxsize=4096)  # all responses of a prompt share their reference
def readings(text: str, depth: int = 0) -> tuple[Reading, ...]:
    """Return the ways to read a tidy text.

    Args:
        text: the text.
        depth: how many brackets it stands in.
    """
    whole = number(text)
    if depth == 0 and whole is None:
        if named := named_parts(text):
            return (Items("list", named, "and"),)
        text = without_wording(text)
        whole = number(text)
    if whole is not None:
        listed = _listed(text) if _COMMA_DECIMAL.fullmatch(text) else []  # 3,14 is written for both
        return (Amount(text, whole), *listed)
    if depth > MAX_DEPTH:
        return (Amount(text),)
    if text.startswith("{") and closing(text, 0) == len(text) - 1:
        return readings(text[1:-1].strip(), depth + 1)
    if meaning(text) == NOTHING:
        return (Text(NOTHING),)
    if text.startswith("\\pmod"):  # the end of something
        return (Text(compact(text)),)
    if "\\pmod{2}" in text and (parity := _PARITY.fullmatch(text)) is not None:
        said_in_words = Text(f"{parity['name']} is {'odd' if parity['rest'] == '1' else 'even'}")
        return (*_structure(text, depth), said_in_words)
    if text.startswith("\\begin{cases}") and (branches := _branches(text)):
        return (branches, Amount(text))
    if ("\\hat{" in text or _VECTOR.search(text)) and (vectors := components(text)):
        return tuple(Items("tuple", vector) for vector in vectors)
    if (spoken_one := said(text)) is not None:
        return (spoken_one,)
    inner = ALL_TEXT.fullmatch(text)
    if inner is not None and _IN_TEXT.search(inner[1]):
        return (*readings(inner[1], depth + 1), Text(meaning(text)))
    option, moment = read_option(text), read_moment(text)
    if isinstance(option, Text) and (chosen := _chosen(text)):
        return (chosen,)
    if isinstance(option, Text) or (option is not None and option.meaning):
        return (option,)
    if moment is not None and (moment.kind == "date" or not text[-1].isdigit()):
        return (moment, *filter(None, [measured(text)]))
    amount = measured(text)
    big = sized(text)
    known: list[Reading] = [reading for reading in (moment, option, amount, big) if reading is not None]
    if amount is not None and ("\\text" in text or not text[-1].isalpha()):
        return tuple(known)
    structure = _structure(text, depth)
    return (*known, *(structure or [read_words(text) or Amount(text)]))


def _chosen(text: str) -> Items | None:
    """Return the choices that a text names with their contents: (A) 12 and (C) 18. None for another text."""
    parts, between = split(_TEXT_OF.sub(r" \1 ", text), COMMA)
    options = [read_option(part) for part in parts]
    letters = {option.letter for option in options if isinstance(option, Choice)}
    several = len(letters) == len(parts) > 1 and not any("or" in word for word in between)
    return Items("list", tuple(parts), "and") if several else None


# Lists, equations, orders, regions, ratios


def _structure(text: str, depth: int) -> list[Reading]:
    """Return what brackets and separators make of a text. Nothing where it is one expression or words."""
    if (interval := _reversed(text)) is not None:
        return [interval]
    if "except" in text and (but := _EXCEPT.fullmatch(_TEXT_OF.sub(r" \1 ", text).strip())) is not None:
        points = (re.sub(r"^[a-z]\s*=", "", point) for point in _parts(but[1])[0])
        text = f"\\mathbb{{R}}\\setminus\\{{{', '.join(points)}\\}}"
    if ("R" in text or "r" in text) and (divided := remainder(text)) is not None:
        return [Items("list", divided)]
    if "at" in text and (at := _AT.fullmatch(text)) is not None:
        return [Items("list", (at["value"], at["where"]), "at")]
    if "by" in text and (sides_of := sides_by(text)):
        return [Items("tuple", sides_of)]
    member = _MEMBER.fullmatch(text)
    if (listed := _listed(text)) and (member is None or _reversed(member["rest"].strip()) is None):
        return listed
    if member is not None:
        return [_named(reading, member["name"]) for reading in readings(member["rest"].strip(), depth + 1)]
    steps, _ = split(text, _IMPLIES)
    if len(steps) > 1:
        return _derived(steps, depth) or [Text(compact(text))]
    sides, signs = split(text, _EQUALS)
    if len(sides) > 1:
        return [_equation(text, sides, signs)] if all(sides) else [Amount(text)]
    if (combined := _set_operation(text)) is not None:
        return [combined]
    if _RELATION.search(text) and len(split(text, _RELATION)[0]) > 1:
        return [order(text) or Amount(text)]
    if not text.startswith("\\{") and (both := both_signs(text)) is not None:
        return [Items("list", both)]
    found: list[Reading] = [] if (part := region(text)) is None else [part]
    if CHOSEN.fullmatch(text):  # C(10,3), which is a point, too
        found.append(Amount(text))
    found += _bracketed(text)
    if (point := _POINT.match(text)) is not None:  # a point with its name: A(3,-1)
        found += _bracketed(text[point.end() :])
    parts, _ = split(text, _COLON)
    return found if found or len(parts) < 2 or not all(parts) else [Ratio(tuple(parts))]


def _set_operation(text: str) -> Items | None:
    r"""Return \{x: x < 1\} \cup \{x: x > 4\} as a list of its parts. None where `region` reads the text."""
    parts, between = split(text, _SET_OPERATION)
    signs = {re.sub("big", "", sign) if sign != "U" else "\\cup" for sign in between}
    if len(signs) != 1 or not all(parts):
        return None
    (sign,) = signs
    if sign == "\\cap" or any(_SUCH_THAT.search(part) or _RELATION.search(part) for part in parts):
        return Items("list", tuple(parts), sign)
    return None


def _named(reading: Reading, name: str) -> Reading:
    return replace(reading, name=name.strip()) if isinstance(reading, Region) else reading


def _listed(text: str) -> list[Reading]:
    parts, between = _parts(text)
    joined = next((word for word in ("or", "and") if word in " ".join(between)), "")
    if not between or len(parts) < 2:
        return []
    return [Items("list", continued(parts), joined)]


def _parts(text: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the answers of a list, and what stands between them.

    A semicolon or a blank tells commas of numbers apart.
    """
    separator = COMMA
    if _THOUSANDS.search(text) and (";" in text or ", " in text):  # 1,000, 2,000
        separator = _WIDE_COMMA
    parts, between = split(text, separator)
    return tuple(both for part in parts if part for both in (both_signs(part) or (part,))), between


def both_signs(text: str) -> tuple[str, str] | None:
    r"""Return the two texts that one with \pm means: 1 \pm \sqrt2. None without \pm."""
    if not _PLUS_MINUS.search(text):
        return None
    upper = _PLUS_MINUS.sub(lambda match: "+" if match[1] == "pm" else "-", text)
    lower = _PLUS_MINUS.sub(lambda match: "-" if match[1] == "pm" else "+", text)
    return upper.strip().removeprefix("+").strip(), lower.strip().removeprefix("+").strip()


def _bracketed(text: str) -> list[Reading]:
    r"""\{1,2\} is a set; (1,2), [1,2,3] and \langle 1,2\rangle are tuples, and so are a column and a row."""
    for start, end in (("(", ")"), ("[", "]"), ("\\langle", "\\rangle"), ("\\{", "\\}")):
        if text.startswith(start) and text.endswith(end) and closing(text, 0) == len(text) - len(end):
            inner = text[len(start) : -len(end)].strip()
            if start == "[" and (written := rows_in_brackets(inner)):
                return [Items("tuple", written)]
            return _set(inner) if start == "\\{" else _tuple(inner, 2 if start == "[" else 1)  # [1,2] is an interval
    if (matrix := _COLUMN.fullmatch(text)) is None:
        return []
    rows = [[cell.strip() for cell in row.split("&")] for row in matrix[2].split("\\\\") if row.strip()]
    if len(rows) == 1 or all(len(row) == 1 for row in rows):
        kind = "tuple" if len(rows) == len(rows[0]) else "row" if len(rows) == 1 else "column"
        return [Items(kind, tuple(cell for row in rows for cell in row))]
    if any(len(row) != len(rows[0]) for row in rows):
        return []
    return [Items("tuple", tuple("\\begin{matrix}" + " & ".join(row) + "\\end{matrix}" for row in rows))]


def _branches(text: str) -> Items | None:
    """Return the branches of a function as pairs of a value and its condition. None where a row has no condition."""
    if not text.endswith("\\end{cases}"):
        return None
    inner = text.removeprefix("\\begin{cases}").removesuffix("\\end{cases}")
    rows = [[cell.strip(" ,.;") for cell in row.split("&")] for row in inner.split("\\\\") if row.strip()]
    if len(rows) < 2 or any(len(row) != 2 or not all(row) or _BETWEEN.search(row[1]) for row in rows):
        return None
    return Items("cases", tuple(f"({value}, {condition})" for value, condition in rows))


def _tuple(inner: str, few: int) -> list[Reading]:
    parts = [part for part in split(inner, COMMA)[0] if part]
    return [Items("tuple", tuple(parts))] if len(parts) > few or (len(parts) == 1 and number(parts[0])) else []


def _set(inner: str) -> list[Reading]:
    condition = split(inner, _SUCH_THAT)[0]
    if len(condition) == 2 and all(condition):  # what the condition says
        name = condition[0].partition("\\in")[0].strip()
        if (listed := _integers_between(condition)) is not None:
            return [listed]
        if _ANY_INTEGER.fullmatch(condition[1]):  # \{n\pi : n \in Z\}
            return list(readings(condition[0], MAX_DEPTH - 1))
        if not VARIABLE.fullmatch(name):
            return []
        return [_named(reading, name) for reading in readings(condition[1], MAX_DEPTH - 1)]
    return [Items("set", continued(tuple({compact(part): part for part in _parts(inner)[0]}.values())))]


def _integers_between(condition: list[str]) -> Items | None:
    r"""Return the integers of n \in \mathbb{Z}: 1 \le n \le 4 as a set. None where their ends are no integers."""
    which = _INTEGERS_IN.fullmatch(condition[0])
    given = None if which is None else order(condition[1])
    if which is None or given is None or len(given.sides) != 3 or given.sides[1] != which["name"]:
        return None
    ends = [number(side) for side in (given.sides[0], given.sides[2])]
    if any(one is None or one.value.denominator != 1 for one in ends):
        return None
    low, high = (int(one.value) for one in ends if one is not None)
    numbers = range(low + (given.signs[0] == "<"), high + (given.signs[1] == "\\le"))
    return Items("set", tuple(map(str, numbers))) if len(numbers) <= MAX_LISTED else None


def _derived(steps: list[str], depth: int) -> list[Reading]:
    r"""Return the last of the steps of a derivation. Nothing where an earlier one may be an answer of its own."""
    last = readings(steps[-1], depth + 1) if all(steps) else ()
    names = {one.name for one in last if isinstance(one, Equation)}
    for step in steps[:-1]:
        for one in readings(step, depth + 1):
            if not isinstance(one, Equation | Order) or (
                isinstance(one, Equation) and one.name and (one.name in names or not names)
            ):
                return []
    return list(last)


def _equation(text: str, sides: list[str], signs: list[str]) -> Reading:
    names, values = (_inside(side) for side in sides) if len(sides) == 2 else ((), ())
    if len(names) == len(values) > 1 and all(map(_is_label, names)):  # (x,y) = (1,2)
        return Items("list", tuple(f"{name} = {value}" for name, value in zip(names, values, strict=True)))
    rounded = next((len(signs) - i for i, sign in enumerate(signs) if sign.startswith("\\approx")), 0)
    if _is_label(sides[0]):
        values = tuple(",".join(both_signs(side) or (side,)) for side in sides[1:])
        return Equation(text, sides[0], values, rounded if rounded < len(values) else 0)
    if len(sides) == 2 and VARIABLE.fullmatch(sides[1]) and not _LETTER.search(sides[0]):
        return Equation(text, sides[1], (sides[0],))
    return Equation(text, "", tuple(sides), rounded)


def _inside(text: str) -> tuple[str, ...]:
    bracketed = text.startswith("(") and closing(text, 0) == len(text) - 1
    return tuple(split(text[1:-1], COMMA)[0]) if bracketed else ()


def _is_label(text: str) -> bool:
    """Return whether the left side of an equation is a name: x, f(2), AB, Area, a:b.

    Not where it is a sum or a number.
    """
    if text.startswith(("\\int", "\\lim", "\\sum", "\\prod")):  # an integral, which its value follows
        return True
    text = _INDEX.sub("", text)
    return bool(_LABEL.fullmatch(text) and _LETTER.search(text) and not _NO_LABEL.search(text))


def names(items: Items) -> bool:
    """Return whether every item has a name of its own: x = 1, y = 2."""
    sides = [split(item, _EQUALS)[0] for item in items.items]
    return len({compact(side[0]) for side in sides if len(side) > 1}) == len(items.items) > 1


_ROOT_NAME = re.compile(r"(?P<head>z|\\lambda)_\{?\d\}?")


def are_roots(items: Items) -> bool:
    """Return whether the items are numbered eigenvalues or roots, whose order says nothing."""
    found = [_ROOT_NAME.fullmatch(compact(split(item, _EQUALS)[0][0])) for item in items.items]
    return all(found) and len({one["head"] for one in found if one is not None}) == 1 and names(items)


def in_order_of_names(items: Items) -> tuple[str, ...]:
    """Return the items, those with names in the order of these where they follow each other: y = 2, x = 1 is (1, 2)."""
    called = [compact(split(item, _EQUALS)[0][0]) for item in items.items]
    letters = "".join(sorted(called))
    if sorted(called) == ["\\theta", "r"]:  # polar coordinates
        return items.items[called.index("r")], items.items[called.index("\\theta")]
    if not names(items) or len(letters) > len(called) or letters not in "abcdefghijklmnopqrstuvwxyz":
        return items.items
    return tuple(item for _, item in sorted(zip(called, items.items, strict=True)))


def order(text: str) -> Order | None:
    """Return the order that a text with signs is. None where a side is empty, or where signs point both ways."""
    sides, signs = split(text, _RELATION)
    if not all(sides) or len(sides) < 2 or ({"<", "\\le"} & set(signs) and {">", "\\ge"} & set(signs)):
        return None
    if {">", "\\ge"} & set(signs):
        sides, signs = sides[::-1], [{">": "<", "\\ge": "\\le"}.get(sign, sign) for sign in signs[::-1]]
    if signs == ["\\ne"] and not VARIABLE.fullmatch(sides[0]):
        sides = sides[::-1]
    return Order(text, tuple(sides), tuple(signs))


def written_sides(given: Order) -> list[str]:
    """Return the sides of an order as they were written: B > A > C is B, A, C."""
    return split(given.text, _RELATION)[0]


def excluded(items: Items) -> tuple[str, ...]:
    r"""Return the items, with the name of the first where a list goes on without it: x \ne 1, 2."""
    if "\\ne" not in items.items[0]:
        return items.items
    name = split(items.items[0], _RELATION)[0][0]
    return tuple(item if _RELATION.search(item) or "\\in" in item else f"{name}\\ne {item}" for item in items.items)


def member(text: str) -> Region | None:
    r"""Return the region of x \in [1,2). None for another text."""
    match = _MEMBER.fullmatch(text)
    part = None if match is None else region(match["rest"].strip())
    return None if part is None or match is None else replace(part, name=match["name"].strip())


def _reversed(text: str) -> Region | None:
    """]2,5[ is an open interval."""
    pieces, reversed_ones = [], 0
    for part in _UNION.split(text):
        match = _REVERSED.fullmatch(part.strip())
        ends = [] if match is None else split(match[2], _BETWEEN)[0]
        if match is None or len(ends) != 2:
            return None
        reversed_ones += match[1] == "]" or match[3] == "["
        pieces.append((end(ends[0], match[1] == "["), end(ends[1], match[3] == "]")))
    return Region(tuple(pieces)) if reversed_ones else None


def region(text: str) -> Region | None:
    r"""Return the region of intervals, finite sets, unions of them, \mathbb{R}, and these without another one."""
    parts = [_pieces(part) for part in split(text, _MINUS)[0]]
    if len(parts) > 2 or parts[0] is None or parts[-1] is None:
        return None
    return Region(parts[0], parts[1] or () if len(parts) == 2 else ())


def _pieces(text: str) -> tuple[Piece, ...] | None:
    pieces: list[Piece] = []
    for part in split(text, _UNION)[0]:
        brackets, inner = part[:1] + part[-1:], part[1:-1]
        if meaning(part) == REALS:
            pieces.append(LINE)
        elif part.startswith("\\{") and part.endswith("\\}") and not _SUCH_THAT.search(part):
            pieces += [(end(point, True), end(point, True)) for point in split(part[2:-2], COMMA)[0] if point]
        elif brackets in ("()", "[]", "(]", "[)") and closing(part, 0) == len(part) - 1:
            ends = split(inner, _BETWEEN)[0]
            if len(ends) != 2 or not all(ends):
                return None
            pieces.append((end(ends[0], brackets[0] == "["), end(ends[1], brackets[1] == "]")))
        else:
            return None
    return tuple(pieces) or None


def end(text: str, closed: bool) -> End:
    """Return the end of a piece that a text names."""
    bare = compact(text)
    if bare in ("\\infty", "+\\infty"):
        return RIGHT
    return LEFT if bare == "-\\infty" else End(text, None, closed)


def facts(reading: Reading) -> frozenset[tuple[str, str, str]]:
    """Return what an order says, two sides at a time, and what a list of orders says together. Nothing for others."""
    match reading:
        case Order(sides=sides, signs=signs):
            return frozenset(zip(map(compact, sides), signs, map(compact, sides[1:]), strict=False))
        case Items(kind="list", items=items, joined="and" | ""):
            found = [order(item) for item in items]
            return frozenset().union(*(facts(one) for one in found if one)) if all(found) else frozenset()
    return frozenset()
