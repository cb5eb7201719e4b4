r"""What an answer is, before anything is computed: an amount, a list, a region of the real line, a ratio, a time, text.

`readings` gives the ways in which a tidy text can be read; (1,2) is a pair and an open interval. `agreement` compares
them. The parts of an answer stay texts, which are read when they are compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from nemo_ada.verify.amounts import AND_OR, COMMA, Amount, measured, said
from nemo_ada.verify.latex import all_of, closing, compact, split
from nemo_ada.verify.numbers import CHOSEN, number
from nemo_ada.verify.regions import LEFT, LINE, RIGHT, End, Piece, Region
from nemo_ada.verify.units import changes_value, clock, date
from nemo_ada.verify.words import NOTHING, REALS, Choice, Text, meaning, read_option, read_words

MAX_DEPTH = 6  # brackets in brackets that are read as lists


@dataclass(frozen=True, slots=True)
class Items:
    """Several answers.

    Attributes:
        kind: "list" (no brackets), "set" or "tuple"; a tuple that is written as a matrix is a "row" or a "column". Only
            tuples have an order.
        items: the answers.
        joined: "or" or "and" where a list has such a word.
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


@dataclass(frozen=True, slots=True)
class Moment:
    """A time of day ("clock") or a date, as numbers."""

    kind: str
    fields: tuple[int, ...]


Reading = Amount | Text | Choice | Items | Equation | Order | Region | Ratio | Moment

_WIDE_COMMA = re.compile(rf";|, |{AND_OR}")
_THOUSANDS = re.compile(r"(?<![\d,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,]\d)")
_EQUALS = re.compile(r"(?<![<>!\\])=+|\\(?:approx|equiv)(?![a-z])")
_IMPLIES = re.compile(r"\\(?:[Rr]ightarrow|[Ll]ongrightarrow|implies|therefore|leadsto)(?![a-zA-Z])|=>|⇒|→")
_RELATION = re.compile(r"\\(?:le|ge|ne)(?![a-zA-Z])|[<>]")
_COLON = re.compile(r":|\\text\{\s*to\s*\}|(?<=\d )to(?= \d)")
_UNION = re.compile(r"\\(?:big)?cup(?![a-z])| U ")
_MINUS = re.compile(r"\\setminus(?![a-z])|(?<=\})\s*-\s*(?=\\\{)")
_BETWEEN = re.compile(r"(?<!\{)[,;](?!\})")
_MEMBER = re.compile(r"\s*(?P<name>[A-Za-z]|\\[a-z]+|\([^()]*\))\s*\\in(?![a-zA-Z])\s*(?P<rest>.+)", re.DOTALL)
_SUCH_THAT = re.compile(r"\\mid(?![a-z])|\||:")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-z])")
_GREEK = r"\\(?:alpha|beta|gamma|theta|phi|lambda|mu|omega|rho|varphi|delta|varepsilon|epsilon)(?![a-z])"
VARIABLE = re.compile(rf"(?:[A-Za-z]|{_GREEK})(?:_(?:\w|\{{\w+\}}))?")
CALL = re.compile(r"(?P<head>[A-Za-z]+)\s*\((?P<arguments>[^()]*)\)")
_REVERSED = re.compile(r"([\](\[])([^\[\]()]*)([\[)\]])")
_COLUMN = re.compile(r"\\begin\{([pb]?matrix)\}(.*)\\end\{\1\}", re.DOTALL)
_ABOUT_WORD = (
    r"(?:[Aa]bout|[Aa]pproximately|[Aa]pprox\.?|[Rr]oughly|[Nn]early|[Aa]round|[Ee]xactly|[Pp]recisely)(?: equal to)?"
)
_ABOUT = rf"(?:\\(?:approx|sim)(?![a-z])|\\text\s*\{{\s*{_ABOUT_WORD}\s*\}}|{_ABOUT_WORD} )\s*"
_ANSWER_IS = (
    r"=|\\therefore(?![a-z])|(?:\\text\s*\{\s*)?both\s*\}?\s+(?=.*\band\b)|(?:\\text\s*\{\s*)?(?:[Tt]herefore|[Tt]hus|[Hh]ence|[Ss]o),?\s*\}?\s*"
    r"|(?:\\text\s*\{\s*)?(?:[Tt]he )?(?:[Ff]inal |[Cc]orrect )?"
    r"(?:[Aa]nswer|[Oo]ption|[Cc]hoice|[Vv]alue|[Rr]esult)(?: is|\s*:)\s*:?\s*\}?\s*"
)
# A label in front of a value: Total cost: 36. A letter with a colon is a choice, and AB:CD a ratio.
_LABELLED = re.compile(
    r"(?:\\text\s*\{\s*)?(?P<label>(?![A-Z]{1,3}\s*:)[^\W\d_][^\W\d_]+(?:[ '-][^\W\d_]+){0,5})\s*\}?\s*:"
    r"\s*\}?\s*(?=[-\d\\.(\[$])"
    r"|(?:答案|答え|答|正解)\s*(?:是|为|為|は|:)?\s*"
)
# A sentence whose verb gives the value: Maria has 14. A verb that is not here may change it (owes, exceeds).
_VERBS = all_of(
    """is are was were equals has have had take takes get gets got earns earned make makes made pay pays paid cost costs
    save saves saved spend spends spent sell sells sold buy buys bought need needs needed give gives use uses contain
    contains hold holds receive receives eat eats ate read reads walk walks run runs drive drives weigh weighs travel
    travels work works took"""
)
_QUANTITY_OF = (
    r"(?:[Aa]|[Tt]he) (?:total|profit|gain|cost|price|value|area|volume|length|distance|speed|average|mean|score) of"
)
_STATED = re.compile(
    r"(?:\\text\s*\{\s*|(?!It (?:is|was) ))"
    rf"(?P<label>[^\W\d_]+(?:[ '-][^\W\d_]+){{0,9}} (?:{'|'.join(sorted(_VERBS))})(?: {_QUANTITY_OF})?|{_QUANTITY_OF})"
    r"\s*\}?\s*(?=[-\d.]|\\(?:\$|frac|sqrt|pi|text)(?![a-z]))"
)
_PREFIX = re.compile(rf"{_ABOUT}|{_ANSWER_IS}|[Ii]t(?: is|'s) (?:an? |the )?(?![\d-])")
_MINUS_WORD = re.compile(
    r"(?:\\text\s*\{\s*)?(?:minus|negative)\s*\}?\s*(?=[\d.]|\\(?:frac|sqrt|pi)(?![a-z]))", re.IGNORECASE
)
_COMMA_DECIMAL = re.compile(r"-?(?:0,\d+|\d+,\d\d?)")
_ALL_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_IN_TEXT = re.compile(r"[\d,;]|\b(?:and|or)\b|^\(")  # what makes more of words than words
_EXCEPT = re.compile(r"(?:\\text\s*\{)?\s*[Aa]ll reals?(?: numbers?)? except(?: for)?(?: x\s*=)?\s*\}?\s*([^}]+)\}?")
_LABEL = re.compile(r"(?:[A-Za-z:'|\s()\[\],{}/°]|\\[a-zA-Z]+|_\{[^{}]*\}|_\w|\([^()]*\)|_\d|\^\{?\*\}?)+")
_NO_LABEL = re.compile(r"\\(?:emptyset|pi|infty|sqrt|cdot|times|sin|cos|tan|log|ln)(?![a-z])")
_LETTER = re.compile("[A-Za-z]")


@lru_cache(maxsize=4096)  # all responses of a prompt share their reference
def readings(text: str, depth: int = 0) -> tuple[Reading, ...]:
    """Return the ways to read a tidy text.

    Args:
        text: the text.
        depth: how many brackets it stands in.
    """
    if depth == 0:
        text = _without_label(text)
    if (whole := number(text)) is not None:
        listed = _listed(text) if _COMMA_DECIMAL.fullmatch(text) else []  # 3,14 is written for both
        return (Amount(text, whole), *listed)
    if depth > MAX_DEPTH:
        return (Amount(text),)
    if text.startswith("{") and closing(text, 0) == len(text) - 1:
        return readings(text[1:-1].strip(), depth + 1)
    if meaning(text) == NOTHING:
        return (Text(NOTHING),)
    if (spoken_one := said(text)) is not None:
        return (spoken_one,)
    inner = _ALL_TEXT.fullmatch(text)
    if inner is not None and _IN_TEXT.search(inner[1]):
        return (*readings(inner[1], depth + 1), Text(meaning(text)))
    option, moment = read_option(text), _moment(text)
    if isinstance(option, Text) or (option is not None and option.meaning):
        return (option,)
    if moment is not None and (moment.kind == "date" or not text[-1].isdigit()):
        return (moment, *filter(None, [measured(text)]))
    amount = measured(text)
    known: list[Reading] = [reading for reading in (moment, option, amount) if reading is not None]
    if amount is not None and ("\\text" in text or not text[-1].isalpha()):
        return tuple(known)
    structure = _structure(text, depth)
    return (*known, *(structure or [read_words(text) or Amount(text)]))


def _without_label(text: str) -> str:
    """Return a text without the words in front of its value: the answer is 5, total cost: 5, about 5, negative 5."""
    if (inner := _ALL_TEXT.fullmatch(text)) is not None:
        value = _without_label(inner[1].strip())
        return text if value == inner[1].strip() else f"\\text{{{value}}}"
    while (prefix := _PREFIX.match(text) or _LABELLED.match(text) or _STATED.match(text)) is not None:
        label = prefix.groupdict().get("label")
        if label is not None and changes_value(label):
            break
        text = text[prefix.end() :]
    return _MINUS_WORD.sub("-", text, count=1) if _MINUS_WORD.match(text) else text


# Times


def _moment(text: str) -> Moment | None:
    if len(text) > 60 or not (text[:1].isalnum() or text.startswith("\\text")):
        return None
    if (day := date(text)) is not None:
        return Moment("date", day)
    return None if (when := clock(text)) is None else Moment("clock", when)


# Lists, equations, orders, regions, ratios


def _structure(text: str, depth: int) -> list[Reading]:
    """Return what brackets and separators make of a text. Nothing where it is one expression or words."""
    if (interval := _reversed(text)) is not None:
        return [interval]
    if (but := _EXCEPT.fullmatch(text)) is not None:
        text = f"\\mathbb{{R}}\\setminus\\{{{but[1]}\\}}"
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
    if _RELATION.search(text) and len(split(text, _RELATION)[0]) > 1:
        return [order(text) or Amount(text)]
    if not text.startswith("\\{") and (both := both_signs(text)) is not None:
        return [Items("list", both)]
    found: list[Reading] = [] if (part := region(text)) is None else [part]
    if CHOSEN.fullmatch(text):  # C(10,3), which is a point, too
        found.append(Amount(text))
    found += _bracketed(text)
    if re.match(r"[A-Z]\(", text):  # a point with its name: A(3,-1)
        found += _bracketed(text[1:])
    parts, _ = split(text, _COLON)
    return found if found or len(parts) < 2 or not all(parts) else [Ratio(tuple(parts))]


def _named(reading: Reading, name: str) -> Reading:
    return replace(reading, name=name.strip()) if isinstance(reading, Region) else reading


def _listed(text: str) -> list[Reading]:
    parts, between = _parts(text)
    joined = next((word for word in ("or", "and") if word in " ".join(between)), "")
    return [Items("list", parts, joined)] if between and len(parts) > 1 else []


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


def _tuple(inner: str, few: int) -> list[Reading]:
    parts = [part for part in split(inner, COMMA)[0] if part]
    return [Items("tuple", tuple(parts))] if len(parts) > few or (len(parts) == 1 and number(parts[0])) else []


def _set(inner: str) -> list[Reading]:
    condition = split(inner, _SUCH_THAT)[0]
    if len(condition) == 2 and all(condition):  # what the condition says
        name = condition[0].partition("\\in")[0].strip()
        if not VARIABLE.fullmatch(name):
            return []
        return [_named(reading, name) for reading in readings(condition[1], MAX_DEPTH - 1)]
    return [Items("set", tuple({compact(part): part for part in _parts(inner)[0]}.values()))]


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
    return bool(_LABEL.fullmatch(text) and _LETTER.search(text) and not _NO_LABEL.search(text))


def names(items: Items) -> bool:
    """Return whether every item has a name of its own: x = 1, y = 2."""
    sides = [split(item, _EQUALS)[0] for item in items.items]
    return len({compact(side[0]) for side in sides if len(side) > 1}) == len(items.items) > 1


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
