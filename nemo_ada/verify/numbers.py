r"""Numbers as people and models write them, each as an exact fraction.

`1,234`, `1 234`, `0,5`, `4.5e33`, `4.5\times 10^{33}`, `\frac{1}{2}`, `3\frac{1}{2}`, `0.1\overline{6}`, `204_5`. They
are tidy (`latex`). math-verify reads `4.5e33` as 4.5 times Euler's number times 33, and compares decimals by their
first six places behind the point: 1e-19 then equals 2e-19. Here decimals are equal within `TOLERANCE` of their size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

# Relative. math-verify compares six decimal places (its `float_rounding`), and calls 0.333333 and 1/3 equal. These are
# six significant digits, wherever the point stands. The scorer of Qwen2.5-Math takes 1e-4, and lets 1234.5 be 1234.6.
# A little more than 1e-6, because 1/3 and 0.333333 lie exactly there, and a value may be rounded at its 30th digit.
TOLERANCE = Fraction(1_000_001, 10**12)
MAX_EXPONENT = 400  # of a power of ten; larger ones are left to math-verify, whose deadline holds
MAX_LENGTH = 400  # characters of a number

# Groups of three behind a leading digit that is not 0: a leading 0 has no thousands, and its comma is a decimal one.
_DIGITS = (
    r"(?:[1-9]\d{0,2}(?:(?:,\d{3})+|(?:\s?\{,\}\s?\d{3})+|(?: \d{3})+|(?:'\d{3})+|(?:\.\d{3}){2,})"
    r"|[1-9]\d{0,2}(?:\.\d{3})+(?=,\d)|[1-9]\d?(?:,\d\d)+,\d{3}|\d+)"  # 1.234,5 and 12,34,567
)
_DECIMAL = (
    rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+|0,\d+|[1-9]\d*,\d\d?|[1-9]\d{{0,2}}(?:\.\d{{3}})+,\d+|\d+\{{,\}}\d+"
    r"|[1-9]\d{0,2}(?: \d{3})+(?:,|\{,\})\d+)"
)
_TIMES = r"(?:\\times|\\cdot|\*)"
_POWER = r"10\s*\^\s*(?:\{\s*(?P<power>[+-]?\s?\d{1,4})\s*\}|(?P<bare>[+-]?\d{1,4}))"
_SCIENTIFIC = re.compile(
    rf"(?:(?P<number>{_DECIMAL})(?:[eE](?P<e>[+-]?\d{{1,4}})|\s*{_TIMES}\s*{_POWER})?"
    rf"|{_POWER.replace('power', 'alone').replace('bare', 'single')})"
)
_AND_SIGN = r"(?:\s*\\text\{\s*and\s*\}\s*| and )"  # 5 and 2/3
_QUOTIENT = re.compile(
    rf"(?:(?P<whole>\d+){_AND_SIGN}?)?\s*\\frac\s*\{{\s*(?P<a>[+-]?\s*{_DECIMAL})\s*\}}\s*\{{\s*(?P<b>[+-]?\s*{_DECIMAL})\s*\}}"
    rf"|(?:(?P<units>\d+)(?:\s+|{_AND_SIGN}))?(?P<c>{_DECIMAL})\s*(?:/|\\div)\s*(?P<d>-?{_DECIMAL})"
)
_REPEATING = re.compile(
    r"(?P<int>\d*)\.(?P<fix>\d*)(?:\\(?:overline|bar|overbar)\s*\{?(?P<bar>\d+)\}?|\((?P<round>\d+)\)"
    r"|(?:\\dot\s*\{?(?P<first>\d)\}?(?:(?P<between>\d*)\\dot\s*\{?(?P<last>\d)\}?)?)|(?P<run>(?P<same>\d)(?P=same){2,}|(?P<block>\d{2,6}?)(?P=block)+)\s*\\ldots)"
)
_BASED = re.compile(
    r"\(?(?:\\text\s*\{)?(?P<digits>\d[0-9A-Za-z]*)\}?\)?\s*_\s*(?:\{\s*(?P<base>\d{1,2})\s*\}|(?P<bare>\d{1,2})|\{?\s*\\text\s*\{(?P<word>[a-z]+)\}\s*\}?)"
)
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_WORDS = {word: Fraction(i) for i, word in enumerate(_ONES)} | {
    word: Fraction(20 + 10 * i)
    for i, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"])
}
NUMBER_WORDS = tuple(_WORDS)
_BASES = {word: int(value) for word, value in _WORDS.items() if 2 <= value <= 16}
_NAMES_OF_BASES = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
_PREFIX_BASES = {"0x": 16, "0b": 2, "0o": 8}
_PREFIXED = re.compile(r"(?P<prefix>0[xbo])(?P<digits>[0-9a-f]{1,60})", re.IGNORECASE)
_BASE_WORD = r"hex(?:adecimal)?|binary|octal|decimal"
_NAMED_BASE = re.compile(  # 1011 in base 2, 2F (hex), binary 1011
    rf"(?P<digits>\d?[0-9A-Fa-f]{{1,60}})(?!\w),? ?\(?\s*(?:in )?"
    rf"(?:base[ -]?(?P<name>\d\d?|[a-z]+)|(?P<front>{_BASE_WORD}))\s*\)?"
)
_IN_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_SIZES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
PARTS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7,
          "eighth": 8, "ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12, "fifteenth": 15, "sixteenth": 16,
          "twentieth": 20, "hundredth": 100, "thousandth": 1000}  # fmt: skip
_SPOKEN = re.compile(
    rf"(?:(?:{'|'.join((*_WORDS, *_SIZES, 'and', 'a', 'an'))}|(?:{'|'.join(PARTS)})s?)(?![A-Za-z])[\s-]*)+",
    re.IGNORECASE,
)
_END_IN_PART = re.compile(rf"and\s+(?:an?\s+|one\s+|three\s+)?(?:{'|'.join(PARTS)})s?[\s-]*$")
# Chosen from: C(10,3), {}_{10}C_3, ^{10}C_3, 10C3, C_{10}^3. P counts orders.
CHOSEN = re.compile(
    r"(?<![A-Za-z\\_^])(?:(?P<kind>[CP])\s*\(\s*(?P<n>\d{1,4})\s*,\s*(?P<k>\d{1,4})\s*\)"
    r"|(?:\{\})?[_^]\s*\{?(?P<n2>\d{1,4})\}?\s*(?P<kind2>[CP])\s*_\s*\{?(?P<k2>\d{1,4})\}?"
    r"|(?<![\d.])(?P<n3>\d{1,4})(?P<kind3>[CP])(?P<k3>\d{1,4})(?!\w)"
    r"|(?P<kind4>C)_\s*\{?(?P<n4>\d{1,4})\}?\s*\^\s*\{?(?P<k4>\d{1,4})\}?)"
)
_CHINESE = {char: i for i, char in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "兩": 2}
_CHINESE_SIZES = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_CHINESE_NUMBER = re.compile(f"[负負]?[{''.join((*_CHINESE, *_CHINESE_SIZES))}]{{1,20}}")
_E_NOTATION = re.compile(r"(?<![\w.\\^])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,3})(?![\w.])")
_SEPARATORS = re.compile(r"\{,\}|[,\s']")
_SIGNS = re.compile(r"[+\-\s]*")


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value.

    Attributes:
        value: the value.
        kind: how it was written: as an integer, as a quotient of integers, or as a decimal.
    """

    value: Fraction
    kind: str

    def equals(self, other: Number) -> bool:
        """Return whether `other` answers this reference. An integer must be exact, and so must two quotients."""
        if self.kind == "integer" or "decimal" not in (self.kind, other.kind):
            return self.value == other.value
        return close(self.value, other.value)


def close(a: Fraction, b: Fraction, tolerance: Fraction = TOLERANCE) -> bool:
    """Return whether two values differ by no more than `tolerance` of the larger one."""
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def number(text: str) -> Number | None:
    """Return the number that the whole tidy text is, None where it is something else."""
    if len(text) > MAX_LENGTH:
        return None
    signs = _SIGNS.match(text)
    start = signs.end() if signs else 0
    sign, body = (-1) ** text.count("-", 0, start), text[start:].strip()
    if body.startswith("(") and body.endswith(")") and body.count("(") == 1 and "," not in body:
        inner = number(body[1:-1].strip())
        return None if inner is None else Number(sign * inner.value, inner.kind)
    read = None
    if (digits := chinese(body)) is not None:
        return Number(sign * Fraction(digits), "integer")
    if (match := _SCIENTIFIC.fullmatch(body)) is not None:
        read = _scientific(match)
    elif (match := _QUOTIENT.fullmatch(body)) is not None:
        read = _quotient(match)
    elif (match := _REPEATING.fullmatch(body)) is not None:
        read = _repeating(match)
    return read if read is None or sign == 1 else Number(-read.value, read.kind)


_DIGIT_IN_TEXT = re.compile(r"(?<=[\dA-F])\s*\\text\s*\{([A-F])\}\s*(?=[\dA-F)]*\s*_)")  # 2\text{A}7_{16}


def based(text: str) -> int | None:
    """Return the value of an integer with its base, such as 204_5 or 1A_{16}. None where the text is something else."""
    if len(text) > MAX_LENGTH:
        return None
    if (prefixed := _PREFIXED.fullmatch(text)) is not None:
        return _integer(prefixed["digits"], _PREFIX_BASES[prefixed["prefix"].lower()])
    if (named := _NAMED_BASE.fullmatch(" ".join(_IN_TEXT.sub(r" \1 ", text).split()))) is not None:
        name = (named["name"] or named["front"]).lower().removesuffix("adecimal")
        return _integer(
            named["digits"], _NAMES_OF_BASES.get(name) or _BASES.get(name) or (int(name) if name.isdigit() else 0)
        )
    match = _BASED.fullmatch(_DIGIT_IN_TEXT.sub(r"\1", text))
    if match is None:
        return None
    base = (
        (_BASES.get(match["word"]) or _NAMES_OF_BASES.get(match["word"], 0))
        if match["word"]
        else int(match["base"] or match["bare"])
    )
    return _integer(match["digits"], base)


def written_digits(text: str) -> str | None:
    """Return 204 for 204_5. None for another text."""
    match = _BASED.fullmatch(_DIGIT_IN_TEXT.sub(r"\1", text)) if len(text) <= MAX_LENGTH else None
    return None if match is None else match["digits"]


def _integer(digits: str, base: int) -> int | None:
    try:
        return int(digits, base) if base else None
    except ValueError:  # no such base, or no such digit in it
        return None


def spoken(text: str) -> tuple[Number, str] | None:
    """Return the number that words at the start of a text say, and what follows: two and a half, twenty-one people.

    None where the text starts with no such number.
    """
    match = _SPOKEN.match(text)
    if match is None:
        return None
    total, group, said = Fraction(0), Fraction(0), False
    for word in re.findall("[a-z]+", match[0].lower()):
        part = PARTS.get(word) or PARTS.get(word.removesuffix("s"))
        if word in _WORDS:
            if group % (100 if _WORDS[word] >= 10 else 10):  # one two
                return None
            group, said = group + _WORDS[word], True
        elif word in _SIZES:
            size = _SIZES[word]
            group, said = (group or Fraction(1)) * size, True
            total, group = (total + group, Fraction(0)) if size > 100 else (total, group)
        elif part is not None:
            group, said = (group or Fraction(1)) / part, True
        elif word == "and" and _END_IN_PART.search(match[0].lower()):  # two and a half
            total, group = total + group, Fraction(0)
    value = total + group
    return (Number(value, "integer" if value.denominator == 1 else "quotient"), text[match.end() :]) if said else None


def chinese(text: str) -> int | None:
    """Return the integer that Chinese numerals say: 四十二, 一千二百. None where the text is something else."""
    if text.isascii() or not _CHINESE_NUMBER.fullmatch(text):
        return None
    total = group = digit = 0
    for char in text.lstrip("负負"):
        if char in _CHINESE:
            if digit:  # 一二, which are two digits, or two answers
                return None
            digit = _CHINESE[char]
        elif _CHINESE_SIZES[char] < 10**4:
            group, digit = group + (digit or 1) * _CHINESE_SIZES[char], 0
        else:
            total, group, digit = (total + (group + digit or 1)) * _CHINESE_SIZES[char], 0, 0
    return (total + group + digit) * (-1 if text[0] in "负負" else 1)


def with_binomials(text: str) -> str:
    r"""Return the text with its C(10,3), {}_{10}C_3 and 10C3 as \binom{10}{3}, and P(7,2) as a quotient."""

    def write(match: re.Match[str]) -> str:
        kind, n, k = (match[name] for name in match.groupdict() if match[name] is not None)
        if n.isalpha():  # 10C3
            kind, n = n, kind
        if int(k) > int(n):
            return match[0]
        return rf"\binom{{{n}}}{{{k}}}" if kind == "C" else rf"\frac{{{n}!}}{{({n}-{k})!}}"

    return CHOSEN.sub(write, text)


def with_powers(text: str) -> str:
    r"""Return the text with its e-notation written as a power of ten (`4.5\times 10^{33}`), as in LaTeX."""
    return _E_NOTATION.sub(r"\1\\times 10^{\2}", text)


def _scientific(match: re.Match[str]) -> Number | None:
    written = match["number"]
    exponents = [match[name] for name in ("e", "power", "bare", "alone", "single") if match[name]]
    exponent = int(exponents[0].replace(" ", "")) if exponents else 0
    if abs(exponent) > MAX_EXPONENT:
        return None
    value, decimal = _decimal(written) if written else (Fraction(1), False)
    decimal = match["e"] is not None or exponent < 0 or decimal
    value = value * Fraction(10) ** exponent if exponent else value
    return Number(value, "decimal" if decimal else "integer")


def _quotient(match: re.Match[str]) -> Number | None:
    (above, decimal), (below, other) = _decimal(match["a"] or match["c"]), _decimal(match["b"] or match["d"])
    whole = match["whole"] or match["units"]
    if "and" in match[0] and above >= below:  # two answers
        return None
    if below == 0 or (whole and (above < 0 or below < 0)):
        return None
    return Number((int(whole) if whole else 0) + above / below, "decimal" if decimal or other else "quotient")


def _repeating(match: re.Match[str]) -> Number:
    r"""An endless decimal: 0.1\overline{6} is 1/6."""
    fixed, again = match["fix"], match["bar"] or match["round"] or match["run"]
    if match["run"]:
        again = match["block"] or match["same"]
    if match["first"]:
        again = match["first"] + (match["between"] or "") + (match["last"] or "")
    scale = 10 ** len(fixed)
    value = int((match["int"] or "0") + fixed) + Fraction(int(again), 10 ** len(again) - 1)
    return Number(Fraction(value) / scale, "quotient")


def _decimal(written: str) -> tuple[Fraction, bool]:
    """Return the value of digits, and whether they have places behind a point or a decimal comma."""
    spaced, written = " " in written.strip(), written.replace(" ", "")
    if (
        re.fullmatch(r"0,\d+|\d+,\d\d?|[\d.]+\.\d{3},\d+", written)
        or (spaced and "," in written)
        or ("{,}" in written and not re.fullmatch(r"[+-]?[1-9]\d{0,2}(?:\{,\}\d{3})+(?:\.\d*)?", written))
    ):
        written = written.replace(".", "" if "," in written else ".").replace("{,}", ".").replace(",", ".")
    if written.count(".") > 1:
        written = written.replace(".", "")
    plain = _SEPARATORS.sub("", written)
    return Fraction(plain), "." in plain
