r"""The parts of an answer that has several: components of vectors, values with their names, lists that go on.

`\frac15(3,4)` has the components of (3/5, 4/5), `x=3, y=4 \text{ or } x=4, y=3` the pairs (3,4) and (4,3), and
`1, 2, \ldots, 5` five numbers. `pair_by_name` finds which value answers which: `q = x+1, R = -2` answers "quotient x+1,
remainder -2". All texts are tidy (`latex`).
"""

from __future__ import annotations

import re
from itertools import pairwise

from nemo_ada.verify.latex import all_of, closing, compact, is_word, split
from nemo_ada.verify.units import changes_value

MAX_LISTED = 1000  # numbers of a list that goes on
_UNIT_VECTOR = re.compile(r"\\hat\{([ijk])\}")
_TERM = re.compile(r"(?<=[\w)}\]])\s*(?=[+-])")
_COMMA = re.compile(r",|&|\\\\")
_COLUMN = re.compile(r"\\begin\{([pb]?matrix)\}(?P<inner>.*)\\end\{\1\}", re.DOTALL)
_SCALAR = re.compile(
    r"(?P<scalar>[+-]?\s*(?:\d[\d.]*(?:/\d+)?|\\frac\s*\{[^{}]*(?:\{[^{}]*\})?[^{}]*\}\s*\{[^{}]*(?:\{[^{}]*\})?[^{}]*\}"
    r"|\\sqrt\s*\{[^{}]*\}|\\pi|[kstc]|\\(?:lambda|alpha|mu)|\(-?\d+(?:/\d+)?\))*)\s*(?:\\cdot|\*|\\times)?\s*(?P<vector>[(\[\\].*)",
    re.DOTALL,
)
_OVER = re.compile(r"\\frac\s*(?=\{)|(?P<vector>\(.*\))\s*/\s*(?P<scalar>\d+|\\sqrt\s*\{[^{}]*\})")
_EQUALS = re.compile(r"(?<![<>!\\])=")
_LETTERED = re.compile(r"(?P<name>\\?[A-Za-z]+(?:_\{?\w+\}?)?)(?:\([^()]*\))?")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_JOINT = re.compile(r",?\s*\band\b|[,;]")
_OR = re.compile(r"\bor\b")
_INTEGER = re.compile(r"-?\d{1,9}")
_REMAINDER = re.compile(
    r"(?P<quotient>[^,;=:]*[\w)}])\s*,?\s*"
    r"(?:\\text\s*\{\s*,?\s*(?:with |and )?(?:an? |the )?(?:R|r|rem\.?|[Rr]emainder)(?: is| of)?\s*[:=]?\s*\}"
    r"|\s(?:with |and )?(?:an? |the )?(?:R|r|[Rr]emainder)(?: is| of)?\s)\s*=?\s*(?P<remainder>[^,;=\s][^,;=]*)"
)
_BY_IN_TEXT = re.compile(r"\\text\s*\{([^{}]*\bby\b[^{}]*)\}")
_BY = re.compile(r"\s*(?:\\text\s*\{\s*by\s*\}|\bby\b)\s*")
_WORD = re.compile(r"[^\W\d_]+(?:[-'][^\W\d_]+)*")
_NAME_IN_FRONT = re.compile(r"(?P<words>(?:[^\W\d_]+(?:[-'][^\W\d_]+)*\s*)+)\s*[:=]?\s*(?P<value>.*)", re.DOTALL)
_EXTREMES = all_of("minimum maximum min max")
_OF_A_NAME = all_of("the a an is are of value its has with equals equal to for number")


def components(text: str) -> tuple[tuple[str, ...], ...]:
    r"""Return the components that a sum of multiples of vectors may have.

    2\hat{i} - \hat{j} is (2, -1) and (2, -1, 0); \frac15(3,4) is (\frac15\cdot 3, \frac15\cdot 4). Nothing for a single
    tuple and for another text.
    """
    if (vector := _over(text) or _scaled(text)) is not None:
        return vector
    if "\\hat{" in text:
        return _unit_vectors(text)
    terms = split(text, _TERM)[0]
    if len(terms) < 2 or "," not in text + "," * ("matrix}" in text):
        return ()
    found = [_written(term) or next(iter(_scaled(term) or ()), ()) for term in terms]
    if not all(found) or len({len(one) for one in found}) > 1:
        return ()
    return (tuple("+".join(f"({value})" for value in values) for values in zip(*found, strict=True)),)


def _written(text: str) -> tuple[str, ...]:
    """Return the components of a tuple or a column as they are written. None of them for another text."""
    text = text.removeprefix("+").strip()
    if (column := _COLUMN.fullmatch(text)) is not None:
        rows = [row for row in column["inner"].split("\\\\") if row.strip()]
        one_row = len(rows) == 1
        return tuple(cell.strip() for cell in (rows[0].split("&") if one_row else rows) if one_row or "&" not in cell)
    for start, end in (("(", ")"), ("\\langle", "\\rangle"), ("[", "]")):
        if text.startswith(start) and text.endswith(end) and closing(text, 0) == len(text) - len(end):
            found = split(text[len(start) : -len(end)], _COMMA)[0]
            return tuple(found) if len(found) > 1 and all(found) else ()
    return ()


def _scaled(text: str) -> tuple[tuple[str, ...], ...] | None:
    """Return the components of a multiple of a vector. None where there is no number in front of one."""
    match = _SCALAR.fullmatch(text)
    if match is None or not match["scalar"].strip():
        return None
    scalar, vector = match["scalar"].strip(), match["vector"].strip()
    scalar = {"-": "-1", "+": "1"}.get(scalar, scalar.removeprefix("+"))
    inner = [_written(vector)]
    if "\\hat{" in vector and vector.startswith("(") and closing(vector, 0) == len(vector) - 1:
        inner = list(_unit_vectors(vector[1:-1]))
    if not inner or not all(inner):
        return None
    return tuple(tuple(f"({scalar})\\cdot ({value})" for value in one) for one in inner)


def _over(text: str) -> tuple[tuple[str, ...], ...] | None:
    r"""Return the components of \frac{(3,4)}{5} and (3,4)/5. None for another text."""
    match = _OVER.match(text)
    if match is None:
        return None
    if match["vector"] is not None:
        above, below, last = match["vector"], match["scalar"], match.end() - 1
    else:
        middle = closing(text, match.end())
        end = closing(text, middle + 1) if middle is not None and text[middle + 1 : middle + 2] == "{" else None
        if middle is None or end is None:
            return None
        above, below, last = text[match.end() + 1 : middle], text[middle + 2 : end], end
    inner = [_written(above)] if _written(above) else _unit_vectors(above)
    if last != len(text) - 1 or not inner:
        return None
    return tuple(tuple(f"\\frac{{{value}}}{{{below}}}" for value in one) for one in inner)


def rows_in_brackets(inner: str) -> tuple[str, ...]:
    """Return the rows of a matrix that is written as [[1,2],[3,4]]. None of them where it is something else."""
    parts = split(inner, _COMMA)[0]
    if not all(part.startswith("[") and closing(part, 0) == len(part) - 1 for part in parts):
        return ()
    cells = [split(part[1:-1], _COMMA)[0] for part in parts]
    if len({len(row) for row in cells}) > 1:
        return ()
    return tuple("\\begin{matrix}" + " & ".join(row) + "\\end{matrix}" for row in cells)


def _unit_vectors(text: str) -> tuple[tuple[str, ...], ...]:
    r"""Return 2\hat{i} - \hat{j} as (2, -1) and as (2, -1, 0). Nothing where the text is no such sum."""
    *parts, last = split(text, _UNIT_VECTOR)[0]
    found = dict(zip(_UNIT_VECTOR.findall(text), parts, strict=False))
    terms = all(re.match(r"[+-]|$", part) or i == 0 for i, part in enumerate(parts))
    if last or not parts or len(found) < len(parts) or not terms:
        return ()
    values = {}
    for name, part in found.items():
        value = compact(part).removesuffix("\\cdot").removeprefix("+")
        if split(value[1:], re.compile("[+-]"))[1]:
            return ()
        values[name] = {"": "1", "-": "-1"}.get(value, value)
    lengths = (3,) if "k" in values else (2, 3)
    return tuple(tuple(values.get(name, "0") for name in "ijk"[:length]) for length in lengths)


def remainder(text: str) -> tuple[str, str] | None:
    """Return a quotient and a remainder, with their names: 5 R 3. None for another text."""
    match = _REMAINDER.fullmatch(text)
    if match is None:
        return None
    return rf"\text{{quotient}} = {called(match['quotient'])[1]}", rf"\text{{remainder}} = {match['remainder']}"


def sides_by(text: str) -> tuple[str, ...]:
    """Return 8 and 5 of "8 by 5". Nothing for another text."""
    found = _BY.split(_BY_IN_TEXT.sub(r" \1 ", text).strip())
    return tuple(found) if 1 < len(found) < 4 and all(re.match(r"\d", one) for one in found) else ()


def in_cycles(items: tuple[str, ...]) -> tuple[str, ...]:
    """Return x = 3, y = 4, x = 4, y = 3 as (3, 4) and (4, 3). Nothing where the names do not come again and again."""
    sides = [split(item, _EQUALS)[0] for item in items]
    if any(len(side) != 2 or len(side[0]) != 1 for side in sides):
        return ()
    called, values = [side[0] for side in sides], [side[1] for side in sides]
    size = next((i for i in range(1, len(called)) if called[i] == called[0]), len(called))
    names = called[:size]
    if size < 2 or size == len(called) or len(called) % size or called != names * (len(called) // size):
        return ()
    order = sorted(range(size), key=lambda place: names[place])
    return tuple(f"({', '.join(values[start + place] for place in order)})" for start in range(0, len(values), size))


def continued(items: tuple[str, ...]) -> tuple[str, ...]:
    r"""Return a list of integers with what its \ldots leaves out: 5, 6, \ldots, 9. Another list as it is."""
    if items.count("\\ldots") != 1:
        return items
    gap = items.index("\\ldots")
    known = [*items[:gap], *items[gap + 1 :]]
    if gap < 2 or gap != len(items) - 2 or not all(_INTEGER.fullmatch(item) for item in known):
        return items
    numbers = [int(item) for item in known]
    step, last = numbers[1] - numbers[0], numbers[-1]
    if not step or any(b - a != step for a, b in pairwise(numbers[:-1])):
        return items
    rest = range(numbers[0], last + (1 if step > 0 else -1), step)
    whole = rest[-1:] == range(last, last + 1) and len(numbers) <= len(rest) <= MAX_LISTED
    return tuple(map(str, rest)) if whole else items


def called(item: str) -> tuple[str, str]:
    r"""Return the name that a part has, and its value: `\text{radius } 3`, `r = 3`, `the radius is 3`.

    The name is empty where it has none, or where words in front of a value change it.
    """
    sides, signs = split(item, _EQUALS)
    if len(signs) == 1 and all(sides) and (letter := _LETTERED.fullmatch(sides[0])) is not None:
        return letter["name"].lstrip("\\"), sides[1]
    bare = _TEXT.sub(r" \1 ", item).strip()
    match = _NAME_IN_FRONT.match(bare)
    if match is None:
        return "", item
    words, at = [], 0
    for word in _WORD.finditer(match["words"]):
        if not any(map(is_word, re.split("[-']", word[0]))) and word[0].lower() not in _OF_A_NAME | _EXTREMES:
            break
        words.append(word[0].lower())
        at = word.end()
    value = bare[at:].lstrip(" :=,").strip()
    name = [word for word in words if word not in _OF_A_NAME]
    if (
        not name
        or not value
        or (changes_value(" ".join(name)) and not set(name) & {"minimum", "maximum", "min", "max"})
    ):
        return "", item
    return " ".join(name), value


def named_parts(text: str) -> tuple[str, ...]:
    """Return the parts that a text names in words: the amplitude is 3 and the period is 5. Nothing for another text."""
    if "," not in text and "and" not in text:
        return ()
    parts, _ = split(_TEXT.sub(r" \1 ", text), _JOINT)
    named = sum(len(called(part)[0]) > 2 for part in parts)
    return tuple(parts) if named > 1 and all(parts) and not _OR.search(text) else ()


def pair_by_name(ours: tuple[str, ...], theirs: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return which value of the second list answers which of the first, by their names, else by their order.

    Nothing where the lists do not fit, and where no part has a name in words.
    """
    wanted, given = [called(item) for item in ours], [called(item) for item in theirs]
    if len(wanted) != len(given) or not any(len(name) > 2 for name, _ in (*wanted, *given)):
        return []
    left = list(range(len(given)))
    pairs: dict[int, int] = {}
    for place, (name, _) in enumerate(wanted):
        fitting = [other for other in left if _same_name(name, given[other][0])]
        if len(fitting) == 1:
            pairs[place] = fitting[0]
            left.remove(fitting[0])
    for place, (name, _) in enumerate(wanted):
        if place in pairs:
            continue
        other = given[left[0]][0]
        if len(name) > 2 and len(other) > 2:  # a mean is no median
            return []
        pairs[place] = left.pop(0)
    return [(wanted[place][1], given[other][1]) for place, other in pairs.items()]


def _same_name(ours: str, theirs: str) -> bool:
    """Return whether two names may mean the same: maximum and max, radius and r."""
    if not ours or not theirs:
        return False
    if ours == theirs:
        return True
    first, second = ours.lower().split(), theirs.lower().split()
    if len(theirs) == 1 or len(ours) == 1:
        letter, words = (second[0], first) if len(theirs) == 1 else (first[0], second)
        return any(word.startswith(letter) for word in words)
    return any(
        min(len(one), len(other)) > 2 and (one.startswith(other) or other.startswith(one))
        for one in first
        for other in second
    )
